"""Policy files: a network as named arrays and a plain description. Reading one runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.policies.family import PolicyFamily, family_of_spec
from spacerl.policies.policy import NetworkPolicy
from spacerl.runs.arrays import read_arrays
from spacerl.runs.folder import POLICY_FORMAT, write_arrays
from spacerl.types import Array, InputError


def save_policy(
    path: Path, family: PolicyFamily, theta: Array, info: dict[str, Any], normaliser: Any = None, spaces: str = ""
) -> None:
    """A policy on raw observations as named arrays and a plain description, with the statistics folded into it.

    `spaces` is what its environment observes and takes, so that the policy can act without it.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in family.named(theta, normaliser).items()}
    described = {"spec": json.dumps(family.spec()), "info": json.dumps(info)} | ({"spaces": spaces} if spaces else {})
    write_arrays(path, arrays, {"format": POLICY_FORMAT, **described})


def read_policy(path: Path, name: str) -> NetworkPolicy:
    return read_policy_and_spaces(path, name)[0]


def read_policy_and_spaces(path: Path, name: str) -> tuple[NetworkPolicy, str]:
    """The policy of a file, and the spaces of its environment; "" in a file of an earlier version."""
    arrays, metadata = read_arrays(path, POLICY_FORMAT, "policy file")
    for key, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
            raise InputError(f"policy file '{path}' has a number in '{key}' that is not finite: no policy acts on it")
    try:
        spec, info = (json.loads(metadata.get(part, "{}")) for part in ("spec", "info"))
        _require_layers(spec, arrays)
        family = family_of_spec(spec)
        theta = family.from_named(arrays)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, IndexError) as error:
        raise InputError(f"policy file '{path}' is incomplete: {error!r}") from error
    if theta.shape != (family.parameters,):
        raise InputError(f"policy file '{path}' is inconsistent: its arrays do not have the shapes it declares")
    return NetworkPolicy(family, theta, name, info if isinstance(info, dict) else {}), metadata.get("spaces", "")


def _require_layers(spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """As many layers as there are arrays for: what a file describes is built after this, and costs time."""
    layers = len(spec["hidden"]) + 1
    there = sum(name.startswith("layers.") and name.endswith(".weight") for name in arrays)
    if layers != there:
        raise ValueError(f"it describes {layers} layers and has {there}")
    sizes = [*spec["obs_shape"], *spec["hidden"], spec["action_size"]]
    if not all(isinstance(size, int) and 0 < size < 2**31 for size in sizes):
        raise ValueError("sizes of layers are whole numbers above 0")
