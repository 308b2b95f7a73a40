"""What is known of an expected cost from all batches, against costs whose truth is known."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.core.estimates import no_gradients, nothing_known, with_batch, with_gradients


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


# Gradients


def means_of(gradients, errors):
    """After each batch: gradients and errors are (updates, K, P)."""
    gradients, errors = (jnp.asarray(x, jnp.float32) for x in (gradients, errors))

    def one(before, batch):
        after = with_gradients(before, *batch)
        return after, after

    return jax.tree.map(np.asarray, jax.lax.scan(one, no_gradients(*gradients.shape[1:]), (gradients, errors))[1])


def drawn(truth, noise, seed=0):
    """Two halves of every batch, so that their mean is its gradient and half of their difference a sample of its
    error, as an update finds them."""
    halves = truth + noise * math.sqrt(2.0) * np.random.default_rng(seed).normal(size=(2, *truth.shape))
    return halves.mean(0), 0.5 * (halves[0] - halves[1])


def test_a_gradient_without_noise_counts_alone():
    turning = np.random.default_rng(0).normal(size=(10, 2, 50))
    found = means_of(turning, np.zeros_like(turning))
    np.testing.assert_allclose(found.mean, turning, rtol=1e-5)
    assert not found.error.any()


def test_a_gradient_that_is_mostly_noise_is_better_known_from_many_batches():
    """Nineteen twentieths of its squared length are noise; it turns by a right angle in sixty updates."""
    angle = np.linspace(0.0, np.pi / 2, 60)[:, None]
    truth = np.zeros((60, 1, 200))
    truth[:, :, 0], truth[:, :, 1] = np.cos(angle), np.sin(angle)
    gradients, errors = drawn(truth, math.sqrt(19.0 / 200))
    found = means_of(gradients, errors)
    error = np.sum((found.mean - truth) ** 2, axis=-1)[15:].mean()
    assert error < 0.25 * np.sum((gradients - truth) ** 2, axis=-1)[15:].mean()
    # What it says of its own error is true.
    assert np.sum(found.error**2, axis=-1)[15:].mean() == pytest.approx(error, rel=0.25)


def test_every_cost_has_a_weight_of_its_own():
    truth = np.random.default_rng(1).normal(size=(20, 2, 100))
    gradients, errors = drawn(truth, np.array([0.01, 30.0])[:, None])
    found = means_of(gradients, errors)
    np.testing.assert_allclose(found.mean[-1, 0], gradients[-1, 0], atol=0.02)
    assert np.linalg.norm(found.mean[-1, 1]) < 0.5 * np.linalg.norm(gradients[-1, 1])


def test_the_first_batches_count_alike():
    noise = np.random.default_rng(2).normal(size=(3, 1, 40))
    found = means_of(noise, 2.0 * noise)  # as if all of it were noise
    for n in (1, 2, 3):
        np.testing.assert_allclose(found.mean[n - 1], noise[:n].mean(0), rtol=1e-4, atol=1e-6)
    assert found.batches.tolist() == [1.0, 2.0, 3.0]


def test_a_cost_that_did_not_come_is_a_batch_like_others():
    """No cost in a batch: a gradient of zero without any error, which says little where costs are rare."""
    gradients = np.array([4.0, 0.0, 0.0])[:, None, None] * np.ones((1, 1, 5))
    found = means_of(gradients, gradients)
    np.testing.assert_allclose(found.mean[:, 0, 0], [4.0, 2.0, 4.0 / 3.0], rtol=1e-5)
