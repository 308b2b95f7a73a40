"""Rule-based baselines of the ant tasks: gaits with a destination. Pure JAX, so they compile."""

from __future__ import annotations

from spacerl.core.distributions import Gaussian
from spacerl.envs.ant.gait import careful_circle_gait, careful_gather_gait, circle_gait, gather_gait
from spacerl.envs.steering import gaussian
from spacerl.types import Array

STD = 0.1  # at 0.3 a third of the ants fall


def ant_circle_gait(obs: Array) -> Gaussian:
    """A trot around the circle. It ignores the walls: an unsafe baseline."""
    return gaussian(circle_gait(obs), STD)


def ant_gather_gait(obs: Array) -> Gaussian:
    """A trot to the nearest apple that no bomb is in the way of."""
    return gaussian(gather_gait(obs), STD)


def ant_circle_loop(obs: Array) -> Gaussian:
    """A trot in small loops at the one place of the circle that lies between the walls: nearly safe."""
    return gaussian(careful_circle_gait(obs), STD)


def ant_gather_detour(obs: Array) -> Gaussian:
    """A slower trot to apples that no bomb is near: safe."""
    return gaussian(careful_gather_gait(obs), STD)
