"""Running statistics of observations, for runs that normalise them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.types import Array


class Normaliser(NamedTuple):
    """Running statistics of the observations' numbers (images have their scale instead)."""

    mean: Array  # (V,)
    var: Array  # (V,)
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]  () samples so far

    def scale(self) -> Array:
        """What numbers are divided by, (V,): their standard deviation.

        1 where that is below 1e-4: a constant says nothing, and must not be blown up on the day it moves. At least
        1e-3 of the mean: beyond that float32 cannot hold raw observations times folded weights.
        """
        std = jnp.sqrt(self.var)
        return jnp.maximum(jnp.where(std > 1e-4, std, 1.0), 1e-3 * jnp.abs(self.mean))


def fresh_normaliser(width: int) -> Normaliser:
    """Statistics of nothing: they leave observations as they are."""
    return Normaliser(jnp.zeros(width), jnp.ones(width), jnp.zeros(()))


def absorb(normaliser: Normaliser, numbers: Array, valid: Array) -> Normaliser:
    """Statistics with the samples (B, V) of another batch merged in, those that are `valid` (B,)."""
    n, m = normaliser.count, jnp.sum(valid)
    # Padding may hold anything. Deviations from a first guess of the mean: sums of the raw numbers would lose digits.
    guess = jnp.where((n > 0) | (m == 0), normaliser.mean, numbers[jnp.argmax(valid)])
    gap = jnp.where(valid[:, None] > 0, numbers - guess, 0.0)
    share = valid / jnp.where(m > 0, m, 1.0)
    shift = share @ gap
    var = share @ (gap - shift) ** 2
    new = m / jnp.where(n + m > 0, n + m, 1.0)  # share of the new samples
    delta = guess + shift - normaliser.mean
    merged = (1.0 - new) * normaliser.var + new * var + new * (1.0 - new) * delta**2
    return Normaliser(normaliser.mean + new * delta, merged, n + m)
