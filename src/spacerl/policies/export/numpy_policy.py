"""A policy in NumPy alone. `spacerl export` writes the text of this module, with its constants and weights filled in.

distribution(obs)  mean and standard deviation of the action (box),
                   or the probability of every value of an action (discrete, multidiscrete: side by side)
act(obs)           the most likely action
act(obs, rng)      a random one, with rng = numpy.random.default_rng(seed)
predict(obs)       (action, None) as models of Stable-Baselines3 give them: a random action in the form that the
                   environment's step takes; predict(obs, deterministic=True): the most likely one

obs is what the environment gives, or a flat array of the shape OBS_SHAPE: its parts one after the other in the order of
PARTS. A batch has a leading axis on every part.

Needs NumPy and nothing else. The weights are at the end of the file.
"""

from __future__ import annotations

import base64
import functools
from typing import Any

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
# Parts of the environment's observation in the order of a flat one: (where it is in a Dict or Tuple, its kind, its
# shape, how many values each discrete number has, the least of each). Empty where observations are plain arrays.
PARTS: list[tuple[tuple, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []
# Parts of the environment's action: (where it goes, its shape, its dtype, the least of each discrete number).
ACTION_PARTS: list[tuple[tuple, tuple[int, ...], str, tuple[int, ...]]] = []


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


def predict(obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False) -> tuple[Any, Any]:
    """An action as the environment takes it, random unless `deterministic`, and `state` as it came."""
    action = act(obs, None if deterministic else _generator())
    return _environment_action(action), state


@functools.cache
def _generator() -> np.random.Generator:
    return np.random.default_rng()


def _environment_action(action: np.ndarray) -> Any:
    if not ACTION_PARTS:
        return action
    values, used = {}, 0
    rows = action[..., None] if KIND == "discrete" else action
    for path, shape, dtype, starts in ACTION_PARTS:
        width = int(np.prod(shape))
        part = rows[..., used : used + width]
        part = part + np.array(starts) if starts else np.rint(part) if np.dtype(dtype).kind in "iu" else part
        values[path] = part.reshape((*rows.shape[:-1], *shape)).astype(dtype)
        used += width
    return _nested(values)


def _nested(values: dict[tuple, Any]) -> Any:
    if () in values:
        return values[()]
    keys = list(dict.fromkeys(path[0] for path in values))
    inner = {key: _nested({path[1:]: value for path, value in values.items() if path[0] == key}) for key in keys}
    return tuple(inner.values()) if all(isinstance(key, int) for key in keys) else inner


def _flat(obs: Any) -> np.ndarray:
    """What the environment gives, or a flat observation as it is, as (..., *OBS_SHAPE)."""
    if not PARTS or (not isinstance(obs, (dict, tuple)) and not _is_part(np.asarray(obs), *PARTS[0])):
        return np.asarray(obs, np.float32)
    flat, batch = [], ()
    for path, kind, shape, counts, starts in PARTS:
        value = obs
        for key in path:
            value = value[key]
        value = np.asarray(value)
        batch = value.shape[: value.ndim - len(shape)]
        if kind == "one-hot":
            chosen = value.reshape(*batch, len(counts)).astype(int) - np.array(starts)
            flat += [np.eye(count, dtype=np.float32)[chosen[..., i]] for i, count in enumerate(counts)]
        else:
            value = np.moveaxis(value, -3, -1) if kind == "channels-first" else value
            flat.append(value.reshape(*batch, -1).astype(np.float32))
    return np.concatenate(flat, axis=-1).reshape(*batch, *OBS_SHAPE)


def _is_part(obs: np.ndarray, path: tuple, kind: str, shape: tuple[int, ...], *counted: tuple[int, ...]) -> bool:
    """Whether an array is the only part of an observation rather than a flat one."""
    if path or obs.shape[obs.ndim - len(shape) :] != shape:
        return False
    return obs.dtype.kind in "iu" if kind == "one-hot" else shape != OBS_SHAPE


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
    obs = _flat(obs)
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
