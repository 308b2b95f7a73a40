"""Behaviour cloning: the policy under which the demonstrated actions are likeliest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from spacerl.policies.family import GaussianPolicy, PolicyFamily
from spacerl.training.imitation.data import Steps
from spacerl.types import Array

JUDGED_AT = 20  # times in all
JUDGED_ON = 2048  # steps at most


def clone(
    family: PolicyFamily,
    theta: Array,
    see: Callable[[Array], Array],
    steps: Steps,
    *,
    updates: int,
    batch: int,
    rate: float,
    least_std: float,
    seed: int,
    told: Callable[[int], None],
) -> tuple[Array, dict[str, float]]:
    """theta (P,) of largest likelihood on episodes that were held out, and the mean log-likelihoods it reached.

    `see` normalises observations. The standard deviation is learned as well, and kept above `least_std`: a divergence
    from a baseline that is sure of everything is infinite.
    """
    schedule = optax.cosine_decay_schedule(rate, updates)
    optimiser = optax.adam(schedule)

    def likelihood(theta: Array, obs: Array, action: Array) -> Array:
        return jnp.mean(family.apply(theta, see(obs)).log_prob(action))

    @jax.jit
    def improve(theta: Array, state: Any, obs: Array, action: Array) -> tuple[Array, Any]:
        gradient = jax.grad(lambda t: -likelihood(t, obs, action))(theta)
        change, state = optimiser.update(gradient, state, theta)
        moved: Any = optax.apply_updates(theta, change)
        return with_least_std(family, moved, least_std), state

    judge = jax.jit(likelihood)
    rows = np.flatnonzero(~steps.held_out)
    judged = some_of(np.flatnonzero(steps.held_out), seed) if steps.held_out.any() else some_of(rows, seed)
    known = some_of(rows, seed)
    state, best, best_theta = optimiser.init(theta), -math.inf, theta
    for done, chosen in enumerate(minibatches(rows, batch, updates, seed), 1):
        theta, state = improve(theta, state, steps.observations[steps.before[chosen]], steps.action[chosen])
        if done % max(1, updates // JUDGED_AT) == 0 or done == updates:
            score = float(judge(theta, steps.observations[steps.before[judged]], steps.action[judged]))
            if score > best:
                best, best_theta = score, theta
            told(done)
    best_theta = _with_observed_std(family, best_theta, see, steps, judged, least_std)
    scores = [float(judge(best_theta, steps.observations[steps.before[r]], steps.action[r])) for r in (known, judged)]
    return best_theta, dict(zip(("log_likelihood", "log_likelihood_held_out"), scores, strict=True))


def _with_observed_std(
    family: PolicyFamily, theta: Array, see: Callable[[Array], Array], steps: Steps, rows: np.ndarray, least: float
) -> Array:
    """The likeliest standard deviation, which is that of the actions from the mean: gradients are slow to find it."""
    policy = family.unravel(theta)
    if not isinstance(policy, GaussianPolicy):
        return theta
    mean = family.apply(theta, see(jnp.asarray(steps.observations[steps.before[rows]]))).mode()
    std = jnp.sqrt(jnp.mean((mean - steps.action[rows]) ** 2, axis=0))
    return ravel_pytree(eqx.tree_at(lambda p: p.log_std, policy, jnp.log(jnp.maximum(std, least))))[0]


def with_least_std(family: PolicyFamily, theta: Array, least: float) -> Array:
    policy = family.unravel(theta)
    if not isinstance(policy, GaussianPolicy):
        return theta
    raised = jnp.maximum(policy.log_std, math.log(least))
    return ravel_pytree(eqx.tree_at(lambda p: p.log_std, policy, raised))[0]


def with_std(family: PolicyFamily, theta: Array, std: float) -> Array:
    policy = family.unravel(theta)
    assert isinstance(policy, GaussianPolicy)
    stated = jnp.full_like(policy.log_std, math.log(std))
    return ravel_pytree(eqx.tree_at(lambda p: p.log_std, policy, stated))[0]


def some_of(rows: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(rows)[:JUDGED_ON]


def minibatches(rows: np.ndarray, size: int, count: int, seed: int) -> Iterator[np.ndarray]:
    """Rows of `count` minibatches: every row is seen before one is seen again."""
    generator, size = np.random.default_rng(seed), min(size, len(rows))
    waiting = np.zeros(0, rows.dtype)
    for _ in range(count):
        if len(waiting) < size:
            waiting = np.concatenate([waiting, generator.permutation(rows)])
        chosen, waiting = waiting[:size], waiting[size:]
        yield chosen
