"""Gymnasium spaces as flat arrays: observations to one array per step, actions from the policy's numbers.

Leaves of Dict and Tuple spaces are laid one after the other, discrete ones as one-hot vectors. The way back serves
policies of other libraries, which expect observations as the environment gives them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from spacerl.types import ActionSpace, ImageSpec, InputError

SMALLEST_IMAGE = 8  # pixels; a smaller array with three dimensions is a table of numbers
Path = tuple[Any, ...]  # keys and indices that lead to a leaf


def leaves(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, spaces.Space]]:
    """Leaf spaces in a fixed order, with where they are."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from leaves(inner, (*path, index))
    else:
        yield path, space


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def nested(space: spaces.Space, values: dict[Path, Any], path: Path = ()) -> Any:
    """Leaf values put back into the form of the space."""
    if isinstance(space, spaces.Dict):
        return {key: nested(inner, values, (*path, key)) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nested(inner, values, (*path, index)) for index, inner in enumerate(space.spaces))
    return values[path]


# Observations ---------------------------------------------------------------------------------------------------------


class Leaf:
    """One leaf of an observation: its width in the flat array, there and back."""

    def __init__(self, space: spaces.Space, path: Path, offset: int):
        self.space, self.path, self.offset = space, path, offset
        self.channels_first = False
        self.image: tuple[int, int, int] | None = None
        self.scale = 1.0
        if isinstance(space, spaces.Box):
            self.width = math.prod(space.shape)
            self._look_for_image(space)
        elif isinstance(space, spaces.Discrete):
            self.width = int(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            self.width = int(space.nvec.sum())
        elif isinstance(space, spaces.MultiBinary):
            self.width = math.prod(space.shape)
        else:
            where = f" at '{'.'.join(map(str, path))}'" if path else ""
            raise InputError(
                f"the observation space{where} is {type(space).__name__}: allowed are Box, Discrete, MultiDiscrete, "
                "MultiBinary, and Dict or Tuple of these; a gymnasium.ObservationWrapper can turn yours into one"
            )

    def _look_for_image(self, space: spaces.Box) -> None:
        shape = space.shape
        if space.dtype == np.uint8 and len(shape) == 2:
            shape = (*shape, 1)
        bounded = np.all(space.low >= 0) and np.all(np.isfinite(space.high))
        if len(shape) != 3 or not bounded:
            return
        self.channels_first = shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)
        height, width, channels = (shape[1], shape[2], shape[0]) if self.channels_first else shape
        if min(height, width) >= SMALLEST_IMAGE:
            self.image, self.scale = (height, width, channels), 1.0 / float(max(space.high.max(), 1e-6))

    def encode(self, value: Any) -> np.ndarray:
        space = self.space
        if isinstance(space, spaces.Discrete):
            return _one_hot(np.asarray(value)[None] - space.start, [space.n])
        if isinstance(space, spaces.MultiDiscrete):
            return _one_hot((np.asarray(value) - space.start).ravel(), space.nvec.ravel())
        array = np.asarray(value)
        if array.shape != space.shape:
            raise ValueError(f"an observation has the shape {array.shape}, its space says {space.shape}")
        if self.image is not None and self.channels_first:
            array = np.moveaxis(array, 0, -1)
        return array.ravel()

    def decode(self, flat: np.ndarray) -> np.ndarray:
        """(B, width) -> (B, ...) as the environment gives it."""
        space, rows = self.space, flat.shape[0]
        if isinstance(space, spaces.Discrete):
            return (flat.argmax(-1) + space.start).astype(np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            chosen = [part.argmax(-1) for part in np.split(flat, np.cumsum(space.nvec.ravel())[:-1], axis=-1)]
            return np.stack(chosen, -1).reshape(rows, *space.shape) + space.start
        if self.image is not None:
            flat = flat.reshape(rows, *self.image)
            flat = np.moveaxis(flat, -1, 1) if self.channels_first else flat
        assert space.shape is not None
        return flat.reshape(rows, *space.shape).astype(np.dtype(space.dtype))


def _one_hot(values: np.ndarray, sizes: Any) -> np.ndarray:
    if np.any(values < 0) or np.any(values >= sizes):
        raise ValueError("an observation has a discrete value that is not in its space")
    flat = np.zeros(int(np.sum(sizes)), np.float32)
    flat[np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int) + values.astype(int)] = 1.0
    return flat


class Observations:
    """Translation of one observation space. A single image stays uint8, everything else becomes float32."""

    def __init__(self, space: spaces.Space):
        self.space = space
        self.leaves: list[Leaf] = []
        offset = 0
        for path, inner in leaves(space):
            self.leaves.append(Leaf(inner, path, offset))
            offset += self.leaves[-1].width
        if offset == 0:
            raise InputError("the observation space is empty: a policy needs at least one number to look at")
        only = self.leaves[0]
        single = len(self.leaves) == 1
        self.shape: tuple[int, ...] = (offset,)
        self.dtype: Any = np.float32
        if single and isinstance(only.space, spaces.Box):
            self.shape = only.image or only.space.shape or (1,)
            self.dtype = np.uint8 if only.space.dtype == np.uint8 and only.image else np.float32
        # Numbers that need no translation at all, which most environments observe.
        self._plain = single and isinstance(only.space, spaces.Box) and not only.image and only.space.shape != ()
        self.images: tuple[ImageSpec, ...] = tuple(
            ImageSpec(leaf.offset, leaf.image, leaf.scale) for leaf in self.leaves if leaf.image is not None
        )

    def encode(self, value: Any) -> np.ndarray:
        if self._plain:
            array = np.asarray(value)
            if array.shape != self.shape:
                raise ValueError(f"an observation has the shape {array.shape}, its space says {self.shape}")
            return array.astype(self.dtype, copy=False)
        parts = [leaf.encode(at(value, leaf.path)) for leaf in self.leaves]
        flat = parts[0] if len(parts) == 1 else np.concatenate([part.astype(np.float32) for part in parts])
        return flat.reshape(self.shape).astype(self.dtype, copy=False)

    def decode(self, batch: np.ndarray) -> Any:
        """(B, *shape) -> what the environment gives, with a leading axis of B on every leaf."""
        flat = np.asarray(batch).reshape(len(batch), -1)
        values = {leaf.path: leaf.decode(flat[:, leaf.offset : leaf.offset + leaf.width]) for leaf in self.leaves}
        return nested(self.space, values)


# Actions --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Actions:
    """Translation of one action space: what the policy must produce, and a row of it as the environment's action."""

    space: ActionSpace
    decode: Callable[[np.ndarray], Any]


def actions_of(space: spaces.Space, scaled: bool = True) -> Actions:
    """How a policy's numbers become actions; those of boxes are scaled to their bounds unless not `scaled`."""
    parts = list(leaves(space))
    if parts and all(isinstance(part, spaces.Box) for _, part in parts):
        return _box_actions(space, parts) if scaled else _physical_actions(space)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Actions(ActionSpace("discrete", int(space.n)), lambda row: int(row) + start)
    if parts and all(
        isinstance(part, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) for _, part in parts
    ):
        return _discrete_actions(space, parts)
    kinds = ", ".join(sorted({type(part).__name__ for _, part in parts})) or type(space).__name__
    raise InputError(
        f"the action space holds {kinds}: allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of "
        "boxes alone or of discrete spaces alone"
    )


def _box_actions(space: spaces.Space, parts: list[tuple[Path, Any]]) -> Actions:
    low = np.concatenate([part.low.ravel() for _, part in parts]).astype(np.float64)
    high = np.concatenate([part.high.ravel() for _, part in parts]).astype(np.float64)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        endless = int(np.sum(~(np.isfinite(low) & np.isfinite(high))))
        raise InputError(
            f"{endless} of {low.size} action dimensions have infinite bounds: actions are scaled to their bounds, so "
            "give the space finite ones (gymnasium.wrappers.TransformAction with a new Box)"
        )
    if not np.all(low < high):
        raise InputError("the action space has a lower bound that is not below its upper bound: give it room to act")
    width = high - low
    space_of_policy = ActionSpace("box", low.size, tuple(low.tolist()), tuple(high.tolist()), scaled=True)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Actions(space_of_policy, functools.partial(_scaled, low, high, 0.5 * width, space.shape, space.dtype))
    offsets = np.cumsum([0, *(math.prod(part.shape) for _, part in parts)])

    def decode(row: np.ndarray) -> Any:
        scaled = low + 0.5 * (np.clip(np.asarray(row, np.float64), -1.0, 1.0) + 1.0) * width
        scaled = np.clip(scaled, low, high)  # rounding may lead out of the bounds
        values = {}
        for i, (path, part) in enumerate(parts):
            value = scaled[offsets[i] : offsets[i + 1]].reshape(part.shape)
            values[path] = (np.rint(value) if np.issubdtype(part.dtype, np.integer) else value).astype(part.dtype)
        return nested(space, values)

    return Actions(space_of_policy, decode)


def _scaled(low: Any, high: Any, half_width: Any, shape: tuple[int, ...], dtype: Any, row: np.ndarray) -> np.ndarray:
    """What `decode` gives for a single box of real numbers, which most environments have, in a third of its time."""
    scaled = np.maximum(np.asarray(row, np.float64), -1.0)
    np.minimum(scaled, 1.0, out=scaled)
    scaled += 1.0
    scaled *= half_width
    scaled += low
    np.maximum(scaled, low, out=scaled)
    np.minimum(scaled, high, out=scaled)
    return scaled.reshape(shape).astype(dtype)


def _physical_actions(space: spaces.Space) -> Actions:
    """Actions of a policy that acts in the environment's own units; bounds are the environment's to enforce."""
    assert isinstance(space, spaces.Box)
    low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
    action = ActionSpace("box", math.prod(space.shape), low, high)
    return Actions(action, lambda row: np.asarray(row, np.float32).reshape(space.shape))


def _discrete_actions(space: spaces.Space, parts: list[tuple[Path, Any]]) -> Actions:
    sizes, starts = [], []
    for _, part in parts:
        if isinstance(part, spaces.Discrete):
            sizes.append([int(part.n)])
            starts.append(np.asarray([part.start]))
        elif isinstance(part, spaces.MultiDiscrete):
            sizes.append([int(n) for n in part.nvec.ravel()])
            starts.append(np.asarray(part.start).ravel())
        else:
            sizes.append([2] * math.prod(part.shape))
            starts.append(np.zeros(math.prod(part.shape), int))
    nvec = tuple(size for group in sizes for size in group)
    offsets = np.cumsum([0, *(len(group) for group in sizes)])

    def decode(row: np.ndarray) -> Any:
        row = np.asarray(row).astype(np.int64)
        values: dict[Path, Any] = {}
        for i, (path, part) in enumerate(parts):
            chosen = row[offsets[i] : offsets[i + 1]] + starts[i]
            single = isinstance(part, spaces.Discrete)
            values[path] = int(chosen[0]) if single else chosen.reshape(part.shape).astype(part.dtype)
        return nested(space, values)

    return Actions(ActionSpace("multidiscrete", sum(nvec), nvec=nvec), decode)
