"""What is known of an expected cost from all batches so far: a scalar Kalman filter per cost.

A batch of few episodes with a rare and large cost says little about J_C: its standard error may be as large as the
limit, and by chance it may hold no cost at all. The policy moves little from one update to the next, and by how much
its cost is to change was predicted, so the batches before say as much.
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
