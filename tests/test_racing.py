"""Car racing: Gymnasium's own environment is the oracle of its dynamics, rewards and images."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import spacerl
from spacerl.envs.make import make_env
from spacerl.envs.tasks import TASKS
from spacerl.runs.config import EnvSettings
from spacerl.types import IDLE, RESET, STEP

pytest.importorskip("Box2D", reason="car racing needs Box2D: pip install 'spacerl[car-racing]'")

from spacerl.envs.racing.gymnasium import CarRacingEnv, driven, original
from spacerl.envs.racing.host import car_racing

LEFT, RIGHT, GAS, BRAKE, NOTHING = (
    np.array(action, np.float32) for action in ((-1, -1, -1), (1, -1, -1), (0, 1, -1), (0, -1, 1), (0, -1, -1))
)


def wandering(steps: int, seed: int) -> list[np.ndarray]:
    """Somebody at the keys who changes them a few times a second, mostly with gas."""
    random, actions = np.random.default_rng(seed), []
    for step in range(steps):
        if step % 12 == 0:
            action = np.array([random.choice([-1, 0, 1]), random.choice([-1, 1, 1]), random.choice([-1, -1, -1, 1])])
        actions.append(action.astype(np.float32))
    return actions


def pairs(seed: int, steps: int):
    """(Gymnasium's, ours) after every step of one drive."""
    theirs, mine = original.CarRacing(lap_complete_percent=0.95), CarRacingEnv()
    yield theirs, mine, theirs.reset(seed=seed)[0], mine.reset(seed=seed)[0], 0.0, 0.0
    for action in wandering(steps, seed):
        image, reward, terminated, _, _ = theirs.step(np.array(driven(action)))
        obs, own_reward, own_terminated, _, _ = mine.step(action)
        assert terminated == own_terminated
        yield theirs, mine, image, obs, reward, own_reward


def difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.abs(first.astype(np.int16) - second.astype(np.int16))


@pytest.mark.parametrize("seed", [1, 7])
def test_dynamics_rewards_and_images_are_gymnasiums(seed):
    """Levels of brightness are 0 to 255; the first fifty frames come closer from far away."""
    differences = []
    for theirs, mine, image, obs, reward, own_reward in pairs(seed, 110):
        assert tuple(theirs.car.hull.position) == tuple(mine.car.hull.position)
        assert theirs.car.hull.angle == mine.car.hull.angle
        assert reward == pytest.approx(own_reward, abs=1e-12)
        assert (obs.shape, obs.dtype) == ((96, 96, 3), np.uint8)
        differences.append(difference(image, obs))
    off = np.array(differences)
    worst = off.max(axis=-1)
    assert off.mean() < 0.3
    assert off.mean(axis=(1, 2, 3)).max() < 1.0  # of any frame
    assert (worst > 32).mean() < 0.002
    assert off[:, 84:].mean() < 0.02  # indicators and score
    assert off[50:, 66:78, 36:60].mean() < 1.5  # the car


def test_the_images_differ_where_they_should():
    """What the comparison above is able to see: another track, or the same one a step later, is far off."""
    frames = [(image, obs) for *_, image, obs, _, _ in pairs(3, 60)]
    assert difference(frames[-1][0], frames[-12][1]).mean() > 2.0
    other = CarRacingEnv().reset(seed=4)[0]
    assert difference(frames[0][0], other).mean() > 1.2


def test_an_episode_does_not_depend_on_those_before_it():
    used, fresh = CarRacingEnv(), CarRacingEnv()
    used.reset(seed=5)
    for action in wandering(40, 5):
        used.step(action)
    first, second = used.reset(seed=6)[0], fresh.reset(seed=6)[0]
    np.testing.assert_array_equal(first, second)
    for action in wandering(80, 6):
        first, second = used.step(action), fresh.step(action)
        np.testing.assert_array_equal(first[0], second[0])
        assert first[1:] == second[1:]


def test_three_numbers_are_the_papers_twelve_actions():
    grid = np.linspace(-1.5, 1.5, 13)
    made = {driven(np.array(each)) for each in np.stack(np.meshgrid(grid, grid, grid), -1).reshape(-1, 3)}
    assert made == {(s, g, b) for s in (-1.0, 0.0, 1.0) for g in (0.0, 1.0) for b in (0.0, 0.2)}
    assert driven(np.array([0.34, 0.01, -0.01])) == (1.0, 1.0, 0.0)
    assert driven(np.array([-0.33, 0.0, 0.01])) == (0.0, 0.0, 0.2)
    env = CarRacingEnv(discrete=True)
    env.reset(seed=0)
    assert env.action_space.n == 12
    assert len({env._chosen(index) for index in range(12)}) == 12
    assert env._chosen(11) == (1.0, 1.0, 0.2)


@pytest.mark.parametrize(("counted", "costs"), [("frames", [0, 1, 1, 0, 1]), ("presses", [0, 1, 0, 0, 1])])
def test_braking_costs(counted, costs):
    env = CarRacingEnv(cost=counted)
    env.reset(seed=0)
    seen = [env.step(action)[4]["cost"] for action in (GAS, BRAKE, BRAKE, NOTHING, BRAKE)]
    assert seen == costs
    env.reset(seed=0)
    assert env.step(BRAKE)[4]["cost"] == 1.0  # nothing is left of the episode before


def test_rewards_and_the_penalty_of_a_frame():
    usual, paper = CarRacingEnv(), CarRacingEnv(frame_penalty=1.0)
    rewards = []
    for env in (usual, paper):
        env.reset(seed=2)
        rewards.append(np.array([env.step(GAS)[1] for _ in range(40)]))
    np.testing.assert_allclose(rewards[0] - rewards[1], 0.9)
    tiles = len(usual.track)
    visited = np.round((rewards[0] + 0.1) / (1000 / tiles))
    np.testing.assert_allclose(rewards[0], visited * 1000 / tiles - 0.1, atol=1e-9)
    assert 0 < visited.sum() <= usual.tile_visited_count


def test_a_lap_ends_when_95_percent_of_the_tiles_are_behind_and_the_first_is_reached():
    """Every tile but a few is declared visited; the car stands before the first one."""
    for share, ends in ((0.94, False), (0.97, True)):
        env = CarRacingEnv()
        env.reset(seed=0)
        count = len(env.track)
        for tile in env.road:
            tile.road_visited = False
        env.tile_visited_count = int(share * count)
        env.new_lap = False
        touched = original.FrictionDetector(env, env.lap_complete_percent)
        wheel = env.car.wheels[0]
        wheel.tiles.discard(env.road[0])
        touched._contact(Contact(env.road[0], wheel), True)
        assert env.step(NOTHING)[2] is ends


class Contact:
    def __init__(self, tile, wheel):
        self.fixtureA, self.fixtureB = tile.fixtures[0], wheel.fixtures[0]


def test_leaving_the_field_ends_the_episode():
    env = CarRacingEnv()
    env.reset(seed=0)
    env.car.hull.position = (original.PLAYFIELD + 10, 0)
    _, reward, terminated, _, info = env.step(NOTHING)
    assert (reward, terminated, info["lap_finished"]) == (-100.0, True, False)


def test_gymnasiums_checker_finds_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(human|render).*")
        env = gymnasium.make("spacerl/CarRacing-v0", render_mode="rgb_array", disable_env_checker=True)
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=0)
        assert env.render().shape == (400, 600, 3)
        assert env.spec.max_episode_steps == 1000
        env.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cost": "brakes"}, "allowed are 'frames' and 'presses'"),
        ({"render_mode": "human"}, "use 'rgb_array'"),
        ({"frame_penalty": float("nan")}, "finite"),
        ({"lap_complete_percent": 95}, "up to 1"),
    ],
)
def test_settings_that_cannot_be(given, said):
    with pytest.raises(ValueError, match=said):
        CarRacingEnv(**given)


def test_the_numbers_do_not_depend_on_the_workers():
    ticks = []
    for workers in (0, 2):
        env = car_racing(3, workers)
        try:
            assert env.spec.name == "car-racing"
            assert env.spec.obs_dtype == "uint8"
            assert env.spec.horizon == 1000
            ticks.append(list(played(env)))
        finally:
            env.close()
    for first, second in zip(*ticks, strict=True):
        for mine, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(mine, other)


def played(env):
    never, seeds = np.zeros(3, bool), np.array([3, 4, 5])
    nobody = np.full(3, -1)
    yield env.tick(np.full(3, RESET), np.zeros((3, 3), np.float32), never, seeds)
    for actions in zip(*(wandering(15, seed) for seed in seeds), strict=True):
        yield env.tick(np.full(3, STEP), np.stack(actions), never, nobody)
    again = env.tick(np.array([STEP, IDLE, STEP]), np.stack([GAS] * 3), np.array([True, False, False]), seeds)
    assert again.truncated.tolist() == [True, False, False]
    yield again._replace(obs=again.obs[::2], next_obs=again.next_obs[::2])


def test_a_run_trains_from_pixels(tmp_path, quick_compilation):
    """Whole updates on the conv network of the paper, tiny, and the film of what was learned."""
    settings = {"batch_size": 12, "rollout_length": 6, "environments": 2, "workers": 2, "progress": False, "log": ()}
    run = spacerl.train("car-racing", algorithm="pcpo", updates=1, out=tmp_path / "run", **settings)
    family = run.policy.family
    assert (family.filters, family.hidden) == ((24, 12), (32, 16))
    assert family.images[0].shape == (96, 96, 3)
    assert TASKS["car-racing"].settings["batch_size"] == 10_000
    film = spacerl.film(tmp_path / "run", tmp_path / "film.gif", episodes=1)
    assert film.stat().st_size > 1000


def test_the_shipped_baseline_says_who_demonstrated():
    path = TASKS["car-racing"].shipped()["demos"]
    assert path.stat().st_size < 300_000
    policy = spacerl.load_policy("demos", task="car-racing")
    assert policy.info["demonstrated_by"] == "scripted keyboard driver (not a person)"
    assert policy.info["demonstrated_steps"] == 60_000
    assert policy.info["J_C"] > TASKS["car-racing"].settings["cost_limit"]  # nobody told it what costs
    dist = policy(CarRacingEnv().reset(seed=0)[0][None])
    assert np.isfinite(dist.mode()).all()
    assert (np.exp(dist.log_std) >= 0.0999).all()


def test_without_box2d_it_says_what_to_install(monkeypatch):
    import importlib
    import sys

    for name in [name for name in sys.modules if name.startswith("spacerl.envs.racing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"spacerl\[car-racing\]"):
        importlib.import_module("spacerl.envs.racing.gymnasium")
    with pytest.raises(spacerl.InputError, match=r"pip install 'spacerl\[car-racing\]'"):
        make_env("car-racing", EnvSettings(environments=1, workers=1))
