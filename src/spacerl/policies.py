"""Policy networks. A policy is a family of functions indexed by one flat parameter vector theta (P,).

A family is described by a plain dictionary (`spec`), so that a policy file can be read back without running any code.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from spacerl.core.distributions import Categorical, Distribution, Gaussian, MultiCategorical
from spacerl.types import ActionSpace, Array

MIN_STD = 1e-6  # as in the original code: keeps log-probabilities finite
KERNEL = 4  # side of a convolution's window in pixels, less where a picture is smaller
LARGE_PICTURE = 64  # where the shorter side has so many pixels windows are 4 apart, otherwise 2
ROWS_AT_ONCE = 512  # pictures whose activations are held at the same time: 96 x 96 pixels take about 0.4 MB each

Image = tuple[int, tuple[int, int, int], float]  # offset in the flat observation, (height, width, channels), scale


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


# Pictures -------------------------------------------------------------------------------------------------------------


class Convolution(NamedTuple):
    """Shape of one convolution without padding: windows of kernel x kernel pixels, `stride` pixels apart."""

    filters: int
    kernel: int
    stride: int


def convolutions(shape: tuple[int, int, int], filters: tuple[int, ...]) -> tuple[tuple[Convolution, ...], int]:
    """The convolutions that read a picture (height, width, channels), and how many numbers they make of it."""
    (height, width, channels), layers = shape, []
    for count in filters:
        kernel, stride = min(KERNEL, height, width), 4 if min(height, width) >= LARGE_PICTURE else 2
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, count
        layers.append(Convolution(count, kernel, stride))
    return tuple(layers), height * width * channels


def convolve(x: Array, kernel: Array, stride: int) -> Array:
    """(..., H, W, C) and (k, k, C, F) -> (..., H', W', F), as one matrix product over all windows.

    On a CPU that is faster than XLA's convolution, and stays one product under vmap over kernels.
    """
    k = kernel.shape[0]
    rows, columns = (stride * ((side - k) // stride) + 1 for side in x.shape[-3:-1])
    windows = [x[..., i : i + rows : stride, j : j + columns : stride, :] for i in range(k) for j in range(k)]
    return jnp.concatenate(windows, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


class Eye(eqx.Module):
    """tanh convolutions that turn a picture (..., H, W, C) into a row of numbers; pixels of any dtype."""

    kernels: list[Array]
    biases: list[Array]
    strides: tuple[int, ...] = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(self, shape: tuple[int, int, int], scale: float, filters: tuple[int, ...], key: Array):
        layers, _ = convolutions(shape, filters)
        channels = (shape[-1], *filters[:-1])
        keys = jax.random.split(key, len(layers))
        glorot = jax.nn.initializers.glorot_uniform()
        shapes = [(l.kernel, l.kernel, c, l.filters) for l, c in zip(layers, channels, strict=True)]
        self.kernels = [glorot(k, shape) for k, shape in zip(keys, shapes, strict=True)]
        self.biases = [jnp.zeros(layer.filters) for layer in layers]
        self.strides = tuple(layer.stride for layer in layers)
        self.scale = scale

    def __call__(self, picture: Array) -> Array:
        x = picture.astype(self.kernels[0].dtype) * self.scale
        for kernel, bias, stride in zip(self.kernels, self.biases, self.strides, strict=True):
            x = jnp.tanh(convolve(x, kernel, stride) + bias)
        return x.reshape(*x.shape[:-3], -1)


class Seen(NamedTuple):
    """An observation taken apart."""

    pictures: tuple[Array, ...]  # each (..., H, W, C), as observed
    numbers: Array  # (..., V) all other entries, in their order


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the pictures are in an observation of `obs_shape`, and the convolutions that read them."""

    obs_shape: tuple[int, ...]
    images: tuple[Image, ...] = ()
    filters: tuple[int, ...] = (24, 12)

    def __post_init__(self):
        end = 0
        for offset, shape, _ in sorted(self.images):
            if len(shape) != 3 or min(shape) < 1 or offset < end:
                raise ValueError(f"pictures {self.images} overlap or are not (height, width, channels)")
            end = offset + math.prod(shape)
        if end > math.prod(self.obs_shape):
            raise ValueError(f"pictures {self.images} do not fit into an observation of shape {self.obs_shape}")
        if self.images and not self.filters:
            raise ValueError("pictures need at least one convolution: filters is empty")

    @property
    def width(self) -> int:
        """How many entries are not part of a picture."""
        return math.prod(self.obs_shape) - sum(math.prod(shape) for _, shape, _ in self.images)

    @property
    def features(self) -> int:
        """Width of the first dense layer's input."""
        return self.width + sum(convolutions(shape, self.filters)[1] for _, shape, _ in self.images)

    def see(self, flat: Array) -> Seen:
        """Observations (..., O) taken apart."""
        lead = flat.shape[:-1]
        pictures = [flat[..., o : o + math.prod(shape)].reshape(*lead, *shape) for o, shape, _ in self.images]
        return Seen(tuple(pictures), self.numbers_of(flat))

    def numbers_of(self, flat: Array) -> Array:
        if not self.images:
            return flat
        ends = [0, *(offset + math.prod(shape) for offset, shape, _ in sorted(self.images))]
        starts = [*(offset for offset, _, _ in sorted(self.images)), flat.shape[-1]]
        return jnp.concatenate([flat[..., end:start] for end, start in zip(ends, starts, strict=True)], axis=-1)

    def network(self, hidden: tuple[int, ...], outputs: int, key: Array) -> Network:
        """A fresh one. Without pictures its parameters are those of the Mlp alone."""
        keys = jax.random.split(key, len(self.images) + 1) if self.images else [key]
        eyes = [Eye(shape, scale, self.filters, k) for (_, shape, scale), k in zip(self.images, keys[1:], strict=True)]
        return Network(eyes, Mlp((self.features, *hidden, outputs), keys[0]))

    def by_rows(self, function: Callable[[Seen], Any], seen: Seen) -> Any:
        """`function` of observations (B, ...), which treats every row alike.

        Activations of pictures are too large to be held for a batch: they are computed for some rows at a time, and
        again where a derivative needs them.
        """
        if not self.images or seen.numbers.shape[0] <= ROWS_AT_ONCE:
            return function(seen)
        remade = jax.checkpoint(lambda row: function(row))  # a module cannot be hashed, a lambda can
        return jax.lax.map(remade, seen, batch_size=ROWS_AT_ONCE)


class Network(eqx.Module):
    """Pictures through their convolutions, joined by the other numbers, through dense layers."""

    eyes: list[Eye]
    dense: Mlp

    def __call__(self, seen: Seen) -> Array:
        features = [eye(picture) for eye, picture in zip(self.eyes, seen.pictures, strict=True)]
        return self.dense(jnp.concatenate([*features, seen.numbers], axis=-1) if features else seen.numbers)


# Normalised observations ----------------------------------------------------------------------------------------------


class Normaliser(NamedTuple):
    """Running statistics of the observations' numbers (pictures have their scale instead)."""

    mean: Array  # (V,)
    var: Array  # (V,)
    count: Array  # () samples so far

    def scale(self) -> Array:
        """What numbers are divided by, (V,): their standard deviation.

        1 where that is below 1e-4: a constant says nothing, and must not be blown up on the day it moves. At least
        1e-3 of the mean: beyond that float32 cannot hold raw observations times folded weights.
        """
        std = jnp.sqrt(self.var)
        return jnp.maximum(jnp.where(std > 1e-4, std, 1.0), 1e-3 * jnp.abs(self.mean))


def fresh_normaliser(width: int) -> Normaliser:
    """Statistics of nothing: they leave observations as they are."""
    return Normaliser(jnp.zeros(width), jnp.ones(width), jnp.zeros(()))


def absorb(normaliser: Normaliser, numbers: Array, valid: Array) -> Normaliser:
    """Statistics with the samples (B, V) of another batch merged in, those that are `valid` (B,)."""
    n, m = normaliser.count, jnp.sum(valid)
    # Padding may hold anything. Deviations from a first guess of the mean: sums of the raw numbers would lose digits.
    guess = jnp.where((n > 0) | (m == 0), normaliser.mean, numbers[jnp.argmax(valid)])
    gap = jnp.where(valid[:, None] > 0, numbers - guess, 0.0)
    share = valid / jnp.where(m > 0, m, 1.0)
    shift = share @ gap
    var = share @ (gap - shift) ** 2
    new = m / jnp.where(n + m > 0, n + m, 1.0)  # share of the new samples
    delta = guess + shift - normaliser.mean
    merged = (1.0 - new) * normaliser.var + new * var + new * (1.0 - new) * delta**2
    return Normaliser(normaliser.mean + new * delta, merged, n + m)


# Policies -------------------------------------------------------------------------------------------------------------


class GaussianPolicy(eqx.Module):
    """Mean from a network, one learned standard deviation per action dimension for all states."""

    body: Network
    log_std: Array

    def __call__(self, seen: Seen) -> Gaussian:
        mean = self.body(seen)
        return Gaussian(mean, jnp.broadcast_to(jnp.maximum(self.log_std, math.log(MIN_STD)), mean.shape))


class CategoricalPolicy(eqx.Module):
    body: Network

    def __call__(self, seen: Seen) -> Categorical:
        return Categorical(self.body(seen))


class MultiCategoricalPolicy(eqx.Module):
    body: Network
    choices: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, seen: Seen) -> MultiCategorical:
        return MultiCategorical(self.body(seen), self.choices)


Policy = GaussianPolicy | CategoricalPolicy | MultiCategoricalPolicy
DISTRIBUTIONS = {"box": Gaussian, "discrete": Categorical, "multidiscrete": MultiCategorical}
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
    images: tuple[Image, ...] = ()
    filters: tuple[int, ...] = (24, 12)
    initial_gain: float = 1.0

    def __post_init__(self):
        if self.action.kind not in DISTRIBUTIONS:
            raise ValueError(f"unknown kind of action '{self.action.kind}': allowed are {', '.join(DISTRIBUTIONS)}")
        if self.action.kind == "multidiscrete" and sum(self.action.choices) != self.action.size:
            raise ValueError(f"choices {self.action.choices} do not sum to {self.action.size}")
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._template())
        flat, unravel = ravel_pytree(zeros)
        object.__setattr__(self, "parameters", flat.shape[0])
        object.__setattr__(self, "_unravel", unravel)

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout(self.obs_shape, self.images, self.filters)

    def _fresh(self, key: Array) -> Policy:
        body = self.layout.network(self.hidden, self.action.size, key)
        body = eqx.tree_at(lambda b: b.dense.weights[-1], body, replace_fn=lambda weight: self.initial_gain * weight)
        if self.action.kind == "discrete":
            return CategoricalPolicy(body)
        if self.action.kind == "multidiscrete":
            return MultiCategoricalPolicy(body, self.action.choices)
        return GaussianPolicy(body, jnp.full((self.action.size,), math.log(self.initial_std)))

    def _template(self) -> Policy:
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

    def unravel(self, theta: Array) -> Policy:
        return self._unravel(theta)  # type: ignore[attr-defined]

    def noise(self, key: Array, lead: tuple[int, ...]) -> Array:
        return DISTRIBUTIONS[self.action.kind].noise(key, (*lead, self.action.size))

    def sampler(self, theta: Array) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
        """Actions from observations (N, *obs_shape) and noise (N, size), computed by NumPy; None where it cannot.

        A policy that acts on a few hundred rows at a time spends most of a compiled call on the way in and out.
        """
        if self.images or self.action.kind == "multidiscrete":
            return None
        policy = jax.device_get(self.unravel(theta))
        *inner, (weight, bias) = zip(policy.body.dense.weights, policy.body.dense.biases, strict=True)
        std = np.maximum(np.exp(policy.log_std), np.float32(MIN_STD)) if self.action.kind == "box" else None

        def sample(obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
            x = obs.reshape(len(obs), -1)
            for w, b in inner:
                x = x @ w
                x += b
                np.tanh(x, out=x)
            x = x @ weight + bias
            return np.argmax(x + noise, axis=-1) if std is None else x + std * noise

        return sample

    # Normalised observations ------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """How many entries of an observation have statistics: all that are not part of a picture."""
        return self.layout.width

    def absorb(self, normaliser: Normaliser, obs: Array, valid: Array) -> Normaliser:
        """Statistics with those of the observations (B, ...) merged in."""
        return absorb(normaliser, self.layout.numbers_of(obs.reshape(obs.shape[0], -1)), valid)

    def normalised(self, normaliser: Normaliser, obs: Array) -> Array:
        """Observations (..., *obs_shape) with every number centred and scaled, and pictures as they are."""
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
        first = weight.shape[0] - self.width  # numbers come after what pictures give
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
            **({"choices": list(self.action.choices)} if self.action.kind == "multidiscrete" else {}),
            **({"images": [self._image_spec(image) for image in self.images]} if self.images else {}),
        }

    def _image_spec(self, image: Image) -> dict[str, Any]:
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
                places[f"images.{e}.layers.{i}.kernel"] = lambda p, e=e, i=i: p.body.eyes[e].kernels[i]
                places[f"images.{e}.layers.{i}.bias"] = lambda p, e=e, i=i: p.body.eyes[e].biases[i]
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
    choices = tuple(int(count) for count in spec.get("choices", ()))
    action = ActionSpace(SPEC_KINDS[spec["kind"]], int(spec["action_size"]), choices=choices)
    described = spec.get("images", [])
    images = tuple(_image_of_spec(image) for image in described)
    filters = tuple(int(layer["filters"]) for layer in described[0]["layers"]) if described else (24, 12)
    family = PolicyFamily(tuple(spec["obs_shape"]), action, tuple(spec["hidden"]), images=images, filters=filters)
    if described != family.spec().get("images", []):
        raise ValueError("its convolutions are laid out in a way that is not known")
    return family


def _image_of_spec(spec: dict[str, Any]) -> Image:
    height, width, channels = (int(size) for size in spec["shape"])
    return int(spec["offset"]), (height, width, channels), float(spec["scale"])


def normaliser_of(named: dict[str, Any]) -> Normaliser | None:
    """The statistics recorded in a policy file, if any."""
    if "normaliser.mean" not in named:
        return None
    return Normaliser(*(jnp.asarray(named[f"normaliser.{name}"]) for name in Normaliser._fields))
