"""Policy networks. A policy is a family of functions indexed by one flat parameter vector theta (P,).

A family is described by a plain dictionary (`spec`), so that a policy file can be read back without running any code.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from spacerl.core.distributions import Categorical, Distribution, Gaussian
from spacerl.types import ActionSpace, Array

MIN_STD = 1e-6  # as in the original code: keeps log-probabilities finite


class Mlp(eqx.Module):
    """tanh layers, linear output, Glorot-uniform weights (the last layer too), zero biases, as in the original code."""

    weights: list[Array]
    biases: list[Array]

    def __init__(self, sizes: tuple[int, ...], key: Array):
        keys = jax.random.split(key, len(sizes) - 1)
        glorot = jax.nn.initializers.glorot_uniform()
        self.weights = [glorot(k, (m, n)) for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)]
        self.biases = [jnp.zeros(n) for n in sizes[1:]]

    def __call__(self, x: Array) -> Array:
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]


class GaussianPolicy(eqx.Module):
    """Mean from a network, one learned standard deviation per action dimension for all states."""

    body: Mlp
    log_std: Array

    def __call__(self, obs: Array) -> Gaussian:
        mean = self.body(obs)
        return Gaussian(mean, jnp.broadcast_to(jnp.maximum(self.log_std, math.log(MIN_STD)), mean.shape))


class CategoricalPolicy(eqx.Module):
    body: Mlp

    def __call__(self, obs: Array) -> Categorical:
        return Categorical(self.body(obs))


@dataclasses.dataclass(frozen=True)
class PolicyFamily:
    """All policies of one architecture: observation (..., O) -> distribution with leaves (..., A)."""

    obs_shape: tuple[int, ...]
    action: ActionSpace
    hidden: tuple[int, ...]
    initial_std: float = 1.0

    def __post_init__(self):
        template = jax.eval_shape(self._fresh, jax.random.key(0))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), template)
        flat, unravel = ravel_pytree(zeros)
        object.__setattr__(self, "parameters", flat.shape[0])
        object.__setattr__(self, "_unravel", unravel)

    def _fresh(self, key: Array) -> GaussianPolicy | CategoricalPolicy:
        body = Mlp((math.prod(self.obs_shape), *self.hidden, self.action.size), key)
        if self.action.kind == "discrete":
            return CategoricalPolicy(body)
        return GaussianPolicy(body, jnp.full((self.action.size,), math.log(self.initial_std)))

    def init(self, key: Array) -> Array:
        return ravel_pytree(self._fresh(key))[0]

    def apply(self, theta: Array, obs: Array) -> Distribution:
        lead = obs.shape[: obs.ndim - len(self.obs_shape)]
        return self.unravel(theta)(obs.reshape(*lead, -1))

    def unravel(self, theta: Array) -> GaussianPolicy | CategoricalPolicy:
        return self._unravel(theta)  # type: ignore[attr-defined]

    def noise(self, key: Array, lead: tuple[int, ...]) -> Array:
        kind = Categorical if self.action.kind == "discrete" else Gaussian
        return kind.noise(key, (*lead, self.action.size))

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "categorical" if self.action.kind == "discrete" else "gaussian",
            "obs_shape": list(self.obs_shape),
            "action_size": self.action.size,
            "hidden": list(self.hidden),
            "activation": "tanh",
        }

    def named(self, theta: Array) -> dict[str, Array]:
        """Parameters by name, for files other people read."""
        policy = self.unravel(theta)
        layers = zip(policy.body.weights, policy.body.biases, strict=True)
        names = {
            f"layers.{i}.{part}": leaf
            for i, pair in enumerate(layers)
            for part, leaf in zip(("weight", "bias"), pair, strict=True)
        }
        return names | ({"log_std": policy.log_std} if isinstance(policy, GaussianPolicy) else {})

    def from_named(self, named: dict[str, Any]) -> Array:
        count = len(self.hidden) + 1
        template = jax.eval_shape(self._fresh, jax.random.key(0))
        weights = [jnp.asarray(named[f"layers.{i}.weight"]) for i in range(count)]
        biases = [jnp.asarray(named[f"layers.{i}.bias"]) for i in range(count)]
        filled = eqx.tree_at(lambda p: (p.body.weights, p.body.biases), template, (weights, biases))
        if self.action.kind != "discrete":
            filled = eqx.tree_at(lambda p: p.log_std, filled, jnp.asarray(named["log_std"]))
        return ravel_pytree(filled)[0]


def family_of_spec(spec: dict[str, Any]) -> PolicyFamily:
    kind = "discrete" if spec["kind"] == "categorical" else "box"
    action = ActionSpace(kind, int(spec["action_size"]))
    return PolicyFamily(tuple(spec["obs_shape"]), action, tuple(spec["hidden"]))
