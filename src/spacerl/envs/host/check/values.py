"""Whether the observations, rewards and costs of single steps are what the spaces say, and finite numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from spacerl.envs.host.check.findings import Recorder
from spacerl.envs.host.spaces import Leaf, Observations, at

NOT_FINITE = "look for a division by zero or a simulation that diverged, and end the episode there"


def checked_number(value: Any, what: str, when: str, recorder: Recorder) -> float:
    """A reward or cost as a float, NaN where it is none."""
    try:
        number = float(value.item() if isinstance(value, np.ndarray) else value)  # an array of one number is one
    except (TypeError, ValueError):
        recorder.problem(what, f"{when} gave the {what} {value!r}, which is not a number", "return a float")
        return math.nan
    if not math.isfinite(number):
        recorder.problem(what, f"{when} gave the {what} {number}, which is not finite", NOT_FINITE)
    return number


def check_observation(
    observations: Observations, obs: Any, when: str, largest: dict[str, float], recorder: Recorder
) -> None:
    """One observation, leaf by leaf, against what its space says.

    `largest` keeps the largest absolute value of every leaf that is no image.
    """
    for leaf in observations.leaves:
        name = "observation" + "".join(f"[{key!r}]" for key in leaf.path)
        value = _array_of_leaf(leaf, name, obs, when, recorder)
        if value is None:
            continue
        if isinstance(leaf.space, spaces.Box):
            _check_box(leaf.space, name, value, when, recorder)
            if leaf.image is None:
                largest[name] = max(largest.get(name, 0.0), float(np.abs(value.astype(np.float64)).max(initial=0.0)))
        else:
            _check_discrete(leaf.space, name, value, when, recorder)


def _array_of_leaf(leaf: Leaf, name: str, obs: Any, when: str, recorder: Recorder) -> np.ndarray | None:
    """Finite numbers of the shape that the space says; None, and a problem, where there are none."""
    try:
        value = np.asarray(at(obs, leaf.path))
    except (KeyError, IndexError, TypeError):
        text = f"{when} gave no {name}, which its space promises"
        recorder.problem(f"part {name}", text, "give every part that the space names, on every step")
        return None
    if value.shape != leaf.space.shape:
        text = f"{when} gave an {name} of shape {value.shape}, its space says {leaf.space.shape}"
        recorder.problem(f"shape {name}", text, "make observation_space say what reset and step give")
        return None
    if value.dtype.kind not in "biuf":
        text = f"{when} gave an {name} of {value.dtype}, which are not numbers"
        recorder.problem(f"dtype {name}", text, "return a NumPy array of numbers")
        return None
    if not np.isfinite(value).all():
        recorder.problem(f"finite {name}", f"{when} gave an {name} with a number that is not finite", NOT_FINITE)
        return None
    return value


def _check_box(space: spaces.Box, name: str, value: np.ndarray, when: str, recorder: Recorder) -> None:
    _check_dtype(space, name, value, when, recorder)
    numbers = value.astype(np.float64)  # of bytes the differences would wrap around
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    outside = np.maximum(low - numbers, numbers - high).max() if value.size else 0.0
    if outside > 1e-6 * (1.0 + np.abs(numbers).max(initial=0.0)):
        text = f"{when} gave an {name} outside of its bounds, by {outside:.3g}"
        recorder.note(f"bounds {name}", text, "widen the bounds of observation_space, or clip the observation")


def _check_dtype(space: spaces.Box, name: str, value: np.ndarray, when: str, recorder: Recorder) -> None:
    if value.dtype == space.dtype:
        return
    text = f"{when} gave an {name} of {value.dtype}, its space says {space.dtype}"
    if np.issubdtype(space.dtype, np.integer) and not np.array_equal(value, np.round(value)):
        fix = f"return {space.dtype}, or give the space the dtype {value.dtype}: what is after the point gets lost"
        recorder.problem(f"dtype {name}", text, fix)
    else:
        recorder.note(f"dtype {name}", f"{text}; it is converted", f"return {space.dtype}")


def _check_discrete(space: Any, name: str, value: np.ndarray, when: str, recorder: Recorder) -> None:
    if space.contains(value if value.shape else value.item()) or _contains_as_integers(space, value):
        return
    text = f"{when} gave the {name} {value.tolist()}, which is not in {space}"
    recorder.problem(f"bounds {name}", text, "make observation_space as large as what reset and step give")


def _contains_as_integers(space: Any, value: np.ndarray) -> bool:
    """Whole numbers of another dtype than the space's are as good."""
    return bool(np.all(value == value.astype(np.int64))) and space.contains(value.astype(space.dtype))
