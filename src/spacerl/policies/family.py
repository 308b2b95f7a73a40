"""Policy networks as families of functions, indexed by one flat parameter vector theta (P,).

A family is described by a plain dictionary (`spec`), so that a policy file can be read back without running any code.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from spacerl.core.distributions import DISTRIBUTIONS, Categorical, Distribution, Gaussian, MultiCategorical
from spacerl.core.fisher import chunked_fisher_product, fisher_product, split_fisher_product
from spacerl.policies.networks import Layout, Network, Seen, convolution_parameters, convolutions
from spacerl.policies.normaliser import Normaliser, absorb, fresh_normaliser
from spacerl.policies.sampler import Sampler
from spacerl.types import ActionSpace, Array, ImageSpec

MIN_STD = 1e-6  # as in the original code: keeps log-probabilities finite


class GaussianPolicy(eqx.Module):
    """Mean from a network, one learned standard deviation per action dimension for all states."""

    body: Network
    log_std: Array

    def __call__(self, seen: Seen) -> Gaussian:
        return self.of(self.body(seen))

    def of(self, mean: Array) -> Gaussian:
        return Gaussian(mean, jnp.broadcast_to(jnp.maximum(self.log_std, math.log(MIN_STD)), mean.shape))


class CategoricalPolicy(eqx.Module):
    body: Network

    def __call__(self, seen: Seen) -> Categorical:
        return self.of(self.body(seen))

    def of(self, logits: Array) -> Categorical:
        return Categorical(logits)


class MultiCategoricalPolicy(eqx.Module):
    body: Network
    nvec: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, seen: Seen) -> MultiCategorical:
        return self.of(self.body(seen))

    def of(self, logits: Array) -> MultiCategorical:
        return MultiCategorical(logits, self.nvec)


PolicyModule = GaussianPolicy | CategoricalPolicy | MultiCategoricalPolicy
SPEC_KINDS = {"gaussian": "box", "categorical": "discrete", "multicategorical": "multidiscrete"}


@dataclasses.dataclass(frozen=True)
class PolicyFamily:
    """All policies of one architecture: observation (..., O) -> distribution with leaves (..., A).

    `apply` takes observations as they are given to it. Where a run gives it normalised ones, `rebase` carries a policy
    over to new statistics and `fold` to raw observations; neither changes what the policy does.
    """

    obs_shape: tuple[int, ...]
    action: ActionSpace
    hidden: tuple[int, ...]
    initial_std: float = 1.0
    images: tuple[ImageSpec, ...] = ()
    filters: tuple[int, ...] = (24, 12)
    initial_gain: float = 1.0
    parameters: int = dataclasses.field(init=False, compare=False)
    _unravel: Callable[[Array], PolicyModule] = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self):
        if self.action.kind not in DISTRIBUTIONS:
            raise ValueError(f"unknown kind of action '{self.action.kind}': allowed are {', '.join(DISTRIBUTIONS)}")
        if self.action.kind == "multidiscrete" and sum(self.action.nvec) != self.action.size:
            raise ValueError(f"nvec {self.action.nvec} do not sum to {self.action.size}")
        made: list[Callable] = []

        def ravel(policy: PolicyModule) -> Array:
            flat, unravel = ravel_pytree(policy)
            made.append(unravel)
            return flat

        flat = jax.eval_shape(
            ravel, self._template()
        )  # no numbers are made: a file may describe more than memory holds
        # A frozen dataclass: what follows from its fields is set once, here.
        object.__setattr__(self, "parameters", flat.shape[0])
        object.__setattr__(self, "_unravel", made[0])

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout(self.obs_shape, self.images, self.filters)

    def _fresh(self, key: Array) -> PolicyModule:
        body = self.layout.network(self.hidden, self.action.size, key)
        body = eqx.tree_at(lambda b: b.dense.weights[-1], body, replace_fn=lambda weight: self.initial_gain * weight)
        if self.action.kind == "discrete":
            return CategoricalPolicy(body)
        if self.action.kind == "multidiscrete":
            return MultiCategoricalPolicy(body, self.action.nvec)
        return GaussianPolicy(body, jnp.full((self.action.size,), math.log(self.initial_std)))

    def _template(self) -> PolicyModule:
        """Shapes without numbers."""
        return jax.eval_shape(self._fresh, jax.random.key(0))

    def init(self, key: Array) -> Array:
        return ravel_pytree(self._fresh(key))[0]

    def apply(self, theta: Array, obs: Array) -> Distribution:
        lead, policy = obs.shape[: obs.ndim - len(self.obs_shape)], self.unravel(theta)
        if not self.images:
            return policy(self.layout.see(obs.reshape(*lead, -1)))
        rows = self.layout.by_rows(policy, self.layout.see(obs.reshape(math.prod(lead), -1)))
        return jax.tree.map(lambda leaf: leaf.reshape(*lead, -1), rows)

    def fisher_product(self, theta: Array, obs: Array, weight: Array, damping: float) -> Callable[[Array], Array]:
        """(M, P) -> (M, P): the Fisher matrix of the distributions of observations (B, *obs_shape), damped."""
        size = self.layout.rows_at_once(obs.shape[0])
        if self.layout.slopes_fit(obs.shape[0], self.action.size):
            policy = self.unravel(theta)
            features, slopes = self.layout.slopes(policy.body, self.layout.see(obs.reshape(obs.shape[0], -1)))

            def outputs(t: Array, z: Array) -> Distribution:
                policy = self.unravel(t)
                return policy.of(policy.body.dense(features) + z)

            def part(t: Array) -> Array:
                return convolution_parameters(self.unravel(t).body)

            return split_fisher_product(outputs, theta, part, slopes, weight, damping)
        if size is None:
            return fisher_product(lambda t: self.apply(t, obs), theta, weight, damping)
        return chunked_fisher_product(self.apply, theta, obs, weight, damping, size)

    def unravel(self, theta: Array) -> PolicyModule:
        return self._unravel(theta)

    def noise(self, key: Array, lead: tuple[int, ...]) -> Array:
        return DISTRIBUTIONS[self.action.kind].noise(key, (*lead, self.action.size))

    def sampler(self, theta: Array) -> Sampler | None:
        """Its actions computed by NumPy; None where it cannot.

        A policy that acts on a few hundred rows at a time spends most of a compiled call on the way in and out.
        """
        if self.images or self.action.kind == "multidiscrete":
            return None
        policy = jax.device_get(self.unravel(theta))
        layers = tuple(zip(policy.body.dense.weights, policy.body.dense.biases, strict=True))
        std = np.maximum(np.exp(policy.log_std), np.float32(MIN_STD)) if self.action.kind == "box" else None
        return Sampler(layers, std)

    # Normalised observations ------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """How many entries of an observation have statistics: all that are not part of an image."""
        return self.layout.width

    def absorb(self, normaliser: Normaliser, obs: Array, valid: Array) -> Normaliser:
        """Statistics with those of the observations (B, ...) merged in."""
        return absorb(normaliser, self.layout.numbers_of(obs.reshape(obs.shape[0], -1)), valid)

    def normalised(self, normaliser: Normaliser, obs: Array) -> Array:
        """Observations (..., *obs_shape) with every number centred and scaled, and images as they are."""
        if not self.width:
            return obs
        entries = math.prod(self.obs_shape)
        places = self.layout.numbers_of(jnp.arange(entries))
        mean = jnp.zeros(entries).at[places].set(normaliser.mean)
        scale = jnp.ones(entries).at[places].set(normaliser.scale())
        return (obs - mean.reshape(self.obs_shape)) / scale.reshape(self.obs_shape)

    def rebase(self, theta: Array, old: Normaliser, new: Normaliser) -> Array:
        """The theta that does to observations normalised by `new` what `theta` does to those normalised by `old`."""
        policy = self.unravel(theta)
        weight, bias = policy.body.dense.weights[0], policy.body.dense.biases[0]
        first = weight.shape[0] - self.width  # numbers come after what images give
        shifted = bias + ((new.mean - old.mean) / old.scale()) @ weight[first:]
        scaled = weight.at[first:].multiply((new.scale() / old.scale())[:, None])
        dense = eqx.tree_at(lambda d: (d.weights[0], d.biases[0]), policy.body.dense, (scaled, shifted))
        return ravel_pytree(eqx.tree_at(lambda p: p.body.dense, policy, dense))[0]

    def fold(self, theta: Array, normaliser: Normaliser) -> Array:
        """The theta that does to raw observations what `theta` does to normalised ones: for files and exports."""
        return self.rebase(theta, normaliser, fresh_normaliser(self.width))

    # Files ------------------------------------------------------------------------------------------------------------

    def spec(self) -> dict[str, Any]:
        """What a reader needs to rebuild the function of raw observations; `named` holds its numbers."""
        kinds = {kind: name for name, kind in SPEC_KINDS.items()}
        return {
            "kind": kinds[self.action.kind],
            "obs_shape": list(self.obs_shape),
            "action_size": self.action.size,
            "hidden": list(self.hidden),
            "activation": "tanh",
            **({"choices": list(self.action.nvec)} if self.action.kind == "multidiscrete" else {}),
            **({"images": [self._image_spec(image) for image in self.images]} if self.images else {}),
        }

    def _image_spec(self, image: ImageSpec) -> dict[str, Any]:
        offset, shape, scale = image
        layers = [layer._asdict() for layer in convolutions(shape, self.filters)[0]]
        return {"offset": offset, "shape": list(shape), "scale": scale, "layers": layers}

    def named(self, theta: Array, normaliser: Normaliser | None = None) -> dict[str, Array]:
        """Parameters by name, for files other people read; of a folded theta also the statistics folded into it."""
        policy = self.unravel(theta)
        names = {name: place(policy) for name, place in self._places().items()}
        if normaliser is not None:
            names |= {f"normaliser.{name}": leaf for name, leaf in normaliser._asdict().items()}
        return names

    def from_named(self, named: dict[str, Any]) -> Array:
        """Inverse of `named`; ValueError for arrays of other shapes than the family has."""
        places, template = self._places(), self._template()
        for name, place in places.items():
            if named[name].shape != place(template).shape:
                raise ValueError(f"'{name}' has shape {named[name].shape}, not {place(template).shape}")
        leaves = [jnp.asarray(named[name]) for name in places]
        return ravel_pytree(eqx.tree_at(lambda p: [place(p) for place in places.values()], template, leaves))[0]

    def _places(self) -> dict[str, Callable[[Any], Array]]:
        """Where every named array is in a policy."""
        places: dict[str, Callable[[Any], Array]] = {}
        for e in range(len(self.images)):
            for i in range(len(self.filters)):
                places[f"images.{e}.layers.{i}.kernel"] = lambda p, e=e, i=i: p.body.encoders[e].kernels[i]
                places[f"images.{e}.layers.{i}.bias"] = lambda p, e=e, i=i: p.body.encoders[e].biases[i]
        for i in range(len(self.hidden) + 1):
            places[f"layers.{i}.weight"] = lambda p, i=i: p.body.dense.weights[i]
            places[f"layers.{i}.bias"] = lambda p, i=i: p.body.dense.biases[i]
        if self.action.kind == "box":
            places["log_std"] = lambda p: p.log_std
        return places


def family_of_spec(spec: dict[str, Any]) -> PolicyFamily:
    """The family a file describes; ValueError for one that this version cannot rebuild."""
    if spec["kind"] not in SPEC_KINDS or spec.get("activation", "tanh") != "tanh":
        raise ValueError(f"a network of kind '{spec['kind']}' with {spec.get('activation')} layers is not known")
    nvec = tuple(int(count) for count in spec.get("choices", ()))
    action = ActionSpace(SPEC_KINDS[spec["kind"]], int(spec["action_size"]), nvec=nvec)
    described = spec.get("images", [])
    images = tuple(_image_of_spec(image) for image in described)
    filters = tuple(int(layer["filters"]) for layer in described[0]["layers"]) if described else (24, 12)
    family = PolicyFamily(tuple(spec["obs_shape"]), action, tuple(spec["hidden"]), images=images, filters=filters)
    if described != family.spec().get("images", []):
        raise ValueError("its convolutions are laid out in a way that is not known")
    return family


def _image_of_spec(spec: dict[str, Any]) -> ImageSpec:
    height, width, channels = (int(size) for size in spec["shape"])
    return ImageSpec(int(spec["offset"]), (height, width, channels), float(spec["scale"]))


def normaliser_of(named: dict[str, Any]) -> Normaliser | None:
    """The statistics recorded in a policy file, if any."""
    if "normaliser.mean" not in named:
        return None
    return Normaliser(*(jnp.asarray(named[f"normaliser.{name}"]) for name in Normaliser._fields))
