"""What steps a run, or several runs at once: compiled programs, and the collection around them on the host."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.envs.tasks import TASKS
from spacerl.rollout.device import unroll
from spacerl.rollout.host import episodes, pack, whole_episodes
from spacerl.training.assemble import Parts
from spacerl.training.update import raw_theta, update, with_policy
from spacerl.types import Array, BatchEnv, InputError, JaxEnv, Policy, Rollout, TrainState

NOISE_TICKS = 64


class Stepped(NamedTuple):
    """One update of every run of a program."""

    state: TrainState
    metrics: list[dict[str, Any]]  # of every run
    collecting: float  # seconds, per run; NaN where collection is part of the one program
    updating: float  # seconds, per run


class Program(NamedTuple):
    """How the runs of one loop are stepped; the state of several runs has a leading axis of runs on every leaf."""

    step: Callable[[TrainState], Stepped]
    split: Callable[[TrainState], list[TrainState]]  # the state of each run


# Compiled pieces ------------------------------------------------------------------------------------------------------


def collect_step(parts: Parts, state: TrainState) -> tuple[TrainState, Rollout]:
    assert isinstance(parts.env, JaxEnv)
    key, rollout_key = jax.random.split(state.key)
    reset_key, noise_key = jax.random.split(rollout_key)
    family = parts.learner.family
    with jax.default_matmul_precision("float32"):  # reduced-precision products would spoil conjugate gradients
        theta = raw_theta(parts.learner, state)
        noise = family.noise(noise_key, (parts.config.rollout_length, parts.columns))
        rollout, _ = unroll(parts.env, lambda obs: family.apply(theta, obs), reset_key, noise)
    return state._replace(key=key), rollout


def update_step(
    parts: Parts, state: TrainState, rollout: Rollout, parameters: tuple[Any, ...], dists: tuple[Any, ...]
) -> tuple[TrainState, dict[str, Array]]:
    """One update; baselines that compile are evaluated here with their `parameters`, the others are in `dists`."""
    with jax.default_matmul_precision("float32"):
        if rollout.dist is None or parts.config.normalise_observations:
            rollout = with_policy(parts.learner, state, rollout)
        each = zip(parts.baselines, parameters, dists, strict=True)
        evaluated = tuple(b.apply(own, rollout.obs) if b.compiles else dist for b, own, dist in each)
        return update(parts.learner, state, rollout, evaluated)


def fused_step(parts: Parts, state: TrainState, parameters: tuple[Any, ...]) -> tuple[TrainState, dict[str, Array]]:
    """Collection, returns, gradients, conjugate gradient and critics as one program; vmap it for several runs."""
    state, rollout = collect_step(parts, state)
    return update_step(parts, state, rollout, parameters, (None,) * len(parameters))


def baseline_parameters(parts: Parts) -> tuple[Any, ...]:
    return tuple(baseline.parameters for baseline in parts.baselines)


# One run --------------------------------------------------------------------------------------------------------------


def single_program(parts: Parts) -> Program:
    """One run. Collection and update are one program where they can be; a baseline that does not compile is called
    between two, once per batch; a BatchEnv is stepped outside."""
    step = _fused(parts) if parts.fits_one_program else _split(parts)
    return Program(step, lambda state: [state])


def _fused(parts: Parts) -> Callable[[TrainState], Stepped]:
    parameters, where = baseline_parameters(parts), _where(parts)
    program = jax.jit(lambda state, parameters: fused_step(parts, state, parameters))

    def step(state: TrainState) -> Stepped:
        started = time.perf_counter()
        state, metrics = jax.block_until_ready(program(state, parameters))
        return Stepped(state, [jax.device_get(metrics) | where], math.nan, time.perf_counter() - started)

    return step


def _split(parts: Parts) -> Callable[[TrainState], Stepped]:
    parameters, where = baseline_parameters(parts), _where(parts)
    collect = make_collector(parts)
    learn = jax.jit(lambda state, rollout, parameters, dists: update_step(parts, state, rollout, parameters, dists))

    def step(state: TrainState) -> Stepped:
        started = time.perf_counter()
        state, rollout, counts = collect(state)
        collected = time.perf_counter()
        dists = tuple(None if b.compiles else distribution_on(b, rollout) for b in parts.baselines)
        state, metrics = jax.block_until_ready(learn(state, rollout, parameters, dists))
        seconds = (collected - started, time.perf_counter() - collected)
        return Stepped(state, [jax.device_get(metrics) | counts | where], *seconds)

    return step


def _where(parts: Parts) -> dict[str, float]:
    """A task that can be simulated in two places says where each update's episodes are from."""
    task = TASKS.get(parts.config.task)
    return {"on_device": float(isinstance(parts.env, JaxEnv))} if task and task.has_two_simulators else {}


def make_collector(parts: Parts) -> Callable[[TrainState], tuple[TrainState, Rollout, dict[str, int]]]:
    """state -> (state, rollout, what happened on the way and belongs into the metrics)."""
    if isinstance(parts.env, BatchEnv):
        return _host_collector(parts, parts.env)
    program = jax.jit(lambda state: collect_step(parts, state))

    def collect(state: TrainState):
        return *jax.block_until_ready(program(state)), {}

    return collect


def _host_collector(parts: Parts, env: BatchEnv) -> Callable[[TrainState], tuple[TrainState, Rollout, dict[str, int]]]:
    config, learner = parts.config, parts.learner
    fold = jax.jit(lambda state: raw_theta(learner, state))
    # Noise of many ticks at once: drawn one by one it would take as long as the policy itself.
    noise_block = jax.jit(
        lambda key, block: learner.family.noise(jax.random.fold_in(key, block), (NOISE_TICKS, env.lanes))
    )

    noise_of_episode = jax.jit(
        lambda key, number: learner.family.noise(jax.random.fold_in(key, number), (config.rollout_length,))
    )

    @jax.jit
    def compiled(theta: Array, obs: Array, noise: Array) -> Array:
        with jax.default_matmul_precision("float32"):
            return learner.family.apply(theta, obs).sample(noise)

    def collect(state: TrainState):
        key, seed_key, noise_key = jax.random.split(state.key, 3)
        theta, seed = fold(state), tuple(int(word) for word in np.asarray(seed_key))
        noise, quick = np.zeros(0), learner.family.sampler(theta)
        sample = quick or functools.partial(compiled, theta)

        def act(obs: np.ndarray, tick: int) -> np.ndarray:
            nonlocal noise
            if tick % NOISE_TICKS == 0:
                noise = np.asarray(noise_block(noise_key, tick // NOISE_TICKS))
            return np.asarray(sample(obs, noise[tick % NOISE_TICKS]))

        length, keep_next = config.rollout_length, config.bootstrap_truncation
        if env.plays_episodes and quick is not None:
            noise_of = lambda number: np.asarray(noise_of_episode(noise_key, number))  # noqa: E731
            recording = whole_episodes(env, quick, noise_of, seed, length, config.batch_size, keep_next)
        else:
            recording = episodes(env, act, seed, length, steps=config.batch_size, keep_next=keep_next)
        return state._replace(key=key), pack(recording, parts.columns, length), env.counts()

    return collect


def distribution_on(policy: Policy, rollout: Rollout) -> Any:
    """A function's distribution on a rollout; it is asked about real observations only, padding gets zeros."""
    valid = np.asarray(rollout.valid)
    dist = policy(np.asarray(rollout.obs)[valid])

    def spread(rows: Any) -> np.ndarray:
        full = np.zeros((*valid.shape, *rows.shape[1:]), np.float32)
        full[valid] = rows
        return full

    return jax.tree.map(spread, dist)


# Several runs ---------------------------------------------------------------------------------------------------------


def joint_program(parts: Sequence[Parts]) -> Program:
    """Several runs that differ in seed and in their baselines' parameters alone, as one compiled program."""
    require_one_architecture(parts)
    step_all = vmapped_step(parts[0])
    parameters = jax.tree.map(lambda *each: jnp.stack(each), *(baseline_parameters(part) for part in parts))

    def step(states: TrainState) -> Stepped:
        started = time.perf_counter()
        following, metrics = step_all(states, parameters)
        values = jax.device_get(metrics)
        seconds = (time.perf_counter() - started) / len(parts)
        each = [{name: column[i] for name, column in values.items()} | _where(part) for i, part in enumerate(parts)]
        return Stepped(following, each, math.nan, seconds)

    return Program(step, lambda states: split_states(states, len(parts)))


def vmapped_step(parts: Parts) -> Callable:
    """(states, baselines' parameters) -> (states, metrics), everything with a leading axis of runs."""
    return jax.jit(jax.vmap(lambda state, parameters: fused_step(parts, state, parameters)))


def split_states(states: TrainState, count: int) -> list[TrainState]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(count)]


def stack_states(states: Sequence[TrainState]) -> TrainState:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def require_one_architecture(parts: Sequence[Parts]) -> None:
    shapes = {tuple(baseline.architecture for baseline in part.baselines) for part in parts}
    if len(shapes) > 1:
        raise InputError("the baselines of one sweep must share an architecture: sweep those that differ one by one")
