"""Policy files: a network as named arrays and a plain description. Reading one runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.policies.family import PolicyFamily, family_of_spec
from spacerl.policies.policy import NetworkPolicy
from spacerl.runs.folder import POLICY_FORMAT, read_arrays, write_arrays
from spacerl.types import Array, InputError


def save_policy(path: Path, family: PolicyFamily, theta: Array, info: dict[str, Any], normaliser: Any = None) -> None:
    """A policy on raw observations as named arrays and a plain description, with the statistics folded into it."""
    arrays = {name: np.asarray(leaf) for name, leaf in family.named(theta, normaliser).items()}
    write_arrays(path, arrays, {"format": POLICY_FORMAT, "spec": json.dumps(family.spec()), "info": json.dumps(info)})


def read_policy(path: Path, name: str) -> NetworkPolicy:
    arrays, metadata = read_arrays(path, POLICY_FORMAT, "policy file")
    try:
        family = family_of_spec(json.loads(metadata["spec"]))
        theta = family.from_named(arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"policy file '{path}' is incomplete: {error!r}") from error
    if theta.shape != (family.parameters,):
        raise InputError(f"policy file '{path}' is inconsistent: its arrays do not have the shapes it declares")
    return NetworkPolicy(family, theta, name, json.loads(metadata.get("info", "{}")))
