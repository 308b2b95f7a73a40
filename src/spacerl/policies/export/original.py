"""The policy that is exported: what a file about it must hold, and the numbers it must give."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.policies.family import MIN_STD, PolicyFamily
from spacerl.types import ActionSpace, Array

Outputs = dict[str, np.ndarray]  # box: mean, std, action; otherwise probabilities


class ObservationPart(NamedTuple):
    """One part of what an environment observes, in the order of a flat observation."""

    path: tuple[Any, ...]  # keys of a Dict and places in a Tuple that lead to it
    kind: str  # numbers, channels-first (an image) or one-hot (discrete values)
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()  # one-hot: how many values each has, and the least of them
    starts: tuple[int, ...] = ()


class ActionPart(NamedTuple):
    """One part of what an environment takes, in the order of a policy's numbers."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str
    starts: tuple[int, ...] = ()  # of discrete values: the least of each


@dataclasses.dataclass(frozen=True, eq=False)
class Original:
    family: PolicyFamily
    theta: Array  # of raw observations: folded
    action: ActionSpace  # the task's, which has the bounds
    info: dict[str, Any]
    description: str  # what a reader of the file must know
    observation_parts: tuple[ObservationPart, ...] = ()
    action_parts: tuple[ActionPart, ...] = ()


def outputs(family: PolicyFamily, theta: Array, action: ActionSpace, obs: np.ndarray) -> Outputs:
    """What the policy makes of observations (B, ...), in the environment's units."""
    with jax.default_matmul_precision("highest"):
        dist: Any = jax.device_get(jax.jit(family.apply)(theta, jnp.asarray(obs)))
    if action.kind == "box":
        centre, half = action_units(action)
        mean = centre + half * dist.mean
        return {"mean": mean, "std": half * np.exp(dist.log_std), "action": np.clip(mean, *action_bounds(action))}
    parts = dist.lists() if action.kind == "multidiscrete" else [dist]
    return {"probabilities": np.concatenate([jax.nn.softmax(one.logits) for one in parts], axis=-1)}


def arrays(original: Original) -> dict[str, np.ndarray]:
    """Parameters by name; instead of log_std what turns the network's outputs into the environment's units."""
    named = {name: np.asarray(leaf, np.float32) for name, leaf in original.family.named(original.theta).items()}
    if original.action.kind == "box":
        centre, half = action_units(original.action)
        named["action.std"] = half * np.maximum(np.exp(named.pop("log_std")), MIN_STD)
        low, high = action_bounds(original.action)
        named |= {"action.centre": centre, "action.half_width": half, "action.low": low, "action.high": high}
    return named


def action_units(action: ActionSpace) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half width of the range that [-1, 1] stands for, (A,); 0 and 1 for policies in physical units."""
    if not action.scaled:
        return np.zeros(action.size, np.float32), np.ones(action.size, np.float32)
    low, high = np.array(action.low), np.array(action.high)
    return (0.5 * (high + low)).astype(np.float32), (0.5 * (high - low)).astype(np.float32)


def action_bounds(action: ActionSpace) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the actions (A,), the largest numbers where none are known."""
    limit = float(np.finfo(np.float32).max)
    ends = (action.low or (-limit,) * action.size, action.high or (limit,) * action.size)
    low, high = (np.clip(np.array(end, np.float64), -limit, limit).astype(np.float32) for end in ends)
    return low, high


def spans_of_numbers(family: PolicyFamily) -> list[tuple[int, int]]:
    """Where a flat observation has entries that belong to no image: (start, end) of each run of them."""
    images = sorted(family.images)
    starts = [0, *(offset + math.prod(shape) for offset, shape, _ in images)]
    ends = [*(offset for offset, _, _ in images), math.prod(family.obs_shape)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end > start]
