"""The two action distributions, with the one thing trust regions need of them: the Fisher matrix of their parameters.

Leaves have shape (..., A): A action dimensions for `Gaussian`, A choices for `Categorical`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from spacerl.types import Array

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean: Array
    log_std: Array

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape)

    def sample(self, noise: Array) -> Array:
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Array:
        return self.mean

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z * z - self.log_std - HALF_LOG_TWO_PI, axis=-1)

    def kl(self, other: Gaussian) -> Array:
        """KL(self || other), summed over dimensions."""
        ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
        gap = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return jnp.sum(0.5 * (ratio + gap * gap - 1.0) + other.log_std - self.log_std, axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 + HALF_LOG_TWO_PI, axis=-1)

    def fisher(self, tangent: Gaussian) -> Gaussian:
        """Fisher matrix of (mean, log_std), diag(1/sigma^2, 2), applied to a tangent."""
        return Gaussian(tangent.mean * jnp.exp(-2.0 * self.log_std), 2.0 * tangent.log_std)


class Categorical(NamedTuple):
    """One of A choices, with unnormalised log-probabilities."""

    logits: Array

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.gumbel(key, shape)

    def sample(self, noise: Array) -> Array:
        """Gumbel-max: exact samples from pre-drawn noise of the logits' shape."""
        return jnp.argmax(self.logits + noise, axis=-1)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1)

    def log_prob(self, action: Array) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.take_along_axis(log_p, action[..., None].astype(jnp.int32), axis=-1)[..., 0]

    def kl(self, other: Categorical) -> Array:
        """KL(self || other)."""
        log_p, log_q = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)

    def entropy(self) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    def fisher(self, tangent: Categorical) -> Categorical:
        """Fisher matrix of the logits, diag(p) - p p^T, applied to a tangent."""
        p = jax.nn.softmax(self.logits)
        return Categorical(p * (tangent.logits - jnp.sum(p * tangent.logits, axis=-1, keepdims=True)))


Distribution = Gaussian | Categorical
