"""How radii and running means move, worked by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.algorithms.options import ThresholdOptions
from spacerl.core.thresholds import lemma_threshold, next_threshold, relative_excess, running_mean, trust_radius
from spacerl.types import Measured


@pytest.mark.parametrize(("kept", "factor"), [(0.8, 1.5), (0.4, 1.0), (0.1, 0.5), (-2.0, 0.5), (np.nan, 1.0)])
def test_a_radius_grows_on_kept_promises_and_shrinks_faster_on_broken_ones(kept, factor):
    assert trust_radius(jnp.array(0.01), jnp.array(kept), 1.0) == pytest.approx(0.01 * factor)


def test_a_radius_has_a_largest_value():
    assert trust_radius(jnp.array(0.04), jnp.array(1.0), 0.05) == pytest.approx(0.05)


def test_a_running_mean_waits_for_values():
    mean = running_mean(jnp.array([1.0, 1.0]), jnp.array([2.0, jnp.nan]), 0.25)
    np.testing.assert_allclose(mean, [1.25, 1.0])


def test_a_fixed_threshold_ignores_what_the_lemma_sees():
    h_D, J_R, J_C, h_C = jnp.array(3.0), jnp.array(1.0), jnp.array([7.0]), jnp.array([5.0])
    previous = (jnp.array(2.0), jnp.array([6.0]))

    def following(rule: str):
        options = ThresholdOptions(threshold_rule=rule, threshold_constant=10.0)
        return next_threshold(options, h_D, Measured(J_R, J_C, h_C, jnp.array(0.0)), *previous)

    assert following("fixed") == 3.0
    assert following("lemma") == lemma_threshold(h_D, J_R, J_C, *previous, h_C, 10.0) == 43.0


def test_costs_are_compared_in_parts_of_their_limits():
    """The second is 0.2 above its limit and the first 0.5; but that is three times the one limit, half of the other."""
    J_C, h_C = jnp.array([1.5, 0.3, 0.0, 0.1]), jnp.array([1.0, 0.1, 0.0, 0.0])
    np.testing.assert_allclose(relative_excess(J_C, h_C), [1.0 / 3.0, 2.0 / 3.0, 0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(relative_excess(jnp.array([0.5, -2.0]), jnp.array([1.0, 1.0])), [-0.5, -1.5])
