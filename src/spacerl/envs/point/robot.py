"""The paper's two point-robot tasks, written in JAX: Point-Circle and Point-Gather.

The robot is kinematic. An action is (displacement along the heading in m, heading increment in rad); a step turns first
and then moves along the new heading. There is no mass, no collision and no time step.

Every function works on one environment with static shapes and float32 arrays and never branches on a value, so that the
rollout can `vmap` and `scan` it on any device. Each choice the sources leave open stands beside the line it concerns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.envs.gather import free_cells, require_sense
from spacerl.types import ActionSpace, Array, DrawableEnv, EnvSpec

POSITION_NOISE = 0.01  # standard deviation of x (m), y (m) and theta (rad) at reset, around zero
VELOCITY_NOISE = 0.1  # standard deviation of the three observed velocities at reset
CENTRE_OF_MASS_AHEAD = 0.0426  # m; the box that points ahead (mass 4.00 at 0.6 m) pulls it off the sphere (mass 52.36)
CENTRE_OF_MASS_HEIGHT = 0.5  # m
ROBOT_OBS_SIZE = 9


class PointState(NamedTuple):
    """The robot."""

    position: Array  # (2,) m
    heading: Array  # () rad, never wrapped: it counts turns, and the policy observes it like that
    # The original robot is placed, not simulated, so the velocities it observes are the noise drawn at reset and never
    # change. They carry no information, but they are three of the paper's nine observations.
    velocity: Array  # (3,)


def _reset_robot(key: Array) -> PointState:
    noise = jax.random.normal(key, (6,), jnp.float32)
    pose = POSITION_NOISE * noise[:3]
    return PointState(position=pose[:2], heading=pose[2], velocity=VELOCITY_NOISE * noise[3:])


def _direction(robot: PointState) -> Array:
    """Unit vector of the heading, (2,)."""
    return jnp.stack([jnp.cos(robot.heading), jnp.sin(robot.heading)])


def _centre_of_mass(robot: PointState) -> Array:
    """Horizontal centre of mass, (2,) m. Costs, sensors and catching are measured from here, not from the position."""
    return robot.position + CENTRE_OF_MASS_AHEAD * _direction(robot)


def _observe_robot(robot: PointState) -> Array:
    """x, y, theta, the three constant velocities, and the centre of mass x, y, z; (9,)."""
    height = jnp.full((1,), CENTRE_OF_MASS_HEIGHT, jnp.float32)
    return jnp.concatenate(
        [robot.position, robot.heading[None], robot.velocity, _centre_of_mass(robot), height], dtype=jnp.float32
    )


def _move(robot: PointState, action: Array, half_width: float) -> tuple[PointState, Array]:
    """Turn, move along the new heading, stay inside the square; also the displacement before that clip, (2,) m."""
    turned = robot._replace(heading=robot.heading + action[1])
    displacement = action[0] * _direction(turned)
    position = jnp.clip(robot.position + displacement, -half_width, half_width)
    return turned._replace(position=position), displacement


@dataclass(frozen=True)
class PointCircle(DrawableEnv):
    """Run fast around a circle, but stay between two walls that the circle crosses.

    Reward of a step: (x dy - y dx) / (1 + |sqrt(x^2 + y^2) - radius|), the counter-clockwise speed around the origin
    times the distance from it, divided by how far off the circle the robot is.
    Cost of a step: 1 where the robot *starts* the step with |x| >= x_limit. Episodes never terminate.
    """

    radius: float = 5.0
    """Radius d of the circle, m (the paper's d = 5)."""
    x_limit: float = 2.5
    """Distance of the two walls x = -x_limit and x = +x_limit from the centre, m. They cost, they do not stop."""
    half_width: float = 40.0
    """Each coordinate of the position is clipped to +- this, m."""
    max_displacement: float = 1.0
    """The displacement is clipped to +- this, m."""
    max_turn: float = 0.25
    """The heading increment is clipped to +- this, rad. At full speed the robot then turns in 4 m, inside `radius`."""
    horizon: int = 50
    """Steps of an episode; the rollout (or Gymnasium's TimeLimit) truncates."""

    @property
    def spec(self) -> EnvSpec:
        """Actions have the control range of the original robot model, in physical units."""
        high = (self.max_displacement, self.max_turn)
        action = ActionSpace(kind="box", size=2, low=tuple(-bound for bound in high), high=high)
        return EnvSpec("point-circle", (ROBOT_OBS_SIZE,), action, self.horizon, ("outside_walls",))

    def reset(self, key: Array) -> PointState:
        """At the origin, facing +x, up to the reset noise."""
        return _reset_robot(key)

    def observe(self, state: PointState) -> Array:
        return _observe_robot(state)

    def step(self, state: PointState, action: Array) -> tuple[PointState, Array, Array, Array]:
        # No script of this experiment survives. A policy's sample is read in physical units and clipped to the control
        # range, not rescaled: an action then means the same to the policy, to a hand-written baseline and in a plot.
        bound = jnp.array([self.max_displacement, self.max_turn], jnp.float32)
        new_state, displacement = _move(state, jnp.clip(action.astype(jnp.float32), -bound, bound), self.half_width)
        # As in the original code, the displacement is the commanded one (before the position is clipped at the far
        # border) while the position is the one after the move.
        x, y = new_state.position
        dx, dy = displacement
        reward = (x * dy - y * dx) / (1.0 + jnp.abs(jnp.sqrt(x * x + y * y) - self.radius))
        # The cost is a function of the observation acted on, cost_t = C(s_t), and uses the observed centre of mass. The
        # paper writes > where the code has >=; the two differ on a set of probability zero.
        cost = jnp.abs(_centre_of_mass(state)[:1]) >= self.x_limit
        return new_state, reward, cost.astype(jnp.float32), jnp.zeros((), bool)

    def position(self, state: PointState) -> Array:
        """(2,) m."""
        return state.position

    def heading(self, state: PointState) -> Array:
        """() rad."""
        return state.heading

    def arena(self) -> dict[str, str | float]:
        """What a drawing of the task needs; the "arena" of a run's trajectories.json."""
        return {"kind": "circle", "radius": self.radius, "x_limit": self.x_limit}


class GatherState(NamedTuple):
    """The robot, and the objects it may pick up: apples first, then bombs."""

    robot: PointState
    placed: Array  # (objects, 2) m, where each object was put at reset
    alive: Array  # (objects,) bool, False once picked up


@dataclass(frozen=True)
class PointGather(DrawableEnv):
    """Collect apples, avoid bombs, see both only through a coarse range finder.

    Reward of a step: `apple_reward` for each apple picked up (plus `bomb_reward` for each bomb).
    Cost of a step: 1 if at least one bomb was picked up, a flag and not a count.
    An object is picked up when the centre of mass is nearer to it than `catch_range` after the move. The episode
    terminates once all objects are gone.
    """

    n_apples: int = 2
    n_bombs: int = 8
    apple_reward: float = 10.0
    """Reward for an apple."""
    bomb_reward: float = 0.0
    """Reward for a bomb. The paper's text gives bombs a cost and no reward, hence 0; the original environment also
    takes 1 off the reward for each: set -1 to restore it."""
    half_width: float = 6.0
    """Half the side of the arena, m: the position is clipped to it, and objects are placed on its 2 m grid."""
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
    horizon: int = 15
    """Steps of an episode; the rollout (or Gymnasium's TimeLimit) truncates."""

    def __post_init__(self) -> None:
        require_sense(self)

    @property
    def apples(self) -> int:
        return self.n_apples

    @property
    def sensor(self) -> tuple[float, float]:
        return self.sensor_range, self.sensor_span

    @property
    def spec(self) -> EnvSpec:
        """Bounds of the actions are nominal: `step` clips nothing.

        The original script clips no control: turns and displacements are the policy's raw samples, N(mu, 1) at first,
        and the +-0.25 rad and +-1 m of the robot model are not enforced. Bounds are given all the same because many
        libraries reject infinite action boxes, and they are so wide that a library which clips to them leaves samples
        of a unit Gaussian alone.
        """
        action = ActionSpace(kind="box", size=2, low=(-10.0, -10.0), high=(10.0, 10.0))
        return EnvSpec("point-gather", (ROBOT_OBS_SIZE + 2 * self.sensor_bins,), action, self.horizon, ("bomb",))

    def _cells(self) -> np.ndarray:
        return free_cells(self.half_width, self.spacing)

    def reset(self, key: Array) -> GatherState:
        """The robot at the origin facing +x up to the noise, the objects at random on distinct cells of the grid."""
        robot_key, object_key = jax.random.split(key)
        cells = self._cells()
        count = self.n_apples + self.n_bombs
        # The original draws cells one by one and redraws those forbidden or taken. A cell that survives is uniform over
        # the cells still free, which makes the sequence a uniform sample without replacement. So are the indices of the
        # largest of independent uniform numbers, in order: one `top_k` of fixed shape in place of a loop of unknown
        # length, and three times faster than a permutation.
        _, chosen = jax.lax.top_k(jax.random.uniform(object_key, (len(cells),), jnp.float32), count)
        return GatherState(_reset_robot(robot_key), jnp.asarray(cells)[chosen], jnp.ones(count, bool))

    def observe(self, state: GatherState) -> Array:
        """The robot's nine numbers, then a reading for every sector, apples before bombs; (9 + 2 sensor_bins,)."""
        return jnp.concatenate([_observe_robot(state.robot), self._sensors(state)])

    def _sensors(self, state: GatherState) -> Array:
        """Per sector 1 - distance / sensor_range of the nearest object in it, 0 if there is none; (2 sensor_bins,).

        Sectors run from the right (-span/2) to the left (+span/2).
        """
        offset = state.placed - _centre_of_mass(state.robot)[None, :]
        distance = jnp.sqrt(jnp.sum(offset**2, axis=1))
        reading = jnp.where(state.alive, jnp.maximum(1.0 - distance / self.sensor_range, 0.0), 0.0)
        # The original writes objects from far to near, so the nearest has the last word. Readings fall with distance,
        # hence the maximum over a sector is that same reading, without the sort.
        readings = jnp.where(self._in_sector(state.robot, offset), reading[:, None], 0.0)
        apples, bombs = readings[: self.n_apples], readings[self.n_apples :]
        return jnp.concatenate([jnp.max(apples, axis=0, initial=0.0), jnp.max(bombs, axis=0, initial=0.0)])

    def _in_sector(self, robot: PointState, offset: Array) -> Array:
        """Which sector each object (offset from the centre of mass, (objects, 2) m) lies in; (objects, sensor_bins).

        Objects outside the field of view lie in none. The original bins the angle, sector = int((angle + span/2) /
        (span / bins)). Here an object is in a sector if it is to the left of its right edge and not of its left one:
        the same for sectors narrower than pi, needs no wrapping however far the heading has run, and is twice as fast
        as arctangents. (An angle of exactly span/2 indexes past the original's last bin; here it is out of view.)
        """
        edges = np.linspace(-self.sensor_span / 2, self.sensor_span / 2, self.sensor_bins + 1)
        edge_ahead, edge_left = np.cos(edges).astype(np.float32)[None, :], np.sin(edges).astype(np.float32)[None, :]
        cos, sin = _direction(robot)
        ahead = (offset[:, 0] * cos + offset[:, 1] * sin)[:, None]
        left = (offset[:, 1] * cos - offset[:, 0] * sin)[:, None]
        left_of_edge = edge_ahead * left - edge_left * ahead >= 0.0
        return left_of_edge[:, :-1] & ~left_of_edge[:, 1:]

    def step(self, state: GatherState, action: Array) -> tuple[GatherState, Array, Array, Array]:
        robot, _ = _move(state.robot, action.astype(jnp.float32), self.half_width)
        squared_distance = jnp.sum((state.placed - _centre_of_mass(robot)[None, :]) ** 2, axis=1)
        taken = state.alive & (squared_distance < self.catch_range**2)
        apples = jnp.sum(taken[: self.n_apples], dtype=jnp.float32)
        bombs = jnp.sum(taken[self.n_apples :], dtype=jnp.float32)
        reward = self.apple_reward * apples + self.bomb_reward * bombs
        cost = jnp.minimum(bombs, 1.0)[None]
        alive = state.alive & ~taken
        return GatherState(robot, state.placed, alive), reward, cost, ~jnp.any(alive)

    def position(self, state: GatherState) -> Array:
        """(2,) m."""
        return state.robot.position

    def heading(self, state: GatherState) -> Array:
        """() rad."""
        return state.robot.heading

    def objects(self, state: GatherState) -> tuple[Array, Array]:
        """Where the objects were placed, (objects, 2) m, and which are still there, (objects,); apples come first."""
        return state.placed, state.alive

    def arena(self) -> dict[str, str | float]:
        """What a drawing of the task needs; the "arena" of a run's trajectories.json."""
        return {"kind": "gather", "half_width": self.half_width, "catch_range": self.catch_range}
