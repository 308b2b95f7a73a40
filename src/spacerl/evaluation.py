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

from spacerl.policies import PolicyFamily
from spacerl.runs import write_json
from spacerl.types import Array, Env

if TYPE_CHECKING:
    from spacerl.training import Parts

BASELINE_EPISODES = 1000
DRAWN_EPISODES = 12
Policy = Callable[[Array], Any]  # observations (N, O) -> distribution


class Network(NamedTuple):
    """A policy as architecture and parameters: one compiled program serves all parameters."""

    family: PolicyFamily
    theta: Array

    def __call__(self, obs: Array) -> Any:
        return self.family.apply(self.theta, obs)


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


def evaluate_policy(
    env: Env, policy: Policy, cost_limit: tuple[float, ...], discount: float, length: int, episodes: int, seed: int
) -> dict[str, Any]:
    """J_R and every J_C of the stochastic and of the deterministic policy."""
    report: dict[str, Any] = {"episodes": episodes, "seed": seed}
    for mode in ("stochastic", "deterministic"):
        _, rewards, costs, _ = play(env, policy, seed, episodes, length, mode == "deterministic")
        J_R, J_C = episode_returns(rewards, costs, discount)
        named = {name: {**summarise(J_C[:, k]), "limit": cost_limit[k]} for k, name in enumerate(env.cost_names)}
        report[mode] = {"J_R": summarise(J_R), "J_C": named}
    return report


def baseline_policy(parts: Parts) -> tuple[Policy, bool]:
    """The baseline as a policy, and whether it can be compiled."""
    baseline = parts.baseline
    assert baseline is not None
    if baseline.family is not None and baseline.theta is not None:
        return Network(baseline.family, baseline.theta), True
    return lambda obs: baseline.distribution(obs, parts.env.action_space), False


def baseline_summary(parts: Parts) -> tuple[float, dict[str, Any] | None]:
    """J_R of the baseline on this task (NaN without one) and what the run folder keeps of it."""
    if parts.baseline is None:
        return math.nan, None
    policy, compiled = baseline_policy(parts)
    config = parts.config
    episodes = min(parts.count, BASELINE_EPISODES)
    _, rewards, costs, _ = play(parts.env, policy, config.seed + 1, episodes, config.rollout_length, compiled=compiled)  # type: ignore[arg-type]
    J_R, J_C = episode_returns(rewards, costs, config.discount)  # type: ignore[arg-type]
    worst = int(np.argmax(J_C.mean(0) - np.asarray(config.cost_limit)))
    summary = {
        "name": parts.baseline.name,
        "J_R": float(J_R.mean()),
        "J_C": float(J_C[:, worst].mean()),
        "h_C": config.cost_limit[worst],  # type: ignore[index]
        "episodes": episodes,
        "made_by": parts.baseline.info,
    }
    return summary["J_R"], summary


def write_trajectories(parts: Parts, theta: Array, folder: Path) -> None:
    """A few episodes of pi_B and of the learned policy, for the report; tasks that can be drawn have an arena."""
    env: Any = parts.env
    if not hasattr(env, "arena"):
        return
    family = parts.learner.family
    learned = _drawn(parts, Network(family, theta), True, "learned")
    drawn = [] if parts.baseline is None else [_drawn(parts, *baseline_policy(parts), "baseline")]
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
