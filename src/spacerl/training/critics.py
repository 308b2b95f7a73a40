"""Value functions of reward, costs and divergence: S signals fitted side by side.

Targets are the returns of the batch. As in the original code the advantages of a batch use the previous fit, and
inputs and targets are standardised with the batch at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from spacerl.core.batching import for_each, sum_over_chunks
from spacerl.core.fisher import chunked_fisher_product, conjugate_gradient, fisher_product, split_fisher_product
from spacerl.core.steps import backtrack
from spacerl.policies.networks import Layout, Seen, convolution_parameters
from spacerl.types import Array, ImageSpec


class Critic(NamedTuple):
    """A kind of value function as a value: pure functions and a state of arrays."""

    init: Callable[[Array], Any]  # key -> state
    predict: Callable[[Any, Array, Array], Array]  # state, obs (B, ...), step index (B,) -> (S, B)
    fit: Callable[[Any, Array, Array, Array, Array, Array], Any]  # ..., targets (S, B), weight (B,), rows (n,) -> state


class _Prediction(NamedTuple):
    """A unit-variance Gaussian around the prediction: its Fisher matrix is the identity, its KL half the square."""

    value: Array  # (B, 1)

    def fisher(self, tangent: _Prediction) -> _Prediction:
        return tangent


class NeuralState(NamedTuple):
    theta: Array  # (S, P)
    obs_mean: Array  # (V,) of the observation's numbers; images have their scale instead
    obs_std: Array  # (V,)
    target_mean: Array  # (S,)
    target_std: Array  # (S,)


def neural_critic(
    signals: int,
    obs_shape: tuple[int, ...],
    hidden: tuple[int, ...],
    kl: float,
    iterations: int,
    damping: float,
    images: tuple[ImageSpec, ...] = (),
    filters: tuple[int, ...] = (24, 12),
    repeats: int = 1,
    sees_time: bool = False,
) -> Critic:
    """`repeats` natural-gradient steps per update, each within a trust region of radius `kl` on standardised targets.

    Images in the observation are read as by a policy with the same `images` and `filters`. `sees_time` adds the step
    within the episode to what is observed: what is left of an episode with a time limit depends on it.

    Where they see images, and take several steps, each step's gradient is that of another share of the batch: all of
    them together see it once.

    Unlike the original, a step that would overshoot the least-squares solution stops there instead of going on to the
    edge of the trust region.
    """
    observed = Layout(tuple(obs_shape), images, filters)
    layout = Layout((math.prod(obs_shape) + 1,), images, filters) if sees_time else observed
    _, unravel = ravel_pytree(layout.network(hidden, 1, jax.random.PRNGKey(0)))

    def init(key: Array) -> NeuralState:
        theta = jax.vmap(lambda k: ravel_pytree(layout.network(hidden, 1, k))[0])(jax.random.split(key, signals))
        ones, width = jnp.ones(signals), layout.width
        return NeuralState(theta, jnp.zeros(width), jnp.ones(width), 0.0 * ones, ones)

    def see(obs: Array, index: Array) -> Seen:
        seen = observed.see(obs.reshape(obs.shape[0], -1))
        if not sees_time:
            return seen
        time = index[:, None].astype(jnp.float32)
        return seen._replace(numbers=jnp.concatenate([seen.numbers.astype(jnp.float32), time], axis=-1))

    def standardise(state: NeuralState, seen: Seen) -> Seen:
        return seen._replace(numbers=(seen.numbers - state.obs_mean) / state.obs_std)

    def outputs(theta: Array, x: Seen) -> Array:
        return layout.by_rows(unravel(theta), x)  # (B, 1)

    def predict(state: NeuralState, obs: Array, index: Array) -> Array:
        x = standardise(state, see(obs, index))
        raw = for_each(lambda theta: outputs(theta, x)[:, 0], state.theta)
        return raw * state.target_std[:, None] + state.target_mean[:, None]

    def fit(state: NeuralState, obs: Array, index: Array, targets: Array, weight: Array, rows: Array) -> NeuralState:
        seen = see(obs, index)
        obs_mean, obs_std = _moments(seen.numbers.T, weight)
        target_mean, target_std = _moments(targets, weight)
        state = NeuralState(state.theta, obs_mean, obs_std, target_mean, target_std)
        x = standardise(state, seen)
        y = (targets - target_mean[:, None]) / target_std[:, None]
        rows = rows[::2]  # half of the policy's share: a regression is less delicate than a KL
        row_weight = weight[rows] / jnp.maximum(jnp.sum(weight[rows]), 1e-30)

        size, some_size = layout.rows_at_once(weight.shape[0]), layout.rows_at_once(rows.shape[0])

        def predicted(t: Array, x: Seen) -> _Prediction:
            return _Prediction(outputs(t, x))

        def split_product(theta: Array, x: Seen) -> Callable[[Array], Array]:
            features, slopes = layout.slopes(unravel(theta), x)
            return split_fisher_product(
                lambda t, z: _Prediction(unravel(t).dense(features) + z),
                theta,
                lambda t: convolution_parameters(unravel(t)),
                slopes,
                row_weight,
                damping,
            )

        def loss(t: Array, x: Seen, y: Array, weight: Array) -> Array:
            return 0.5 * jnp.sum(weight * (outputs(t, x)[:, 0] - y) ** 2)

        def slope(theta: Array, y: Array, step: Any) -> Array:
            if size is None:
                return jax.grad(loss)(theta, x, y, weight)
            part, total = (x, y, weight), 1.0
            if repeats > 1:  # images are many numbers: each step learns from another share of the batch
                share = share_of(weight.shape[0], repeats, step)
                part = jax.tree.map(lambda leaf: leaf[share], part)
                total = jnp.maximum(jnp.sum(part[2]), 1e-30)
            some_size = layout.rows_at_once(part[2].shape[0]) or part[2].shape[0]
            return sum_over_chunks(lambda chunk: jax.grad(loss)(theta, *chunk), part, some_size) / total

        def one(critic: tuple[Array, Array], number: Any = 0) -> Array:
            theta, y_s = critic
            some = (jax.tree.map(lambda leaf: leaf[rows], x), y_s[rows], row_weight)
            gradient = slope(theta, y_s, number)
            if layout.slopes_fit(rows.shape[0], 1):
                product = split_product(theta, some[0])
            elif some_size is None:
                product = fisher_product(lambda t: predicted(t, some[0]), theta, row_weight, damping)
            else:
                product = chunked_fisher_product(predicted, theta, some[0], row_weight, damping, some_size)
            direction = conjugate_gradient(product, -gradient[None], iterations)[0]
            q = -jnp.dot(gradient, direction)
            step = direction * jnp.minimum(1.0, jnp.sqrt(2.0 * kl / jnp.maximum(q, 1e-30)))
            now = loss(theta, *some)
            scale, found = backtrack(lambda s: loss(theta + s * step, *some) < now, 0.5, 6)
            return theta + jnp.where(found, scale, 0.0) * step

        def steps(critic: tuple[Array, Array]) -> Array:
            theta, y_s = critic
            return jax.lax.fori_loop(0, repeats, lambda i, t: one((t, y_s), i), theta) if repeats > 1 else one(critic)

        return state._replace(theta=for_each(steps, (state.theta, y)))

    return Critic(init, predict, fit)


def share_of(samples: int, shares: int, number: Any) -> Array:
    """Rows of one of several shares of a batch. Every `shares`-th row alone could be the same few columns of it."""
    group = jnp.arange(samples // shares)
    return group * shares + (group + number) % shares


def _moments(rows: Array, weight: Array) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of every row (R, B); a constant row gets 1, so that it stays at zero."""
    mean = rows @ weight
    std = jnp.sqrt(jnp.maximum((rows - mean[:, None]) ** 2 @ weight, 0.0))
    return mean, jnp.where(std > 1e-6, std, 1.0)


class LinearState(NamedTuple):
    coefficients: Array  # (S, F)


def linear_critic(signals: int, obs_shape: tuple[int, ...], ridge: float = 1e-5) -> Critic:
    """Ridge regression on clipped observations, their squares and powers of time."""
    width = 2 * math.prod(obs_shape) + 4

    def features(obs: Array, index: Array) -> Array:
        x = jnp.clip(obs.reshape(obs.shape[0], -1), -10.0, 10.0)
        t = index.astype(x.dtype)[:, None] / 100.0
        return jnp.concatenate([x, x**2, t, t**2, t**3, jnp.ones_like(t)], axis=-1)

    def init(key: Array) -> LinearState:
        return LinearState(jnp.zeros((signals, width)))

    def predict(state: LinearState, obs: Array, index: Array) -> Array:
        return state.coefficients @ features(obs, index).T

    def fit(state: LinearState, obs: Array, index: Array, targets: Array, weight: Array, rows: Array) -> LinearState:
        phi = features(obs, index)
        # Columns brought to unit size, so that one ridge suits them all and float32 suffices for the normal equations.
        size = jnp.sqrt(jnp.maximum(phi.T**2 @ weight, 1e-12))
        scaled = phi / size
        normal = (scaled * weight[:, None]).T @ scaled + ridge * jnp.eye(width)
        moment = (scaled * weight[:, None]).T @ targets.T  # (F, S)
        solution = jax.scipy.linalg.solve(normal, moment, assume_a="pos")
        usable = jnp.all(jnp.isfinite(solution))
        return LinearState(jnp.where(usable, (solution / size[:, None]).T, state.coefficients))

    return Critic(init, predict, fit)
