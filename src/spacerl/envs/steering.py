"""Where a rule wants to go, for the point robot and for the ant. Pure JAX, arrays with any leading axes."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from spacerl.core.distributions import Gaussian
from spacerl.types import Array

SECTORS = ((np.arange(10) - 4.5) * (math.pi / 10)).astype(np.float32)  # rad, the middles of what sensors see


def turn_to_circle(x: Array, y: Array, heading: Array, radius: float, eagerness: float = 1.0) -> Array:
    """Angle (...) to turn by onto the counter-clockwise circle around the origin: to its tangent, turned inward outside
    of the circle and outward inside of it."""
    wanted = jnp.arctan2(y, x) + math.pi / 2 + jnp.arctan(eagerness * (jnp.hypot(x, y) - radius))
    return jnp.mod(wanted - heading + math.pi, 2 * math.pi) - math.pi


def turn_to_apple(apples: Array, bombs: Array, otherwise: float) -> Array:
    """Angle (...) to the sector with the nearest apple unless a bomb is nearer there; `otherwise` if none is seen."""
    # A bomb in the next sector is nearly as bad as one ahead: a robot is as wide as a sector at arm's length.
    padded = jnp.pad(bombs, [(0, 0)] * (bombs.ndim - 1) + [(1, 1)])
    threat = jnp.maximum(bombs, 0.8 * jnp.maximum(padded[..., :-2], padded[..., 2:]))
    score = apples - jnp.where(threat > apples, threat, 0.0)
    return jnp.where(jnp.max(apples, axis=-1) > 0.0, jnp.asarray(SECTORS)[jnp.argmax(score, axis=-1)], otherwise)


def gaussian(mean: Array, std: float) -> Gaussian:
    """A rule's actions as a distribution."""
    return Gaussian(mean, jnp.full_like(mean, math.log(std)))
