"""The point tasks against a second implementation: plain loops in double precision, written from their description."""

from __future__ import annotations

import dataclasses
import functools
import math
import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import spacerl.envs
from spacerl.envs.point.gymnasium import PointCircleEnv, key_from
from spacerl.envs.point.robot import GatherState, PointCircle, PointGather, PointState
from spacerl.envs.tasks import TASKS, task_named

AHEAD = 0.0426
IDS = {"point-circle": "spacerl/PointCircle-v0", "point-gather": "spacerl/PointGather-v0"}


def robot(x: float, y: float, heading: float) -> PointState:
    return PointState(jnp.array([x, y], jnp.float32), jnp.float32(heading), jnp.array([0.1, -0.2, 0.3], jnp.float32))


@functools.partial(jax.jit, static_argnums=0)
def rollout(env, state, actions):
    """(obs before each step, reward, cost, terminated), stacked over steps."""

    def one(state, action):
        obs = env.observe(state)
        state, reward, cost, terminated = env.step(state, action)
        return state, (obs, reward, cost, terminated)

    with jax.numpy_rank_promotion("raise"):
        return jax.lax.scan(one, state, actions)[1]


# ---------------------------------------------------------------- oracles


class OracleRobot:
    def __init__(self, state: PointState):
        self.x, self.y = (float(v) for v in state.position)
        self.theta = float(state.heading)
        self.velocity = [float(v) for v in state.velocity]

    def centre(self) -> tuple[float, float]:
        return self.x + AHEAD * math.cos(self.theta), self.y + AHEAD * math.sin(self.theta)

    def observation(self) -> list[float]:
        return [self.x, self.y, self.theta, *self.velocity, *self.centre(), 0.5]

    def move(self, distance: float, turn: float, size: float) -> tuple[float, float]:
        self.theta += turn
        dx, dy = distance * math.cos(self.theta), distance * math.sin(self.theta)
        self.x = min(max(self.x + dx, -size), size)
        self.y = min(max(self.y + dy, -size), size)
        return dx, dy


def oracle_circle(state: PointState, actions: np.ndarray):
    bot = OracleRobot(state)
    for distance, turn in actions:
        obs = bot.observation()
        cost = 1.0 if abs(obs[-3]) >= 2.5 else 0.0
        dx, dy = bot.move(min(max(distance, -1.0), 1.0), min(max(turn, -0.25), 0.25), size=40.0)
        reward = (-bot.y * dx + bot.x * dy) / (1.0 + abs(math.hypot(bot.x, bot.y) - 5.0))
        yield obs, reward, [cost], False


def oracle_readings(bot: OracleRobot, objects: list[tuple[float, float]]) -> list[float]:
    """Far to near, so that the nearest object overwrites the others of its bin."""
    readings = [0.0] * 10
    cx, cy = bot.centre()
    for ox, oy in sorted(objects, key=lambda o: -math.hypot(o[0] - cx, o[1] - cy)):
        distance = math.hypot(ox - cx, oy - cy)
        angle = (math.atan2(oy - cy, ox - cx) - bot.theta) % (2 * math.pi)
        if angle > math.pi:
            angle -= 2 * math.pi
        if distance <= 6.0 and abs(angle) <= math.pi / 2:
            readings[int((angle + math.pi / 2) / (math.pi / 10))] = 1.0 - distance / 6.0
    return readings


def oracle_gather(state: GatherState, actions: np.ndarray, bomb_reward: float = 0.0):
    bot = OracleRobot(state.robot)
    places = [tuple(map(float, place)) for place in state.placed]
    apples, bombs = places[:2], places[2:]
    for distance, turn in actions:
        obs = bot.observation() + oracle_readings(bot, apples) + oracle_readings(bot, bombs)
        bot.move(distance, turn, size=6.0)
        cx, cy = bot.centre()
        near = [place for place in apples + bombs if (place[0] - cx) ** 2 + (place[1] - cy) ** 2 < 1.0]
        caught_apples, caught_bombs = [p for p in near if p in apples], [p for p in near if p in bombs]
        apples = [p for p in apples if p not in near]
        bombs = [p for p in bombs if p not in near]
        reward = 10.0 * len(caught_apples) + bomb_reward * len(caught_bombs)
        yield obs, reward, [1.0 if caught_bombs else 0.0], not apples and not bombs


def compare(env, state, actions, expected) -> tuple[np.ndarray, np.ndarray]:
    got = rollout(env, state, jnp.asarray(actions, jnp.float32))
    obs, reward, cost, terminated = (np.array(column, float) for column in zip(*expected, strict=True))
    np.testing.assert_allclose(got[0], obs, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(got[1], reward, rtol=1e-5, atol=2e-5)
    np.testing.assert_array_equal(got[2], cost)
    np.testing.assert_array_equal(got[3], terminated)
    return reward, cost


@pytest.mark.parametrize("seed", range(4))
def test_circle_equals_its_description(seed):
    env = PointCircle()
    state = env.reset(jax.random.key(seed))
    actions = np.random.default_rng(seed).normal(0.4, [1.0, 0.3], (80, 2)).astype(np.float32)
    _, cost = compare(env, state, actions, oracle_circle(state, actions))
    assert 0 < cost.mean() < 1
    corner = state._replace(position=jnp.array([39.5, -39.5], jnp.float32))
    compare(env, corner, actions, oracle_circle(corner, actions))


def test_gather_equals_its_description():
    env = PointGather()
    rewards, costs = [], []
    for seed in range(40):
        state = env.reset(jax.random.key(seed))
        actions = np.random.default_rng(seed).normal(0.3, 1.2, (30, 2)).astype(np.float32)
        reward, cost = compare(env, state, actions, oracle_gather(state, actions))
        rewards.append(reward.sum())
        costs.append(cost.sum())
    assert {0.0, 10.0, 20.0} <= set(rewards)
    assert max(costs) >= 3


def test_gather_can_restore_the_penalty_of_the_original():
    env = PointGather(bomb_reward=-1.0)
    state = env.reset(jax.random.key(5))
    actions = np.random.default_rng(5).normal(0.3, 1.2, (30, 2)).astype(np.float32)
    reward, _ = compare(env, state, actions, oracle_gather(state, actions, bomb_reward=-1.0))
    assert reward.min() == -1.0


def test_sensors_equal_a_far_to_near_loop_for_random_objects():
    env = PointGather()
    rng = np.random.default_rng(0)
    observe = jax.jit(env.observe)
    shared_bin = 0
    for _ in range(300):
        state = GatherState(
            robot(*rng.uniform(-6, 6, 2), rng.uniform(-40, 40)),  # a heading of several turns
            jnp.asarray(rng.uniform(-6, 6, (10, 2)), jnp.float32),
            jnp.asarray(rng.random(10) < 0.8),
        )
        bot = OracleRobot(state.robot)
        places, alive = np.asarray(state.placed, float), np.asarray(state.alive)
        apples = [tuple(p) for p in places[:2][alive[:2]]]
        bombs = [tuple(p) for p in places[2:][alive[2:]]]
        expected = oracle_readings(bot, apples) + oracle_readings(bot, bombs)
        np.testing.assert_allclose(observe(state)[9:], expected, atol=1e-5)
        one_by_one = sum(np.array(oracle_readings(bot, [bomb])) > 0 for bomb in bombs)
        shared_bin += np.max(one_by_one, initial=0) > 1
    assert shared_bin > 20  # the overwriting rule was exercised


# ---------------------------------------------------------------- hand-worked numbers


def test_circle_reward_by_hand():
    env = PointCircle()
    state, reward, cost, terminated = env.step(robot(0.0, -5.0, 0.0), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(state.position, [1.0, -5.0])
    assert float(reward) == pytest.approx(5.0 / (1.0 + math.sqrt(26.0) - 5.0))
    assert (reward.dtype, cost.dtype, cost.shape, terminated.dtype) == (jnp.float32, jnp.float32, (1,), jnp.bool_)
    # The turn comes first: from heading 0, a quarter radian, then half a metre along it.
    state, _, _, _ = env.step(robot(0.0, 0.0, 0.0), jnp.array([0.5, 0.25]))
    np.testing.assert_allclose(state.position, [0.5 * math.cos(0.25), 0.5 * math.sin(0.25)], rtol=1e-6)


def test_circle_clips_controls_to_their_range():
    env = PointCircle()
    start = robot(1.0, 2.0, 0.3)
    wild, tame = env.step(start, jnp.array([5.0, -3.0])), env.step(start, jnp.array([1.0, -0.25]))
    for a, b in zip(jax.tree.leaves(wild), jax.tree.leaves(tame), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("x", "heading", "cost"),
    [
        (2.46, 0.0, 1.0),  # the centre of mass is at 2.46 + 0.0426 > 2.5
        (2.46, math.pi, 0.0),
        (-2.46, math.pi, 1.0),
        (2.54, math.pi, 0.0),  # the position is outside, the centre of mass is not
        (2.44, 0.0, 0.0),  # after the step it is outside, but the cost looks at where the step began
        (3.5, math.pi, 1.0),
    ],
)
def test_circle_cost_is_of_the_centre_of_mass_before_the_step(x, heading, cost):
    _, _, got, _ = PointCircle().step(robot(x, 0.0, heading), jnp.array([1.0, 0.0]))
    assert got.tolist() == [cost]


def test_circle_reward_at_the_border_uses_the_commanded_displacement():
    state, reward, _, _ = PointCircle().step(robot(39.9, 10.0, 0.0), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(state.position, [40.0, 10.0])
    assert float(reward) == pytest.approx(-10.0 / (1.0 + math.hypot(40.0, 10.0) - 5.0), rel=1e-5)


def test_the_robot_observation():
    obs = PointCircle().observe(robot(1.0, 2.0, 7.0))
    expected = [1.0, 2.0, 7.0, 0.1, -0.2, 0.3, 1.0 + AHEAD * math.cos(7.0), 2.0 + AHEAD * math.sin(7.0), 0.5]
    np.testing.assert_allclose(obs, expected, rtol=1e-6)
    assert obs.dtype == jnp.float32


def gather_state(start: PointState, places: dict[int, tuple[float, float]]) -> GatherState:
    """Only the objects in `places` (index -> position; 0 and 1 are apples) are there."""
    placed, alive = np.full((10, 2), 6.0, np.float32), np.zeros(10, bool)
    for index, place in places.items():
        placed[index], alive[index] = place, True
    return GatherState(start, jnp.asarray(placed), jnp.asarray(alive))


def test_gather_readings_by_hand():
    # Centre of mass at the origin. Ahead, a touch to the left, at 3 m: sector 5. To the right at 2 m: sector 0 or 1.
    places = {0: (3.0, 0.1), 2: (0.1, -2.0), 3: (4.0, 0.2), 4: (3.5, 0.2), 5: (-1.5, 0.1)}
    obs = PointGather().observe(gather_state(robot(-AHEAD, 0.0, 0.0), places))
    expected = np.zeros(20)
    expected[5] = 1.0 - math.hypot(3.0, 0.1) / 6.0
    expected[10] = 1.0 - math.hypot(0.1, 2.0) / 6.0
    expected[15] = 1.0 - math.hypot(3.5, 0.2) / 6.0  # the nearer of the two bombs ahead; the one behind is unseen
    np.testing.assert_allclose(obs[9:], expected, atol=1e-6)


def test_gather_uses_raw_controls_and_stays_in_the_arena():
    env = PointGather()
    state, *_ = env.step(gather_state(robot(0.0, 0.0, 0.0), {2: (-6.0, 4.0)}), jnp.array([3.0, 1.5]))
    np.testing.assert_allclose(state.robot.position, [3.0 * math.cos(1.5), 3.0 * math.sin(1.5)], rtol=1e-5)
    state, *_ = env.step(state, jnp.array([20.0, -1.5]))
    np.testing.assert_allclose(state.robot.position, [6.0, 3.0 * math.sin(1.5)], rtol=1e-5)


def test_gather_counts_apples_but_only_flags_bombs_and_ends_when_all_are_gone():
    env = PointGather(bomb_reward=-1.0)
    action = jnp.array([1.0, 0.0])
    everything = {0: (1.0, 0.5), 1: (1.0, -0.5), 2: (1.5, 0.0), 3: (0.5, 0.0)}
    state, reward, cost, terminated = env.step(gather_state(robot(0.0, 0.0, 0.0), everything), action)
    assert (float(reward), cost.tolist(), bool(terminated)) == (18.0, [1.0], True)
    assert not state.alive.any()
    np.testing.assert_array_equal(env.observe(state)[9:], np.zeros(20))

    one_left = everything | {4: (-4.0, 0.0)}
    _, reward, _, terminated = env.step(gather_state(robot(0.0, 0.0, 0.0), one_left), action)
    assert (float(reward), bool(terminated)) == (18.0, False)


def test_gather_catches_from_the_centre_of_mass_and_strictly_inside_the_range():
    env = PointGather()
    stay = jnp.array([0.0, 0.0])
    for x, caught in ((1.04, True), (1.05, False), (-0.95, True), (-0.96, False)):
        state, *_ = env.step(gather_state(robot(0.0, 0.0, 0.0), {0: (x, 0.0)}), stay)
        assert bool(state.alive[0]) is not caught


# ---------------------------------------------------------------- reset


def test_reset_noise():
    states = jax.vmap(PointCircle().reset)(jax.random.split(jax.random.key(0), 20_000))
    pose = np.column_stack([states.position, states.heading])
    np.testing.assert_allclose(pose.mean(0), 0.0, atol=5e-4)
    np.testing.assert_allclose(pose.std(0), 0.01, rtol=0.03)
    np.testing.assert_allclose(np.std(states.velocity, axis=0), 0.1, rtol=0.03)


def test_gather_placement_is_uniform_over_the_35_cells():
    episodes = 20_000
    state = jax.jit(jax.vmap(PointGather().reset))(jax.random.split(jax.random.key(1), episodes))
    cells = np.asarray(state.placed)
    assert set(np.unique(cells)) == {-6.0, -4.0, -2.0, 0.0, 2.0, 4.0}  # never +6
    index = ((cells[..., 0] + 6) / 2 * 6 + (cells[..., 1] + 6) / 2).astype(int)
    origin = 3 * 6 + 3
    assert np.all(index != origin)
    assert np.all(np.diff(np.sort(index, axis=1), axis=1) > 0)  # distinct
    for slot in range(10):  # each object, first apple to last bomb, is anywhere with the same chance
        counts = np.delete(np.bincount(index[:, slot], minlength=36), origin)
        chi_squared = np.sum((counts - episodes / 35) ** 2 / (episodes / 35))
        assert chi_squared < 70.0  # 34 degrees of freedom; the chance of more is 3e-4
    # Where the first object lies says nothing about the second, except that it is elsewhere.
    pairs = np.bincount(index[:, 0] * 36 + index[:, 1], minlength=36 * 36)
    assert np.count_nonzero(pairs) == 35 * 34
    assert bool(state.alive.all())


def test_seeds_reproduce_and_differ():
    for name in IDS:
        env = spacerl.make_env(name)
        first, again, other = (env.observe(env.reset(jax.random.key(seed))) for seed in (3, 3, 4))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)


# ---------------------------------------------------------------- names and settings


def test_names_shapes_and_arenas():
    circle, gather = spacerl.make_env("point-circle"), spacerl.make_env("point-gather")
    assert (circle.spec.obs_shape, circle.spec.horizon) == ((9,), 50)
    assert (gather.spec.obs_shape, gather.spec.horizon) == ((29,), 15)
    assert circle.spec.action[:4] == ("box", 2, (-1.0, -0.25), (1.0, 0.25))
    assert circle.arena() == {"kind": "circle", "radius": 5.0, "x_limit": 2.5}
    assert gather.arena() == {"kind": "gather", "half_width": 6.0, "catch_range": 1.0}
    assert task_named("point-circle").make_jax_env(radius=10.0) == dataclasses.replace(circle, radius=10.0)
    for name, env in (("point-circle", circle), ("point-gather", gather)):
        assert env.spec.name == name
        state = env.reset(jax.random.key(0))
        assert env.observe(state).shape == env.spec.obs_shape
        assert env.position(state).shape == (2,)
    positions, alive = gather.objects(gather.reset(jax.random.key(0)))
    assert (positions.shape, alive.shape) == ((10, 2), (10,))


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="did you mean 'point-circle'"):
        spacerl.make_env("point-cirle")
    with pytest.raises(ValueError, match="35 places"):
        PointGather(n_bombs=40)
    with pytest.raises(ValueError, match="less than pi"):
        PointGather(sensor_bins=1)
    with pytest.raises(ValueError, match="rgb_array"):
        PointCircleEnv(render_mode="human")


def test_listing_the_tasks_imports_no_jax():
    program = "import sys, spacerl.envs; assert len(spacerl.envs.TASKS) >= 2; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_registration_is_idempotent_and_agrees_with_the_horizons():
    before = dict(gymnasium.registry)
    spacerl.envs.register()
    assert dict(gymnasium.registry) == before
    for name, task_id in IDS.items():
        assert TASKS[name].gymnasium_id == task_id
        horizon = spacerl.make_env(name).spec.horizon
        assert gymnasium.spec(task_id).max_episode_steps == horizon == TASKS[name].settings["rollout_length"]


# ---------------------------------------------------------------- Gymnasium


@pytest.mark.parametrize("task_id", IDS.values())
def test_gymnasium_checker_passes(task_id):
    env = gymnasium.make(task_id, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Two warnings are about choices: observations have no natural bounds, and actions are in metres and radians.
        warnings.filterwarnings("ignore", message=".*A Box observation space (min|max)imum value is -?infinity")
        warnings.filterwarnings("ignore", message=".*we recommend using a symmetric and normalized space")
        check_env(env.unwrapped, skip_render_check=False)
    env.close()


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_steps_equal_a_device_rollout(name):
    task, env = spacerl.make_env(name), gymnasium.make(IDS[name])
    episodes = 3
    actions = np.random.default_rng(0).normal(0.2, 0.8, (task.spec.horizon, episodes, 2)).astype(np.float32)
    keys = jnp.stack([key_from(np.random.default_rng(seed)) for seed in range(episodes)])

    def one(states, action):
        states, reward, cost, terminated = jax.vmap(task.step)(states, action)
        return states, (jax.vmap(task.observe)(states), reward, cost, terminated)

    states = jax.vmap(task.reset)(keys)
    _, (obs, reward, cost, terminated) = jax.jit(lambda s, a: jax.lax.scan(one, s, a))(states, actions)
    for episode in range(episodes):
        first, info = env.reset(seed=episode)
        np.testing.assert_allclose(first, jax.vmap(task.observe)(states)[episode], atol=1e-6)
        assert info == {"cost": 0.0}
        for t in range(task.spec.horizon):
            got = env.step(actions[t, episode])
            np.testing.assert_allclose(got[0], obs[t, episode], atol=1e-5)
            assert got[1] == pytest.approx(float(reward[t, episode]), abs=1e-5)
            assert got[2] == bool(terminated[t, episode])
            assert got[3] is (t == task.spec.horizon - 1)
            assert got[4]["cost"] == float(cost[t, episode, 0])
            assert isinstance(got[4]["cost"], float)


def test_gymnasium_seeds_reproduce_and_differ():
    env = gymnasium.make("spacerl/PointGather-v0")
    first, second = env.reset(seed=1)[0], env.reset()[0]
    again, second_again = env.reset(seed=1)[0], env.reset()[0]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(second, second_again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, env.reset(seed=2)[0])


def test_gymnasium_environment_takes_settings_and_refuses_wrong_actions():
    env = gymnasium.make("spacerl/PointCircle-v0", radius=7.0)
    assert env.unwrapped.task == PointCircle(radius=7.0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.unwrapped.step(np.zeros(3))


@pytest.mark.parametrize("task_id", IDS.values())
def test_frames_show_the_episode(task_id):
    env = gymnasium.make(task_id, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    for _ in range(5):
        env.step(np.array([1.0, 0.1], np.float32))
    after = env.render()
    for frame in (before, after):
        assert (frame.shape, frame.dtype) == ((400, 400, 3), np.uint8)
        assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 100  # shapes with smooth edges
    assert np.mean(np.any(before != after, axis=-1)) > 0.01


def test_the_camera_follows_a_robot_that_runs_away():
    env = gymnasium.make("spacerl/PointCircle-v0", render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(45):
        env.step(np.array([1.0, 0.0], np.float32))
    frame = env.render().astype(int)
    robot_blue = np.abs(frame - np.array([42, 111, 187])).sum(-1) < 20
    assert robot_blue[:, 340:].sum() > 100
