"""Experience for one update: native environments inside the compiled program, all at once, by one scan; others on the
host, whole episodes at a time, laid out afterwards in the same Rollout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.policies import PolicyFamily
from spacerl.types import IDLE, RESET, STEP, Array, Env, HostEnv, Rollout


def environments_per_batch(batch_size: int, rollout_length: int) -> int:
    """Whole episodes until the batch is reached, as the original sampler collects them."""
    return math.ceil(batch_size / rollout_length)


def native_rollout(env: Env, family: PolicyFamily, theta: Array, key: Array, count: int, length: int) -> Rollout:
    """`count` fresh episodes of at most `length` steps under the policy theta, one per column.

    A column whose episode terminates early is padded (`valid` False): restarting there would fill the batch with
    beginnings of episodes that the time limit then cuts, and bias the episode sums.
    """
    reset_key, noise_key = jax.random.split(key)
    states = jax.vmap(env.reset)(jax.random.split(reset_key, count))
    noise = family.noise(noise_key, (length, count))
    last = jnp.arange(length) == length - 1

    def step(carry, inputs):
        state, obs, alive = carry
        noise_t, last_t = inputs
        dist = family.apply(theta, obs)
        action = dist.sample(noise_t)
        next_state, reward, cost, terminated = jax.vmap(env.step)(state, action)
        next_obs = jax.vmap(env.observe)(next_state)
        ended = terminated & alive
        row = Rollout(
            obs,
            action,
            dist.log_prob(action),
            dist,
            jnp.where(alive, reward, 0.0),
            jnp.where(alive[:, None], cost, 0.0),
            next_obs,
            ended,
            last_t & alive & ~terminated,
            alive,
            jax.vmap(env.diverged)(next_state) & alive if hasattr(env, "diverged") else None,  # type: ignore[attr-defined]
        )
        return (next_state, next_obs, alive & ~terminated), row

    start = (states, jax.vmap(env.observe)(states), jnp.ones(count, bool))
    return jax.lax.scan(step, start, (noise, last))[1]


# Environments on the host --------------------------------------------------------------------------------------------


class Recording(NamedTuple):
    """Everything that happened on the host, tick by tick, and the whole episodes in it; NumPy arrays."""

    obs: np.ndarray  # (ticks, lanes, ...)
    action: np.ndarray  # (ticks, lanes, ...)
    next_obs: np.ndarray  # (ticks, lanes, ...), or no ticks where it was not asked for
    reward: np.ndarray  # (ticks, lanes)
    cost: np.ndarray  # (ticks, lanes, K)
    terminated: np.ndarray  # (ticks, lanes)
    truncated: np.ndarray  # (ticks, lanes)
    episodes: list[tuple[int, int, int]]  # lane, first tick, tick after the last one


class _Demand:
    """How many more episodes to begin. Whole episodes are collected until the steps wanted are reached; those that run
    count with what they are expected to take, so that the last ones are not begun for nothing."""

    def __init__(self, steps: int | None, episodes: int | None, length: int):
        self.steps, self.episodes, self.length = steps, episodes, length
        self.finished = self.finished_steps = 0

    def more(self, running: np.ndarray) -> int:
        if self.episodes is not None:
            return self.episodes - self.finished - len(running)
        assert self.steps is not None
        # Steps taken per episode ended: those that still run count too, or the short ones, which end first, would rule.
        taken = self.finished_steps + float(np.sum(running))
        mean = min(taken / self.finished, self.length) if self.finished else float(self.length)
        planned = self.finished_steps + float(np.sum(np.minimum(running + mean, self.length)))
        return math.ceil((self.steps - planned) / mean)


def host_episodes(
    env: HostEnv,
    act: Callable[[np.ndarray, int], np.ndarray],
    seed: int | tuple[int, ...],
    length: int,
    steps: int | None = None,
    episodes: int | None = None,
    keep_next: bool = False,
) -> Recording:
    """Whole episodes of at most `length` steps: as many as reach `steps`, or exactly `episodes`.

    `act` maps the observations of all lanes and the number of the tick to their actions. Which episodes begin depends
    on the past alone, so their mean is no more biased than that of a fixed number; each has a seed of its own, and the
    same `seed` gives the same episodes whatever number of processes steps them.
    """
    draw, demand, lanes = np.random.default_rng(seed), _Demand(steps, episodes, length), env.lanes
    buffers = _Buffers(env, length, keep_next)
    obs = np.zeros((lanes, *env.obs_shape), env.obs_dtype)
    age, first, running = np.zeros(lanes, int), np.zeros(lanes, int), np.zeros(lanes, bool)
    whole: list[tuple[int, int, int]] = []
    tick = 0
    while True:
        more = demand.more(age[running])
        begin = np.flatnonzero(~running)[: max(more, 0)]
        if not running.any() and not len(begin):
            return buffers.cut(tick, whole)
        command = np.where(running, STEP, IDLE)
        command[begin] = RESET
        # An episode that ends now is followed at once, unless the steps may be reached by those that run.
        ample = more - len(begin) >= lanes
        next_seeds = np.full(lanes, -1)
        if ample or len(begin):
            seeds = draw.integers(0, 2**31, lanes)
            next_seeds = np.where((command == RESET) | ((command == STEP) & ample), seeds, -1)
        last = running & (age + 1 >= length)
        action = act(obs, tick)
        result = env.tick(command, action, last, next_seeds)
        buffers.write(tick, obs, action, result)
        ended = running & (result.terminated | result.truncated) & ~result.lost
        for lane in np.flatnonzero(ended):
            whole.append((int(lane), int(first[lane]), tick + 1))
            demand.finished += 1
            demand.finished_steps += int(age[lane]) + 1
        follows = (command == RESET) | (ended & (next_seeds >= 0))
        running = ((running & ~ended) | follows) & ~result.lost
        age = np.where(follows, 0, age + 1)
        first = np.where(follows, tick + 1, first)
        obs = np.array(result.obs)
        tick += 1


class _Buffers:
    """Arrays that double when they are full, which is slow: they begin with room for three episodes in each lane. What
    of it is never written to takes no memory, but where that would be a lot it is not even asked for."""

    LARGE = 2**28  # bytes of observations

    def __init__(self, env: HostEnv, length: int, keep_next: bool):
        per_tick = env.lanes * math.prod(env.obs_shape) * np.dtype(env.obs_dtype).itemsize
        room = max(1, min(3 * length, self.LARGE // max(per_tick, 1)))
        kinds = [
            (env.obs_shape, env.obs_dtype),
            (env.action_space.shape, env.action_space.dtype),
            (env.obs_shape, env.obs_dtype),
            ((), np.float32),
            ((len(env.cost_names),), np.float32),
            ((), bool),
            ((), bool),
        ]
        self.keep_next = keep_next
        rooms = [room if keep_next or i != 2 else 0 for i in range(len(kinds))]
        self.arrays = [
            np.zeros((rows, env.lanes, *shape), dtype) for rows, (shape, dtype) in zip(rooms, kinds, strict=True)
        ]

    def write(self, tick: int, obs: np.ndarray, action: np.ndarray, result) -> None:
        if tick == len(self.arrays[0]):
            self.arrays = [np.concatenate([array, np.zeros_like(array)]) for array in self.arrays]
        row = (obs, action, result.next_obs, result.reward, result.cost, result.terminated, result.truncated)
        for i, (array, value) in enumerate(zip(self.arrays, row, strict=True)):
            if self.keep_next or i != 2:
                array[tick] = value

    def cut(self, ticks: int, whole: list[tuple[int, int, int]]) -> Recording:
        return Recording(*(array[:ticks] for array in self.arrays), episodes=whole)  # type: ignore[misc]


def pack(recording: Recording, columns: int, length: int) -> Rollout:
    """Whole episodes laid one after the other in `columns`, the longest first into the emptiest column.

    Rows are those of one full episode, or a multiple of a quarter more: few shapes, so the update compiles few times.
    Episodes of full length fill the columns without padding. `log_prob` and `dist` are left to the update's program.
    """
    heights, placed = np.zeros(columns, int), []
    for lane, start, stop in sorted(recording.episodes, key=lambda episode: episode[1] - episode[2]):
        column = int(np.argmin(heights))
        placed.append((lane, start, stop, column, int(heights[column])))
        heights[column] += stop - start
    quarter = max(1, math.ceil(length / 4))
    rows = length + math.ceil(max(0, int(heights.max()) - length) / quarter) * quarter
    packed = {}
    for name in ("obs", "action", "next_obs", "reward", "cost", "terminated", "truncated"):
        array = getattr(recording, name)
        if not len(array):
            packed[name] = packed["obs"]  # next_obs, which nobody asked for
            continue
        packed[name] = np.zeros((rows, columns, *array.shape[2:]), array.dtype)
        for lane, start, stop, column, row in placed:
            packed[name][row : row + stop - start, column] = array[start:stop, lane]
    valid = np.arange(rows)[:, None] < heights
    return Rollout(log_prob=None, dist=None, valid=valid, **packed)  # type: ignore[arg-type]
