"""Memory that a run and its worker processes share: commands go one way, what came of them the other.

A step of a quick simulator takes less time than to pickle its numbers, so they are not: a message is one byte that says
that the arrays are ready.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import NamedTuple

import numpy as np

from spacerl.types import EnvSpec, Tick

ALIGNMENT = 64  # bytes, a line of a processor's cache: lanes of two processes do not share one within an array's start


class Told(NamedTuple):
    """What a tick tells every lane; the arguments of `BatchEnv.tick`."""

    command: np.ndarray  # (lanes,)
    action: np.ndarray  # (lanes, ...)
    last: np.ndarray  # (lanes,) bool
    seed: np.ndarray  # (lanes,)


def new_memory() -> int:
    """A file without a name, in memory where the system has such files; its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("spacerl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedTick:
    """Arrays over all lanes in one such file. Whoever maps it first makes it as large as it must be."""

    def __init__(self, descriptor: int, spec: EnvSpec, lanes: int):
        costs = len(spec.cost_names)
        told = (((), np.int64), (spec.action.shape, spec.action.dtype), ((), np.bool_), ((), np.int64))
        obs = (spec.obs_shape, spec.obs_dtype)
        flag = ((), np.bool_)
        came = (obs, obs, ((), np.float32), ((costs,), np.float32), flag, flag, flag)
        shapes = [((lanes, *shape), np.dtype(kind)) for shape, kind in (*told, *came)]
        sizes = [-(-int(np.prod(shape)) * kind.itemsize // ALIGNMENT) * ALIGNMENT for shape, kind in shapes]
        if os.fstat(descriptor).st_size < sum(sizes):
            os.ftruncate(descriptor, sum(sizes))
        memory = mmap.mmap(descriptor, sum(sizes))
        begins = np.cumsum([0, *sizes])
        arrays = [
            np.frombuffer(memory, kind, int(np.prod(shape)), int(begin)).reshape(shape)
            for (shape, kind), begin in zip(shapes, begins, strict=False)
        ]
        self.told = Told(*arrays[: len(told)])
        self.came = Tick(*arrays[len(told) :])

    def tell(self, command: np.ndarray, action: np.ndarray, last: np.ndarray, seed: np.ndarray) -> None:
        for array, value in zip(self.told, (command, action, last, seed), strict=True):
            array[...] = value

    def answer(self, own: slice, tick: Tick) -> None:
        for array, value in zip(self.came, tick, strict=True):
            array[own] = value

    def told_to(self, own: slice) -> Told:
        return Told(*(array[own] for array in self.told))

    def result(self) -> Tick:
        """A copy, which the next tick leaves alone."""
        return Tick(*(array.copy() for array in self.came))
