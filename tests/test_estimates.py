"""What is known of an expected cost from all batches, against costs whose truth is known."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.core.estimates import nothing_known, with_batch


def followed(measured, errors, changes=0.0, least=-math.inf, filtered=True):
    """Means and standard deviations after each batch: (updates, lanes) of measurements side by side."""
    measured = jnp.asarray(measured, jnp.float32)
    errors, changes = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), measured.shape) for x in (errors, changes))

    def one(estimate, batch):
        update = with_batch(estimate, batch[2], batch[0], batch[1], jnp.full(measured.shape[1], least), filtered)
        return update.estimate, (update.estimate.mean, jnp.sqrt(update.estimate.variance))

    _, (means, deviations) = jax.lax.scan(one, nothing_known(measured.shape[1]), (measured, errors, changes))
    return np.asarray(means), np.asarray(deviations)


def noisy(truth, seed=0, lanes=500):
    return truth + np.random.default_rng(seed).normal(size=(len(truth), lanes))


def error_of(means, truth):
    return float(np.sqrt(np.mean((means - truth) ** 2)))


def test_a_cost_that_stays_is_known_better_than_by_one_batch():
    truth = np.full((60, 1), 5.0)
    means, deviations = followed(noisy(truth), 1.0)
    assert error_of(means[20:], 5.0) < 0.7
    covered = np.mean(np.abs(means[20:] - 5.0) <= 2.0 * deviations[20:])
    assert 0.9 < covered  # what it says of its own error is true


def test_a_predicted_way_is_gone_without_lagging_behind():
    truth = 5.0 - 0.5 * np.arange(60)[:, None]
    means, _ = followed(noisy(truth), 1.0, changes=-0.5)
    assert abs(np.mean(means[20:] - truth[20:])) < 0.05
    assert error_of(means[20:], truth[20:]) < 0.7


def test_a_way_that_nobody_predicted_is_followed():
    """The cost rises by half a standard deviation in every update: a filter that believed in its predictions would be
    left behind for good."""
    truth = 5.0 + 0.5 * np.arange(120)[:, None]
    means, _ = followed(noisy(truth), 1.0)
    assert np.mean(truth[30:] - means[30:]) < 1.2
    assert error_of(means[30:], truth[30:]) < 1.6


def test_a_jump_is_seen_at_once():
    truth = np.where(np.arange(40)[:, None] < 20, 5.0, 15.0)
    means, _ = followed(noisy(truth), 1.0)
    assert np.quantile(15.0 - means[20], 0.95) < 2.5
    assert error_of(means[20], 15.0) < 1.5


def test_a_rare_and_large_cost():
    """One episode in a hundred costs 100, a batch has 20: four of five batches see none at all and call their error
    zero."""
    episodes = 100.0 * (np.random.default_rng(1).random((80, 400, 20)) < 0.01)
    errors = episodes.std(axis=2, ddof=1) / math.sqrt(20)
    measured = episodes.mean(axis=2)
    alone, _ = followed(measured, errors, least=0.0, filtered=False)
    means, deviations = followed(measured, errors, least=0.0)
    assert error_of(means[20:], 1.0) < 0.8 * error_of(alone[20:], 1.0)
    assert np.mean(deviations[20:] > 0.2) > 0.9


def test_no_noise_no_filter():
    measured = np.random.default_rng(2).normal(size=(9, 3))
    means, deviations = followed(measured, 0.0)
    np.testing.assert_allclose(means, measured, rtol=1e-5)
    np.testing.assert_array_equal(deviations, 0.0)


def test_a_batch_that_says_nothing_of_its_error_is_taken_as_it_is():
    measured = np.array([[3.0], [7.0]])
    means, deviations = followed(measured, math.nan)
    np.testing.assert_array_equal(means, measured)
    assert np.isnan(deviations).all()


def test_after_what_was_not_predicted_it_begins_again():
    means, _ = followed([[5.0], [9.0]], 1.0, changes=[[math.nan], [math.nan]])
    np.testing.assert_array_equal(means, [[5.0], [9.0]])


def test_unfiltered_is_the_newest_batch():
    measured = noisy(np.full((9, 1), 5.0), lanes=4)
    means, deviations = followed(measured, 0.7, filtered=False)
    np.testing.assert_allclose(means, measured, rtol=1e-5)
    np.testing.assert_allclose(deviations, 0.7, rtol=1e-5)


@pytest.mark.parametrize("least", [0.0, 4.0])
def test_nothing_is_predicted_below_what_a_cost_can_be(least):
    """Predicted 5 - 9, and no cost is below `least`, which came: no surprise, and nothing moves."""
    means, _ = followed([[5.0], [least]], 1.0, changes=[[0.0], [-9.0]], least=least)
    np.testing.assert_allclose(means[1], least)
