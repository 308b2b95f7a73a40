"""Advantages, returns and episode sums against plain loops, with both kinds of episode end inside the columns."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from spacerl.core.returns import (
    advantages_and_returns,
    contrast_of_halves,
    episode_sums,
    least_sums,
    step_indices,
    unaffected,
)


def random_columns(seed: int, T: int = 23, N: int = 6, S: int = 3):
    """Signals, values, bootstraps and ends; column 0 never ends, column 1 ends at every step."""
    rng = np.random.default_rng(seed)
    signals, values, bootstraps = rng.normal(size=(3, T, N, S)).astype(np.float32)
    terminated = rng.random((T, N)) < 0.15
    truncated = (rng.random((T, N)) < 0.15) & ~terminated
    terminated[:, 0] = truncated[:, 0] = False
    terminated[::2, 1], truncated[1::2, 1] = True, True
    terminated[1::2, 1] = truncated[::2, 1] = False
    return signals, values, bootstraps, terminated, truncated


def loop(x, v, bootstrap, terminated, truncated, gamma, lam):
    """One column of one signal: the definitions, summed forward from every step."""
    T = len(x)
    advantages, returns = np.zeros(T), np.zeros(T)
    for start in range(T):
        discount_a = discount_r = 1.0
        for t in range(start, T):
            stops = terminated[t] or truncated[t] or t == T - 1
            after = 0.0 if terminated[t] else (bootstrap[t] if stops else v[t + 1])
            advantages[start] += discount_a * (x[t] + gamma * after - v[t])
            returns[start] += discount_r * x[t]
            discount_a, discount_r = discount_a * gamma * lam, discount_r * gamma
            if stops:
                returns[start] += discount_r * after
                break
    return advantages, returns


@pytest.mark.parametrize("bootstrapped", [True, False])
def test_advantages_and_returns_match_a_loop(bootstrapped):
    signals, values, bootstraps, terminated, truncated = random_columns(seed=1)
    bootstraps = bootstraps if bootstrapped else np.zeros_like(bootstraps)
    gammas, lambdas = np.array([0.9, 1.0, 0.995], np.float32), np.array([0.95, 1.0, 0.0], np.float32)
    found = jax.jit(advantages_and_returns)(signals, values, bootstraps, terminated, truncated, gammas, lambdas)
    for n in range(signals.shape[1]):
        for s in range(signals.shape[2]):
            column = (signals[:, n, s], values[:, n, s], bootstraps[:, n, s], terminated[:, n], truncated[:, n])
            expected = loop(*(np.asarray(x, np.float64) for x in column), float(gammas[s]), float(lambdas[s]))
            # Sums of at most 23 terms of order one.
            np.testing.assert_allclose(found[0][:, n, s], expected[0], rtol=1e-5, atol=2e-5)
            np.testing.assert_allclose(found[1][:, n, s], expected[1], rtol=1e-5, atol=2e-5)


def two_steps(terminated: bool):
    """Reward 1 then 2, an end after the second, then an unrelated third step; by hand below."""
    signals = np.array([1.0, 2.0, 50.0], np.float32)[:, None, None]
    values = np.array([0.5, 0.25, 9.0], np.float32)[:, None, None]
    bootstraps = np.full((3, 1, 1), 4.0, np.float32)
    ends = np.array([False, True, True])[:, None]
    none = np.zeros((3, 1), bool)
    flags = (ends, none) if terminated else (none, ends)
    return advantages_and_returns(signals, values, bootstraps, *flags, np.float32([0.5]), np.float32([0.5]))


@pytest.mark.parametrize(("terminated", "last_value"), [(True, 0.0), (False, 4.0)])
def test_a_truncated_end_bootstraps_and_a_terminated_one_does_not(terminated, last_value):
    advantages, returns = two_steps(terminated)
    second_delta = 2.0 + 0.5 * last_value - 0.25
    first_delta = 1.0 + 0.5 * 0.25 - 0.5
    assert advantages[:2, 0, 0].tolist() == pytest.approx([first_delta + 0.25 * second_delta, second_delta])
    second_return = 2.0 + 0.5 * last_value
    assert returns[:2, 0, 0].tolist() == pytest.approx([1.0 + 0.5 * second_return, second_return])


def test_lambda_one_is_return_minus_value():
    signals, values, bootstraps, terminated, truncated = random_columns(seed=2)
    gammas = np.array([0.9, 1.0, 0.995], np.float32)
    ones = np.ones(3, np.float32)
    advantages, returns = advantages_and_returns(signals, values, bootstraps, terminated, truncated, gammas, ones)
    np.testing.assert_allclose(advantages, returns - values, rtol=1e-4, atol=2e-5)


def test_step_indices_match_a_loop():
    _, _, _, terminated, truncated = random_columns(seed=3)
    found = np.asarray(step_indices(terminated, truncated))
    assert found.dtype == np.int32
    for n in range(found.shape[1]):
        index = 0
        for t in range(found.shape[0]):
            assert found[t, n] == index
            index = 0 if terminated[t, n] or truncated[t, n] else index + 1


def padded_columns(seed: int, T: int = 12, N: int = 40, S: int = 2):
    """One episode a column, of random length, as the collector pads them; padding holds garbage."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, T + 1, size=N)
    steps = np.arange(T)[:, None]
    valid = steps < lengths
    last = steps == lengths - 1
    signals = np.where(valid[..., None], rng.normal(size=(T, N, S)), 1e6).astype(np.float32)
    return signals, valid, last & (lengths < T), last & (lengths == T), lengths


def test_episode_sums_of_padded_columns():
    signals, valid, terminated, truncated, lengths = padded_columns(seed=4)
    gammas = np.array([0.9, 1.0])
    index = step_indices(terminated, truncated)
    mean, error, length = episode_sums(signals, index, valid, gammas.astype(np.float32))
    totals = np.array([(signals[:k, n] * gammas ** np.arange(k)[:, None]).sum(0) for n, k in enumerate(lengths)])
    np.testing.assert_allclose(mean, totals.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(error, totals.std(0, ddof=1) / np.sqrt(len(lengths)), rtol=1e-4)
    assert float(length) == pytest.approx(lengths.mean())


def test_episode_sums_of_several_episodes_in_a_column():
    signals, _, _, terminated, truncated = random_columns(seed=5)
    gammas = np.array([0.9, 1.0, 0.5])
    index = np.asarray(step_indices(terminated, truncated))
    valid = np.ones_like(terminated)
    mean, _, length = episode_sums(signals, index, valid, gammas.astype(np.float32))
    episodes = 0
    totals = np.zeros(3)
    for t, n in np.ndindex(*index.shape):
        episodes += index[t, n] == 0
        totals += gammas ** index[t, n] * signals[t, n]
    np.testing.assert_allclose(mean, totals / episodes, rtol=1e-5, atol=1e-5)
    assert float(length) == pytest.approx(index.size / episodes)


def test_one_episode_says_nothing_about_its_error():
    signals, valid, terminated, truncated, _ = (x[:, :1] if np.ndim(x) > 1 else x for x in padded_columns(seed=6))
    mean, error, _ = episode_sums(signals, step_indices(terminated, truncated), valid, np.ones(2, np.float32))
    assert np.all(np.isfinite(mean))
    assert np.all(np.isnan(error))


@pytest.mark.parametrize(
    ("values", "ends", "expected"),
    [
        ([0.0, 0.0, 0.0], True, True),  # never anything
        ([0.0, 0.0, 1e-6], False, False),
        ([1.0, 1.0, 1.0], False, True),  # the same in every step of episodes that only time ends
        ([1.0, 1.0, 1.0], True, False),  # an episode that ends sooner has less of it
        ([1.0, 2.0, 1.0], False, False),
    ],
)
def test_which_signals_no_action_can_have_changed(values, ends, expected):
    """Padding holds other numbers, and an end there is none."""
    signals = np.array([*values, 7.0], np.float32)[:, None, None]
    terminated = np.array([False, False, ends, True])[:, None]
    valid = np.array([True, True, True, False])[:, None]
    assert np.asarray(unaffected(signals, terminated, valid)).tolist() == [expected]


def test_the_least_an_episode_can_cost():
    signals = np.array([[0.5, 0.0, -2.0], [0.5, 3.0, 1.0], [-9.0, -9.0, -9.0]], np.float32)[:, None]  # (3, 1, 3)
    index, valid = np.array([[0], [1], [2]]), np.array([[True], [True], [False]])
    assert np.asarray(least_sums(signals, index, valid)).tolist() == [0.0, 0.0, -4.0]


def test_the_contrast_of_halves_samples_the_error_of_a_mean():
    """Over many batches the contrasted mean is zero, and its variance that of the mean over the batch."""
    rng = np.random.default_rng(5)
    T, N, batches = 12, 7, 4000
    ends = rng.random((T, N)) < 0.3
    index = np.zeros((T, N), int)
    for t in range(1, T):
        index[t] = np.where(ends[t - 1], 0, index[t - 1] + 1)
    valid = np.ones((T, N), bool)
    valid[-3:, 2] = False
    episode = np.cumsum(index == 0, axis=0) - 1 + T * np.arange(N)
    draws = rng.normal(1.0, 2.0, (batches, T * N))[:, episode]  # all of an episode alike: its steps are not independent
    factors = np.asarray(contrast_of_halves(index, valid))
    mean = draws[:, valid].mean(1)
    contrasted = (factors * draws)[:, valid].mean(1)
    assert abs(contrasted.mean()) < 4.0 * contrasted.std() / np.sqrt(batches)
    # Halves are of one size but for chance, so that variances agree but for that.
    assert contrasted.var() == pytest.approx(mean.var(), rel=0.25)


def test_one_episode_has_no_halves():
    index = np.arange(5)[:, None]
    assert np.all(np.asarray(contrast_of_halves(index, np.ones((5, 1), bool))) == 0.0)
