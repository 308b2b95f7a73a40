"""What a user gives as a policy, as one: a shipped kind, a rule, a policy file, a run folder, another library's file, a
function.

A policy of another kind speaks the environment's language: observations as it gives them, actions in its units. Here
they become ours: flat observations, and actions in [-1, 1] where the policy's are scaled to their bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.envs.tasks import TASKS
from spacerl.policies.files import read_policy
from spacerl.policies.foreign import FOREIGN_KINDS, Foreign, from_callable, load_foreign
from spacerl.policies.policy import FunctionPolicy, NetworkPolicy, RulePolicy
from spacerl.runs.folder import RunFolder
from spacerl.types import EnvSpec, InputError, Policy, unknown_name

WHICH = ("last", "best")  # policies that a run keeps
POLICIES = NetworkPolicy | RulePolicy | FunctionPolicy


@dataclasses.dataclass(frozen=True)
class Loading:
    """How policies that need it are loaded."""

    std: float = 0.3  # standard deviation of one that states actions only
    exploration: float = 0.1  # likewise, of discrete actions
    as_given: Callable[[np.ndarray], Any] | None = None  # our observations as the environment gives them
    trust: bool = False  # files that can run code when they are loaded


def load_policy(given: Any, task: str, spec: EnvSpec, how: Loading | None = None) -> Policy:
    """What the user gave, checked against the environment. Reading a file runs no code of its own without `trust`."""
    how = how or Loading()
    if isinstance(given, POLICIES):
        policy: Policy = given
    elif callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        policy = _function(from_callable(given, name, spec.action, spec.obs_shape, how.as_given), spec, how)
    elif given in rules_of(task):
        function = TASKS[task].rule(given)
        return RulePolicy(function, given, {"rule": function.__name__})
    elif foreign := load_foreign(str(given), spec.action, spec.obs_shape, how.trust, how.as_given):
        policy = _function(foreign, spec, how)
    else:
        policy = read_policy(locate(str(given), task), str(given))
    return _checked(policy, task, spec)


def _function(policy: Foreign, spec: EnvSpec, how: Loading) -> FunctionPolicy:
    facts = {"kind": policy.kind, **policy.info, "deterministic": policy.deterministic}
    return FunctionPolicy(
        policy.function, spec.action, len(spec.obs_shape), policy.name, facts, how.std, how.exploration
    )


def rules_of(task: str) -> list[str]:
    return list(TASKS[task].rules) if task in TASKS else []


def locate(given: str, task: str, which: str = "last") -> Path:
    """The policy file that a shipped kind, a run folder or a path names; of a run the last policy or the best one."""
    if which not in WHICH:
        raise unknown_name("policy of a run", which, WHICH)
    available = TASKS[task].shipped() if task in TASKS else {}
    if given in available:
        return available[given]
    path = Path(given)
    if path.is_dir():
        if not (path / "policy.safetensors").is_file():
            raise InputError(
                f"baseline '{given}' is a folder without policy.safetensors: give a run folder or a policy file"
            )
        if which == "best" and not RunFolder(path).best_path.is_file():
            raise InputError(
                f"run '{given}' has no best policy: one is kept from its first evaluation on (--evaluate-every)"
            )
        return RunFolder(path).best_path if which == "best" else path / "policy.safetensors"
    if path.is_file() and path.suffix == ".py":
        raise InputError(f"baseline '{given}' is a file of Python: name the function in it, as in {given}:policy")
    if path.is_file():
        return path
    raise unknown_name(
        "baseline", given, [*available, *rules_of(task), "a policy file", "a run folder", *FOREIGN_KINDS]
    )


def _checked(policy: Policy, task: str, spec: EnvSpec) -> Policy:
    if isinstance(policy, NetworkPolicy):
        has, wanted = policy.family, spec.action
        if (has.obs_shape, has.action.kind, has.action.size) != (spec.obs_shape, wanted.kind, wanted.size):
            raise InputError(
                f"baseline '{policy.name}' takes observations of shape {has.obs_shape} and gives {has.action.size} "
                f"{has.action.kind} actions, task '{task}' has observations of shape {spec.obs_shape} and "
                f"{wanted.size} {wanted.kind} actions"
            )
    elif not policy.compiles:
        policy(np.zeros((2, *spec.obs_shape), np.float32))  # complains about what it returns before anything is trained
    return policy
