"""How h_D and the weights of the f-/d- variants move from one update to the next."""

from __future__ import annotations

from typing import Protocol

import jax.numpy as jnp

from spacerl.types import Array, Measured


def lemma_threshold(
    h_D: Array, J_R: Array, J_C: Array, previous_J_R: Array, previous_J_C: Array, h_C: Array, v: float
) -> Array:
    """The paper's Lemma "Updating h_D": grow by v (J_C - h_C)^2 when a cost rose or the reward fell, else stay.

    Comparisons with NaN (the first update has no predecessor) are false, so h_D^1 = h_D^0. With several costs the
    squares add up: each constraint set must be reachable from the region around the baseline.
    """
    worse = jnp.any(J_C > previous_J_C) | (J_R < previous_J_R)
    return jnp.where(worse, h_D + v * jnp.sum((J_C - h_C) ** 2), h_D)


class ThresholdRule(Protocol):
    """How h_D moves: options of every form of SPACE."""

    @property
    def threshold_rule(self) -> str: ...

    @property
    def threshold_constant(self) -> float: ...


def next_threshold(
    options: ThresholdRule, h_D: Array, measured: Measured, previous_J_R: Array, previous_J_C: Array
) -> Array:
    """h_D of the next update: "fixed" keeps it, "lemma" follows the paper."""
    if options.threshold_rule == "fixed":
        return h_D
    constant = options.threshold_constant
    return lemma_threshold(h_D, measured.J_R, measured.J_C, previous_J_R, previous_J_C, measured.h_C, constant)


def relative_excess(J_C: Array, h_C: Array) -> Array:
    """By which part of its limit each cost is above it, from -1 to 1 where costs are not negative: (J_C - h_C) / h_C
    below the limit, and 1 - h_C / J_C above, which also compares costs whose limit is zero."""
    return (J_C - h_C) / jnp.maximum(jnp.maximum(jnp.abs(h_C), jnp.abs(J_C)), 1e-30)


def trust_radius(radius: Array, kept: Array, largest: float) -> Array:
    """Radius for the next step from how the last ones kept their promises, as trust-region methods do it.

    Half as large again where more than half of the promised gain arrived; halved where less than a quarter did; else
    kept, as where nothing was promised (NaN). Shrinking is faster than growing, so that noise alone drives the radius
    down.
    """
    factor = jnp.where(kept < 0.25, 0.5, jnp.where(kept > 0.5, 1.5, 1.0))
    return jnp.minimum(radius * factor, largest)


def running_mean(mean: Array, value: Array, rate: float) -> Array:
    """mean <- (1 - rate) mean + rate value, unchanged where there is no value (NaN)."""
    return jnp.where(jnp.isnan(value), mean, (1.0 - rate) * mean + rate * value)


def next_weight(weight: Array, beta: float, schedule: str) -> Array:
    """Weight of the divergence in the f- and d- variants.

    "fixed" keeps it. "printed" is the paper's lambda <- lambda^beta, which never leaves 1 and always tends to 1.
    "decay" is lambda <- beta lambda, the decay of the work the paper cites for it.
    """
    return {"fixed": lambda: weight, "printed": lambda: weight**beta, "decay": lambda: beta * weight}[schedule]()
