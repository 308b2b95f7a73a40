"""Networks of policies and critics: images through convolutions, joined by the other numbers, through dense layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from spacerl.types import Array, ImageSpec

KERNEL = 4  # side of a convolution's window in pixels, less where an image is smaller
LARGE_IMAGE = 64  # where the shorter side has so many pixels windows are 4 apart, otherwise 2
ROWS_AT_ONCE = 512  # images whose activations are held at the same time: 96 x 96 pixels take about 0.4 MB each


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


class Convolution(NamedTuple):
    """Shape of one convolution without padding: windows of kernel x kernel pixels, `stride` pixels apart."""

    filters: int
    kernel: int
    stride: int


def convolutions(shape: tuple[int, int, int], filters: tuple[int, ...]) -> tuple[tuple[Convolution, ...], int]:
    """The convolutions that read an image (height, width, channels), and how many numbers they make of it."""
    (height, width, channels), layers = shape, []
    for count in filters:
        kernel, stride = min(KERNEL, height, width), 4 if min(height, width) >= LARGE_IMAGE else 2
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


class ImageEncoder(eqx.Module):
    """tanh convolutions that turn an image (..., H, W, C) into a row of numbers; pixels of any dtype."""

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

    def __call__(self, image: Array) -> Array:
        x = image.astype(self.kernels[0].dtype) * self.scale
        for kernel, bias, stride in zip(self.kernels, self.biases, self.strides, strict=True):
            x = jnp.tanh(convolve(x, kernel, stride) + bias)
        return x.reshape(*x.shape[:-3], -1)


class Seen(NamedTuple):
    """An observation taken apart."""

    images: tuple[Array, ...]  # each (..., H, W, C), as observed
    numbers: Array  # (..., V) all other entries, in their order


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the images are in an observation of `obs_shape`, and the convolutions that read them."""

    obs_shape: tuple[int, ...]
    images: tuple[ImageSpec, ...] = ()
    filters: tuple[int, ...] = (24, 12)

    def __post_init__(self):
        end = 0
        for offset, shape, _ in sorted(self.images):
            if len(shape) != 3 or min(shape) < 1 or offset < end:
                raise ValueError(f"images {self.images} overlap or are not (height, width, channels)")
            end = offset + math.prod(shape)
        if end > math.prod(self.obs_shape):
            raise ValueError(f"images {self.images} do not fit into an observation of shape {self.obs_shape}")
        if self.images and not self.filters:
            raise ValueError("images need at least one convolution: filters is empty")

    @property
    def width(self) -> int:
        """How many entries are not part of an image."""
        return math.prod(self.obs_shape) - sum(math.prod(shape) for _, shape, _ in self.images)

    @property
    def features(self) -> int:
        """Width of the first dense layer's input."""
        return self.width + sum(convolutions(shape, self.filters)[1] for _, shape, _ in self.images)

    def see(self, flat: Array) -> Seen:
        """Observations (..., O) taken apart."""
        lead = flat.shape[:-1]
        images = [flat[..., o : o + math.prod(shape)].reshape(*lead, *shape) for o, shape, _ in self.images]
        return Seen(tuple(images), self.numbers_of(flat))

    def numbers_of(self, flat: Array) -> Array:
        if not self.images:
            return flat
        ends = [0, *(offset + math.prod(shape) for offset, shape, _ in sorted(self.images))]
        starts = [*(offset for offset, _, _ in sorted(self.images)), flat.shape[-1]]
        return jnp.concatenate([flat[..., end:start] for end, start in zip(ends, starts, strict=True)], axis=-1)

    def network(self, hidden: tuple[int, ...], outputs: int, key: Array) -> Network:
        """A fresh one. Without images its parameters are those of the Mlp alone."""
        keys = jax.random.split(key, len(self.images) + 1) if self.images else [key]
        encoders = [
            ImageEncoder(shape, scale, self.filters, k)
            for (_, shape, scale), k in zip(self.images, keys[1:], strict=True)
        ]
        return Network(encoders, Mlp((self.features, *hidden, outputs), keys[0]))

    def by_rows(self, function: Callable[[Seen], Any], seen: Seen) -> Any:
        """`function` of observations (B, ...), which treats every row alike.

        Activations of images are too large to be held for a batch: they are computed for some rows at a time, and
        again where a derivative needs them.
        """
        if not self.images or seen.numbers.shape[0] <= ROWS_AT_ONCE:
            return function(seen)
        remade = jax.checkpoint(lambda row: function(row))  # a module cannot be hashed, a lambda can
        return jax.lax.map(remade, seen, batch_size=ROWS_AT_ONCE)


class Network(eqx.Module):
    """Images through their convolutions, joined by the other numbers, through dense layers."""

    encoders: list[ImageEncoder]
    dense: Mlp

    def __call__(self, seen: Seen) -> Array:
        features = [encoder(image) for encoder, image in zip(self.encoders, seen.images, strict=True)]
        return self.dense(jnp.concatenate([*features, seen.numbers], axis=-1) if features else seen.numbers)
