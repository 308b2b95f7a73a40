"""Rule-based baselines of the traffic tasks as a traffic engineer would begin. Pure JAX, so they compile.

They read the observations of the tasks' own networks, and act in [-1, 1].
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.core.distributions import Gaussian
from spacerl.envs.steering import gaussian
from spacerl.types import Array

STD = 0.3  # close enough to be seen as a plan, wide enough to be learned from
LIGHTS, APPROACHES, NEAREST = 4, 4, 2
SLOTS = LIGHTS * APPROACHES * NEAREST
SEEN = 35  # lane-segments of the bottleneck
EDGE_4 = slice(28, 34)
SPEED_LIMIT = 23.0  # m/s


def fixed_time_lights(obs: Array) -> Gaussian:
    """Every light asks for a switch in every second: one second of green, then yellow. Safe.

    The paper's observation has no clock while a light is green, so no longer green of fixed length can be a function of
    it: this is the fixed-time plan with the shortest cycle.
    """
    return gaussian(jnp.ones((*obs.shape[:-1], LIGHTS), obs.dtype), STD)


def actuated_lights(obs: Array) -> Gaussian:
    """Switch where a vehicle comes near on the red road and none on the green one; without a longest green, as there is
    no clock. It earns more than the fixed-time plan where traffic comes in platoons, and leaves lights red for long."""
    coming, waiting = 60.0 / 300.0, 100.0 / 300.0  # m, of the length of an approach
    shape = (*obs.shape[:-1], LIGHTS, APPROACHES, NEAREST)
    distance = obs[..., SLOTS : 2 * SLOTS].reshape(shape)
    there = obs[..., 2 * SLOTS : 3 * SLOTS].reshape(shape) > 0.0
    near = jnp.any(there & (distance < coming), axis=-1)
    seen = jnp.any(there & (distance < waiting), axis=-1)
    north_south = obs[..., -2 * LIGHTS : -LIGHTS] < 0.5  # which road has green
    green = jnp.where(north_south, near[..., 1] | near[..., 3], near[..., 0] | near[..., 2])
    red = jnp.where(north_south, seen[..., 0] | seen[..., 2], seen[..., 1] | seen[..., 3])
    return gaussian(jnp.where(red & ~green, 1.0, -1.0).astype(obs.dtype), STD)


def constant_speed(obs: Array) -> Gaussian:
    """Leave every speed limit as it is: autonomous vehicles drive like everybody else."""
    return gaussian(jnp.zeros((*obs.shape[:-1], 20), obs.dtype), STD)


def feedback_speed(obs: Array) -> Gaussian:
    """Proportional control of how many vehicles are between the two merges, as ramp meters do it: above ten, speed
    limits before the first merge fall, below they rise; after it everybody drives as fast as the road allows."""
    wanted, gain, slowest = 10.0, 0.3, -0.6
    counts = 20.0 * (obs[..., :SEEN] + obs[..., SEEN : 2 * SEEN])
    change = jnp.clip(gain * (wanted - counts[..., EDGE_4].sum(-1, keepdims=True)), slowest, 1.0)
    before, after = jnp.repeat(change, 16, axis=-1), jnp.ones((*obs.shape[:-1], 4), obs.dtype)
    return gaussian(jnp.concatenate([before, after], axis=-1), STD)


class _Section(NamedTuple):
    """A road between two of the bottleneck's nodes: its lane-segments in what is observed and in an action. The three
    segments that are seen of a lane overlap the two that are controlled: the middle one belongs to both."""

    seen: int
    lanes: int


BEFORE_THE_MERGE = (_Section(4, 4), _Section(16, 4))


def metered_speed(obs: Array) -> Gaussian:
    """Hold vehicles back before the first merge as soon as they crowd between the two: the capacity of the single lane
    is then not lost to a queue.

    Autonomous vehicles are to drive as fast as the road allows while at most six vehicles are between the merges, and
    4 m/s slower for each one above, but so fast that nobody behind them is slow. Their speed limits rise and fall with
    what is missing to it; where none of them is, and after the merge, limits stay.
    """
    most, slope, slowest = 6.0, 4.0, 6.5  # vehicles; m/s for each one more; m/s, a human driver is slow below 5
    counts = 20.0 * (obs[..., :SEEN] + obs[..., SEEN : 2 * SEEN])
    crowd = counts[..., EDGE_4].sum(-1, keepdims=True)
    wanted = jnp.clip(SPEED_LIMIT - slope * jnp.maximum(crowd - most, 0.0), slowest, SPEED_LIMIT)
    parts = [_changes(obs, section, wanted) for section in BEFORE_THE_MERGE]
    return gaussian(jnp.concatenate([*parts, jnp.zeros((*obs.shape[:-1], 4), obs.dtype)], axis=-1), STD)


def _changes(obs: Array, section: _Section, wanted: Array, gain: float = 0.3) -> Array:
    """(..., 8) of both halves of every lane of a section, from the mean speed of its autonomous vehicles."""
    shape = (*obs.shape[:-1], 3, section.lanes)
    first = SEEN + section.seen
    count = 20.0 * obs[..., first : first + 3 * section.lanes].reshape(shape)
    first += 2 * SEEN
    total = count * 50.0 * obs[..., first : first + 3 * section.lanes].reshape(shape)
    there = jnp.stack([count[..., :2, :].sum(-2), count[..., 1:, :].sum(-2)], axis=-2)
    speed = jnp.stack([total[..., :2, :].sum(-2), total[..., 1:, :].sum(-2)], axis=-2) / jnp.maximum(there, 1.0)
    change = jnp.clip(gain * (wanted[..., None] - speed), -1.0, 1.0)
    return jnp.where(there > 0.5, change, 0.0).reshape(*obs.shape[:-1], 2 * section.lanes)
