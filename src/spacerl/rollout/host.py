"""Episodes on the host: one loop of ticks plays them for training, evaluation and films, whoever steps the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from spacerl.types import IDLE, RESET, STEP, Array, BatchEnv, Episode, Policy, Rollout, Tick

Act = Callable[[np.ndarray, int], np.ndarray]  # observations of all lanes, number of the tick -> their actions


def sampling(policy: Policy, spec_size: int, lanes: int, seed: int, deterministic: bool = False) -> Act:
    """Actions of a policy, compiled where it compiles: the most likely ones, or random ones."""
    key = jax.random.PRNGKey(seed)

    def sample(parameters: Any, obs: Any, tick: Any) -> Array:
        dist = policy.apply(parameters, obs)
        if deterministic:
            return dist.mode()
        return dist.sample(dist.noise(jax.random.fold_in(key, tick), (lanes, spec_size)))

    act = jax.jit(sample) if policy.compiles else sample
    return lambda obs, tick: np.asarray(act(policy.parameters, obs, tick))


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


class Moment(NamedTuple):
    """One tick of all lanes."""

    tick: int
    obs: np.ndarray  # (lanes, ...) what was acted on
    action: np.ndarray  # (lanes, ...)
    command: np.ndarray  # (lanes,)
    result: Tick
    ended: np.ndarray  # (lanes,) episodes that ended whole
    first: np.ndarray  # (lanes,) tick of each lane's first step


def ticks(
    env: BatchEnv,
    act: Act,
    seed: int | tuple[int, ...],
    length: int,
    steps: int | None = None,
    count: int | None = None,
    follow_at_once: bool = True,
) -> Iterator[Moment]:
    """Play whole episodes of at most `length` steps: as many as reach `steps`, or exactly `count`.

    Which episodes begin depends on the past alone, so their mean is no more biased than that of a fixed number; each
    has a seed of its own, and the same `seed` gives the same episodes whatever number of processes steps them. An
    episode is followed in the tick that ends it, unless not `follow_at_once`.
    """
    rng, demand, lanes = np.random.default_rng(seed), _Demand(steps, count, length), env.lanes
    obs = np.zeros((lanes, *env.spec.obs_shape), env.spec.obs_dtype)
    age, first, running = np.zeros(lanes, int), np.zeros(lanes, int), np.zeros(lanes, bool)
    tick = 0
    while True:
        more = demand.more(age[running])
        begin = np.flatnonzero(~running)[: max(more, 0)]
        if not running.any() and not len(begin):
            return
        command = np.where(running, STEP, IDLE)
        command[begin] = RESET
        # An episode that ends now is followed at once, unless the steps may be reached by those that run.
        ample = follow_at_once and more - len(begin) >= lanes
        next_seeds = np.full(lanes, -1)
        if ample or len(begin):
            seeds = rng.integers(0, 2**31, lanes)
            next_seeds = np.where((command == RESET) | ((command == STEP) & ample), seeds, -1)
        last = running & (age + 1 >= length)
        action = act(obs, tick)
        result = env.tick(command, action, last, next_seeds)
        ended = running & (result.terminated | result.truncated) & ~result.lost
        demand.finished += int(ended.sum())
        demand.finished_steps += int((age[ended] + 1).sum())
        yield Moment(tick, obs, action, command, result, ended, first)
        follows = (command == RESET) | (ended & (next_seeds >= 0))
        running = ((running & ~ended) | follows) & ~result.lost
        age = np.where(follows, 0, age + 1)
        first = np.where(follows, tick + 1, first)
        obs = np.array(result.obs)
        tick += 1


def episodes(
    env: BatchEnv,
    act: Act,
    seed: int | tuple[int, ...],
    length: int,
    steps: int | None = None,
    count: int | None = None,
    keep_next: bool = False,
) -> Recording:
    """What `ticks` plays, recorded; `keep_next` records the observations after each step too."""
    buffers, whole, played = _Buffers(env, length, keep_next), [], 0
    for moment in ticks(env, act, seed, length, steps, count):
        buffers.write(moment.tick, moment.obs, moment.action, moment.result)
        played = moment.tick + 1
        whole += [(int(lane), int(moment.first[lane]), played) for lane in np.flatnonzero(moment.ended)]
    return buffers.cut(played, whole)


def whole_episodes(
    env: BatchEnv,
    act: Callable[[np.ndarray, np.ndarray], np.ndarray],
    noise_of: Callable[[int], np.ndarray],
    seed: int | tuple[int, ...],
    length: int,
    steps: int,
    keep_next: bool = False,
) -> Recording:
    """Episodes until `steps` are reached, played by `env` one by one: the n-th with `noise_of(n)` (length, A).

    More are begun, all at once, where some ended early or were lost: which ones depends on the past alone here too.
    """
    rng, demand, found, begun = np.random.default_rng(seed), _Demand(steps, None, length), [], 0
    while (more := demand.more(np.zeros(0))) > 0:
        noises = [noise_of(begun + i) for i in range(more)]
        played = [each for each in env.play(act, list(rng.integers(0, 2**31, more)), noises) if each is not None]
        begun += more
        found += played
        demand.finished += len(played)
        demand.finished_steps += sum(len(each.reward) for each in played)
    return _side_by_side(found, length, keep_next)


def _side_by_side(played: list[Episode], length: int, keep_next: bool) -> Recording:
    """Every episode in a lane of its own, from the first tick on."""
    lanes, first = len(played), played[0]

    def laid(name: str) -> np.ndarray:
        like = getattr(first, name)
        array = np.zeros((length, lanes, *like.shape[1:]), like.dtype)
        for lane, episode in enumerate(played):
            array[: len(episode.reward), lane] = getattr(episode, name)
        return array

    obs, next_obs = laid("obs"), np.zeros((0, lanes, *first.last_obs.shape), first.obs.dtype)
    terminated, truncated = np.zeros((length, lanes), bool), np.zeros((length, lanes), bool)
    if keep_next:
        next_obs = np.concatenate([obs[1:], np.zeros_like(obs[:1])])
    for lane, episode in enumerate(played):
        last = len(episode.reward) - 1
        terminated[last, lane], truncated[last, lane] = episode.terminated, not episode.terminated
        if keep_next:
            next_obs[last, lane] = episode.last_obs
    whole = [(lane, 0, len(episode.reward)) for lane, episode in enumerate(played)]
    return Recording(obs, laid("action"), next_obs, laid("reward"), laid("cost"), terminated, truncated, whole)


class _Buffers:
    """Arrays that double when they are full, which is slow: they begin with room for three episodes in each lane. What
    of it is never written to takes no memory, but where that would be a lot it is not even asked for."""

    LARGE = 2**28  # bytes of observations

    def __init__(self, env: BatchEnv, length: int, keep_next: bool):
        spec = env.spec
        per_tick = env.lanes * math.prod(spec.obs_shape) * np.dtype(spec.obs_dtype).itemsize
        room = max(1, min(3 * length, self.LARGE // max(per_tick, 1)))
        kinds = [
            (spec.obs_shape, spec.obs_dtype),
            (spec.action.shape, spec.action.dtype),
            (spec.obs_shape, spec.obs_dtype),
            ((), np.float32),
            ((len(spec.cost_names),), np.float32),
            ((), bool),
            ((), bool),
        ]
        self.keep_next = keep_next
        rooms = [room if keep_next or i != 2 else 0 for i in range(len(kinds))]
        self.arrays = [
            np.zeros((rows, env.lanes, *shape), dtype) for rows, (shape, dtype) in zip(rooms, kinds, strict=True)
        ]

    def write(self, tick: int, obs: np.ndarray, action: np.ndarray, result: Tick) -> None:
        if tick == len(self.arrays[0]):
            self.arrays = [np.concatenate([array, np.zeros_like(array)]) for array in self.arrays]
        row = (obs, action, result.next_obs, result.reward, result.cost, result.terminated, result.truncated)
        for i, (array, value) in enumerate(zip(self.arrays, row, strict=True)):
            if self.keep_next or i != 2:
                array[tick] = value

    def cut(self, ticks: int, whole: list[tuple[int, int, int]]) -> Recording:
        return Recording(*(array[:ticks] for array in self.arrays), episodes=whole)


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
    # Whole episodes, each in a lane of its own, are in place already.
    in_place = (
        len(placed) == columns
        and recording.obs.shape[:2] == (rows, columns)
        and all((lane, start, stop) == (column, row, rows) for lane, start, stop, column, row in placed)
    )
    packed: dict[str, Any] = {}
    for name in ("obs", "action", "next_obs", "reward", "cost", "terminated", "truncated"):
        array = getattr(recording, name)
        if not len(array):
            packed[name] = packed["obs"]  # next_obs, which nobody asked for
            continue
        if in_place:
            packed[name] = array
            continue
        packed[name] = np.zeros((rows, columns, *array.shape[2:]), array.dtype)
        for lane, start, stop, column, row in placed:
            packed[name][row : row + stop - start, column] = array[start:stop, lane]
    packed["valid"] = np.arange(rows)[:, None] < heights
    return Rollout(log_prob=None, dist=None, **packed)
