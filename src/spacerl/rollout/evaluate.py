"""What a policy achieves: episode sums of fresh episodes, with intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from spacerl.core.distributions import DISTRIBUTIONS
from spacerl.rollout.adapter import JaxBatchEnv
from spacerl.rollout.device import likeliest_action, random_action, unroll
from spacerl.rollout.host import episodes, sampling, ticks
from spacerl.types import STEP, Array, BatchEnv, Env, JaxEnv, Policy


class Play(NamedTuple):
    """Which episodes are played."""

    episodes: int
    length: int  # steps after which an episode is cut
    seed: int
    deterministic: bool = False


def no_look(state: Any) -> tuple[()]:
    return ()


def play_on_device(env: JaxEnv, policy: Policy, play: Play, look: Callable[[Any], Any] = no_look):
    """Fresh episodes side by side in one program: rewards (T, N), costs (T, N, K), valid (T, N), what `look` saw.

    One program serves all parameters of an architecture.
    """
    assert policy.compiles
    key = jax.random.PRNGKey(play.seed)
    shape = play._replace(seed=0)
    if isinstance(env, Hashable) and isinstance(look, Hashable):
        return _cached_program(env, _Architecture(policy), shape, look)(policy.parameters, key)
    return jax.jit(_program(env, policy.apply, shape, look))(policy.parameters, key)


def play_by_ticks(env: JaxEnv, policy: Policy, play: Play, look: Callable[[Any], Any] = no_look):
    """The same episodes for a policy that does not compile: it is called once per step for all of them."""
    reset_key, noise_key = jax.random.split(jax.random.PRNGKey(play.seed))
    batch = JaxBatchEnv(env, play.episodes, jax.random.split(reset_key, play.episodes))
    keys, shape = jax.random.split(noise_key, play.length), (play.episodes, env.spec.action.size)

    def act(obs: np.ndarray, tick: int) -> np.ndarray:
        dist = policy(obs)
        noise = dist.noise(keys[max(tick - 1, 0)], shape)  # the first tick resets
        return np.asarray(dist.mode() if play.deterministic else dist.sample(noise))

    see = jax.jit(jax.vmap(look))
    rows, before = [], None
    for moment in ticks(batch, act, play.seed, play.length, count=play.episodes):
        stepping = moment.command == STEP
        if stepping.any():
            reward, cost = moment.result.reward * stepping, moment.result.cost * stepping[:, None]
            rows.append((reward, cost, stepping, before))
        before = jax.device_get(see(batch.states))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


class _Architecture:
    """A policy's function, equal to that of any policy that differs in its parameters alone."""

    def __init__(self, policy: Policy):
        self.architecture, self.apply = policy.architecture, policy.apply

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Architecture) and self.architecture == other.architecture

    def __hash__(self) -> int:
        return hash(self.architecture)


@functools.lru_cache(maxsize=16)
def _cached_program(env: JaxEnv, policy: _Architecture, play: Play, look: Callable[[Any], Any]) -> Callable:
    return jax.jit(_program(env, policy.apply, play, look))


def _program(env: JaxEnv, apply: Callable, play: Play, look: Callable[[Any], Any]) -> Callable:
    action = env.spec.action
    sample = likeliest_action if play.deterministic else random_action

    def program(parameters: Any, key: Array):
        reset_key, noise_key = jax.random.split(key)
        noise_of = functools.partial(DISTRIBUTIONS[action.kind].noise, shape=(play.episodes, action.size))
        noise = jax.vmap(noise_of)(jax.random.split(noise_key, play.length))
        rollout, seen = unroll(env, lambda obs: apply(parameters, obs), reset_key, noise, sample, look)
        return rollout.reward, rollout.cost, rollout.valid, seen

    return program


def episode_sums(rewards: Any, costs: Any, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Discounted reward (N,) and undiscounted costs (N, K) of every episode."""
    powers = discount ** np.arange(rewards.shape[0])
    return np.einsum("t,tn->n", powers, np.asarray(rewards, np.float64)), np.asarray(costs, np.float64).sum(0)


def episode_returns(env: Env, policy: Policy, discount: float, play: Play) -> tuple[np.ndarray, np.ndarray]:
    """J_R (N,) and every J_C (N, K) of fresh episodes, whoever steps the environment."""
    if isinstance(env, BatchEnv):
        return _host_returns(env, policy, discount, play)
    rewards, costs, *_ = (play_on_device if policy.compiles else play_by_ticks)(env, policy, play)
    return episode_sums(rewards, costs, discount)


def _host_returns(env: BatchEnv, policy: Policy, discount: float, play: Play) -> tuple[np.ndarray, np.ndarray]:
    act = sampling(policy, env.spec.action.size, env.lanes, play.seed, play.deterministic)
    played = episodes(env, act, play.seed, play.length, count=play.episodes)
    env.counts()  # faults on the way are not those of an update
    J_R, J_C = [], []
    for lane, start, stop in played.episodes:
        rewards = played.reward[start:stop, lane].astype(np.float64)
        J_R.append(discount ** np.arange(stop - start) @ rewards)
        J_C.append(played.cost[start:stop, lane].astype(np.float64).sum(0))
    return np.array(J_R), np.array(J_C)


def summarise(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation over episodes, and half-width of the 95 % interval of the mean."""
    spread = float(values.std(ddof=1)) if values.size > 1 else math.nan
    return {"mean": float(values.mean()), "std": spread, "interval": 1.96 * spread / math.sqrt(values.size)}


def evaluate_policy(
    env: Env, policy: Policy, cost_limit: tuple[float, ...], discount: float, play: Play
) -> dict[str, Any]:
    """J_R and every J_C of the stochastic and of the deterministic policy."""
    report: dict[str, Any] = {"episodes": play.episodes, "seed": play.seed}
    for mode in ("stochastic", "deterministic"):
        J_R, J_C = episode_returns(env, policy, discount, play._replace(deterministic=mode == "deterministic"))
        costs = zip(env.spec.cost_names, cost_limit, J_C.T, strict=True)
        named = {name: {**summarise(values), "limit": limit} for name, limit, values in costs}
        report[mode] = {"J_R": summarise(J_R), "J_C": named}
    return report
