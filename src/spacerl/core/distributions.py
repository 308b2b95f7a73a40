"""The action distributions, with the one thing trust regions need of them: the Fisher matrix of their parameters.

Leaves have shape (..., A): A action dimensions for `Gaussian`, A actions for `Categorical`, the actions of all lists
one after the other for `MultiCategorical`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
    """One of A actions, with unnormalised log-probabilities."""

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


@functools.partial(jax.tree_util.register_dataclass, data_fields=("logits",), meta_fields=("nvec",))
@dataclasses.dataclass(frozen=True)
class MultiCategorical:
    """One action out of each of D lists, independent of one another; an action is (..., D) integers."""

    logits: Array
    nvec: tuple[int, ...]  # lengths of the lists; they sum to A

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.gumbel(key, shape)

    def sample(self, noise: Array) -> Array:
        return jnp.stack([p.sample(n) for p, n in zip(self.lists(), self._cut(noise), strict=True)], axis=-1)

    def mode(self) -> Array:
        return jnp.stack([p.mode() for p in self.lists()], axis=-1)

    def log_prob(self, action: Array) -> Array:
        return sum((p.log_prob(action[..., i]) for i, p in enumerate(self.lists())), start=jnp.zeros(()))

    def kl(self, other: MultiCategorical) -> Array:
        """KL(self || other): independent actions add up."""
        return sum((p.kl(q) for p, q in zip(self.lists(), other.lists(), strict=True)), start=jnp.zeros(()))

    def entropy(self) -> Array:
        return sum((p.entropy() for p in self.lists()), start=jnp.zeros(()))

    def fisher(self, tangent: MultiCategorical) -> MultiCategorical:
        """Fisher matrix of the logits, one block per list, applied to a tangent."""
        blocks = [p.fisher(t).logits for p, t in zip(self.lists(), tangent.lists(), strict=True)]
        return MultiCategorical(jnp.concatenate(blocks, axis=-1), self.nvec)

    def lists(self) -> list[Categorical]:
        return [Categorical(part) for part in self._cut(self.logits)]

    def _cut(self, row: Array) -> list[Array]:
        ends = tuple(itertools.accumulate(self.nvec))
        return [row[..., end - count : end] for end, count in zip(ends, self.nvec, strict=True)]


Distribution = Gaussian | Categorical | MultiCategorical
DISTRIBUTIONS: dict[str, type[Distribution]] = {
    "box": Gaussian,
    "discrete": Categorical,
    "multidiscrete": MultiCategorical,
}  # by the kind of action
