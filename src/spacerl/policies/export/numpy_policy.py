"""A policy in NumPy alone. `spacerl export` writes the text of this module, with its constants and weights filled in.

distribution(obs)  mean and standard deviation of the action (box),
                   or the probability of every value of an action (discrete, multidiscrete: side by side)
act(obs)           the most likely action
act(obs, rng)      a random one, with rng = numpy.random.default_rng(seed)

obs has the shape OBS_SHAPE; for a batch of observations (..., *OBS_SHAPE).

Needs NumPy and nothing else. The weights are at the end of the file.
"""

from __future__ import annotations

import base64

import numpy as np

# Actions: box, discrete or multidiscrete, and how many values each discrete one has.
KIND = "box"
COUNTS: tuple[int, ...] = ()
# Observations: images as (offset, (height, width, channels), scale of the pixels, strides of the convolutions), and
# which entries of a flat observation belong to none.
OBS_SHAPE: tuple[int, ...] = (1,)
IMAGES: list[tuple[int, tuple[int, int, int], float, tuple[int, ...]]] = []
NUMBERS = np.r_[0:1]
# Dense layers.
LAYERS = 1


def distribution(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
    """Box: mean and standard deviation of the actions before they are clipped, in the environment's units. Otherwise
    the probability of every value, those of several actions side by side."""
    return _gaussian(obs) if KIND == "box" else _probabilities(obs)


def act(obs: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
    """The most likely action, or with a NumPy generator a random one: real numbers within their bounds, or integers."""
    if KIND == "box":
        mean, std = _gaussian(obs)
        action = mean if rng is None else mean + std * rng.standard_normal(mean.shape).astype(np.float32)
        return np.clip(action, ARRAYS["action.low"], ARRAYS["action.high"])
    actions = [_discrete_action(probabilities, rng) for probabilities in _by_action(_probabilities(obs))]
    return np.stack(actions, axis=-1) if KIND == "multidiscrete" else actions[0]


def _gaussian(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = ARRAYS["action.centre"] + ARRAYS["action.half_width"] * _network(obs)
    return mean, np.broadcast_to(ARRAYS["action.std"], mean.shape)


def _probabilities(obs: np.ndarray) -> np.ndarray:
    powers = [np.exp(x - x.max(axis=-1, keepdims=True)) for x in _by_action(_network(obs))]
    return np.concatenate([x / x.sum(axis=-1, keepdims=True) for x in powers], axis=-1)


def _by_action(row: np.ndarray) -> list[np.ndarray]:
    return np.split(row, np.cumsum(COUNTS)[:-1], axis=-1)


def _discrete_action(probabilities: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    if rng is None:
        return np.argmax(probabilities, axis=-1)
    reached = np.cumsum(probabilities, axis=-1)
    return np.argmax(reached > reached[..., -1:] * rng.random((*reached.shape[:-1], 1)), axis=-1)


def _network(obs: np.ndarray) -> np.ndarray:
    """tanh layers, the last one linear."""
    obs = np.asarray(obs, np.float32)
    batch = obs.shape[: obs.ndim - len(OBS_SHAPE)]
    x = _features(obs.reshape(-1, int(np.prod(OBS_SHAPE))))
    for i in range(LAYERS):
        x = x @ ARRAYS[f"layers.{i}.weight"] + ARRAYS[f"layers.{i}.bias"]
        x = np.tanh(x) if i < LAYERS - 1 else x
    return x.reshape(*batch, -1)


def _features(flat: np.ndarray) -> np.ndarray:
    """Images through their convolutions, joined by the other numbers of the observation."""
    parts = []
    for k, (offset, shape, scale, strides) in enumerate(IMAGES):
        x = flat[:, offset : offset + int(np.prod(shape))].reshape(-1, *shape) * np.float32(scale)
        for i, stride in enumerate(strides):
            x = _convolve(x, ARRAYS[f"images.{k}.layers.{i}.kernel"], stride)
            x = np.tanh(x + ARRAYS[f"images.{k}.layers.{i}.bias"])
        parts.append(x.reshape(len(flat), -1))
    return np.concatenate([*parts, flat[:, NUMBERS]], axis=-1)


def _convolve(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """Images (batch, height, width, channels) and a kernel (size, size, channels, filters), without padding."""
    size = kernel.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.tensordot(windows, kernel.transpose(2, 0, 1, 3), axes=3)


def _array(shape: tuple[int, ...], text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(shape)


ARRAYS: dict[str, np.ndarray] = {}
