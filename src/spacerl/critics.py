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

from spacerl.core.batching import for_each
from spacerl.core.fisher import conjugate_gradient, fisher_product
from spacerl.core.steps import backtrack
from spacerl.policies import Mlp
from spacerl.types import Array


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
    obs_mean: Array  # (O,)
    obs_std: Array  # (O,)
    target_mean: Array  # (S,)
    target_std: Array  # (S,)


def neural_critic(
    signals: int, obs_shape: tuple[int, ...], hidden: tuple[int, ...], kl: float, iterations: int, damping: float
) -> Critic:
    """One natural-gradient step per update within a trust region of radius `kl` on standardised targets.

    Unlike the original, a step that would overshoot the least-squares solution stops there instead of going on to the
    edge of the trust region.
    """
    sizes = (math.prod(obs_shape), *hidden, 1)
    _, unravel = ravel_pytree(Mlp(sizes, jax.random.PRNGKey(0)))

    def init(key: Array) -> NeuralState:
        theta = jax.vmap(lambda k: ravel_pytree(Mlp(sizes, k))[0])(jax.random.split(key, signals))
        ones, width = jnp.ones(signals), sizes[0]
        return NeuralState(theta, jnp.zeros(width), jnp.ones(width), 0.0 * ones, ones)

    def standardise(state: NeuralState, obs: Array) -> Array:
        return (obs.reshape(obs.shape[0], -1) - state.obs_mean) / state.obs_std

    def predict(state: NeuralState, obs: Array, index: Array) -> Array:
        x = standardise(state, obs)
        raw = for_each(lambda theta: unravel(theta)(x)[:, 0], state.theta)
        return raw * state.target_std[:, None] + state.target_mean[:, None]

    def fit(state: NeuralState, obs: Array, index: Array, targets: Array, weight: Array, rows: Array) -> NeuralState:
        flat = obs.reshape(obs.shape[0], -1)
        obs_mean, obs_std = _moments(flat.T, weight)
        target_mean, target_std = _moments(targets, weight)
        state = NeuralState(state.theta, obs_mean, obs_std, target_mean, target_std)
        x = standardise(state, obs)
        y = (targets - target_mean[:, None]) / target_std[:, None]
        rows = rows[::2]  # half of the policy's share: a regression is less delicate than a KL
        row_weight = weight[rows] / jnp.maximum(jnp.sum(weight[rows]), 1e-30)

        def one(critic: tuple[Array, Array]) -> Array:
            theta, y_s = critic

            def loss(t: Array, x: Array, y: Array, weight: Array) -> Array:
                return 0.5 * jnp.sum(weight * (unravel(t)(x)[:, 0] - y) ** 2)

            some = (x[rows], y_s[rows], row_weight)
            gradient = jax.grad(loss)(theta, x, y_s, weight)
            product = fisher_product(lambda t: _Prediction(unravel(t)(some[0])), theta, row_weight, damping)
            direction = conjugate_gradient(product, -gradient[None], iterations)[0]
            q = -jnp.dot(gradient, direction)
            step = direction * jnp.minimum(1.0, jnp.sqrt(2.0 * kl / jnp.maximum(q, 1e-30)))
            now = loss(theta, *some)
            scale, found = backtrack(lambda s: loss(theta + s * step, *some) < now, 0.5, 6)
            return theta + jnp.where(found, scale, 0.0) * step

        return state._replace(theta=for_each(one, (state.theta, y)))

    return Critic(init, predict, fit)


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
