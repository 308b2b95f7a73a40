"""Rule-based baselines for the point and ant tasks: a few lines of control, no learning. Pure JAX, so they compile.

Each is a function of observations (..., O) that returns a Gaussian, like a policy network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp

from spacerl.baselines.ant_gait import careful_circle_gait, careful_gather_gait, circle_gait, gather_gait
from spacerl.core.distributions import Gaussian
from spacerl.types import ActionSpace, Array

STD = 0.3  # of a rule's actions: close enough to be seen as a plan, wide enough to be learned from
GAIT_STD = 0.1  # of the ant's: at 0.3 a third of the ants fall


def circle_follower(obs: Array) -> Gaussian:
    """Run counter-clockwise at full speed and steer onto the circle. It ignores the walls: an unsafe baseline."""
    x, y, heading = obs[..., 0], obs[..., 1], obs[..., 2]
    radius, full_speed, sharpest_turn = 5.0, 1.0, 0.25
    # The tangent, turned inward outside of the circle and outward inside of it.
    wanted = jnp.arctan2(y, x) + math.pi / 2 + jnp.arctan(jnp.hypot(x, y) - radius)
    turn = jnp.clip(_wrapped(wanted - heading), -sharpest_turn, sharpest_turn)
    return _with_std(jnp.stack([jnp.full_like(turn, full_speed), turn], axis=-1))


def nearest_apple(obs: Array) -> Gaussian:
    """Turn to the sector with the nearest apple unless a bomb is nearer, and walk; look around where none is seen."""
    apples, bombs = obs[..., 9:19], obs[..., 19:29]
    centres = (jnp.arange(10) - 4.5) * (math.pi / 10)
    # A bomb in the next sector is nearly as bad as one ahead: the robot is as wide as a sector at arm's length.
    padded = jnp.pad(bombs, [(0, 0)] * (bombs.ndim - 1) + [(1, 1)])
    threat = jnp.maximum(bombs, 0.8 * jnp.maximum(padded[..., :-2], padded[..., 2:]))
    score = jnp.where(apples > 0.0, apples, 0.0) - jnp.where(threat > apples, threat, 0.0)
    turn = centres[jnp.argmax(score, axis=-1)]
    seen = jnp.max(apples, axis=-1) > 0.0
    turn = jnp.where(seen, turn, 0.6)
    return _with_std(jnp.stack([jnp.full_like(turn, 1.0), turn], axis=-1))


def _wrapped(angle: Array) -> Array:
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi


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
