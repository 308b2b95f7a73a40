"""A rule that makes the ant walk: a trot whose clock is the ant itself. Pure JAX, so it compiles.

Observations hold no time, so the gait cannot count beats. It reads its phase off the hips instead: their common swing
and its speed are the sine and cosine of a rotating angle. Every joint is pulled to where the trot has it a moment
later, so the angle keeps turning, and any small motion at reset starts it.

Legs trot in diagonal pairs. While a pair pushes back it stands on bent knees, which reach farther down; while it swings
ahead it is lifted. There are three sets of numbers, found by short random searches: FAST covers about 15 m in the
10 s of an episode when it walks straight; AGILE takes small steps and turns within a metre; SHORT takes smaller ones.
At the deviation of the rules' actions hardly any ant falls.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from spacerl.envs.ant.model import KNEE_SIGN, MAX_TORQUE, MOTOR_LEGS
from spacerl.envs.ant.robot import facing
from spacerl.envs.steering import SECTORS, turn_to_apple, turn_to_circle
from spacerl.types import Array

STIFFNESS, DAMPING = 160.0, 10.0  # Nm/rad and Nms/rad, of the pull


class Gait(NamedTuple):
    swing: float  # rad, of a hip to either side
    rate: float  # rad/s, of the trot
    look_ahead: float  # rad, how much later in the trot the pose is that joints are pulled to
    knee: float  # rad, mean bend
    lift: float  # rad, by which a knee bends more while it pushes and less while it swings
    knee_lead: float  # rad, by which the knees run ahead of the hips
    sharpest: float  # turn, as the share of the swing that the legs inside lose and those outside gain
    slowing: float  # share of the swing that all legs lose per unit of turn
    turning_rate: float  # share of a turn that enters the hips' speeds too; without, the ant turns more sharply


FAST = Gait(0.4, 8.5, 0.7, 0.85, 0.13, 0.7, 0.6, 0.0, 0.0)
AGILE = Gait(0.242, 8.11, 0.93, 0.6, 0.08, 0.77, 1.36, 0.24, 0.92)
SHORT = Gait(0.18, 10.0, 1.09, 0.74, 0.07, 0.92, 1.53, 0.21, 0.74)

# Swing that pushes the ant ahead while the foot is on the floor: legs on the left turn one way, on the right the other.
PUSH = np.array([1.0, 1.0, -1.0, -1.0], np.float32)
PAIR = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
_BEND = KNEE_SIGN.astype(np.float32)
_MOTORS = np.array([2 * leg + joint for leg in MOTOR_LEGS for joint in (0, 1)])


def walk(obs: Array, turn: Array, gait: Gait = FAST) -> Array:
    """Actions (..., 8) in [-1, 1] that trot ahead and turn by `turn` (...) rad, to the left where it is positive."""
    hip, knee = obs[..., 7:15:2], obs[..., 8:15:2] * _BEND
    hip_rate, knee_rate = obs[..., 21:29:2], obs[..., 22:29:2] * _BEND
    sine = jnp.mean(hip * PUSH * PAIR, axis=-1)
    cosine = jnp.mean(hip_rate * PUSH * PAIR, axis=-1) / gait.rate
    phase = jnp.arctan2(sine, cosine)[..., None] + gait.look_ahead
    turn = jnp.clip(turn, -gait.sharpest, gait.sharpest)[..., None]
    straight = gait.swing * (1.0 - gait.slowing * jnp.abs(turn)) * PUSH * PAIR
    turning = gait.swing * turn * PAIR
    hip_torque = STIFFNESS * ((straight - turning) * jnp.sin(phase) - hip)
    speed = (straight - gait.turning_rate * turning) * gait.rate * jnp.cos(phase)
    hip_torque = hip_torque + DAMPING * (speed - hip_rate)
    lifted = phase - gait.knee_lead
    knee_torque = STIFFNESS * (gait.knee + gait.lift * PAIR * jnp.cos(lifted) - knee)
    knee_torque = knee_torque - DAMPING * (gait.lift * gait.rate * PAIR * jnp.sin(lifted) + knee_rate)
    torque = jnp.stack([hip_torque, knee_torque * _BEND], axis=-1).reshape(*obs.shape[:-1], 8)
    return jnp.clip(torque[..., _MOTORS] / MAX_TORQUE, -1.0, 1.0)


def circle_gait(obs: Array) -> Array:
    """Mean action (..., 8) that walks counter-clockwise around the circle of Ant-Circle. It ignores the walls."""
    return walk(obs, turn_to_circle(obs[..., 29], obs[..., 30], _heading(obs), radius=5.0))


def careful_circle_gait(obs: Array) -> Array:
    """Mean action (..., 8) that stays between the walls of Ant-Circle: it walks to where the circle crosses the strip
    and goes round there, in a loop of half a metre whose far side follows the circle."""
    turn = turn_to_circle(obs[..., 29], obs[..., 30] + 4.13, _heading(obs), radius=0.44, eagerness=1.74)
    return walk(obs, 1.4 * turn, AGILE)


def _heading(obs: Array) -> Array:
    ahead, left = facing(obs)
    return jnp.arctan2(left, ahead)


def gather_gait(obs: Array) -> Array:
    """Mean action (..., 8) that walks to the nearest apple of Ant-Gather unless a bomb is nearer in that direction."""
    return walk(obs, turn_to_apple(obs[..., 32:42], obs[..., 42:52], otherwise=1.0))


def careful_gather_gait(obs: Array) -> Array:
    """Mean action (..., 8) that walks to an apple of Ant-Gather only where no bomb is near the way, in any of the seven
    sectors around it, and turns around where there is none such."""
    apples, bombs = obs[..., 32:42], obs[..., 42:52]
    apart = np.abs(np.arange(10)[:, None] - np.arange(10))
    nearness = np.select([apart == 0, apart == 1, apart == 2, apart == 3], [1.0, 0.75, 0.7, 0.8]).astype(np.float32)
    danger = jnp.max(bombs[..., None, :] * nearness, axis=-1)
    score = jnp.where(apples > 0.0, apples - 1.67 * jnp.maximum(danger - 0.25, 0.0), -1.0)
    wanted = jnp.where(jnp.max(score, axis=-1) > 0.0, jnp.asarray(SECTORS)[jnp.argmax(score, axis=-1)], 0.85)
    return walk(obs, 1.7 * wanted, SHORT)
