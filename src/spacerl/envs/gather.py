"""Where apples and bombs may lie, for the point robot and for the ant."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


@functools.cache
def free_cells(half_width: float, spacing: float) -> np.ndarray:
    """Places an object may take, (cells, 2) m: the 2 m grid without its upper end, and without what is too near.

    With the defaults: {-6, -4, -2, 0, 2, 4}^2 without the origin, 35 cells. The grid is lopsided (never +6) because the
    original draws its integers from a half-open range.
    """
    half_steps = int(half_width / 2)
    axis = 2.0 * np.arange(-half_steps, half_steps)
    cells = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    free = cells[np.sum(cells**2, axis=1) >= spacing**2].astype(np.float32)
    free.flags.writeable = False  # it is handed out again
    return free


def require_sense(task: Any) -> None:
    """Complain about settings of a gather task that contradict themselves."""
    if task.sensor_span / task.sensor_bins >= np.pi:
        raise ValueError(f"{task.sensor_bins} bins over {task.sensor_span:g} rad: a bin must span less than pi")
    allowed = len(free_cells(task.half_width, task.spacing))
    if task.n_apples + task.n_bombs > allowed:
        raise ValueError(
            f"{task.n_apples} apples and {task.n_bombs} bombs do not fit: an arena of half width "
            f"{task.half_width:g} has {allowed} places"
        )
