"""Networks of policies and critics: images through convolutions, joined by the other numbers, through dense layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from spacerl.types import Array, ImageSpec

KERNEL = 4  # side of a convolution's window in pixels, less where an image is smaller
LARGE_IMAGE = 64  # where the shorter side has so many pixels windows are 4 apart, otherwise 2
# Images whose activations are held at the same time; 96 x 96 pixels take about 0.4 MB each. A processor's cache holds
# those of a hundred: with 500 a pass takes twice as long. An accelerator wants large products.
ROWS_AT_ONCE, ROWS_ON_ACCELERATOR = 128, 2048
# Derivatives that are held so that no product with a Fisher matrix goes through convolutions: bytes, and outputs of a
# network, for each of which they cost as much as a tenth of the products that they save.
LARGEST_SLOPES, MOST_SLOPES = 2**29, 32


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
    """(..., H, W, C) and (k, k, C, F) -> (..., H', W', F), as one matrix product over blocks of stride x stride pixels.

    Where windows overlap, a block belongs to several: the product has a column for each place in a window that a block
    can have, and the windows are sums of shifted columns. No pixel is copied more than once, unlike in a matrix of
    windows, and on a CPU it takes a third of the time of that, a quarter of XLA's own convolution.
    """
    k, s, filters = kernel.shape[0], stride, kernel.shape[-1]
    blocks = -(-k // s)  # a window is so many blocks wide
    height, width = ((side - k) // s + 1 for side in x.shape[-3:-1])
    rows, columns = height + blocks - 1, width + blocks - 1
    x = _resized(x, (rows * s, columns * s))
    lead, n = x.shape[:-3], x.ndim - 3
    x = x.reshape(*lead, rows, s, columns, s, x.shape[-1])
    x = x.transpose(*range(n), n, n + 2, n + 1, n + 3, n + 4).reshape(*lead, rows, columns, -1)
    padded = jnp.pad(kernel, [(0, blocks * s - k)] * 2 + [(0, 0)] * 2)
    by_place = padded.reshape(blocks, s, blocks, s, -1, filters).transpose(1, 3, 4, 0, 2, 5)
    y = (x @ by_place.reshape(x.shape[-1], -1)).reshape(*lead, rows, columns, blocks, blocks, filters)
    places = [(i, j) for i in range(blocks) for j in range(blocks)]
    return sum(
        (y[..., i : i + height, j : j + width, i, j, :] for i, j in places[1:]), y[..., :height, :width, 0, 0, :]
    )


def _resized(x: Array, sides: tuple[int, int]) -> Array:
    """(..., H, W, C) with other sides: what no window reaches is cut off, and zeros are added where windows end."""
    more = [(0, max(0, wanted - side)) for wanted, side in zip(sides, x.shape[-3:-1], strict=True)]
    if any(after for _, after in more):
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + more + [(0, 0)])
    return x[..., : sides[0], : sides[1], :]


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

    def rows_at_once(self, rows: int) -> int | None:
        """How many of so many observations are computed at a time; None where that is all.

        Activations of images are too large to be held for a batch. Chunks are of one size where `rows` has a divisor
        that suits, so that one program computes them all.
        """
        most = ROWS_AT_ONCE if jax.default_backend() == "cpu" else ROWS_ON_ACCELERATOR
        if not self.images or rows <= most:
            return None
        return next((size for size in range(most, most // 2, -1) if rows % size == 0), most)

    def slopes_fit(self, rows: int, outputs: int) -> bool:
        """Whether the derivatives of so many rows' outputs in the convolutions are worth being held; see `slopes`."""
        if not self.images:
            return False
        count = sum(
            math.prod((layer.kernel, layer.kernel, channels, layer.filters)) + layer.filters
            for _, shape, _ in self.images
            for layer, channels in zip(
                convolutions(shape, self.filters)[0], (shape[-1], *self.filters[:-1]), strict=True
            )
        )
        return outputs <= MOST_SLOPES and 4 * rows * outputs * count <= LARGEST_SLOPES

    def slopes(self, network: Network, seen: Seen) -> tuple[Array, Array]:
        """What the first dense layer takes in of observations (B, ...), (B, F), and the derivatives (B, A, Q) of the
        network's outputs in the parameters of its convolutions, in the order of `convolution_parameters`."""
        flat, unravel = ravel_pytree(network.encoders)
        outputs = network.dense.biases[-1].shape[0]

        def of_row(row: Seen) -> tuple[Array, Array]:
            features, pull_back = jax.vjp(lambda t: Network(unravel(t), network.dense).features(row), flat)
            _, to_features = jax.vjp(network.dense, features)
            return features, jax.vmap(lambda one: pull_back(to_features(one)[0])[0])(jnp.eye(outputs))

        size = self.rows_at_once(seen.numbers.shape[0])
        return jax.lax.map(of_row, seen, batch_size=size) if size else jax.vmap(of_row)(seen)

    def by_rows(self, function: Callable[[Seen], Any], seen: Seen) -> Any:
        """`function` of observations (B, ...), which treats every row alike; of images for some rows at a time, and
        again where a derivative needs their activations."""
        size = self.rows_at_once(seen.numbers.shape[0])
        if size is None:
            return function(seen)
        remade = jax.checkpoint(lambda row: function(row))  # a module cannot be hashed, a lambda can
        return jax.lax.map(remade, seen, batch_size=size)


class Network(eqx.Module):
    """Images through their convolutions, joined by the other numbers, through dense layers."""

    encoders: list[ImageEncoder]
    dense: Mlp

    def __call__(self, seen: Seen) -> Array:
        return self.dense(self.features(seen))

    def features(self, seen: Seen) -> Array:
        """What the dense layers take in."""
        features = [encoder(image) for encoder, image in zip(self.encoders, seen.images, strict=True)]
        return jnp.concatenate([*features, seen.numbers], axis=-1) if features else seen.numbers


def convolution_parameters(network: Network) -> Array:
    """(Q,) of all its convolutions."""
    return ravel_pytree(network.encoders)[0]
