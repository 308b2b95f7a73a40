"""pi_B, the policy to learn from: shipped ones by name, policy files, run folders, and any callable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from spacerl.baselines.rules import RULES, RuleFamily
from spacerl.config import InputError, unknown_name
from spacerl.core.distributions import Categorical, Distribution, Gaussian
from spacerl.policies import PolicyFamily, family_of_spec
from spacerl.runs import POLICY_FORMAT, read_arrays, write_arrays
from spacerl.types import ActionSpace, Array

KINDS = ("cost", "reward", "near")
RULE = "rule"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A policy as pi_B. Either a network of ours (family and theta), evaluated inside the compiled program, or a
    function of a batch of observations, evaluated once per batch outside of it."""

    name: str
    family: PolicyFamily | None = None
    theta: Array | None = None
    function: Callable[[np.ndarray], Any] | None = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    obs_rank: int = 1

    @property
    def native(self) -> bool:
        return self.family is not None

    def distribution(self, obs: Any, action: ActionSpace) -> Distribution:
        """Distribution on observations (..., O), leaves (..., A)."""
        if self.family is not None:
            return self.family.apply(self.theta, obs)  # type: ignore[arg-type]
        return call_policy(self.function, np.asarray(obs), self.obs_rank, action, self.name)  # type: ignore[arg-type]


def shipped(task: str) -> dict[str, Path]:
    """Baselines that come with the package for a task, by kind."""
    folder = Path(str(resources.files("spacerl.baselines") / "shipped"))
    paths = {kind: folder / f"{task}-{kind}.safetensors" for kind in KINDS}
    return {kind: path for kind, path in paths.items() if path.is_file()}


def load_baseline(given: Any, task: str, obs_shape: tuple[int, ...], action: ActionSpace) -> Baseline | None:
    """What the user gave as pi_B, checked against the task. Reading a file never runs code."""
    if given is None:
        return None
    if isinstance(given, Baseline):
        baseline = given
    elif callable(given):
        baseline = Baseline(getattr(given, "__name__", type(given).__name__), function=given)
    elif given == RULE and task in RULES:
        family: Any = RuleFamily(task, tuple(obs_shape), action)
        baseline = Baseline(RULE, family, jnp.zeros(1), info={"rule": RULES[task].__name__})
    else:
        baseline = _load_file(_locate(str(given), task), str(given))
    return _checked(baseline, task, obs_shape, action)


def _locate(given: str, task: str) -> Path:
    available = shipped(task)
    if given in available:
        return available[given]
    path = Path(given)
    if path.is_dir():
        if not (path / "policy.safetensors").is_file():
            raise InputError(
                f"baseline '{given}' is a folder without policy.safetensors: give a run folder or a policy file"
            )
        return path / "policy.safetensors"
    if path.is_file():
        return path
    rule = [RULE] if task in RULES else []
    raise unknown_name("baseline", given, [*available, *rule, "a policy file", "a run folder"])


def _load_file(path: Path, name: str) -> Baseline:
    arrays, metadata = read_arrays(path, POLICY_FORMAT, "policy file")
    try:
        family = family_of_spec(json.loads(metadata["spec"]))
        theta = family.from_named(arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"policy file '{path}' is incomplete: {error!r}") from error
    if theta.shape != (family.parameters,):  # type: ignore[attr-defined]
        raise InputError(f"policy file '{path}' is inconsistent: its arrays do not have the shapes it declares")
    return Baseline(name, family, theta, info=json.loads(metadata.get("info", "{}")))


def save_policy(path: Path, family: PolicyFamily, theta: Array, info: dict[str, Any]) -> None:
    """A policy as named arrays and a plain description."""
    arrays = {name: np.asarray(leaf) for name, leaf in family.named(theta).items()}
    write_arrays(path, arrays, {"format": POLICY_FORMAT, "spec": json.dumps(family.spec()), "info": json.dumps(info)})


def _checked(baseline: Baseline, task: str, obs_shape: tuple[int, ...], action: ActionSpace) -> Baseline:
    if baseline.family is not None:
        has = (baseline.family.obs_shape, baseline.family.action.kind, baseline.family.action.size)
        if has != (tuple(obs_shape), action.kind, action.size):
            raise InputError(
                f"baseline '{baseline.name}' takes observations of shape {has[0]} and gives {has[2]} {has[1]} actions, "
                f"task '{task}' has observations of shape {tuple(obs_shape)} and {action.size} {action.kind} actions"
            )
        return baseline
    baseline = dataclasses.replace(baseline, obs_rank=len(obs_shape))
    baseline.distribution(
        np.zeros((2, *obs_shape), np.float32), action
    )  # complains about what it returns, before training
    return baseline


def call_policy(function: Callable, obs: np.ndarray, rank: int, action: ActionSpace, name: str) -> Distribution:
    """A user's function on observations (..., O), as a distribution: it returns (mean, std), or probabilities."""
    lead = obs.shape[: obs.ndim - rank]
    output = function(obs.reshape(-1, *obs.shape[len(lead) :]))
    count, wanted = int(np.prod(lead, dtype=int)), action.size
    if action.kind == "discrete":
        probabilities = _array(output, (count, wanted), name, "probabilities")
        if np.any(probabilities < 0) or not np.allclose(probabilities.sum(-1), 1.0, atol=1e-3):
            raise InputError(f"baseline '{name}' gave probabilities that are negative or do not sum to 1")
        return Categorical(np.log(np.maximum(probabilities, 1e-8)).reshape(*lead, wanted))  # type: ignore[arg-type]
    if not (isinstance(output, tuple | list) and len(output) == 2):
        raise InputError(
            f"baseline '{name}' returned {type(output).__name__}: a pair (mean, standard deviation) is expected"
        )
    mean = _array(output[0], (count, wanted), name, "means")
    std = _array(output[1], (count, wanted), name, "standard deviations")
    if np.any(std <= 0):
        raise InputError(f"baseline '{name}' gave a standard deviation of {std.min()}: it must be above 0")
    return Gaussian(mean.reshape(*lead, wanted), np.log(std).reshape(*lead, wanted))  # type: ignore[arg-type]


def _array(value: Any, shape: tuple[int, ...], name: str, what: str) -> np.ndarray:
    try:
        array = np.broadcast_to(np.asarray(value, np.float32), shape)
    except (TypeError, ValueError) as error:
        given = getattr(value, "shape", type(value).__name__)
        raise InputError(
            f"baseline '{name}' gave {what} of shape {given} for {shape[0]} observations: {shape} is expected"
        ) from error
    if not np.all(np.isfinite(array)):
        raise InputError(f"baseline '{name}' gave {what} that are not finite")
    return array
