"""A policy as plain arrays, for whoever builds the network themselves."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np

from spacerl.policies.export.original import Original, Outputs, arrays, outputs
from spacerl.policies.family import PolicyFamily


def make(original: Original) -> bytes:
    """Arrays by the names of policy files, the description of the network as text, and the action's units."""
    spec, info = json.dumps(original.family.spec()), json.dumps(original.info)
    texts = {"description": original.description, "spec": spec, "info": info}
    parameters = original.family.named(original.theta)
    named: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in parameters.items()}
    named |= arrays(original) | {name: np.array(text) for name, text in texts.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **named)
    return buffer.getvalue()


def run(content: bytes, family: PolicyFamily, obs: np.ndarray) -> Outputs:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        named = {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)))
            for name in archive.namelist()
        }
    without_units = family.action._replace(low=(), high=(), scaled=False)
    given = outputs(family, family.from_named(named), without_units, obs)
    if family.action.kind != "box":
        return given
    mean = named["action.centre"] + named["action.half_width"] * given["mean"]
    clipped = np.clip(mean, named["action.low"], named["action.high"])
    return {"mean": mean, "std": np.broadcast_to(named["action.std"], mean.shape), "action": clipped}
