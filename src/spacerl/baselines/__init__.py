"""pi_B, the policy to learn from: shipped ones by name, policy files, run folders, files of other libraries, functions.

A policy of another kind speaks the environment's language: observations as it gives them, actions in its units. Here
they become ours: flat observations, and actions in [-1, 1] where the policy's are scaled to their bounds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.baselines.foreign import FOREIGN_KINDS, Foreign, from_callable, load_foreign
from spacerl.baselines.rules import RULES, RuleFamily, rules_of
from spacerl.config import InputError, unknown_name
from spacerl.core.distributions import Categorical, Distribution, Gaussian, MultiCategorical
from spacerl.policies import PolicyFamily, family_of_spec
from spacerl.runs import POLICY_FORMAT, read_arrays, write_arrays
from spacerl.types import ActionSpace, Array

KINDS = ("cost", "reward", "near")


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
    std: float = 0.3  # given to actions that come without one, in the policy's units
    exploration: float = 0.1  # left to all choices where one is stated

    @property
    def native(self) -> bool:
        return self.family is not None

    def distribution(self, obs: Any, action: ActionSpace) -> Distribution:
        """Distribution on observations (..., O), leaves (..., A)."""
        if self.family is not None:
            return self.family.apply(self.theta, obs)  # type: ignore[arg-type]
        assert self.function is not None
        return call_policy(self, np.asarray(obs), action)

    def spread(self, action: ActionSpace) -> str | None:
        """What was added to a policy that states actions only; None for one that states how sure it is."""
        if self.function is None or not self.info.get("deterministic"):
            return None
        if action.kind == "box":
            units = "of half the action range" if action.scaled else "in the action's units"
            return f"standard deviation {self.std:g} {units} (--baseline-std)"
        return f"probability {self.exploration:g} shared by all choices (--baseline-exploration)"


def shipped(task: str) -> dict[str, Path]:
    """Baselines that come with the package for a task, by kind."""
    folder = Path(str(resources.files("spacerl.baselines") / "shipped"))
    paths = {kind: folder / f"{task}-{kind}.safetensors" for kind in KINDS}
    return {kind: path for kind, path in paths.items() if path.is_file()}


def load_baseline(
    given: Any,
    task: str,
    obs_shape: tuple[int, ...],
    action: ActionSpace,
    *,
    std: float = 0.3,
    exploration: float = 0.1,
    raw: Callable[[np.ndarray], Any] | None = None,
    trust: bool = False,
) -> Baseline | None:
    """What the user gave as pi_B, checked against the task. Reading a file runs no code of its own without `trust`."""
    if given is None:
        return None
    if isinstance(given, Baseline):
        baseline = given
    elif callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        baseline = _foreign(from_callable(given, name, action, tuple(obs_shape), raw))
    elif given in rules_of(task):
        family: Any = RuleFamily(given, task, tuple(obs_shape), action)
        baseline = Baseline(given, family, jnp.zeros(1), info={"rule": RULES[given][task].__name__})
    elif (foreign := load_foreign(str(given), action, tuple(obs_shape), trust, raw)) is not None:
        baseline = _foreign(foreign)
    else:
        baseline = _load_file(_locate(str(given), task), str(given))
    if baseline.function is not None:
        baseline = dataclasses.replace(baseline, obs_rank=len(obs_shape), std=std, exploration=exploration)
    return _checked(baseline, task, obs_shape, action)


def _foreign(policy: Foreign) -> Baseline:
    facts = {"kind": policy.kind, **policy.info, "deterministic": policy.deterministic}
    return Baseline(policy.name, function=policy.function, info=facts)


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
    raise unknown_name(
        "baseline", given, [*available, *rules_of(task), "a policy file", "a run folder", *FOREIGN_KINDS]
    )


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


def save_policy(path: Path, family: PolicyFamily, theta: Array, info: dict[str, Any], normaliser: Any = None) -> None:
    """A policy on raw observations as named arrays and a plain description, with the statistics folded into it."""
    arrays = {name: np.asarray(leaf) for name, leaf in family.named(theta, normaliser).items()}
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
    # Complains about what it returns before anything is trained.
    baseline.distribution(np.zeros((2, *obs_shape), np.float32), action)
    return baseline


def call_policy(baseline: Baseline, obs: np.ndarray, action: ActionSpace) -> Distribution:
    """A policy that is a function, on observations (..., O), as a distribution with leaves (..., A)."""
    lead = obs.shape[: obs.ndim - baseline.obs_rank]
    rows = obs.reshape(-1, *obs.shape[len(lead) :])
    assert baseline.function is not None
    dist = distribution_of(baseline.function(rows), len(rows), action, baseline)
    return jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), dist)


def _states_actions(output: Any, action: ActionSpace) -> bool:
    """Whether a policy's output is actions, rather than (mean, deviation) or probabilities."""
    if action.kind == "box":
        pair = isinstance(output, tuple) and len(output) == 2
        return not pair or output[1] is None
    return np.issubdtype(np.asarray(output).dtype, np.integer)


def distribution_of(output: Any, count: int, action: ActionSpace, baseline: Baseline) -> Distribution:
    """A policy's output for `count` observations, in the environment's units, as a distribution in the policy's.

    Box: (mean, std), or actions alone, which get the stated deviation. Choices: probabilities, or whole numbers.
    """
    name, alone = baseline.name, _states_actions(output, action)
    if action.kind == "box":
        mean = _array(_only(output) if alone else output[0], (count, action.size), name, "means")
        scale, shift = _to_policy_units(action)
        if alone:
            std = np.full((count, action.size), baseline.std, np.float32)
        else:
            std = _array(output[1], (count, action.size), name, "standard deviations") * scale
        if np.any(std <= 0):
            raise InputError(f"baseline '{name}' gave a standard deviation of {std.min()}: it must be above 0")
        return Gaussian(mean * scale + shift, np.log(std))  # type: ignore[arg-type]
    sizes = action.choices or (action.size,)
    if alone:
        chosen = _array(output, (count, len(sizes)) if action.choices else (count,), name, "choices").astype(int)
        chosen = chosen.reshape(count, len(sizes))
        if np.any(chosen < 0) or np.any(chosen >= np.array(sizes)):
            raise InputError(f"baseline '{name}' gave a choice that is not there: {sizes} are the numbers of choices")
        parts = [
            np.eye(size, dtype=np.float32)[chosen[:, i]] * (1 - baseline.exploration) + baseline.exploration / size
            for i, size in enumerate(sizes)
        ]
    else:
        flat = _array(output, (count, action.size), name, "probabilities")
        parts = np.split(flat, np.cumsum(sizes)[:-1], axis=-1)
    for part in parts:
        if np.any(part < 0) or not np.allclose(part.sum(-1), 1.0, atol=1e-3):
            raise InputError(f"baseline '{name}' gave probabilities that are negative or do not sum to 1")
    logits: Any = np.log(np.maximum(np.concatenate(parts, axis=-1), 1e-8))
    return MultiCategorical(logits, action.choices) if action.choices else Categorical(logits)


def _only(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _to_policy_units(action: ActionSpace) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift that take the environment's units to the policy's."""
    if not action.scaled:
        return np.ones(action.size, np.float32), np.zeros(action.size, np.float32)
    low, high = np.array(action.low), np.array(action.high)
    return (2.0 / (high - low)).astype(np.float32), (-(high + low) / (high - low)).astype(np.float32)


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
