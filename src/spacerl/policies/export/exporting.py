"""A finished policy as a file that others can run without spacerl: ONNX, one NumPy-only Python file, or plain arrays.

Exports speak the environment's units, take raw observations, and are written only after they gave the same numbers as
the original on random observations.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import spacerl
from spacerl.policies.export import npz, onnx, python
from spacerl.policies.export.original import ActionPart, ObservationPart, Original, Outputs, outputs
from spacerl.policies.family import PolicyFamily
from spacerl.runs.folder import write_atomically
from spacerl.runs.lock import require_new_file
from spacerl.types import ActionSpace, Array, InputError

TOLERANCE = 1e-4  # of the largest number compared, or of 1: float32 summed in another order


class Forms(NamedTuple):
    """The parts of what an environment observes and takes; empty where it is one plain array."""

    observation: tuple[ObservationPart, ...] = ()
    action: tuple[ActionPart, ...] = ()


class Format(NamedTuple):
    """How files of a suffix are made, and run again to be compared."""

    make: Callable[[Original], bytes]
    run: Callable[[bytes, PolicyFamily, np.ndarray], Outputs]


FORMATS = {
    ".onnx": Format(onnx.make, onnx.run),
    ".py": Format(python.make, python.run),
    ".npz": Format(npz.make, npz.run),
}


def export_policy(
    family: PolicyFamily,
    theta: Array,
    path: str | Path,
    info: dict[str, Any],
    action: ActionSpace,
    forms: Forms = Forms(),  # noqa: B008  a record without state
) -> float:
    """Write the policy theta (of raw observations: folded) to `path`, in the format its suffix names.

    `action` is the task's action space, which has the bounds; `forms` are what the environment gives and takes where
    these are not plain arrays. Returns the largest difference between the outputs of the export and of the original;
    too large a one raises RuntimeError and writes nothing.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        given = f"'{path.suffix}'" if path.suffix else "no suffix"
        raise InputError(f"cannot export to '{path}': it has {given}, allowed are {', '.join(FORMATS)}")
    require_new_file(path)
    original = Original(
        family=family,
        theta=theta,
        action=action,
        info=info,
        description=_description(family, info, action, forms.observation),
        observation_parts=forms.observation,
        action_parts=forms.action,
    )
    content = FORMATS[path.suffix].make(original)
    difference = _largest_difference(content, original, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return difference


# What a file says about itself ---------------------------------------------------------------------------------------


def _description(
    family: PolicyFamily, info: dict[str, Any], action: ActionSpace, parts: tuple[ObservationPart, ...]
) -> str:
    """What a reader of the file must know, in lines of at most 100 characters."""
    task = f" for the task {info['task']}" if info.get("task") else ""
    by = f", learned by {info['algorithm']}" if info.get("algorithm") else ""
    shape = " x ".join(map(str, family.obs_shape))
    actions = {
        "box": f"{action.size} real numbers in the environment's units, normally distributed before they are clipped",
        "discrete": f"one of {action.size} (Discrete), counted from 0",
        "multidiscrete": f"{len(action.nvec)} with {_listed(action.nvec)} values (MultiDiscrete), counted from 0",
    }
    lines = [
        f"A policy{task}{by}. Made by spacerl {spacerl.__version__}.",
        "",
        f"Observations: {shape} numbers, as the environment gives them{_order_of(parts)}.",
        f"Actions: {actions[action.kind]}.",
    ]
    if action.kind == "box" and action.low:
        lines += [f"Bounds: {_listed(action.low)} to {_listed(action.high)}."]
    return "\n".join(part for line in map(_harmless, lines) for part in textwrap.wrap(line, 100) or [""])


def _order_of(parts: tuple[ObservationPart, ...]) -> str:
    """The parts of a flat observation one after the other, by name."""
    return "; one after the other: " + "; ".join(map(_part_in_words, parts)) if parts else ""


def _part_in_words(part: ObservationPart) -> str:
    name = ".".join(map(str, part.path)) or "the whole"
    if part.kind == "one-hot":
        return f"{name} (one-hot, {' + '.join(map(str, part.counts))} values from {_listed(part.starts)} on)"
    size = " x ".join(map(str, part.shape)) or "1"
    return f"{name} ({size}{', its channels moved to the end' if part.kind == 'channels-first' else ''})"


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _harmless(text: str) -> str:
    """One line that cannot end a docstring: what files say about themselves is not to be run."""
    return "".join(c if c.isprintable() else " " for c in text).replace("\\", "/").replace('"', "'")


# Checking ------------------------------------------------------------------------------------------------------------


def _largest_difference(content: bytes, original: Original, path: Path) -> float:
    family, obs = original.family, _random_observations(original.family)
    expected, difference = outputs(family, original.theta, original.action, obs), 0.0
    for rows in (1, len(obs)):  # batches of different sizes
        wanted = {name: array[:rows] for name, array in expected.items()}
        found = FORMATS[path.suffix].run(content, family, obs[:rows])
        difference = max(difference, _compared(found, wanted, path))
    return difference


def _random_observations(family: PolicyFamily, rows: int = 16) -> np.ndarray:
    """Numbers of about one and of about ten; pixels over all of their range."""
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(rows, math.prod(family.obs_shape))) * np.where(np.arange(rows) % 2, 10.0, 1.0)[:, None]
    for offset, shape, scale in family.images:
        pixels = rng.uniform(0.0, 1.0 / scale, size=(rows, math.prod(shape)))
        flat[:, offset : offset + math.prod(shape)] = np.rint(pixels) if scale < 0.5 else pixels
    return flat.astype(np.float32).reshape(rows, *family.obs_shape)


def _compared(found: Outputs, expected: Outputs, path: Path) -> float:
    """Largest difference of what both have; a discrete action need not be compared: rounding breaks ties."""
    worst = 0.0
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape:
            raise RuntimeError(f"export to '{path}' has {name} of shape {found[name].shape}, not {wanted.shape}")
        difference = float(np.max(np.abs(found[name] - wanted)))
        if not difference <= TOLERANCE * max(1.0, float(np.max(np.abs(wanted)))):
            raise RuntimeError(f"export to '{path}' differs from the original: {name} by {difference:.3g}")
        worst = max(worst, difference)
    return worst
