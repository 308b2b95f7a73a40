"""The ground of a track as an image: grass, road and borders, once for an episode, at several resolutions.

A texel holds red, green and blue in ten bits each of one number, so that four of them can be added at once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

TEXEL = 0.25  # side in the track's units; a pixel of an observation is 0.64 x 0.51 of them
EDGE = 352.0  # the image reaches from -EDGE to EDGE; nothing is beyond the playing field, which is a little smaller
LEVELS = 6  # each with texels twice as wide as the one before
SIDE = int(2 * EDGE / TEXEL)
SHIFTS = (0, 10, 20)  # where red, green and blue begin
ONE_EACH = sum(1 << shift for shift in SHIFTS)
Quad = Sequence[Sequence[float]]


def mean_of_four(total: np.ndarray) -> np.ndarray:
    """Texels of which four were added, divided by four and rounded."""
    return ((total + np.uint32(2 * ONE_EACH)) >> 2) & np.uint32(255 * ONE_EACH)


def _share(low: float, high: float) -> np.ndarray:
    """(SIDE,) which part of each texel lies between two lines."""
    left = np.arange(SIDE) * TEXEL - EDGE
    return np.clip((np.minimum(left + TEXEL, high) - np.maximum(left, low)) / TEXEL, 0.0, 1.0).astype(np.float32)


@functools.cache
def grass(field: float, side: float, background: tuple[int, ...], patch: tuple[int, ...]) -> np.ndarray:
    """The playing field without a road: lighter patches on every other square of it, black around it."""
    inside = _share(-field, field)
    lighter = sum((_share(side * k, side * (k + 1)) for k in range(-20, 20, 2)), np.zeros(SIDE, np.float32))
    texels = np.zeros((SIDE, SIDE), np.uint32)
    for ground, light, shift in zip(background, patch, SHIFTS, strict=True):
        values = ground * np.outer(inside, inside) + (light - ground) * np.outer(lighter, lighter)
        texels |= np.rint(values).astype(np.uint32) << np.uint32(shift)
    texels.setflags(write=False)
    return texels


class World:
    """Texels (rows are y, columns x) of one track after another, finest first."""

    def __init__(self) -> None:
        self.levels = [np.empty((SIDE >> level, SIDE >> level), np.uint32) for level in range(LEVELS)]

    def begin(self, ground: np.ndarray) -> None:
        np.copyto(self.levels[0], ground)

    def cover(self, quad: Quad, colour: Sequence[int]) -> None:
        """Paint one piece of the road."""
        window, share = _covered(quad)
        texels = self.levels[0][window]
        texels[share >= 1.0] = sum(part << shift for part, shift in zip(colour, SHIFTS, strict=True))
        edge = np.nonzero((share > 0.0) & (share < 1.0))
        old, parts, result = texels[edge], share[edge], np.zeros(len(edge[0]), np.uint32)
        for part, shift in zip(colour, SHIFTS, strict=True):
            before = (old >> shift) & 255
            result |= np.rint(before + (np.float32(part) - before) * parts).astype(np.uint32) << shift
        texels[edge] = result

    def darken(self, quad: Quad, by: int) -> None:
        """Take a few levels of brightness off a piece of the road: it was driven on."""
        window, share = _covered(quad)
        self.levels[0][window] -= np.rint(share * by).astype(np.uint32) * np.uint32(ONE_EACH)

    def finish(self) -> None:
        """Make the coarser levels; `darken` leaves them as they are."""
        for fine, coarse in itertools.pairwise(self.levels):
            rows = fine[0::2] + fine[1::2]
            coarse[...] = mean_of_four(rows[:, 0::2] + rows[:, 1::2])


def _covered(quad: Quad) -> tuple[tuple[slice, slice], np.ndarray]:
    """The window of texels around a convex quadrilateral, and which part of each it covers.

    Its first and third side, across the road, are moved out by half a texel: no grass shines through where two
    pieces meet.
    """
    corners = [((float(x) + EDGE) / TEXEL, (float(y) + EDGE) / TEXEL) for x, y in quad]
    columns, rows = (_around([corner[axis] for corner in corners]) for axis in (0, 1))
    x = np.arange(columns.start, columns.stop, dtype=np.float32) + np.float32(0.5)
    y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] + np.float32(0.5)
    following = corners[1:] + corners[:1]
    turn = sum(x0 * y1 - y0 * x1 for (x0, y0), (x1, y1) in zip(corners, following, strict=True))
    share: np.ndarray | None = None
    for side, ((x0, y0), (x1, y1)) in enumerate(zip(corners, following, strict=True)):
        length = math.copysign(max(math.hypot(x1 - x0, y1 - y0), 1e-9), turn)
        a, b = (y0 - y1) / length, (x1 - x0) / length
        inside = np.float32(a) * x + (np.float32(b) * y + np.float32((1.0 if side % 2 == 0 else 0.5) - a * x0 - b * y0))
        share = inside if share is None else np.minimum(share, inside, out=share)
    assert share is not None
    return (rows, columns), np.clip(share, 0.0, 1.0, out=share)


def _around(places: list[float]) -> slice:
    return slice(max(math.floor(min(places)) - 1, 0), min(math.ceil(max(places)) + 1, SIDE))
