"""Episodes collected on the host: the very steps a lone environment takes, whole, unbiased, whoever steps them.

The oracle is a plain loop over one environment. The pool's faults are real: exceptions, exits, signals, a segmentation
fault, a hang.
"""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.core.distributions import Gaussian
from spacerl.envs.host.channel import Channel
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.pool import FAULTS_IN_A_ROW, Fault, WorkersFailed
from spacerl.envs.host.replay import Episodes
from spacerl.envs.host.single import BadStep, Recipe, SingleEnv
from spacerl.envs.point.robot import PointCircle, PointGather
from spacerl.policies.loading import load_policy
from spacerl.rollout import host
from spacerl.rollout.adapter import JaxBatchEnv
from spacerl.rollout.evaluate import Play, episode_returns, episode_sums, play_on_device
from spacerl.rollout.host import Recording, pack
from spacerl.training.train import say_what_failed
from spacerl.training.update import initial_state, make_batch, nearest_baseline, with_policy
from spacerl.types import IDLE, RESET, STEP, ActionSpace, BatchEnv, EnvSpec, InputError, JaxEnv, Tick
from support.environments import Faulty, Geometric, Image, Line, Mixed, Odd, RarelyOdd, SlowToMake, Unseeded
from support.learners import Toy, make_config, make_learner, quick_jit
from support.runs import alive, assert_gone, processes


def hosted(factory: Any, lanes: int = 3, workers: int = 0, **settings) -> HostedEnv:
    return HostedEnv(Recipe(factory, named_sources(None)), lanes, workers, **settings)


def random_acts(lanes: int, size: int = 1, seed: int = 7):
    """Actions that depend on the tick alone."""
    return lambda obs, tick: np.random.default_rng((seed, tick)).normal(size=(lanes, size)).astype(np.float32)


class Spy(BatchEnv):
    """A BatchEnv that remembers what it was told."""

    def __init__(self, env: BatchEnv):
        self.env, self.lanes, self.told, self.ended = env, env.lanes, [], []

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def tick(self, command, action, last, seed) -> Tick:
        result = self.env.tick(command, action, last, seed)
        self.told.append((command.copy(), last.copy(), seed.copy()))
        self.ended.append((result.terminated | result.truncated) & (command == STEP))
        return result

    def counts(self):
        return self.env.counts()

    def seed_of(self, lane: int, start: int) -> int:
        """Seed of the episode that begins at tick `start`: of a reset, or of a step that ended the one before."""
        command, _, seed = self.told[start - 1]
        assert command[lane] == RESET or self.ended[start - 1][lane]
        assert seed[lane] >= 0
        return int(seed[lane])


# ---------------------------------------------------------------- against a plain loop


@pytest.fixture(scope="module")
def recorded():
    """Lines that end by themselves, by a limit of their own at 9, or by the run's at 12; all steps remembered."""

    class Ending(Line):
        def cut(self):
            return self.mark % 2 == 0 and self.steps >= 9

    with hosted(Ending, lanes=4) as env:
        spy = Spy(env)
        recording = host.episodes(spy, random_acts(4), (1, 2), 12, steps=600, keep_next=True)
    return Ending, spy, recording


def test_every_episode_is_the_one_a_lone_environment_plays(recorded):
    factory, spy, recording = recorded
    single = SingleEnv(Recipe(factory, named_sources(None)))
    for lane, start, stop in recording.episodes:
        obs = single.reset(spy.seed_of(lane, start))
        for t in range(start, stop):
            assert np.array_equal(recording.obs[t, lane], obs)
            obs, reward, cost, terminated, truncated = single.step(recording.action[t, lane])
            truncated = not terminated and (truncated or t - start + 1 == 12)
            assert np.array_equal(recording.next_obs[t, lane], obs)
            assert recording.reward[t, lane] == np.float32(reward)
            assert recording.cost[t, lane].tolist() == cost.tolist()
            assert bool(recording.terminated[t, lane]) == terminated
            assert bool(recording.truncated[t, lane]) == truncated
            assert (terminated or truncated) == (t == stop - 1)


def test_every_way_to_end_occurs_and_is_told_apart(recorded):
    _, _, recording = recorded
    ends = {"terminated": [], "own limit": [], "time limit": []}
    for lane, start, stop in recording.episodes:
        length = stop - start
        if recording.terminated[stop - 1, lane]:
            assert not recording.truncated[stop - 1, lane]
            assert abs(recording.next_obs[stop - 1, lane, 0]) > 3.0
            ends["terminated"].append(length)
        else:
            assert recording.truncated[stop - 1, lane]
            ends["own limit" if length < 12 else "time limit"].append(length)
    assert all(ends.values()), "every way must occur"
    assert set(ends["own limit"]) == {9}
    assert set(ends["time limit"]) == {12}
    assert max(ends["terminated"]) <= 12


def test_the_last_observation_is_the_episodes_own_and_not_the_next_ones_first(recorded):
    _, _, recording = recorded
    followed = 0
    begins = {(lane, start) for lane, start, _ in recording.episodes}
    for lane, start, stop in recording.episodes:
        steps = recording.obs[start:stop, lane, 1]
        assert steps.tolist() == list(range(stop - start))
        assert recording.next_obs[start:stop, lane, 1].tolist() == list(range(1, stop - start + 1))
        assert len(set(recording.obs[start:stop, lane, 2]) | set(recording.next_obs[start:stop, lane, 2])) == 1
        if (lane, stop) in begins:  # begun in the very step that ended this one
            followed += 1
            assert recording.obs[stop, lane, 1] == 0
            assert recording.obs[stop, lane, 2] != recording.next_obs[stop - 1, lane, 2]
    assert followed > len(recording.episodes) / 2, "autoreset must be the rule"


def test_every_episode_has_a_seed_of_its_own(recorded):
    _, spy, recording = recorded
    seeds = [spy.seed_of(lane, start) for lane, start, _ in recording.episodes]
    assert len(set(seeds)) == len(seeds) > 40
    assert len({float(recording.obs[start, lane, 2]) for lane, start, _ in recording.episodes}) == len(seeds)


def test_all_episodes_begun_are_finished_and_the_steps_are_reached_without_waste(recorded):
    _, spy, recording = recorded
    steps = sum(stop - start for _, start, stop in recording.episodes)
    assert 600 <= steps <= 600 + 4 * 12
    begun = sum(int(np.sum(command == RESET)) for command, _, _ in spy.told)
    begun += sum(int(np.sum(e & (s >= 0))) for e, (_, _, s) in zip(spy.ended, spy.told, strict=True))
    assert begun == len(recording.episodes), "an episode left out would bias the batch"


def test_the_same_seed_gives_the_same_episodes_and_another_one_others():
    with hosted(Line) as env:
        first, again, other = (host.episodes(env, random_acts(3), s, 10, steps=60) for s in ((3, 4), (3, 4), (3, 5)))
    assert first.episodes == again.episodes
    assert np.array_equal(first.obs, again.obs)
    assert not np.array_equal(first.obs[1], other.obs[1])


@pytest.mark.parametrize("factory", [Line, Mixed, Image], ids=lambda f: f.__name__)
def test_who_steps_them_changes_no_bit(factory):
    recordings = []
    for workers in (0, 1, 2, 3) if factory is Line else (0, 2):
        with hosted(factory, lanes=5, workers=workers) as env:
            discrete = env.spec.action.kind == "discrete"

            def act(obs, tick, discrete=discrete):
                acts = random_acts(5)(obs, tick)
                return (np.abs(acts[:, 0] * 10) % 3).astype(np.int32) if discrete else acts

            recordings.append(host.episodes(env, act, 11, 9, steps=120, keep_next=True))
            assert env.counts() == {"worker_restarts": 0, "lost_episodes": 0}
    for other in recordings[1:]:
        assert other.episodes == recordings[0].episodes
        for name in Recording._fields[:-1]:
            mine, theirs = getattr(recordings[0], name), getattr(other, name)
            assert mine.dtype == theirs.dtype
            for lane, start, stop in other.episodes:
                assert np.array_equal(mine[start:stop, lane], theirs[start:stop, lane]), name


# ---------------------------------------------------------------- how many, on an environment made of numbers


class Numbers(BatchEnv):
    """A BatchEnv of NumPy alone. Lengths of episodes are geometric; every lane may be lost with some chance a tick."""

    spec = EnvSpec("numbers", (2,), ActionSpace("box", 1), 50)

    def __init__(self, lanes: int, end: float = 0.1, lose: float = 0.0, seed: int = 0):
        self.lanes, self.end, self.lose, self.random = lanes, end, lose, np.random.default_rng(seed)
        self.age, self.running, self.mark = np.zeros(lanes, int), np.zeros(lanes, bool), np.zeros(lanes, int)
        self.begun, self.marks_lost, self.idle_ticks = 0, [], 0

    def begin(self, which):
        self.age[which], self.running[which] = 0, True
        for lane in np.flatnonzero(which):
            self.begun += 1
            self.mark[lane] = self.begun

    def tick(self, command, action, last, seed):
        assert np.all(self.running[command == STEP]), "a lane that does not run was stepped"
        assert not np.any(self.running[command == RESET]), "an episode was thrown away"
        assert np.all(seed[command == RESET] >= 0)
        self.idle_ticks += int(np.sum(command == 0))
        stepped = command == STEP
        self.begin(command == RESET)
        self.age += stepped
        terminated = stepped & (self.random.random(self.lanes) < self.end)
        truncated = stepped & ~terminated & last
        next_obs = np.stack([self.mark, self.age], -1).astype(np.float32)
        ended = terminated | truncated
        self.running &= ~ended
        lost = (command != 0) & (self.random.random(self.lanes) < self.lose)
        self.marks_lost += self.mark[lost & ~ended].tolist()  # a step that ended and was lost is lost as well
        self.marks_lost += self.mark[lost & ended].tolist()
        self.begin(ended & (seed >= 0) & ~lost)
        self.running &= ~lost
        obs = np.stack([self.mark, self.age], -1).astype(np.float32)
        reward = stepped.astype(np.float32)
        return Tick(
            obs, next_obs, reward, reward[:, None], terminated | lost, truncated, lost
        )  # flags of lost lanes mean nothing

    def counts(self):
        return {}


def zeros(lanes: int):
    return lambda obs, tick: np.zeros((lanes, 1), np.float32)


def lengths(recording: Recording) -> list[int]:
    return [stop - start for _, start, stop in recording.episodes]


@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.parametrize("episodes", [1, 2, 7, 50])
def test_exactly_the_episodes_asked_for(lanes, episodes):
    env = Numbers(lanes)
    recording = host.episodes(env, zeros(lanes), 0, 50, count=episodes)
    assert len(recording.episodes) == episodes == env.begun
    assert not env.running.any()


@pytest.mark.parametrize("lanes", [1, 4, 16, 40])
@pytest.mark.parametrize("end", [0.0, 0.02, 0.3])
def test_steps_are_reached_and_hardly_more(lanes, end):
    for seed in range(10):
        env = Numbers(lanes, end, seed=seed)
        recording = host.episodes(env, zeros(lanes), seed, 20, steps=200)
        taken = sum(lengths(recording))
        assert max(lengths(recording)) <= 20
        assert len(recording.episodes) == env.begun
        assert 200 <= taken <= 200 + 20 * lanes
        if end == 0.0:
            assert taken == 200, "episodes of full length can be counted in advance"


def test_lanes_that_are_not_needed_stay_idle():
    env = Numbers(16, 0.0)
    recording = host.episodes(env, zeros(16), 0, 20, steps=60)
    assert lengths(recording) == [20, 20, 20]
    assert env.idle_ticks == 13 * 21


def test_lost_lanes_leave_the_batch_whole_and_no_part_of_their_episode():
    for seed in range(20):
        env = Numbers(5, 0.05, lose=0.03, seed=seed)
        recording = host.episodes(env, zeros(5), seed, 30, steps=300, keep_next=True)
        assert sum(lengths(recording)) >= 300
        kept = set()
        for lane, start, stop in recording.episodes:
            marks = recording.obs[start:stop, lane, 0]
            assert len(set(marks)) == 1
            assert recording.obs[start:stop, lane, 1].tolist() == list(range(stop - start))
            assert recording.next_obs[start:stop, lane, 1].tolist() == list(range(1, stop - start + 1))
            ended = recording.terminated[start:stop, lane] | recording.truncated[start:stop, lane]
            assert ended.tolist() == [False] * (stop - start - 1) + [True]
            kept.add(int(marks[0]))
        assert len(kept) == len(recording.episodes)
        assert env.marks_lost, "some must be lost, or nothing is tested"
        assert not kept & set(env.marks_lost)
        assert kept | set(env.marks_lost) == set(range(1, env.begun + 1)), (
            "lost to a fault is the only way to be left out"
        )
        exact = host.episodes(Numbers(5, 0.05, lose=0.03, seed=seed), zeros(5), seed, 30, count=17)
        assert len(exact.episodes) == 17


@pytest.mark.parametrize("lanes", [1, 8, 32])
def test_which_episodes_are_taken_does_not_depend_on_how_long_they_are(lanes):
    """Wald's identity: sums over all batches have the mean of a single episode. And one batch's mean is hardly off."""
    chance, longest, batches = 0.1, 50, 40 if lanes == 1 else 150
    truth = (1 - (1 - chance) ** longest) / chance
    env = Numbers(lanes, chance, seed=4)
    each = [lengths(host.episodes(env, zeros(lanes), k, longest, steps=400)) for k in range(batches)]
    pooled = np.concatenate(each)
    assert abs(pooled.mean() - truth) < 4.0 * pooled.std() / math.sqrt(len(pooled))
    means = np.array([np.mean(batch) for batch in each])
    # A ratio estimate from n episodes is off by about a n-th; beginnings or long episodes alone would be off by far.
    allowed = 2.0 * truth / (400 / truth) + 4.0 * means.std() / math.sqrt(batches)
    assert abs(means.mean() - truth) < allowed


def test_real_environments_with_geometric_lengths_are_unbiased_too():
    with hosted(lambda: Geometric(0.2), lanes=6) as env:
        batches = [lengths(host.episodes(env, zeros(6), k, 40, steps=150)) for k in range(25)]
    pooled, truth = np.concatenate(batches), (1 - 0.8**40) / 0.2
    assert abs(pooled.mean() - truth) < 4.0 * pooled.std() / math.sqrt(len(pooled))


# ---------------------------------------------------------------- environments in JAX, policies that do not compile


class FromOnePlace(PointCircle):
    """Every episode begins in the same state, whatever the key."""

    def reset(self, key):
        return super().reset(jax.random.PRNGKey(5))


def both_ways(env: JaxEnv, name: str):
    """One policy twice: as it is, which compiles, and behind a Python function, which does not."""
    compiled = spacerl.load_policy(name, task=env.spec.name)

    def behind_a_function(obs):
        assert isinstance(obs, np.ndarray)
        dist = compiled(obs)
        return np.asarray(dist.mean), np.exp(np.asarray(dist.log_std))

    function = load_policy(behind_a_function, env.spec.name, env.spec)
    assert compiled.compiles
    assert not function.compiles
    return compiled, function


@pytest.mark.parametrize("name", ["cost", "reward", "near"])
def test_a_function_plays_an_environment_in_jax_as_the_compiled_policy_does(name):
    """Without anything random: the same start, the most likely action."""
    env = FromOnePlace()
    compiled, function = both_ways(env, name)
    play = Play(episodes=3, length=env.spec.horizon, seed=2, deterministic=True)
    rewards, costs, *_ = play_on_device(env, compiled, play)
    J_R, J_C = episode_sums(rewards, costs, 0.995)
    own_J_R, own_J_C = episode_returns(env, function, 0.995, play)
    assert own_J_R == pytest.approx(J_R, abs=1e-4)
    assert own_J_C == pytest.approx(J_C, abs=1e-4)
    assert (own_J_R.shape, own_J_C.shape) == ((3,), (3, 1))


def test_a_function_plays_the_compiled_policys_episodes():
    """The same resets and the same noise; an object within rounding of the catch range may go either way."""
    env = PointGather()
    compiled, function = both_ways(env, "reward")
    one, other = (episode_returns(env, policy, 0.995, Play(40, 15, 3)) for policy in (compiled, function))
    for mine, theirs in zip(one, other, strict=True):
        assert mine.shape == theirs.shape
        assert np.mean(np.abs(mine - theirs) < 1e-3) >= 0.9


def test_a_lane_of_an_environment_in_jax_resets_steps_waits_and_follows():
    """Against the environment itself, lane by lane."""
    env, lanes = PointGather(), 4
    batch = JaxBatchEnv(env, lanes)
    assert batch.spec == env.spec
    action = np.random.default_rng(0).normal(size=(lanes, 2)).astype(np.float32)
    seeds = np.array([3, 9, 4, 3])
    first = batch.tick(np.full(lanes, RESET), action, np.zeros(lanes, bool), seeds)
    states = [env.reset(jax.random.PRNGKey(int(seed))) for seed in seeds]
    assert first.obs == pytest.approx(np.stack([env.observe(state) for state in states]), abs=1e-6)
    assert np.array_equal(first.obs[0], first.obs[3])
    assert not first.terminated.any()
    assert not first.truncated.any()
    # Lane 0 steps, 1 waits, 2 is cut and goes idle, 3 is cut and followed.
    command, last = np.array([STEP, IDLE, STEP, STEP]), np.array([False, True, True, True])
    tick = batch.tick(command, action, last, np.array([-1, -1, -1, 9]))
    for lane in (0, 2, 3):
        state, reward, cost, _ = env.step(states[lane], jnp.asarray(action[lane]))
        assert tick.next_obs[lane] == pytest.approx(np.asarray(env.observe(state)), abs=1e-5)
        assert tick.reward[lane] == pytest.approx(float(reward), abs=1e-5)
        assert tick.cost[lane].tolist() == np.asarray(cost).tolist()
    assert tick.truncated.tolist() == [False, False, True, True]
    assert np.array_equal(tick.obs[1], first.obs[1])
    assert np.array_equal(tick.obs[3], first.obs[1]), "the first observation of the episode with that seed"
    assert np.array_equal(tick.obs[0], tick.next_obs[0])
    assert not tick.lost.any()


# ---------------------------------------------------------------- laid out in columns


def a_recording(random: np.random.Generator, lengths: list[int], lanes: int = 3, costs: int = 2) -> Recording:
    """Episodes of these lengths on some lanes, with idle ticks between them that hold what must not be taken."""
    ticks = [0] * lanes
    episodes = []
    for length in lengths:
        lane = int(random.integers(lanes))
        start = ticks[lane] + int(random.integers(0, 3))
        episodes.append((lane, start, start + length))
        ticks[lane] = start + length
    total = max(ticks) + 2
    shape = (total, lanes)
    obs = np.full((*shape, 2), np.nan, np.float32)
    next_obs, ended, cut = obs.copy(), np.zeros(shape, bool), np.zeros(shape, bool)
    for number, (lane, start, stop) in enumerate(episodes):
        obs[start:stop, lane] = np.stack([np.full(stop - start, number), np.arange(stop - start)], -1)
        next_obs[start:stop, lane] = obs[start:stop, lane] + [0, 1]
        (ended if random.random() < 0.5 else cut)[stop - 1, lane] = True
    reward = random.normal(size=shape).astype(np.float32)
    cost = random.uniform(size=(*shape, costs)).astype(np.float32)
    action = random.normal(size=(*shape, 1)).astype(np.float32)
    random.shuffle(episodes)
    return Recording(obs, action, next_obs, reward, cost, ended, cut, [tuple(map(int, each)) for each in episodes])


LAYOUTS = {
    "short": (12, 4, [1, 2, 3, 5, 8, 2, 2, 9, 12, 4, 1, 7]),
    "full": (10, 5, [10] * 5),
    "twice": (10, 3, [10] * 6),
    "one column": (8, 1, [8, 3, 5, 8, 1]),
    "one step": (1, 4, [1, 1, 1, 1]),
    "few": (20, 4, [20, 3]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_step_is_laid_out_once_in_order(name):
    length, columns, sizes = LAYOUTS[name]
    recording = a_recording(np.random.default_rng(3), sizes)
    rollout = pack(recording, columns, length)
    rows = rollout.valid.shape[0]
    assert rollout.valid.shape == (rows, columns)
    assert rollout.valid.sum() == sum(sizes)
    assert np.all(np.diff(rollout.valid.astype(int), axis=0) <= 0), "padding only below the last episode"
    seen = {}
    for column in range(columns):
        row = 0
        while row < rows and rollout.valid[row, column]:
            number = int(rollout.obs[row, column, 0])
            size = sizes[number]
            assert number not in seen
            lane, start, stop = next(e for e in recording.episodes if recording.obs[e[1], e[0], 0] == number)
            assert stop - start == size
            for field in ("obs", "action", "next_obs", "reward", "cost", "terminated", "truncated"):
                there, here = (
                    getattr(recording, field)[start:stop, lane],
                    getattr(rollout, field)[row : row + size, column],
                )
                assert np.array_equal(there, here), field
            assert rollout.valid[row : row + size, column].all()
            assert rollout.obs[row, column, 1] == 0, "a column begins with a reset, and so does every episode"
            seen[number] = True
            row += size
    assert len(seen) == len(sizes)
    for field in ("obs", "reward", "cost", "terminated", "truncated"):
        padding = getattr(rollout, field)[~rollout.valid]
        assert np.all(np.isfinite(padding.astype(float)))
        assert not np.any(padding)


def test_rows_are_those_of_one_episode_or_quarters_more():
    random, quarter = np.random.default_rng(5), 5
    for _ in range(50):
        columns = int(random.integers(1, 6))
        sizes = random.integers(1, 21, size=int(random.integers(1, 25))).tolist()
        rollout = pack(a_recording(random, sizes), columns, 20)
        rows, used = len(rollout.valid), int(rollout.valid.sum(0).max())
        assert rows >= 20
        assert (rows - 20) % quarter == 0
        assert rows == 20 or rows - quarter < used <= rows
    for columns, sizes in ((5, [20] * 5), (4, [20] * 8)):
        rollout = pack(a_recording(random, sizes), columns, 20)
        assert rollout.valid.all(), "episodes of full length need no padding"


def test_whole_episodes_side_by_side_stay_where_they_are():
    rollout = pack(a_recording(np.random.default_rng(3), [10] * 5), 5, 10)
    there = Recording(*(getattr(rollout, name) for name in Recording._fields[:-1]), [(i, 0, 10) for i in range(5)])
    again = pack(there, 5, 10)
    assert all(getattr(again, name) is getattr(rollout, name) for name in Recording._fields[:-1])
    assert again.valid.all()
    for moved in (there._replace(episodes=there.episodes[::-1]), there._replace(episodes=there.episodes[:4])):
        again = pack(moved, 5, 10)
        assert again.obs is not rollout.obs
        assert again.valid.sum() == 10 * len(moved.episodes)


def test_next_observations_nobody_asked_for_cost_nothing():
    recording = a_recording(np.random.default_rng(0), [3, 4])
    rollout = pack(recording._replace(next_obs=recording.next_obs[:0]), 2, 4)
    assert rollout.next_obs is rollout.obs


class Wide(Toy):
    """What a learner needs to know of an environment whose observations are an episode's number and its step."""

    obs_shape, cost_names = (2,), ("one", "two")


@cache
def made_batches(bootstrap: bool):
    """J's, errors and advantages of a packed rollout and of the same episodes with a column each."""
    config = make_config("pcpo", bootstrap_truncation=bootstrap, cost_limit=(1.0, 2.0), rollout_length=12)
    learner = make_learner(Wide(), config, hidden=(), baseline=True)
    state = initial_state(learner, 3)
    coefficients = jax.random.normal(jax.random.PRNGKey(1), state.critics.coefficients.shape)
    state = state._replace(critics=state.critics._replace(coefficients=coefficients))  # a critic that has an opinion
    sizes = [1, 2, 3, 5, 8, 2, 2, 9, 12, 4, 1, 7]
    recording = a_recording(np.random.default_rng(3), sizes)

    @quick_jit
    def program(rollout):
        rollout = with_policy(learner, state, rollout)
        baseline = Gaussian(jnp.sin(rollout.obs[..., :1]), jnp.full_like(rollout.action, -0.5))
        return make_batch(learner, state, rollout, baseline), nearest_baseline(rollout, (rollout.dist, baseline))[2]

    result = {}
    for name, columns in (("packed", 4), ("apart", len(sizes))):
        batch, distances = program(pack(recording, columns, 12))
        result[name] = jax.tree.map(np.asarray, batch), np.asarray(distances)
    return sizes, recording, config, result


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_packed_batch_means_the_same_as_one_with_a_column_per_episode(bootstrap):
    sizes, _, _, result = made_batches(bootstrap)
    (packed, near), (apart, near_apart) = result["packed"], result["apart"]
    for name in ("J_R", "J_C", "J_D", "J_C_error", "episode_length"):
        assert getattr(packed, name) == pytest.approx(getattr(apart, name), rel=2e-5), name
    assert near == pytest.approx(near_apart, rel=2e-5, abs=1e-6)
    assert near[0] == pytest.approx(0.0, abs=1e-6)
    assert near[1] == pytest.approx(packed.J_D, rel=2e-5)

    def samples(batch):
        """Whatever belongs to a sample, by episode and step."""
        fields = ("step_index", "reward_advantage", "cost_advantage", "divergence_advantage", "log_prob", "weight")
        columns = [np.asarray(getattr(batch, name)).reshape(len(batch.weight), -1) for name in fields]
        table = np.concatenate([*columns, batch.targets.T, batch.values.T], axis=1)
        kept = batch.weight > 0
        return {tuple(key): row for key, row in zip(batch.obs[kept].tolist(), table[kept], strict=True)}

    one, other = samples(packed), samples(apart)
    assert one.keys() == other.keys()
    assert len(one) == sum(sizes)
    for key in one:
        assert one[key] == pytest.approx(other[key], rel=1e-4, abs=1e-5)
        assert one[key][0] == key[1], "the step within the episode"


def test_sums_and_errors_are_those_of_the_episodes():
    """By hand: discounted rewards, undiscounted costs, and the standard error over episodes, not over columns."""
    _, recording, config, result = made_batches(False)
    batch, _ = result["packed"]
    J_R, J_C = [], []
    for lane, start, stop in recording.episodes:
        J_R.append(config.discount ** np.arange(stop - start) @ recording.reward[start:stop, lane].astype(np.float64))
        J_C.append(recording.cost[start:stop, lane].astype(np.float64).sum(0))
    assert batch.J_R == pytest.approx(np.mean(J_R), rel=1e-5)
    assert batch.J_C == pytest.approx(np.mean(J_C, axis=0), rel=1e-5)
    assert batch.J_C_error == pytest.approx(np.std(J_C, axis=0, ddof=1) / math.sqrt(len(J_C)), rel=1e-4)
    assert batch.episode_length == pytest.approx(np.mean(lengths(recording)))


def test_a_time_limit_bootstraps_and_an_end_does_not():
    """Advantages differ in episodes that were cut, and in no other."""
    _, recording, _, without = made_batches(False)
    _, _, _, taken = made_batches(True)
    ends = [
        (recording.truncated[stop - 1, lane], recording.obs[start, lane, 0]) for lane, start, stop in recording.episodes
    ]
    cut = {float(number) for truncated, number in ends if truncated}
    plain, bootstrapped = without["apart"][0], taken["apart"][0]
    kept = plain.weight > 0
    number = plain.obs[kept][:, 0]
    changed = np.any(np.abs(plain.targets - bootstrapped.targets)[:, kept] > 1e-6, axis=0)
    assert 0 < len(cut) < len(recording.episodes)
    assert set(number[changed]) <= cut
    size = {float(recording.obs[start, lane, 0]): stop - start for lane, start, stop in recording.episodes}
    last = np.array([step == size[episode] - 1 for episode, step in plain.obs[kept].tolist()])
    assert np.all(changed[last & np.isin(number, list(cut))])


# ---------------------------------------------------------------- workers that fail


def faulty(kind: str, folder: Path, workers: int = 2, lanes: int = 4, timeout: float = 60.0, report=None, **settings):
    recipe = Recipe(Faulty, named_sources(None), tuple({"kind": kind, "folder": str(folder), **settings}.items()))
    return HostedEnv(recipe, lanes, workers, timeout, report)


def idle(env: HostedEnv) -> np.ndarray:
    """Actions of zero, for ticks in which they do not matter."""
    return np.zeros((env.lanes, *env.spec.action.shape), env.spec.action.dtype)


SAID = {
    "exception": [
        "Traceback (most recent call last)",
        "ZeroDivisionError: the wheel came off",
        "support/environments.py",
    ],
    "exit": ["it exited with code 7"],
    "kill": ["it was killed by SIGKILL"],
    "crash": ["it was killed by SIGSEGV", "Fatal Python error: Segmentation fault", "support/environments.py"],
    "hang": ["it did not answer within 2 seconds", "support/environments.py", "in hang"],
}


@pytest.mark.parametrize("kind", SAID)
def test_a_worker_that_fails_is_replaced_and_the_batch_is_whole(kind, tmp_path):
    said: list[str] = []
    timeout = 2.0 if kind == "hang" else 60.0
    with faulty(kind, tmp_path, times=2, timeout=timeout, report=said.append) as env:
        recording = host.episodes(env, random_acts(4), 5, 6, steps=60)
        assert env.counts()["worker_restarts"] == 2
        assert env.counts() == {"worker_restarts": 0, "lost_episodes": 0}
        held = processes(tmp_path)
    assert lengths(recording) == [6] * 10
    for lane, start, stop in recording.episodes:
        assert recording.obs[start:stop, lane, 1].tolist() == [0, 1, 2, 3, 4, 5]
        assert len(set(recording.obs[start:stop, lane, 2])) == 1
    assert len(said) == 2
    for text in SAID[kind]:
        assert text in said[0]
    assert "worker 0 of environment 'Faulty' is replaced" in said[0] or "worker 1 of" in said[0]
    assert len(held) == 4
    assert_gone(tmp_path)


def four_steps(env: HostedEnv) -> tuple[Tick, np.ndarray]:
    """The last of four steps of all lanes, and which lanes were lost on the way."""
    result = env.tick(np.full(4, RESET), idle(env), np.zeros(4, bool), np.arange(4))
    lost = result.lost
    for _ in range(4):
        result = env.tick(np.where(lost, 0, STEP), idle(env), np.zeros(4, bool), np.full(4, -1))
        lost = lost | result.lost
    return result, lost


def test_the_episodes_of_a_failed_worker_go_on_as_if_nothing_had_happened(tmp_path):
    with faulty("kill", tmp_path, times=1, report=lambda text: None) as env:
        result, lost = four_steps(env)
        assert env.counts() == {"worker_restarts": 1, "lost_episodes": 0}
    with faulty("kill", tmp_path, times=0) as env:
        expected, _ = four_steps(env)
    assert not lost.any()
    for mine, theirs in zip(result, expected, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_fault_that_comes_again_takes_the_lanes_of_its_worker_alone(tmp_path):
    """Four lanes in two workers: two of them are lost, the others' episodes go on."""
    with faulty("kill", tmp_path, workers=2, times=0, report=lambda text: None) as env:
        result = env.tick(np.full(4, RESET), idle(env), np.zeros(4, bool), np.arange(4))
        env._env.workers[1].process.kill()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Episodes, "replay", lambda *given: (_ for _ in ()).throw(Fault("it fell over again")))
            result = env.tick(np.full(4, STEP), idle(env), np.zeros(4, bool), np.full(4, -1))
        assert env.counts() == {"worker_restarts": 2, "lost_episodes": 2}
        assert result.lost.tolist() == [False, False, True, True]
        result = env.tick(np.where(result.lost, RESET, STEP), idle(env), np.zeros(4, bool), np.arange(4))
        assert result.obs[:, 1].tolist() == [2, 2, 0, 0]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"worker_restarts": 0.0, "lost_episodes": 0.0}, {}], ""),
        ([{"worker_restarts": 2.0, "lost_episodes": 0.0}] * 2, "replaced 4 times and all of their episodes went on;"),
        (
            [{"worker_restarts": 1.0, "lost_episodes": 2.0}, {"worker_restarts": 0.0, "lost_episodes": 1.0}],
            "replaced 1 times and 3 episodes were lost, and faults end long episodes sooner than short ones: their "
            "means may be biased;",
        ),
    ],
)
def test_the_end_of_a_run_sums_up_what_failed(rows, told, capsys):
    say_what_failed(rows)
    printed = capsys.readouterr().err
    assert told in printed
    assert bool(printed) == bool(told)


def test_an_environment_that_is_another_one_each_time_loses_its_episodes_and_says_so(tmp_path):
    with HostedEnv(Recipe(Unseeded, named_sources(None)), 4, 2, report=lambda text: None) as env:
        env.tick(np.full(4, RESET), idle(env), np.zeros(4, bool), np.arange(4))
        env._env.workers[0].process.kill()
        result = env.tick(np.full(4, STEP), idle(env), np.zeros(4, bool), np.full(4, -1))
        assert result.lost.tolist() == [True, True, False, False]
        assert env.counts() == {"worker_restarts": 1, "lost_episodes": 2}


def test_workers_killed_all_the_time_change_no_bit_of_any_episode():
    """Episodes of random length: were those that a fault falls into left out, long ones would be too few."""
    recordings = []
    for kills in (0, 5):
        chance, killed, slow = random.Random(4), [], random_acts(6)
        with HostedEnv(Recipe(Geometric, named_sources(None)), 6, 2, report=killed.append) as env:

            def act(obs, tick, env=env, kills=kills, chance=chance, killed=killed, slow=slow):
                if len(killed) < kills and chance.random() < 0.2:
                    env._env.workers[chance.randrange(2)].process.kill()
                return slow(obs, tick)

            recordings.append(host.episodes(env, act, 11, 60, steps=500, keep_next=True))
            assert env.counts() == {"worker_restarts": len(killed), "lost_episodes": 0}
        assert len(killed) >= kills
    assert recordings[0].episodes == recordings[1].episodes
    for name in Recording._fields[:-1]:
        assert np.array_equal(getattr(recordings[0], name), getattr(recordings[1], name))


def test_half_a_message_does_not_hold_up_whoever_waits_for_it():
    ours, theirs = socket.socketpair()
    theirs.send(struct.pack("!Q", 1000) + b"half")
    with pytest.raises(TimeoutError):
        Channel(ours).receive(0.1)
    theirs.send(b"x" * 996)
    theirs.close()
    ours.close()


def test_what_is_no_message_is_not_waited_for():
    ours, theirs = socket.socketpair()
    theirs.send(b"\xff" * 8)
    with pytest.raises(EOFError, match="no message"):
        Channel(ours).receive(1.0)
    theirs.close()
    with pytest.raises(EOFError):
        Channel(ours).receive(1.0)
    ours.close()


def slow_to_make(seconds: float, lanes: int, timeout: float, **settings) -> HostedEnv:
    recipe = Recipe(SlowToMake, named_sources(None), (("seconds", seconds), ("well", settings.pop("well", ""))))
    return HostedEnv(recipe, lanes, 1, timeout, **settings)


def test_an_environment_that_is_not_made_in_time_is_told_at_once():
    """Once, where it hangs, and not after the time that an interpreter may take to start."""
    begun, said = time.monotonic(), []
    with pytest.raises(InputError, match=r"'SlowToMake' was not made within 0\.5 seconds \(.*__init__.*worker-timeout"):
        slow_to_make(600.0, 2, 0.5, report=said.append)
    assert time.monotonic() - begun < 60
    assert not said


def test_each_environment_of_a_worker_has_its_own_time_to_be_made():
    with slow_to_make(0.5, 3, 1.2) as env:
        assert env.spec.name == "SlowToMake"


def test_a_worker_whose_replacement_hangs_while_it_is_made_is_replaced_again(tmp_path):
    (tmp_path / "well").touch()
    said: list[str] = []
    with slow_to_make(600.0, 2, 0.5, report=said.append, well=str(tmp_path / "well")) as env:
        env.tick(np.full(2, RESET), idle(env), np.zeros(2, bool), np.arange(2))
        (tmp_path / "well").unlink()
        env._env.workers[0].process.kill()
        with pytest.raises(WorkersFailed, match="failed 4 times"):
            env.tick(np.full(2, STEP), idle(env), np.zeros(2, bool), np.full(2, -1))
    assert [("SIGKILL" if not place else "within 0.5 seconds") in text for place, text in enumerate(said)] == [True] * 3


class NoReset(Line):
    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def reset(self, *, seed=None, options=None):
        if self.how == "hang":
            time.sleep(600)
        raise ValueError("the field is under water")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("hang", r"it did not answer within 0\.5 seconds \(File \".*test_host_collection.py\", line \d+ in reset, "),
        ("raise", "ValueError: the field is under water$"),
    ],
)
def test_an_environment_that_does_not_reset_is_told_in_one_sentence(how, why):
    """And never stepped: its fault in a step that it was not ready for would hide the one that matters."""
    said: list[str] = []
    with pytest.raises(InputError, match=f"environment 'NoReset' does not reset: {why}") as stop:
        HostedEnv(Recipe(NoReset, named_sources(None), (("how", how),)), 2, 1, 0.5, said.append)
    assert "\n" not in str(stop.value)
    assert len(said) == 2
    assert "AttributeError" not in "".join(said)


STUCK = """
import numpy as np
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.single import Recipe
from support.environments import Line

class Stuck(Line):
    def step(self, action):
        if self.steps:
            import ctypes
            ctypes.PyDLL(None).sleep(600)  # in a library that keeps Python's lock
        return super().step(action)

env = HostedEnv(Recipe(Stuck, named_sources(None)), 1, 1, 600)
print(env._env.workers[0].process.pid, flush=True)
nothing, never = np.zeros((1, 1), np.float32), np.zeros(1, bool)
for command in (2, 1, 1):
    env.tick(np.array([command]), nothing, never, np.array([0]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_stuck_ends_with_its_run(number):
    home = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])}
    run = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None
    worker = int(run.stdout.readline())
    time.sleep(0.3)
    assert alive(worker)
    run.send_signal(number)
    run.communicate()
    patience = time.monotonic() + 5.0
    while alive(worker) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not alive(worker)


def test_a_module_in_the_current_folder_does_not_break_workers(tmp_path, monkeypatch):
    for name in ("random", "socket", "struct", "tempfile", "copy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the standard library')\n")
    monkeypatch.chdir(tmp_path)
    with hosted(Line, lanes=2, workers=1) as env:
        assert len(host.episodes(env, random_acts(2), 1, 5, count=2).episodes) == 2


def test_failing_without_end_ends_with_the_reason(tmp_path):
    said: list[str] = []
    with (
        faulty("exception", tmp_path, times=1000, report=said.append) as env,
        pytest.raises(WorkersFailed, match="failed 4 times without completing an episode; the last time: Zero") as stop,
    ):
        host.episodes(env, random_acts(4), 5, 6, steps=60)
    assert "\n" not in str(stop.value)
    assert isinstance(stop.value, InputError), "before a run has begun it is bad input like any other"
    assert len(said) <= 2 * FAULTS_IN_A_ROW
    assert_gone(tmp_path)


def test_faults_with_episodes_in_between_are_no_reason_to_stop(tmp_path):
    """One worker, many more faults than it may have in a row."""
    with faulty("exception", tmp_path, workers=1, lanes=2, at=6, times=0, report=lambda text: None) as env:
        restarts = 0
        for _ in range(FAULTS_IN_A_ROW + 2):
            env.tick(np.full(2, RESET), idle(env), np.zeros(2, bool), np.arange(2))
            for _ in range(6):
                result = env.tick(np.full(2, STEP), idle(env), np.zeros(2, bool), np.full(2, -1))
            assert result.truncated.all()
            os.kill(max(pid for pid in processes(tmp_path) if alive(pid)), 9)
            lost = env.tick(np.full(2, RESET), idle(env), np.zeros(2, bool), np.arange(2)).lost
            assert not lost.any()
            restarts += env.counts()["worker_restarts"]
    assert restarts == FAULTS_IN_A_ROW + 2
    assert_gone(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_that_is_no_step_ends_at_once_in_one_sentence(workers):
    recipe = Recipe(Odd, named_sources(None), (("what", "reward"),))
    said = "'Odd': step 3 of an episode gave the reward nan, which is not finite"
    with HostedEnv(recipe, 3, workers) as env, pytest.raises(BadStep, match=said):
        host.episodes(env, random_acts(3), 5, 6, steps=60)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_number_that_is_not_finite_ends_its_episode_and_is_counted(workers):
    """One in a life of many steps; and more than a few, which end the run."""
    said: list[str] = []
    recipe = Recipe(RarelyOdd, named_sources(None), (("every", 100),))
    with HostedEnv(recipe, 3, workers, report=said.append) as env:
        recording = host.episodes(env, random_acts(3), 5, 6, steps=1800)
        counted = env.counts()
    assert counted["lost_episodes"] == len(said) > 3
    assert counted["worker_restarts"] == 0
    assert np.isfinite(recording.reward).all()
    assert lengths(recording) == [6] * len(recording.episodes)
    assert "step 4 of an episode gave the reward nan, which is not finite: its episode is left out" in "".join(said)
    recipe = Recipe(RarelyOdd, named_sources(None), (("every", 20),))
    with HostedEnv(recipe, 3, workers, report=said.append) as env, pytest.raises(BadStep, match="which is not finite"):
        host.episodes(env, random_acts(3), 5, 6, steps=1800)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("support.environments:broken_factory", "cannot be built: FileNotFoundError"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("Pendulum-v1", r"info\['cost'\] is missing"),
    ],
)
def test_bad_input_is_the_same_sentence_from_a_worker(env, said):
    sentences = []
    for workers in (0, 1):
        with pytest.raises(InputError, match=said) as stop:
            HostedEnv(Recipe(env, named_sources(None)), 1, workers)
        sentences.append(str(stop.value))
    assert sentences[0] == sentences[1]


def test_workers_start_fresh_close_at_once_and_hold_no_jax():
    recipe = Recipe("support.environments:without_jax", named_sources(None))
    with HostedEnv(recipe, 3, workers=2) as env:
        workers = list(env._env.workers)
        assert all(alive(worker.process.pid) for worker in workers)
        started = time.monotonic()
    assert time.monotonic() - started < 2.0, "workers were killed instead of stopping when told"
    assert [worker.process.returncode for worker in workers] == [0, 0]


def test_what_a_worker_writes_in_bytes_that_are_no_text_does_not_end_the_run(tmp_path):
    class Babbling(Faulty):
        def reset(self, **arguments):
            os.write(2, b"\xff\xfe garbage \n")
            return super().reset(**arguments)

    said: list[str] = []
    recipe = Recipe(Babbling, named_sources(None), (("kind", "exit"), ("folder", str(tmp_path))))
    with HostedEnv(recipe, 1, 1, report=said.append) as env:
        host.episodes(env, random_acts(1), 5, 6, count=2)
    assert "garbage" in said[0]
