"""Rule-based baselines of the point tasks: a few lines of control, no learning. Pure JAX, so they compile.

Each is a function of observations (..., O) that returns a Gaussian, like a policy network.
"""

from __future__ import annotations

import jax.numpy as jnp

from spacerl.core.distributions import Gaussian
from spacerl.envs.steering import gaussian, turn_to_apple, turn_to_circle
from spacerl.types import Array

STD = 0.3  # close enough to be seen as a plan, wide enough to be learned from


def circle_follower(obs: Array) -> Gaussian:
    """Run counter-clockwise at full speed and steer onto the circle. It ignores the walls: an unsafe baseline."""
    radius, full_speed, sharpest_turn = 5.0, 1.0, 0.25
    turn = turn_to_circle(obs[..., 0], obs[..., 1], obs[..., 2], radius)
    turn = jnp.clip(turn, -sharpest_turn, sharpest_turn)
    return gaussian(jnp.stack([jnp.full_like(turn, full_speed), turn], axis=-1), STD)


def nearest_apple(obs: Array) -> Gaussian:
    """Turn to the sector with the nearest apple unless a bomb is nearer, and walk; look around where none is seen."""
    turn = turn_to_apple(obs[..., 9:19], obs[..., 19:29], otherwise=0.6)
    return gaussian(jnp.stack([jnp.full_like(turn, 1.0), turn], axis=-1), STD)
