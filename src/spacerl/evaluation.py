"""What a policy is worth: episode sums with intervals, and trajectories to look at."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.collect import host_episodes
from spacerl.policies import PolicyFamily
from spacerl.runs import write_json
from spacerl.types import UNKNOWN, ActionSpace, Array, Env, HostEnv, Worth

if TYPE_CHECKING:
    from spacerl.baselines import Baseline
    from spacerl.training import Parts

BASELINE_EPISODES, FEWEST_EPISODES = 1000, 30
DRAWN_EPISODES = 12
Policy = Callable[[Array], Any]  # observations (N, O) -> distribution


class Network(NamedTuple):
    """A policy as architecture and parameters: one compiled program serves all parameters."""

    family: PolicyFamily
    theta: Array

    def __call__(self, obs: Array) -> Any:
        return self.family.apply(self.theta, obs)


def network_of_run(run: str | Path, task: str, obs_shape: tuple[int, ...], action: ActionSpace) -> tuple[Network, dict]:
    """The newest policy of a run, checked against its environment, and what its file says about it."""
    from spacerl.baselines import load_baseline

    policy = load_baseline(str(run), task, obs_shape, action)
    assert policy is not None
    assert policy.family is not None
    assert policy.theta is not None
    return Network(policy.family, policy.theta), policy.info


def play(
    env: Env, policy: Policy, seed: int, episodes: int, length: int, deterministic: bool = False, compiled: bool = True
):
    """Fresh episodes side by side: (states per step, rewards (T, N), costs (T, N, K), valid (T, N)).

    A policy that cannot be compiled (a Python function) is called once per step for all episodes.
    """
    key = jax.random.PRNGKey(seed)
    if compiled and isinstance(policy, Network) and isinstance(env, Hashable):
        return _network_program(env, policy.family, episodes, length, deterministic)(policy.theta, key)
    if compiled:
        return jax.jit(lambda key: _scan(env, policy, key, episodes, length, deterministic))(key)
    carry, keys = _start(env, key, episodes, length)
    rows, step = [], jax.jit(lambda carry, action: _advance(env, carry, action))
    for step_key in keys:
        carry, row = step(carry, jnp.asarray(_act(env, policy, carry[0], step_key, deterministic)))
        rows.append(row)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


@functools.lru_cache(maxsize=16)
def _network_program(env: Env, family: PolicyFamily, episodes: int, length: int, deterministic: bool) -> Callable:
    return jax.jit(lambda theta, key: _scan(env, Network(family, theta), key, episodes, length, deterministic))


def _scan(env: Env, policy: Policy, key: Array, episodes: int, length: int, deterministic: bool):
    start, keys = _start(env, key, episodes, length)
    return jax.lax.scan(lambda c, k: _advance(env, c, _act(env, policy, c[0], k, deterministic)), start, keys)[1]


def _start(env: Env, key: Array, episodes: int, length: int):
    reset_key, noise_key = jax.random.split(key)
    states = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    return (states, jnp.ones(episodes, bool)), jax.random.split(noise_key, length)


def _act(env: Env, policy: Policy, state: Any, key: Array, deterministic: bool) -> Array:
    obs = jax.vmap(env.observe)(state)
    dist = policy(obs)
    return dist.mode() if deterministic else dist.sample(dist.noise(key, (obs.shape[0], env.action_space.size)))


def _advance(env: Env, carry: tuple[Any, Array], action: Array):
    state, alive = carry
    following, reward, cost, terminated = jax.vmap(env.step)(state, action)
    row = (state, jnp.where(alive, reward, 0.0), jnp.where(alive[:, None], cost, 0.0), alive)
    return (following, alive & ~terminated), row


def episode_returns(rewards: Array, costs: Array, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Discounted reward (N,) and undiscounted costs (N, K) of every episode."""
    powers = discount ** np.arange(rewards.shape[0])
    return np.einsum("t,tn->n", powers, np.asarray(rewards, np.float64)), np.asarray(costs, np.float64).sum(0)


def summarise(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation over episodes, and half-width of the 95 % interval of the mean."""
    spread = float(values.std(ddof=1)) if values.size > 1 else math.nan
    return {"mean": float(values.mean()), "std": spread, "interval": 1.96 * spread / math.sqrt(values.size)}


def episode_values(
    env: Any,
    policy: Policy,
    discount: float,
    length: int,
    episodes: int,
    seed: int,
    deterministic: bool = False,
    compiled: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """J_R (N,) and every J_C (N, K) of fresh episodes, whoever steps the environment."""
    if hasattr(env, "tick"):
        return host_values(env, policy, discount, length, episodes, seed, deterministic, compiled)
    _, rewards, costs, _ = play(env, policy, seed, episodes, length, deterministic, compiled)
    return episode_returns(rewards, costs, discount)


def host_values(
    env: HostEnv,
    policy: Policy,
    discount: float,
    length: int,
    episodes: int,
    seed: int,
    deterministic: bool,
    compiled: bool,
) -> tuple[np.ndarray, np.ndarray]:
    key = jax.random.PRNGKey(seed)

    def sample(obs: Any, tick: Any) -> Array:
        dist = policy(obs)
        noise = dist.noise(jax.random.fold_in(key, tick), (env.lanes, env.action_space.size))
        return dist.mode() if deterministic else dist.sample(noise)

    act = jax.jit(sample) if compiled else sample
    played = host_episodes(env, lambda obs, tick: np.asarray(act(obs, tick)), seed, length, episodes=episodes)
    env.counts()
    J_R, J_C = [], []
    for lane, start, stop in played.episodes:
        rewards = played.reward[start:stop, lane].astype(np.float64)
        J_R.append(discount ** np.arange(stop - start) @ rewards)
        J_C.append(played.cost[start:stop, lane].astype(np.float64).sum(0))
    return np.array(J_R), np.array(J_C)


def evaluate_policy(
    env: Any,
    policy: Policy,
    cost_limit: tuple[float, ...],
    discount: float,
    length: int,
    episodes: int,
    seed: int,
    compiled: bool = True,
) -> dict[str, Any]:
    """J_R and every J_C of the stochastic and of the deterministic policy."""
    report: dict[str, Any] = {"episodes": episodes, "seed": seed}
    for mode in ("stochastic", "deterministic"):
        still = mode == "deterministic"
        J_R, J_C = episode_values(env, policy, discount, length, episodes, seed, still, compiled)
        named = {name: {**summarise(J_C[:, k]), "limit": cost_limit[k]} for k, name in enumerate(env.cost_names)}
        report[mode] = {"J_R": summarise(J_R), "J_C": named}
    return report


def policy_of(baseline: Baseline, space: ActionSpace) -> tuple[Policy, bool]:
    """A baseline as a policy, and whether it can be compiled."""
    if baseline.family is not None and baseline.theta is not None:
        return Network(baseline.family, baseline.theta), True
    return lambda obs: baseline.distribution(obs, space), False


def baseline_summary(parts: Parts) -> tuple[Worth, dict[str, Any] | None]:
    """What the baseline is worth on this task, and what the run folder keeps of it; of several, the first one's, and
    all of them below "all".

    Of several another one may lead in each update, so that nothing is known about the cost of the one that does.
    """
    if not parts.baselines:
        return UNKNOWN, None
    summaries = [_summary_of(parts, baseline) for baseline in parts.baselines]
    summary: dict[str, Any] = summaries[0] | ({"all": summaries} if len(summaries) > 1 else {})
    over = summary["J_C"] - summary["h_C"]
    excess = over / summary["h_C"] if summary["h_C"] > 0 else math.copysign(math.inf, over) if over else 0.0
    return Worth(summary["J_R"], excess if len(summaries) == 1 else math.nan), summary


def _summary_of(parts: Parts, baseline: Baseline) -> dict[str, Any]:
    policy, compiled = policy_of(baseline, parts.env.action_space)
    config = parts.config
    episodes = min(max(parts.count, FEWEST_EPISODES), BASELINE_EPISODES)
    J_R, J_C = episode_values(
        parts.env,
        policy,
        config.discount,  # type: ignore[arg-type]
        config.rollout_length,  # type: ignore[arg-type]
        episodes,
        config.seed + 1,
        compiled=compiled,
    )
    worst = int(np.argmax(J_C.mean(0) - np.asarray(config.cost_limit)))
    spread = baseline.spread(parts.env.action_space)
    return {
        "name": baseline.name,
        "J_R": float(J_R.mean()),
        "J_C": float(J_C[:, worst].mean()),
        "h_C": config.cost_limit[worst],  # type: ignore[index]
        "episodes": episodes,
        "made_by": baseline.info,
        **({"given": spread} if spread else {}),
    }


def write_trajectories(parts: Parts, theta: Array, folder: Path) -> None:
    """A few episodes of pi_B and of the learned policy, for the report; tasks that can be drawn have an arena."""
    env: Any = parts.env
    if not hasattr(env, "arena") or parts.hosted:
        return
    family = parts.learner.family
    learned = _drawn(parts, Network(family, theta), True, "learned")
    baseline, space = parts.baseline, env.action_space
    drawn = [] if baseline is None else [_drawn(parts, *policy_of(baseline, space), "baseline")]
    write_json(
        folder / "trajectories.json",
        {"task": parts.config.task, "arena": env.arena(), "policies": [*drawn, learned]},
    )


def _drawn(parts: Parts, policy: Policy, compiled: bool, name: str) -> dict[str, Any]:
    env: Any = parts.env
    length, episodes = parts.config.rollout_length, min(parts.count, BASELINE_EPISODES)
    states, rewards, costs, valid = play(env, policy, 12345, episodes, length, compiled=compiled)  # type: ignore[arg-type]
    J_R, J_C = episode_returns(rewards, costs, parts.config.discount)  # type: ignore[arg-type]
    xy = np.asarray(jax.vmap(jax.vmap(env.position))(states))
    shown = []
    for n in range(min(DRAWN_EPISODES, episodes)):
        steps = int(np.asarray(valid)[:, n].sum())
        path = {"xy": np.round(xy[:steps, n], 4).tolist(), "cost": np.asarray(costs)[:steps, n].max(-1).tolist()}
        if hasattr(env, "objects"):
            placed = np.asarray(jax.vmap(env.objects)(jax.tree.map(lambda leaf: leaf[0], states))[0][n])
            path |= {"apples": placed[: env.n_apples].tolist(), "bombs": placed[env.n_apples :].tolist()}
        shown.append(path)
    return {"name": name, "J_R": float(J_R.mean()), "J_C": float(J_C.mean(0).max()), "episodes": shown}
