"""What our Gymnasium environments ask of those who call them, with one sentence where it is not given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np


def known_render_mode(mode: str | None, known: Sequence[str]) -> str | None:
    if mode is not None and mode not in known:
        raise ValueError(f"render_mode {mode!r} is unknown; use 'rgb_array', or None to draw nothing")
    return mode


def require_reset(started: bool, before: str) -> None:
    if not started:
        raise gymnasium.error.ResetNeeded(f"call reset() before {before}")


def can_render(mode: str | None, started: bool) -> bool:
    """Whether there is something to draw with; an error where there is nothing to draw yet."""
    if mode is None:
        gymnasium.logger.warn("render() needs a render mode; pass render_mode='rgb_array' to gymnasium.make")
        return False
    require_reset(started, "render()")
    return True


def action_of_shape(action: Any, shape: tuple[int, ...] | None, dtype: Any) -> np.ndarray:
    action = np.asarray(action, dtype)
    if action.shape != shape:
        raise ValueError(f"an action has the shape {shape}, this one has {action.shape}")
    return action
