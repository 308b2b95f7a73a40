"""What a policy achieves: episode sums of fresh episodes, with intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from spacerl.core.distributions import DISTRIBUTIONS
from spacerl.envs.memory import device_memory
from spacerl.policies.family import PolicyFamily
from spacerl.policies.policy import NetworkPolicy
from spacerl.policies.sampler import Sampler
from spacerl.rollout.adapter import JaxBatchEnv
from spacerl.rollout.device import likeliest_action, random_action, unroll
from spacerl.rollout.host import sampling, ticks
from spacerl.runs.memory import require_memory
from spacerl.types import STEP, Array, BatchEnv, Env, EnvSpec, Episode, JaxEnv, Policy, Rollout

MODES = ("stochastic", "deterministic")
NUMBER = 4  # bytes


class Play(NamedTuple):
    """Which episodes are played."""

    episodes: int
    length: int  # steps after which an episode is cut
    seed: int
    deterministic: bool = False


def require_room_to_play(spec: EnvSpec, play: Play) -> None:
    """Episodes of a program stand side by side: the noise of every step, its reward, its costs, whether it counts."""
    needed = NUMBER * play.episodes * play.length * (spec.action.size + 2 + len(spec.cost_names))
    require_memory(needed, device_memory(), "number of episodes, or --rollout-length")


def no_look(state: Any) -> tuple[()]:
    return ()


def _sums(rollout: Rollout, seen: Any) -> tuple[Array, Array, Array, Any]:
    return rollout.reward, rollout.cost, rollout.valid, seen


def _everything(rollout: Rollout, seen: Any) -> Rollout:
    return rollout


def play_on_device(
    env: JaxEnv,
    policy: Policy,
    play: Play,
    look: Callable[[Any], Any] = no_look,
    keep: Callable[[Rollout, Any], Any] = _sums,
) -> Any:
    """Fresh episodes side by side in one program: rewards (T, N), costs (T, N, K), valid (T, N), what `look` saw.

    One program serves all parameters of an architecture.
    """
    assert policy.compiles
    key = jax.random.PRNGKey(play.seed)
    shape = play._replace(seed=0)
    if isinstance(env, Hashable) and isinstance(look, Hashable):
        return _cached_program(env, _Architecture(policy), shape, look, keep)(policy.parameters, key)
    return jax.jit(_program(env, policy.apply, shape, look, keep))(policy.parameters, key)


def rollout_on_device(env: JaxEnv, policy: Policy, play: Play) -> Rollout:
    """Every step of these episodes."""
    return play_on_device(env, policy, play, keep=_everything)


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
def _cached_program(env: JaxEnv, policy: _Architecture, play: Play, look: Callable, keep: Callable) -> Callable:
    return jax.jit(_program(env, policy.apply, play, look, keep))


def _program(env: JaxEnv, apply: Callable, play: Play, look: Callable, keep: Callable) -> Callable:
    action = env.spec.action
    sample = likeliest_action if play.deterministic else random_action

    def program(parameters: Any, key: Array):
        reset_key, noise_key = jax.random.split(key)
        noise_of = functools.partial(DISTRIBUTIONS[action.kind].noise, shape=(play.episodes, action.size))
        noise = jax.vmap(noise_of)(jax.random.split(noise_key, play.length))
        return keep(*unroll(env, lambda obs: apply(parameters, obs), reset_key, noise, sample, look))

    return program


def episode_sums(rewards: Any, costs: Any, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Discounted reward (N,) and undiscounted costs (N, K) of every episode."""
    powers = discount ** np.arange(rewards.shape[0])
    return np.einsum("t,tn->n", powers, np.asarray(rewards, np.float64)), np.asarray(costs, np.float64).sum(0)


class Played(NamedTuple):
    """Sums of N whole episodes."""

    J_R: np.ndarray  # (N,) discounted reward
    J_C: np.ndarray  # (N, K) undiscounted costs
    episode_return: np.ndarray  # (N,) undiscounted reward
    episode_length: np.ndarray  # (N,) steps


def episode_returns(env: Env, policy: Policy, discount: float, play: Play) -> tuple[np.ndarray, np.ndarray]:
    """J_R (N,) and every J_C (N, K) of fresh episodes, whoever steps the environment."""
    played = play_episodes(env, policy, discount, play)
    return played.J_R, played.J_C


def play_episodes(
    env: Env, policy: Policy, discount: float, play: Play, told: Callable[[int], None] | None = None
) -> Played:
    """Sums of fresh episodes, whoever steps the environment. `told` hears on the host how many are done."""
    if isinstance(env, BatchEnv):
        return _host_sums(env, policy, discount, play, told)
    require_room_to_play(env.spec, play)
    rewards, costs, valid, _ = (play_on_device if policy.compiles else play_by_ticks)(env, policy, play)
    J_R, J_C = episode_sums(rewards, costs, discount)
    return Played(J_R, J_C, np.asarray(rewards, np.float64).sum(0), np.asarray(valid).sum(0))


def _host_sums(
    env: BatchEnv, policy: Policy, discount: float, play: Play, told: Callable[[int], None] | None
) -> Played:
    """Episodes are summed while they are played: nothing else of them is kept."""
    quick = policy.family.sampler(policy.theta) if isinstance(policy, NetworkPolicy) else None
    if env.plays_episodes and quick is not None:
        assert isinstance(policy, NetworkPolicy)
        return _sums_of_whole(env, policy.family, quick, discount, play, told)
    act = sampling(policy, env.spec.action.size, env.lanes, play.seed, play.deterministic)
    sums, finished = np.zeros((env.lanes, 3 + len(env.spec.cost_names))), []
    for moment in ticks(env, act, play.seed, play.length, count=play.episodes):
        stepped = np.flatnonzero(moment.command == STEP)
        reward = np.asarray(moment.result.reward, np.float64)[stepped]
        sums[stepped, 0] += discount ** sums[stepped, 2] * reward
        sums[stepped, 1] += reward
        sums[stepped, 2] += 1
        sums[stepped, 3:] += moment.result.cost[stepped]
        ended = np.flatnonzero(moment.ended)
        finished += [sums[lane].copy() for lane in ended]
        sums[ended] = 0.0
        sums[np.asarray(moment.result.lost, bool)] = 0.0  # an episode that was lost to a fault begins anew
        if told is not None and len(ended):
            told(len(finished))
    env.counts()  # faults on the way are not those of an update
    table = np.array(finished)
    return Played(table[:, 0], table[:, 3:], table[:, 1], table[:, 2])


def _sums_of_whole(
    env: BatchEnv, family: PolicyFamily, act: Sampler, discount: float, play: Play, told: Callable[[int], None] | None
) -> Played:
    """The same of episodes that the environment plays by itself, a few for each of its lanes at a time."""
    rng, key, found, begun = np.random.default_rng(play.seed), jax.random.PRNGKey(play.seed), [], 0
    while len(found) < play.episodes:
        more = min(play.episodes - len(found), 4 * env.lanes)
        noise = jax.vmap(lambda n: family.noise(jax.random.fold_in(key, n), (play.length,)))(begun + np.arange(more))
        noises = np.zeros_like(noise) if play.deterministic else np.asarray(noise)
        played = [each for each in env.play(act, list(rng.integers(0, 2**31, more)), list(noises)) if each is not None]
        found += [_sums_of(each, discount) for each in played]
        begun += more
        if told is not None and played:
            told(len(found))
    env.counts()  # faults on the way are not those of an update
    table = np.array(found)
    return Played(table[:, 0], table[:, 3:], table[:, 1], table[:, 2])


def _sums_of(episode: Episode, discount: float) -> np.ndarray:
    reward = np.asarray(episode.reward, np.float64)
    J_R = discount ** np.arange(len(reward)) @ reward
    return np.array([J_R, reward.sum(), len(reward), *np.asarray(episode.cost, np.float64).sum(0)])


def summarise(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation over episodes, and half-width of the 95 % interval of the mean (Student's t)."""
    spread = float(values.std(ddof=1)) if values.size > 1 else math.nan
    interval = reach(spread / math.sqrt(values.size), values.size)
    return {"mean": float(values.mean()), "std": spread, "interval": interval}


def reach(error: float, count: int) -> float:
    """Half the width of the 95 % interval of a mean with this standard error, by Student's t; NaN of one value."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975)) * error if count > 1 else math.nan


def verdict(mean: float, interval: float, limit: float, tolerance: float = 0.0) -> str:
    """Where a cost is: within its limit, with the tolerance, above it, or at it where the interval of the mean holds
    it."""
    edge = limit + tolerance
    if abs(mean - edge) <= interval:  # false where one episode has no interval
        return "at"
    return "within" if mean <= edge else "above"


def measured(
    env: Env,
    policy: Policy,
    cost_limit: tuple[float, ...],
    discount: float,
    play: Play,
    told: Callable[[int], None] | None = None,
    tolerance: float = 0.0,
) -> dict[str, Any]:
    """What one policy earns and costs, with intervals, and where every cost is with respect to its limit."""
    played = play_episodes(env, policy, discount, play, told)
    costs = {}
    for name, limit, values in zip(env.spec.cost_names, cost_limit, played.J_C.T, strict=True):
        summary = summarise(values)
        stands = verdict(summary["mean"], summary["interval"], limit, tolerance)
        costs[name] = {**summary, "limit": limit, "tolerance": tolerance, "verdict": stands}
    return {
        "episodes": play.episodes,
        "J_R": summarise(played.J_R),
        "episode_return": summarise(played.episode_return),
        "episode_length": summarise(played.episode_length),
        "J_C": costs,
    }


def evaluate_policy(
    env: Env, policy: Policy, cost_limit: tuple[float, ...], discount: float, play: Play
) -> dict[str, Any]:
    """J_R and every J_C of the stochastic and of the deterministic policy."""
    report: dict[str, Any] = {"episodes": play.episodes, "seed": play.seed}
    for mode in MODES:
        chosen = play._replace(deterministic=mode == "deterministic")
        report[mode] = measured(env, policy, cost_limit, discount, chosen)
    return report
