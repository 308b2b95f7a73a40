"""A rule that makes the ant walk: a trot whose clock is the ant itself. Pure JAX, so it compiles.

Observations hold no time, so the gait cannot count beats. It reads its phase off the hips instead: their common swing
and its speed are the sine and cosine of a rotating angle. Every joint is pulled to where the trot has it a moment
later, so the angle keeps turning, and any small motion at reset starts it.

Legs trot in diagonal pairs. While a pair pushes back it stands on bent knees, which reach farther down; while it swings
ahead it is lifted. Walking straight, the ant covers about 15 m in the 10 s of an episode and does not fall. The numbers
below were found by a short random search for distance.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from spacerl.envs.ant import facing
from spacerl.envs.ant_model import KNEE_SIGN, MAX_TORQUE, MOTOR_LEGS
from spacerl.types import Array

SWING = 0.4  # rad, of a hip to either side
RATE = 8.5  # rad/s, of the trot: 1.35 steps a second
LOOK_AHEAD = 0.7  # rad, how much later in the trot the pose is that joints are pulled to
KNEE = 0.85  # rad, mean bend
LIFT = 0.13  # rad, by which a knee bends more while it pushes and less while it swings
KNEE_LEAD = 0.7  # rad, by which the knees run ahead of the hips
STIFFNESS, DAMPING = 160.0, 10.0  # Nm/rad and Nms/rad, of the pull
SHARPEST = 0.6  # of a turn: the share of the swing that the legs inside lose and those outside gain

# Swing that pushes the ant ahead while the foot is on the floor: legs on the left turn one way, on the right the other.
PUSH = np.array([1.0, 1.0, -1.0, -1.0], np.float32)
PAIR = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
_BEND = KNEE_SIGN.astype(np.float32)
_MOTORS = np.array([2 * leg + joint for leg in MOTOR_LEGS for joint in (0, 1)])


def walk(obs: Array, turn: Array) -> Array:
    """Actions (..., 8) in [-1, 1] that trot ahead and turn by `turn` (...) rad, to the left where it is positive."""
    hip, knee = obs[..., 7:15:2], obs[..., 8:15:2] * _BEND
    hip_rate, knee_rate = obs[..., 21:29:2], obs[..., 22:29:2] * _BEND
    sine = jnp.mean(hip * PUSH * PAIR, axis=-1)
    cosine = jnp.mean(hip_rate * PUSH * PAIR, axis=-1) / RATE
    phase = jnp.arctan2(sine, cosine)[..., None] + LOOK_AHEAD
    straight = SWING * PUSH * PAIR
    turned = straight - SWING * PAIR * jnp.clip(turn, -SHARPEST, SHARPEST)[..., None]
    hip_torque = STIFFNESS * (turned * jnp.sin(phase) - hip)
    # Only the positions turn; hips that keep the speed of the straight trot turn the ant more sharply.
    hip_torque = hip_torque + DAMPING * (straight * RATE * jnp.cos(phase) - hip_rate)
    lifted = phase - KNEE_LEAD
    knee_torque = STIFFNESS * (KNEE + LIFT * PAIR * jnp.cos(lifted) - knee)
    knee_torque = knee_torque - DAMPING * (LIFT * RATE * PAIR * jnp.sin(lifted) + knee_rate)
    torque = jnp.stack([hip_torque, knee_torque * _BEND], axis=-1).reshape(*obs.shape[:-1], 8)
    return jnp.clip(torque[..., _MOTORS] / MAX_TORQUE, -1.0, 1.0)


def circle_gait(obs: Array) -> Array:
    """Mean action (..., 8) that walks counter-clockwise around the circle of Ant-Circle. It ignores the walls."""
    radius = 5.0
    x, y = obs[..., 29], obs[..., 30]
    # The tangent, turned inward outside of the circle and outward inside of it.
    wanted = jnp.arctan2(y, x) + math.pi / 2 + jnp.arctan(jnp.hypot(x, y) - radius)
    ahead, left = facing(obs)
    turn = wanted - jnp.arctan2(left, ahead)
    return walk(obs, jnp.mod(turn + math.pi, 2 * math.pi) - math.pi)


def gather_gait(obs: Array) -> Array:
    """Mean action (..., 8) that walks to the nearest apple of Ant-Gather unless a bomb is nearer in that direction."""
    apples, bombs = obs[..., 32:42], obs[..., 42:52]
    centres = (jnp.arange(10) - 4.5) * (math.pi / 10)
    padded = jnp.pad(bombs, [(0, 0)] * (bombs.ndim - 1) + [(1, 1)])
    threat = jnp.maximum(bombs, 0.8 * jnp.maximum(padded[..., :-2], padded[..., 2:]))
    score = apples - jnp.where(threat > apples, threat, 0.0)
    turn = centres[jnp.argmax(score, axis=-1)]
    seen = jnp.max(apples, axis=-1) > 0.0
    return walk(obs, jnp.where(seen, turn, 1.0))
