"""Rule-based baselines for the point and ant tasks: a few lines of control, no learning. Pure JAX, so they compile.

Each is a function of observations (..., O) that returns a Gaussian, like a policy network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp

from spacerl.baselines.ant_gait import careful_circle_gait, careful_gather_gait, circle_gait, gather_gait
from spacerl.baselines.steering import turn_to_apple, turn_to_circle
from spacerl.core.distributions import Gaussian
from spacerl.types import ActionSpace, Array

STD = 0.3  # of a rule's actions: close enough to be seen as a plan, wide enough to be learned from
GAIT_STD = 0.1  # of the ant's: at 0.3 a third of the ants fall


def circle_follower(obs: Array) -> Gaussian:
    """Run counter-clockwise at full speed and steer onto the circle. It ignores the walls: an unsafe baseline."""
    radius, full_speed, sharpest_turn = 5.0, 1.0, 0.25
    turn = turn_to_circle(obs[..., 0], obs[..., 1], obs[..., 2], radius)
    turn = jnp.clip(turn, -sharpest_turn, sharpest_turn)
    return _with_std(jnp.stack([jnp.full_like(turn, full_speed), turn], axis=-1))


def nearest_apple(obs: Array) -> Gaussian:
    """Turn to the sector with the nearest apple unless a bomb is nearer, and walk; look around where none is seen."""
    turn = turn_to_apple(obs[..., 9:19], obs[..., 19:29], otherwise=0.6)
    return _with_std(jnp.stack([jnp.full_like(turn, 1.0), turn], axis=-1))


def _with_std(mean: Array, std: float = STD) -> Gaussian:
    return Gaussian(mean, jnp.full_like(mean, math.log(std)))


def ant_circle_gait(obs: Array) -> Gaussian:
    """A trot around the circle. It ignores the walls: an unsafe baseline."""
    return _with_std(circle_gait(obs), GAIT_STD)


def ant_gather_gait(obs: Array) -> Gaussian:
    """A trot to the nearest apple that no bomb is in the way of."""
    return _with_std(gather_gait(obs), GAIT_STD)


def ant_circle_loop(obs: Array) -> Gaussian:
    """A trot in small loops at the one place of the circle that lies between the walls: nearly safe."""
    return _with_std(careful_circle_gait(obs), GAIT_STD)


def ant_gather_detour(obs: Array) -> Gaussian:
    """A slower trot to apples that no bomb is near: safe."""
    return _with_std(careful_gather_gait(obs), GAIT_STD)


RULES: dict[str, dict[str, Callable[[Array], Gaussian]]] = {
    "rule": {
        "point-circle": circle_follower,
        "point-gather": nearest_apple,
        "ant-circle": ant_circle_gait,
        "ant-gather": ant_gather_gait,
    },
    "careful-rule": {"ant-circle": ant_circle_loop, "ant-gather": ant_gather_detour},
}


def rules_of(task: str) -> list[str]:
    return [name for name, tasks in RULES.items() if task in tasks]


@dataclasses.dataclass(frozen=True)
class RuleFamily:
    """A task's rule in the place of a network: it has no parameters, and theta is ignored."""

    name: str
    task: str
    obs_shape: tuple[int, ...]
    action: ActionSpace

    def apply(self, theta: Array, obs: Array) -> Gaussian:
        return RULES[self.name][self.task](obs)
