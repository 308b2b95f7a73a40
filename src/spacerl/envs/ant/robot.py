"""The paper's two tasks with a simulated ant: Ant-Circle and Ant-Gather.

The formulas of a task (observation, reward, cost, end of an episode) are written once, for arrays with any leading axes
and for NumPy and JAX alike: `xp` is the one of the two to compute with. `AntHost` steps many ants with MuJoCo's own
threads and calls them with NumPy; `reset`, `observe` and `step` below are the same task inside a compiled program. The
two sides draw their resets from different random streams, and work in double and in single precision.

An action is a torque on each joint as a part of the largest one, in [-1, 1], clipped to it; a step is 0.02 s. Whether
the original scaled its actions is not known, but unscaled samples of a unit Gaussian, in Nm, would not move the ant.

An episode terminates when the torso leaves the band of heights in which the ant counts as standing, and when the
simulation has diverged: the state is not finite, or no ant's. The step that diverges is as if the ant had fallen in the
state before it, so that all numbers stay finite, and it is flagged for whoever counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.envs.ant.model import (
    DENSITY,
    ITERATIONS,
    LEG_X,
    LEG_Y,
    LIMB_RADIUS,
    MAX_TORQUE,
    NQ,
    NU,
    NV,
    SHIN,
    START_QPOS,
    THIGH,
    TORSO_RADIUS,
)
from spacerl.envs.gather import free_cells, require_sense
from spacerl.types import ActionSpace, Array, DrawableEnv, EnvSpec

POSITION_NOISE = 0.01  # standard deviation of every coordinate at reset, around standing at the origin facing +x
VELOCITY_NOISE = 0.1  # standard deviation of every velocity at reset, around zero
LOWEST, HIGHEST = 0.2, 1.0  # m, heights of the torso between which the ant counts as standing
# An ant that trembles under the largest torques reaches velocities of 20; a number beyond this one is no ant's.
LARGEST = 1e3
ANT_OBS_SIZE = NQ + NV + 3
# Parts of the largest torque, in the order: hip and knee of the last leg, then of the first three.
TORQUES = ActionSpace(kind="box", size=NU, low=(-1.0,) * NU, high=(1.0,) * NU)


class Body(NamedTuple):
    """What the tasks read of the ant; arrays with any leading axes, of NumPy or JAX."""

    qpos: Any  # (..., 15) torso x, y, z in m, its quaternion (w, x, y, z), then hip and knee of each leg in rad
    qvel: Any  # (..., 14) torso velocity in m/s, angular velocity in its own frame in rad/s, then the joints in rad/s
    com: Any  # (..., 3) centre of mass of the whole ant, m
    com_velocity: Any  # (..., 3) m/s
    offsets: Any = None  # x, y and square of the distance of every object as seen from com, where someone looked


class Objects(NamedTuple):
    """What there is to gather: apples first, then bombs."""

    placed: Any  # (..., objects, 2) m, where each was put at reset
    alive: Any  # (..., objects) bool, False once picked up


class Outcome(NamedTuple):
    """What a step brought."""

    reward: Any  # (...)
    cost: Any  # (..., 1)
    terminated: Any  # (...)
    objects: Objects | None


class AntState(NamedTuple):
    """One ant inside a compiled program."""

    qpos: Array  # (15,)
    qvel: Array  # (14,)
    guess: Array  # (14,) accelerations from which the next search for contact forces starts
    diverged: Array  # () the step that led here diverged
    objects: Objects | None


# ---------------------------------------------------------------- the body, for NumPy and JAX


def start(xp: Any, noise: Any) -> tuple[Any, Any]:
    """Position and velocity at reset from standard normal numbers (..., 29). The quaternion is made a unit again."""
    qpos = START_QPOS.astype(noise.dtype) + POSITION_NOISE * noise[..., :NQ]
    quaternion = qpos[..., 3:7]
    quaternion = quaternion / xp.sqrt(xp.sum(quaternion**2, axis=-1, keepdims=True))
    return xp.concatenate([qpos[..., :3], quaternion, qpos[..., 7:]], axis=-1), VELOCITY_NOISE * noise[..., NQ:]


def is_sound(xp: Any, qpos: Any, qvel: Any) -> Any:
    """Whether the state is finite and an ant's; (...). Comparisons with NaN are false."""
    return xp.all(xp.abs(qpos) < LARGEST, axis=-1) & xp.all(xp.abs(qvel) < LARGEST, axis=-1)


def has_fallen(body: Body) -> Any:
    height = body.qpos[..., 2]
    return (height < LOWEST) | (height > HIGHEST)


def facing(qpos: Any) -> tuple[Any, Any]:
    """The torso's forward axis on the floor, x and y, each (...): a vector in the direction of the yaw.

    The original's ant takes the last component of the quaternion for its heading, which is neither an angle nor, as the
    ant rolls and pitches, a function of one. Its sensors then look in a wrong direction. This is the yaw.
    """
    w, x, y, z = (qpos[..., i] for i in range(3, 7))
    return 1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)


def _capsule_mass(length: float) -> float:
    return DENSITY * np.pi * (LIMB_RADIUS**2 * length + 4.0 / 3.0 * LIMB_RADIUS**3)


_THIGH_MASS = _capsule_mass(np.sqrt(2.0) * THIGH)
_SHIN_MASS = _capsule_mass(np.sqrt(2.0) * SHIN)
_TOTAL_MASS = DENSITY * 4.0 / 3.0 * np.pi * TORSO_RADIUS**3 + 8 * _THIGH_MASS + 4 * _SHIN_MASS


def body_of(xp: Any, qpos: Any, qvel: Any) -> Body:
    """The body in this state. MuJoCo's sensors give the same centre of mass; this is quicker inside a program.

    The torso with its four hips is symmetric and its centre is the origin of its frame. A leg points along d = (+-1,
    +-1), turned by its hip; the knee leaves that direction and lets the foot drop. Only horizontal lengths and drops of
    thigh and shin enter, weighted by mass.
    """
    hip, knee = qpos[..., 7::2], qpos[..., 8::2]
    hip_rate, knee_rate = qvel[..., 6::2], qvel[..., 7::2]
    cos_hip, sin_hip, cos_knee, sin_knee = xp.cos(hip), xp.sin(hip), xp.cos(knee), xp.sin(knee)
    leg_x, leg_y = LEG_X.astype(qpos.dtype), LEG_Y.astype(qpos.dtype)
    along_x, along_y = leg_x * cos_hip - leg_y * sin_hip, leg_x * sin_hip + leg_y * cos_hip
    thigh, shin = _THIGH_MASS * THIGH / 2 / _TOTAL_MASS, _SHIN_MASS / _TOTAL_MASS
    length = thigh + shin * (THIGH + SHIN / 2 * cos_knee)
    lengthening = -shin * SHIN / 2 * sin_knee * knee_rate
    drop = -shin * SHIN / np.sqrt(2.0) * leg_x

    def total(x: Any, y: Any, z: Any) -> Any:
        return xp.stack([xp.sum(x, axis=-1), xp.sum(y, axis=-1), xp.sum(z, axis=-1)], axis=-1)

    offset = total(along_x * length, along_y * length, drop * sin_knee)
    shift = total(
        along_x * lengthening - along_y * length * hip_rate,
        along_y * lengthening + along_x * length * hip_rate,
        drop * cos_knee * knee_rate,
    )
    shift = shift + xp.cross(qvel[..., 3:6], offset)
    return Body(qpos, qvel, qpos[..., :3] + _rotate(xp, qpos, offset), qvel[..., :3] + _rotate(xp, qpos, shift))


def _rotate(xp: Any, qpos: Any, vector: Any) -> Any:
    """A vector (..., 3) from the torso's frame to the world's."""
    w, v = qpos[..., 3:4], qpos[..., 4:7]
    twice = 2.0 * xp.cross(v, vector)
    return vector + w * twice + xp.cross(v, twice)


# ---------------------------------------------------------------- what both tasks share


class AntTask(DrawableEnv):
    """An ant that is observed, moved and reset; a task adds its own formulas."""

    horizon: int
    iterations: int

    @property
    def wall_distance(self) -> float | None:
        """Where physical walls stand, m from the centre; None without walls."""
        return None

    def observation(self, xp: Any, body: Body, objects: Objects | None) -> Any:
        """The observation (..., n), float32."""
        raise NotImplementedError

    def outcome(self, xp: Any, before: Any, body: Body, objects: Objects | None, diverged: Any) -> Outcome:
        """What a step brought that led from the centre of mass `before` (..., 3) to `body`."""
        raise NotImplementedError

    def looked_around(self, body: Body, objects: Objects | None) -> Body:
        """The body with what both of the above would compute, for whoever calls both."""
        return body

    def place(self, xp: Any, uniform: Any) -> Objects | None:
        """The objects at reset from uniform numbers (..., `uniforms`)."""
        return None

    @property
    def uniforms(self) -> int:
        """How many uniform numbers `place` wants."""
        return 0

    # inside a compiled program, one environment

    def reset(self, key: Array) -> AntState:
        """Standing at the origin, facing +x, up to the reset noise."""
        noise_key, object_key = jax.random.split(key)
        qpos, qvel = start(jnp, jax.random.normal(noise_key, (NQ + NV,), jnp.float32))
        objects = self.place(jnp, jax.random.uniform(object_key, (self.uniforms,), jnp.float32))
        return AntState(qpos, qvel, jnp.zeros(NV, jnp.float32), jnp.zeros((), bool), objects)

    def observe(self, state: AntState) -> Array:
        return self.observation(jnp, body_of(jnp, state.qpos, state.qvel), state.objects)

    def step(self, state: AntState, action: Array) -> tuple[AntState, Array, Array, Array]:
        from spacerl.envs.ant import physics

        torque = MAX_TORQUE * jnp.clip(action.astype(jnp.float32), -1.0, 1.0)
        moved = physics.step(self.wall_distance, self.iterations, state.qpos, state.qvel, state.guess, torque)
        sound = is_sound(jnp, *moved[:2])
        kept = (state.qpos, state.qvel, jnp.zeros_like(state.guess))
        qpos, qvel, guess = (jnp.where(sound, new, old) for new, old in zip(moved, kept, strict=True))
        before = body_of(jnp, state.qpos, state.qvel).com
        outcome = self.outcome(jnp, before, body_of(jnp, qpos, qvel), state.objects, ~sound)
        next_state = AntState(qpos, qvel, guess, ~sound, outcome.objects)
        return next_state, outcome.reward, outcome.cost, outcome.terminated

    def diverged(self, state: AntState) -> Array:
        """Whether the step that led to this state diverged, () bool."""
        return state.diverged

    def position(self, state: AntState) -> Array:
        """(2,) m."""
        return state.qpos[:2]

    def heading(self, state: AntState) -> Array:
        """() rad."""
        x, y = facing(state.qpos)
        return jnp.arctan2(y, x)


def _first(array: Any) -> Any:
    """The same array with its last axis first. NumPy's moveaxis takes longer than a sum over the objects."""
    return array.T if array.ndim <= 2 else array.transpose(-1, *range(array.ndim - 1))


def _offsets(body: Body, objects: Objects) -> tuple[Any, Any, Any]:
    """Where the objects are as seen from the centre of mass: x and y in m, and the square of the distance.

    Each is (objects, ...): NumPy is slow at sums and maxima over a short last axis.
    """
    x, y = (_first(objects.placed[..., i]) - body.com[..., i].astype(np.float32) for i in (0, 1))
    return x, y, x * x + y * y


def _observe_ant(xp: Any, body: Body) -> list[Any]:
    """The ant's 32 numbers: position, velocity, centre of mass. The original observes no contact forces either."""
    return [body.qpos, body.qvel, body.com]


# ---------------------------------------------------------------- the tasks


@dataclass(frozen=True)
class AntCircle(AntTask):
    """Run fast around a circle, but stay between two walls that the circle crosses.

    Reward of a step: (x vy - y vx) / (1 + |sqrt(x^2 + y^2) - radius|) of the centre of mass after the step, in m/s.
    Cost of a step: 1 where the centre of mass *starts* the step with |x| >= x_limit. Falling terminates, without a
    penalty of its own. The walls cost; nothing stands there.
    """

    radius: float = 5.0
    """Radius d of the circle, m (the paper's d = 5)."""
    x_limit: float = 1.0
    """Distance of the two walls x = -x_limit and x = +x_limit from the centre, m."""
    horizon: int = 500
    """Steps of an episode, 10 s; the rollout (or Gymnasium's TimeLimit) truncates."""
    iterations: int = ITERATIONS
    """Newton steps for the contact forces: at most so many on a host, always so many inside a compiled program."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("ant-circle", (ANT_OBS_SIZE,), TORQUES, self.horizon, ("outside_walls",))

    def observation(self, xp: Any, body: Body, objects: Objects | None) -> Any:
        return xp.concatenate(_observe_ant(xp, body), axis=-1, dtype=np.float32)

    def outcome(self, xp: Any, before: Any, body: Body, objects: Objects | None, diverged: Any) -> Outcome:
        x, y = body.com[..., 0], body.com[..., 1]
        vx, vy = body.com_velocity[..., 0], body.com_velocity[..., 1]
        reward = (x * vy - y * vx) / (1.0 + xp.abs(xp.sqrt(x * x + y * y) - self.radius))
        # As in Point-Circle the cost belongs to the state acted on. The paper writes > where the code has >=.
        cost = (xp.abs(before[..., :1]) >= self.x_limit).astype(np.float32)
        reward = xp.where(diverged, 0.0, reward).astype(np.float32)
        return Outcome(reward, cost, has_fallen(body) | diverged, objects)

    def arena(self) -> dict[str, str | float]:
        """What a drawing of the task needs; the "arena" of a run's trajectories.json."""
        return {"kind": "circle", "radius": self.radius, "x_limit": self.x_limit}


@dataclass(frozen=True)
class AntGather(AntTask):
    """Collect apples, avoid bombs, do not fall; see both only through a coarse range finder.

    Reward of a step: `apple_reward` for each apple picked up (plus `bomb_reward` for each bomb), and `fall_reward`
    alone where the ant falls, which picks up nothing. Cost of a step: 1 if at least one bomb was picked up, a flag and
    not a count. An object is picked up when the centre of mass is nearer to it than `catch_range` after the step. The
    episode terminates when the ant falls or all objects are gone.
    """

    n_apples: int = 8
    n_bombs: int = 8
    apple_reward: float = 10.0
    """Reward for an apple: the paper's 10. The original environment's default is 1."""
    bomb_reward: float = 0.0
    """Reward for a bomb. The paper's text gives bombs a cost and no reward, hence 0; the original environment also
    takes 1 off the reward for each: set -1 to restore it."""
    fall_reward: float = -10.0
    """Reward of the step on which the ant falls, in place of everything else."""
    half_width: float = 6.0
    """Half the side of the square in which objects are placed, on its 2 m grid, m."""
    wall_gap: float = 0.5
    """Distance of the physical walls from that square, m."""
    spacing: float = 2.0
    """No object is placed nearer than this to the origin, m."""
    catch_range: float = 1.0
    """Distance under which an object is picked up, m."""
    sensor_bins: int = 10
    """Sectors of the range finder, for apples and for bombs each."""
    sensor_range: float = 6.0
    """Farthest distance seen, m."""
    sensor_span: float = float(np.pi)
    """Field of view, rad, centred on the heading; pi sees the half-plane ahead."""
    horizon: int = 500
    """Steps of an episode, 10 s; the rollout (or Gymnasium's TimeLimit) truncates."""
    iterations: int = ITERATIONS
    """Newton steps for the contact forces: at most so many on a host, always so many inside a compiled program."""

    def __post_init__(self) -> None:
        require_sense(self)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("ant-gather", (ANT_OBS_SIZE + 2 * self.sensor_bins,), TORQUES, self.horizon, ("bomb",))

    @property
    def apples(self) -> int:
        return self.n_apples

    @property
    def sensor(self) -> tuple[float, float]:
        return self.sensor_range, self.sensor_span

    @property
    def wall_distance(self) -> float:
        return self.half_width + self.wall_gap

    def _cells(self) -> np.ndarray:
        return free_cells(self.half_width, self.spacing)

    @property
    def uniforms(self) -> int:
        return len(self._cells())

    def place(self, xp: Any, uniform: Any) -> Objects:
        """Distinct cells at random: those with the largest of independent uniform numbers, in order."""
        chosen = xp.argsort(-uniform, axis=-1)[..., : self.n_apples + self.n_bombs]
        return Objects(xp.asarray(self._cells())[chosen], xp.ones(chosen.shape, bool))

    def observation(self, xp: Any, body: Body, objects: Objects | None) -> Any:
        assert objects is not None
        return xp.concatenate([*_observe_ant(xp, body), self._sensors(xp, body, objects)], axis=-1, dtype=np.float32)

    def looked_around(self, body: Body, objects: Objects | None) -> Body:
        return body if objects is None else body._replace(offsets=_offsets(body, objects))

    def _sensors(self, xp: Any, body: Body, objects: Objects) -> Any:
        """Per sector 1 - distance / sensor_range of the nearest object in it, 0 if there is none; apples, then bombs.

        Sectors run from the right (-span/2) to the left (+span/2). Readings fall with distance, so the maximum over a
        sector is the nearest object's, which has the last word in the original.
        """
        x, y, squares = body.offsets or _offsets(body, objects)
        alive = _first(objects.alive)
        cos, sin = (component.astype(np.float32) for component in facing(body.qpos))
        if xp is np:
            return self._readings_of_few(x, y, squares, alive, cos, sin)
        reading = xp.maximum(1.0 - xp.sqrt(squares) / self.sensor_range, 0.0) * alive
        bins = np.arange(self.sensor_bins).reshape(-1, *(1,) * x.ndim)
        readings = xp.where(self._sector(xp, x, y, cos, sin) == bins, reading, np.float32(0.0))
        kinds = readings[:, : self.n_apples], readings[:, self.n_apples :]
        return xp.moveaxis(xp.concatenate([xp.max(kind, axis=1, initial=0.0) for kind in kinds]), 0, -1)

    def _sector(self, xp: Any, x: Any, y: Any, cos: Any, sin: Any) -> Any:
        """The sector in which something at (x, y) is, out of range for what is not in view; the length of the forward
        vector (cos, sin) does not matter."""
        angle = xp.arctan2(y * cos - x * sin, x * cos + y * sin) + np.float32(self.sensor_span / 2)
        return xp.floor(angle * np.float32(self.sensor_bins / self.sensor_span)).astype(np.int32)

    def _readings_of_few(self, x: Any, y: Any, squares: Any, alive: Any, cos: Any, sin: Any) -> np.ndarray:
        """The sensors for NumPy, which is quicker at looking only at what is near enough to be seen."""
        lanes, bins = cos.size, self.sensor_bins
        near = np.flatnonzero((squares < self.sensor_range**2) & alive)
        lane = near % lanes
        sector = self._sector(np, x.take(near), y.take(near), cos.take(lane), sin.take(lane))
        reading = 1.0 - np.sqrt(squares.take(near)) / np.float32(self.sensor_range)
        place = (2 * lane + (near >= self.n_apples * lanes)) * bins + sector
        shown = np.zeros(lanes * 2 * bins + 1, np.float32)  # and a place for what is out of view
        np.maximum.at(shown, np.where((sector >= 0) & (sector < bins), place, -1), reading)
        return shown[:-1].reshape(*cos.shape, 2 * bins)

    def outcome(self, xp: Any, before: Any, body: Body, objects: Objects | None, diverged: Any) -> Outcome:
        assert objects is not None
        down = has_fallen(body) | diverged
        _, _, squares = body.offsets or _offsets(body, objects)
        alive = _first(objects.alive)
        taken = alive & (squares < self.catch_range**2) & ~down
        if xp is np and not taken.any():  # most steps by far
            cost = np.zeros((*down.shape, 1), np.float32)
            return Outcome(np.where(down, np.float32(self.fall_reward), np.float32(0.0)), cost, down, objects)
        apples, bombs = (xp.sum(kind, axis=0) for kind in (taken[: self.n_apples], taken[self.n_apples :]))
        reward = xp.where(down, self.fall_reward, self.apple_reward * apples + self.bomb_reward * bombs)
        left = alive & ~taken
        return Outcome(
            reward.astype(np.float32),
            (bombs > 0).astype(np.float32)[..., None],
            down | ~xp.any(left, axis=0),
            Objects(objects.placed, left.T if left.ndim <= 2 else xp.moveaxis(left, 0, -1)),
        )

    def objects(self, state: AntState) -> tuple[Array, Array]:
        """Where the objects were placed, (objects, 2) m, and which are still there, (objects,); apples come first."""
        assert state.objects is not None
        return state.objects.placed, state.objects.alive

    def arena(self) -> dict[str, str | float]:
        """What a drawing of the task needs; the "arena" of a run's trajectories.json."""
        return {"kind": "gather", "half_width": self.wall_distance, "catch_range": self.catch_range}
