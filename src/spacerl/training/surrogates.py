"""What a batch says of a policy near the one that played it: the surrogate objectives, their gradients, and the KL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from spacerl.core.batching import for_each
from spacerl.core.fisher import chunked_pull_back
from spacerl.training.learner import Learner
from spacerl.types import Array, Batch, Trial


def surrogates(learner: Learner, batch: Batch, dist: Any) -> Array:
    """Per-episode surrogate objectives of a policy that acts by `dist` on the batch, (1 + K + 1,): J_R, each J_C, J_D.

    Sample means times the mean episode length, so that their gradients are gradients of episode sums; reward in units
    of J_R, whatever its discount (see `StepInputs`). The divergence has two parts: the score term (which states are
    visited) and the direct term (what is done in them).
    """
    weighted = jnp.exp(dist.log_prob(batch.action) - batch.log_prob) * batch.weight
    mean_discounting = jnp.abs(batch.weight) @ batch.discounting  # weights of a contrast are signed
    reward = mean_discounting * (weighted @ batch.reward_advantage)
    divergence = jnp.array(0.0)
    if batch.baseline_dist is not None:
        kind = learner.algorithm.divergence_gradient
        if kind in ("full", "score"):
            divergence += weighted @ batch.divergence_advantage
        if kind in ("full", "direct"):
            divergence += batch.weight @ dist.kl(batch.baseline_dist)
    return batch.episode_length * jnp.concatenate([reward[None], weighted @ batch.cost_advantage, divergence[None]])


def discounted_surrogate(batch: Batch, dist: Any) -> Array:
    """Surrogate of J_R itself: every step of an episode has the weight it has there, ()."""
    ratio = jnp.exp(dist.log_prob(batch.action) - batch.log_prob)
    return batch.episode_length * (ratio * batch.weight * batch.discounting) @ batch.reward_advantage


class Gradients(NamedTuple):
    """As `StepInputs` explains them."""

    g: Array  # (P,)
    gain: Array  # (P,)
    a: Array  # (P,)
    c: Array  # (K, P)
    c_noise: Array  # (K, P)
    g_noise: Array  # (P,)


def surrogate_gradients(learner: Learner, batch: Batch, theta: Array) -> Gradients:
    """From one pass through the policy, or from one in parts where its activations would fill the memory."""
    noisy, K = learner.algorithm.needs.noise, len(learner.cost_names)
    family, size = learner.family, learner.family.layout.rows_at_once(batch.weight.shape[0])

    def all_surrogates(distribution: Any) -> Array:
        values = surrogates(learner, batch, distribution)
        if not noisy:
            return values
        contrasted = surrogates(learner, batch._replace(weight=batch.weight * batch.contrast), distribution)
        return jnp.concatenate([values, contrasted[:-1]])

    if size is None:
        dist, pull_back = jax.vjp(lambda t: family.apply(t, batch.inputs), theta)
        rows = for_each(lambda cotangent: pull_back(cotangent)[0], jax.jacrev(all_surrogates)(dist))
        discounted = learner.config.discount < 1.0
        gain = pull_back(jax.grad(discounted_surrogate, argnums=1)(batch, dist))[0] if discounted else rows[0]
    else:
        dist = family.apply(theta, batch.inputs)
        both = jax.jacrev(lambda d: jnp.append(all_surrogates(d), discounted_surrogate(batch, d)))(dist)
        by_sample = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), both)
        rows = chunked_pull_back(family.apply, theta, batch.inputs, by_sample, size)
        rows, gain = rows[:-1], rows[-1]
    c = rows[1 : K + 1]
    noise = rows[K + 2 :] if noisy else jnp.zeros_like(rows[: K + 1])
    return Gradients(g=rows[0], gain=gain, a=rows[K + 1], c=c, c_noise=noise[1:], g_noise=noise[0])


def judge_of(learner: Learner, batch: Batch, theta: Array, step: Array) -> Callable[[Array], Trial]:
    """scale -> how the surrogates and the KL change when theta moves by scale * step."""
    now = surrogates(learner, batch, batch.dist)

    def judge(scale: Array) -> Trial:
        dist = learner.family.apply(theta + scale * step, batch.inputs)
        change = surrogates(learner, batch, dist) - now
        kl = batch.weight @ batch.dist.kl(dist)
        return Trial(change[0], change[1:-1], change[-1], kl)

    return judge
