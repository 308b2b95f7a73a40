"""What is known of an expected cost, and of its gradient, from all batches so far.

A batch of few episodes with a rare and large cost says little about J_C: its standard error may be as large as the
limit, and by chance it may hold no cost at all. The policy moves little from one update to the next, and by how much
its cost is to change was predicted, so the batches before say as much: a scalar Kalman filter per cost. Of the gradient
of such a cost a batch says less still, nine tenths of its squared length may be noise: a mean over batches, in which
the newest counts the less, the more of it is noise.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.core.thresholds import running_mean
from spacerl.types import Array

RATE = 0.2  # at which the noise of batches and the drift between them are averaged
LEAST_GAIN = 0.2  # about the last five batches count: no prediction is good for long
JUMP = 2.0  # standard deviations of a surprise from which on the cost has moved, whatever was predicted


class CostEstimate(NamedTuple):
    """All (K,). NaN where nothing is known yet, and in the variances where a batch says nothing of its error."""

    mean: Array  # J_C of the policy that played the newest batch
    variance: Array  # of that mean
    noise: Array  # variance of a batch's J_C, averaged: one batch's own goes with its mean where costs are rare
    drift: Array  # squared surprises beyond what noise explains, averaged; negative where there were less


def nothing_known(costs: int) -> CostEstimate:
    unknown = jnp.full((costs,), jnp.nan)
    return CostEstimate(unknown, unknown, unknown, jnp.zeros(costs))


class Update(NamedTuple):
    estimate: CostEstimate
    surprise: Array  # (K,) measured minus predicted J_C; NaN where nothing was predicted
    doubt: Array  # (K,) standard deviation that noise gives to the surprise


def with_batch(
    before: CostEstimate,
    change: Array,  # (K,) by which the step since was to change J_C
    measured: Array,  # (K,) J_C of the newest batch
    error: Array,  # (K,) its standard error
    least: Array,  # (K,) no J_C is below it
    filtered: bool = True,
) -> Update:
    """The newest batch weighed against what was expected of it; alone where not `filtered`."""
    predicted = jnp.maximum(before.mean + change, least)
    surprise, own = measured - predicted, error**2
    noise = jnp.where(jnp.isnan(before.noise), own, running_mean(before.noise, own, RATE))
    expected = before.variance + jnp.fmax(own, noise)
    explained = jnp.where(jnp.isnan(own), jnp.nan, expected)
    drift = running_mean(before.drift, surprise**2 - explained, RATE)
    jumped = surprise**2 > JUMP**2 * explained
    prior = before.variance + jnp.maximum(jnp.where(jumped, surprise**2, 0.0), jnp.maximum(drift, 0.0))
    gain = jnp.where(noise > 0.0, prior / (prior + noise), 1.0)
    gain = jnp.clip(jnp.where(jnp.isnan(gain), 1.0, gain), LEAST_GAIN, 1.0)
    begins = jnp.isnan(surprise)
    gain = jnp.where(begins, 1.0, gain) if filtered else jnp.ones_like(surprise)
    mean = jnp.where(begins, measured, predicted + gain * jnp.where(begins, 0.0, surprise))
    variance = jnp.where(gain < 1.0, gain * noise, own)  # (1 - gain) prior, in the filter
    return Update(CostEstimate(mean, variance, noise, drift), surprise, jnp.sqrt(explained))


class MeanGradients(NamedTuple):
    """Zeros before the first batch."""

    mean: Array  # (K, P) gradients of the costs
    error: Array  # (K, P) a sample of the error of each: the same mean of the batches' own
    noise: Array  # (K,) squared length of a batch's error, averaged
    batches: Array  # () so far


def no_gradients(costs: int, parameters: int) -> MeanGradients:
    nothing = jnp.zeros((costs, parameters))
    return MeanGradients(nothing, nothing, jnp.zeros(costs), jnp.zeros(()))


def with_gradients(before: MeanGradients, gradients: Array, errors: Array) -> MeanGradients:
    """The newest gradients (K, P), with a sample of the error of each, weighed against those of the batches before.

    What of a gradient is not noise has moved since the last batch by about as much as it is long. So a gradient without
    noise counts alone, and of one that is all noise a fifth. By plain squared lengths: that takes no solve.
    """
    own, length = jnp.sum(errors**2, axis=1), jnp.sum(gradients**2, axis=1)
    begun, least = before.batches > 0.0, jnp.maximum(LEAST_GAIN, 1.0 / (1.0 + before.batches))
    noise = jnp.where(begun, running_mean(before.noise, own, RATE), own)
    # One batch's own error goes with its length where costs are rare: a large one is not the less noisy for that.
    clear = jnp.clip(1.0 - jnp.maximum(noise, own) / jnp.maximum(length, 1e-30), 0.0, 1.0)
    weight = (clear + (1.0 - clear) * least)[:, None]
    mean = before.mean + weight * (gradients - before.mean)
    error = before.error + weight * (errors - before.error)
    return MeanGradients(mean, error, noise, before.batches + 1.0)
