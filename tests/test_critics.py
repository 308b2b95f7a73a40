"""Value functions on fixed regression problems, where the best possible answer is known."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.training.critics import Critic, linear_critic, neural_critic
from spacerl.types import ImageSpec
from support.learners import quick_jit

SAMPLES, WIDTH = 600, 3
KINDS = ["neural", "linear"]


@functools.cache
def make_critic(kind: str, signals: int = 2) -> Critic:
    """With compiled functions, once for all tests."""
    if kind == "neural":
        critic = neural_critic(signals, (WIDTH,), (16,), kl=0.05, iterations=10, damping=1e-5)
    else:
        critic = linear_critic(signals, (WIDTH,))
    return Critic(*(jax.jit(function) for function in critic))


def regression(seed: int = 0):
    """Observations far from standard, steps 0..49, and two targets of very different size; all samples count alike."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(SAMPLES, WIDTH)) * [1.0, 2.0, 0.5] + [0.0, 3.0, -1.0]
    index = np.tile(np.arange(50), SAMPLES // 50)
    first = obs[:, 0] + 0.3 * obs[:, 0] ** 2 - 0.2 * obs[:, 1] + 0.01 * index
    targets = np.stack([first, 1000.0 + 100.0 * obs[:, 1] + 300.0 * obs[:, 2]])
    weight = np.full(SAMPLES, 1.0 / SAMPLES)
    return *(jnp.asarray(x, jnp.float32) for x in (obs, index, targets, weight)), jnp.arange(SAMPLES)


def fitted(critic, data, times: int):
    state = critic.init(jax.random.key(1))
    for _ in range(times):
        state = critic.fit(state, *data)
    return state


def unexplained(critic, state, data) -> np.ndarray:
    """Mean squared error over the targets' variance, per signal."""
    obs, index, targets, weight, _ = data
    error = (critic.predict(state, obs, index) - targets) ** 2 @ weight
    return np.asarray(error / jnp.var(targets, axis=-1))


def test_neural_critic_learns_step_by_step():
    data = regression()
    critic = make_critic("neural")
    # One fit may only move a KL of 0.05, that is a tenth of a squared standard deviation; thirty may do all of it.
    after_one, after_many = (np.max(unexplained(critic, fitted(critic, data, n), data)) for n in (1, 30))
    assert after_one > 0.3
    assert after_many < 0.05


def test_linear_critic_is_least_squares():
    data = regression()
    obs, index, targets = (np.asarray(x, np.float64) for x in data[:3])
    critic = make_critic("linear")
    prediction = np.asarray(critic.predict(fitted(critic, data, 1), data[0], data[1]))
    x, t = np.clip(obs, -10.0, 10.0), index[:, None] / 100.0
    features = np.concatenate([x, x**2, t, t**2, t**3, np.ones_like(t)], axis=-1)
    best = (features @ np.linalg.lstsq(features, targets.T)[0]).T
    # The ridge (1e-5 of the features' mean square) moves predictions by a few thousandths of the targets' standard
    # deviation.
    assert np.max(np.abs(prediction - best) / np.std(targets, axis=-1, keepdims=True)) < 1e-2


def test_linear_critic_counts_samples_by_their_weight():
    """Weights 1 and 3 are the same as repeating the second sample three times."""
    obs, index, targets, _, rows = regression()
    weight = jnp.where(jnp.arange(SAMPLES) % 2 == 0, 1.0, 3.0)
    critic = make_critic("linear")
    weighted = critic.fit(critic.init(jax.random.key(1)), obs, index, targets, weight / jnp.sum(weight), rows)
    again = np.repeat(np.arange(SAMPLES), np.asarray(weight, int))
    even = jnp.full(len(again), 1.0 / len(again))
    repeated = critic.fit(critic.init(jax.random.key(1)), obs[again], index[again], targets[:, again], even, rows)
    one, other = (critic.predict(state, obs, index) for state in (weighted, repeated))
    assert np.max(np.abs(one - other) / np.std(targets, axis=-1, keepdims=True)) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_samples_without_weight_do_not_count(kind):
    obs, index, targets, weight, rows = regression()
    dropped = jnp.arange(SAMPLES) % 4 == 0
    weight = jnp.where(dropped, 0.0, weight)
    weight = weight / jnp.sum(weight)
    garbage = (jnp.where(dropped[:, None], 77.0, obs), index, jnp.where(dropped, -1e5, targets), weight, rows)
    critic = make_critic(kind)
    clean = fitted(critic, (obs, index, targets, weight, rows), 2)
    for one, other in zip(clean, fitted(critic, garbage, 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_targets_are_learned_as_constants(kind):
    """A cost that never occurs has no variance to divide by."""
    obs, index, _, weight, rows = regression()
    targets = jnp.stack([jnp.zeros(SAMPLES), jnp.full(SAMPLES, 7.0)])
    critic = make_critic(kind)
    state = fitted(critic, (obs, index, targets, weight, rows), 30)
    prediction = np.asarray(critic.predict(state, obs, index))
    np.testing.assert_allclose(prediction, targets, atol=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_and_repeated_features_are_harmless(kind):
    """A constant observation copies the intercept, a repeated one makes the normal equations singular."""
    obs, index, targets, weight, rows = regression()
    for column, value in ((0, jnp.full(SAMPLES, 2.0)), (0, jnp.zeros(SAMPLES)), (2, obs[:, 1])):
        data = (obs.at[:, column].set(value), jnp.zeros_like(index), targets, weight, rows)
        critic = make_critic(kind)
        state = fitted(critic, data, 3)
        assert all(np.all(np.isfinite(leaf)) for leaf in state)
        assert np.all(unexplained(critic, state, data) < 1.0)
    if kind == "linear":
        assert unexplained(critic, state, data)[0] < 0.9  # and the useful features are still used


def test_neural_critic_learns_all_of_a_batch_that_comes_in_order():
    """Batches are laid out step by step, so the second half of the rows is the second half of every episode."""
    rng = np.random.default_rng(5)
    index = np.repeat(np.arange(50), SAMPLES // 50)
    obs = np.stack([index / 25.0 - 1.0, rng.normal(size=SAMPLES), rng.normal(size=SAMPLES)], axis=-1)
    late = np.where(index < 25, 0.0, 3.0 * np.sin(2.0 * obs[:, 0]) + obs[:, 1])
    parts = (obs, index, np.stack([late, -late]), np.full(SAMPLES, 1.0 / SAMPLES))
    data = (*(jnp.asarray(x, jnp.float32) for x in parts), jnp.arange(SAMPLES))
    critic = make_critic("neural")
    assert np.max(unexplained(critic, fitted(critic, data, 30), data)) < 0.1


# ---------------------------------------------------------------- images

SIDE = 8


def images(seed: int = 0):
    """A bright square somewhere in the dark beside two numbers; targets: where it is, and one of the numbers."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, SIDE - 2, size=(SAMPLES, 2))
    image = np.zeros((SAMPLES, SIDE, SIDE, 1))
    for row, (i, j) in enumerate(place):
        image[row, i : i + 3, j : j + 3] = 255.0
    numbers = rng.normal(size=(SAMPLES, 2)) * 50.0 + 1000.0
    obs = np.concatenate([numbers[:, :1], image.reshape(SAMPLES, -1), numbers[:, 1:]], axis=-1)
    targets = np.stack([place[:, 0] - 0.5 * place[:, 1], numbers[:, 0]])
    parts = (obs, np.zeros(SAMPLES), targets, np.full(SAMPLES, 1.0 / SAMPLES))
    return *(jnp.asarray(x, jnp.float32) for x in parts), jnp.arange(SAMPLES)


def image_critic(obs_shape, offset: int) -> Critic:
    images = (ImageSpec(offset, (SIDE, SIDE, 1), 1 / 255),)
    critic = neural_critic(2, obs_shape, (16,), 0.05, 10, 1e-5, images=images, filters=(6, 4))
    return Critic(*(quick_jit(function) for function in critic))


def test_neural_critic_sees_where_things_are():
    data = images()
    critic = image_critic((SIDE * SIDE + 2,), 1)
    state = fitted(critic, data, 40)
    assert state.obs_mean.shape == state.obs_std.shape == (2,)  # of the numbers, not of the pixels
    assert np.max(unexplained(critic, state, data)) < 0.1


def test_neural_critic_of_bytes_is_the_one_of_floats_in_parts_or_whole(monkeypatch):
    obs, index, targets, weight, rows = images()
    image = obs[:, 1:-1].reshape(SAMPLES, SIDE, SIDE, 1)
    states = []
    for at_once, held, dtype in (
        (1000, 0, jnp.float32),
        (128, 0, jnp.uint8),
        (1000, 2**29, jnp.float32),
        (128, 2**29, jnp.uint8),
    ):
        monkeypatch.setattr("spacerl.policies.networks.ROWS_AT_ONCE", at_once)
        monkeypatch.setattr("spacerl.policies.networks.LARGEST_SLOPES", held)
        critic = image_critic((SIDE, SIDE, 1), 0)
        states.append(fitted(critic, (image.astype(dtype), index, targets, weight, rows), 1))
    moved = np.max(np.abs(states[0].theta - critic.init(jax.random.key(1)).theta))
    assert moved > 0.01
    for state in states[1:]:
        np.testing.assert_allclose(state.theta, states[0].theta, atol=0.02 * moved)
