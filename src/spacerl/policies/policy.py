"""The kinds of policies, each a `spacerl.types.Policy`: a network of ours, a rule in JAX, a function of anybody's."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from spacerl.core.distributions import Categorical, Distribution, Gaussian, MultiCategorical
from spacerl.policies.family import PolicyFamily
from spacerl.types import ActionSpace, Array, InputError

FAR_OUTSIDE = 1.0  # widths of the action range beyond its bounds
_SAID: set[str] = set()  # baselines whose actions were told to be far outside


@dataclasses.dataclass(frozen=True)
class NetworkPolicy:
    """A network of ours: an architecture (`family`) and its parameters theta (P,)."""

    family: PolicyFamily
    theta: Array
    name: str = "policy"
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    compiles: bool = True

    @property
    def parameters(self) -> Array:
        return self.theta

    @property
    def architecture(self) -> Hashable:
        return self.family

    def apply(self, parameters: Array, obs: Array) -> Distribution:
        return self.family.apply(parameters, obs)

    def __call__(self, obs: Array) -> Distribution:
        return self.family.apply(self.theta, obs)


@dataclasses.dataclass(frozen=True)
class RulePolicy:
    """A hand-written function in JAX, observations (..., O) -> distribution. It has no parameters."""

    function: Callable[[Array], Distribution]
    name: str = "rule"
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    compiles: bool = True
    parameters: tuple[()] = ()

    @property
    def architecture(self) -> Hashable:
        return self.function

    def apply(self, parameters: Any, obs: Array) -> Distribution:
        return self.function(obs)

    def __call__(self, obs: Array) -> Distribution:
        return self.function(obs)


@dataclasses.dataclass(frozen=True)
class FunctionPolicy:
    """A function of a batch of observations in Python, or a file of another library behind one.

    It speaks the environment's units; `std` and `exploration` are given to one that states actions only.
    """

    function: Callable[[np.ndarray], Any]
    action: ActionSpace
    obs_rank: int
    name: str = "function"
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    std: float = 0.3  # given to actions that come without one, in the policy's units
    exploration: float = 0.1  # probability left to all discrete actions where one is stated
    compiles: bool = False
    parameters: tuple[()] = ()

    @property
    def architecture(self) -> Hashable:
        return id(self.function)

    def apply(self, parameters: Any, obs: Any) -> Distribution:
        return self(obs)

    def __call__(self, obs: Any) -> Distribution:
        obs = np.asarray(obs)
        lead = obs.shape[: obs.ndim - self.obs_rank]
        rows = obs.reshape(-1, *obs.shape[len(lead) :])
        dist = self._distribution(self.function(rows), len(rows))
        return jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), dist)

    def stated_spread(self) -> str | None:
        """What was added to a policy that states actions only; None for one that states how sure it is."""
        if not self.info.get("deterministic"):
            return None
        if self.action.kind == "box":
            units = "of half the action range" if self.action.scaled else "in the action's units"
            return f"standard deviation {self.std:g} {units} (--baseline-std)"
        return f"probability {self.exploration:g} shared by all actions (--baseline-exploration)"

    def _distribution(self, output: Any, count: int) -> Distribution:
        """What the function said about `count` observations, in the environment's units, as a distribution in ours."""
        return self._gaussian(output, count) if self.action.kind == "box" else self._categorical(output, count)

    def _gaussian(self, output: Any, count: int) -> Gaussian:
        """(mean, std), or actions alone, which get the stated standard deviation."""
        shape = (count, self.action.size)
        pair = isinstance(output, tuple) and len(output) == 2
        mean = self._array(output[0] if isinstance(output, tuple) else output, shape, "means")
        scale, shift = to_policy_units(self.action)
        if pair and output[1] is not None:
            std = self._array(output[1], shape, "standard deviations") * scale
        else:
            std = np.full(shape, self.std, np.float32)
        if np.any(std <= 0):
            raise InputError(f"baseline '{self.name}' gave a standard deviation of {std.min()}: it must be above 0")
        self._say_if_far_outside(mean)
        return Gaussian(*_as_arrays(mean * scale + shift, np.log(std)))

    def _say_if_far_outside(self, mean: np.ndarray) -> None:
        """Once: actions far beyond the bounds are cut to them, and mostly mean that the units are others."""
        low, high = np.array(self.action.low), np.array(self.action.high)
        if self.name in _SAID or not low.size or not (np.isfinite(low).all() and np.isfinite(high).all()):
            return
        beyond = np.maximum(low - mean, mean - high) / (high - low)
        if beyond.max(initial=0.0) > FAR_OUTSIDE:
            _SAID.add(self.name)
            bounds = " and ".join(f"[{a:g}, {b:g}]" for a, b in sorted(set(zip(low, high, strict=True))))
            print(
                f"baseline '{self.name}' gives actions from {mean.min():g} to {mean.max():g}, far outside of their "
                f"bounds {bounds}: they are clipped there; are they in the environment's units?",
                file=sys.stderr,
            )

    def _categorical(self, output: Any, count: int) -> Categorical | MultiCategorical:
        """Probabilities, or actions as whole numbers."""
        sizes = self.action.nvec or (self.action.size,)
        if np.issubdtype(np.asarray(output).dtype, np.integer):
            parts = self._softened(output, count, sizes)
        else:
            flat = self._array(output, (count, self.action.size), "probabilities")
            parts = np.split(flat, np.cumsum(sizes)[:-1], axis=-1)
        for part in parts:
            if np.any(part < 0) or not np.allclose(part.sum(-1), 1.0, atol=1e-3):
                raise InputError(f"baseline '{self.name}' gave probabilities that are negative or do not sum to 1")
        (logits,) = _as_arrays(np.log(np.maximum(np.concatenate(parts, axis=-1), 1e-8)))
        return MultiCategorical(logits, self.action.nvec) if self.action.nvec else Categorical(logits)

    def _softened(self, output: Any, count: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
        """Probabilities of actions that were stated outright, a part of them left to all actions."""
        chosen = self._array(output, (count, len(sizes)) if self.action.nvec else (count,), "actions").astype(int)
        chosen = chosen.reshape(count, len(sizes))
        if np.any(chosen < 0) or np.any(chosen >= np.array(sizes)):
            raise InputError(f"baseline '{self.name}' gave an action that is not there: there are {sizes} actions")
        return [
            np.eye(size, dtype=np.float32)[chosen[:, i]] * (1 - self.exploration) + self.exploration / size
            for i, size in enumerate(sizes)
        ]

    def _array(self, value: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
        try:
            array = np.broadcast_to(np.asarray(value, np.float32), shape)
        except (TypeError, ValueError) as error:
            given = getattr(value, "shape", type(value).__name__)
            raise InputError(
                f"baseline '{self.name}' gave {what} of shape {given} for {shape[0]} observations: {shape} is expected"
            ) from error
        if not np.all(np.isfinite(array)):
            raise InputError(f"baseline '{self.name}' gave {what} that are not finite")
        return array


def _as_arrays(*arrays: Any) -> tuple[Any, ...]:
    """NumPy arrays where jax's are declared: what does not compile stays on the host."""
    return arrays


def to_policy_units(action: ActionSpace) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift that take the environment's units to the policy's."""
    if not action.scaled:
        return np.ones(action.size, np.float32), np.zeros(action.size, np.float32)
    low, high = np.array(action.low), np.array(action.high)
    return (2.0 / (high - low)).astype(np.float32), (-(high + low) / (high - low)).astype(np.float32)
