"""What all foreign policies share: the record they become, and how the outputs of a network are read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spacerl.runs.names import nearest_file
from spacerl.types import ActionSpace, InputError

Raw = Callable[[np.ndarray], Any]  # our observations (B, *obs_shape) -> the environment's, arrays or a dict of them
Output = np.ndarray | tuple[np.ndarray, np.ndarray]
CHUNK = 4096  # observations evaluated at once: enough for speed, little enough for images


class Foreign(NamedTuple):
    """A policy made elsewhere. `function` takes observations (B, *obs_shape) and answers in the environment's units.

    box: (mean, std), each (B, A), or the mean alone; discrete: probabilities (B, n), or actions (B,) as integers;
    multidiscrete: probabilities side by side (B, sum(nvec)), or actions (B, D) as integers. `deterministic` says
    that only actions are stated, without a spread.
    """

    name: str
    kind: str
    function: Callable[[np.ndarray], Output]
    deterministic: bool
    info: dict[str, Any]


class Reading(NamedTuple):
    """How the named outputs of a network become ours."""

    says: str
    deterministic: bool
    read: Callable[[dict[str, np.ndarray], int], Output]  # outputs, number of observations


# ---------------------------------------------------------------- files and packages


def existing(given: str) -> Path:
    path = Path(given)
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(f"policy file '{given}' is a folder: give the file itself")
    raise InputError(f"policy file '{given}' does not exist{nearest_file(path)}")


def need(module: str, given: str, what: str, extra: str) -> Any:
    """Import a package that is not among our dependencies."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"'{given}' is {what} and {module} cannot be imported: install it with pip install 'spacerl[{extra}]'"
        ) from error


def require_trust(trust: bool, given: str, why: str) -> None:
    if not trust:
        raise InputError(
            f"'{given}' {why}, which can run any code when loaded: pass --trust (trust=True) if you trust its origin"
        )


# ---------------------------------------------------------------- observations


def flat_or_raw(obs_shape: tuple[int, ...], raw: Raw | None, fits: Callable[[tuple[int, ...]], bool]) -> Raw | None:
    """What to feed a network with one input: the environment's observation where it fits, ours otherwise, or None."""
    if raw is not None:
        example = raw(np.zeros((2, *obs_shape), np.float32))
        if not isinstance(example, dict) and fits(np.asarray(example).shape[1:]):
            return raw
    return unchanged if fits(obs_shape) else None


def unchanged(obs: np.ndarray) -> np.ndarray:
    return obs


def in_chunks(evaluate: Callable[[np.ndarray], Output], obs: np.ndarray, rows: int = CHUNK) -> Output:
    parts: list[Any] = [evaluate(obs[i : i + rows]) for i in range(0, max(len(obs), 1), rows)]
    if isinstance(parts[0], tuple):
        means, stds = zip(*parts, strict=True)
        return np.concatenate(means), np.concatenate(stds)
    return np.concatenate(parts)


# ---------------------------------------------------------------- outputs of a network


def reading_of(outputs: dict[str, np.ndarray], count: int, action: ActionSpace, given: str) -> Reading:
    """How to read a network's outputs, from their names and from an example on `count` observations.

    Box: mean with std or log_std; mean or action alone, or the only output, is an action. Otherwise: probabilities,
    logits, or action; the only output is an action where it holds integers, probabilities where all rows are some,
    and else logits.
    """
    reading_for = _box_reading if action.kind == "box" else _discrete_reading
    reading = reading_for(outputs, action, given)
    for name, output in outputs.items():
        if np.issubdtype(output.dtype, np.floating) and not np.isfinite(output).all():
            raise InputError(f"'{given}' gave a number in {name} that is not finite, on observations that are")
    reading.read(outputs, count)  # complains about shapes before training
    return reading


def _box_reading(outputs: dict[str, np.ndarray], action: ActionSpace, given: str) -> Reading:
    def pair(of: str, change: Callable) -> Reading:
        def read(found: dict[str, np.ndarray], count: int) -> Output:
            mean, std = (shaped(found[name], count, action.size, given, name) for name in ("mean", of))
            std = change(std)
            if not np.all(std > 0):
                raise InputError(f"'{given}' gave a standard deviation of {std.min():.3g}: it must be above 0")
            return mean, std

        return Reading(f"mean and {of}", False, read)

    if "mean" in outputs and "std" in outputs:
        return pair("std", np.asarray)
    if "mean" in outputs and "log_std" in outputs:
        return pair("log_std", np.exp)
    name = _only(outputs, ("mean", "action"))
    if name is None:
        raise _unread(outputs, given, "mean and std, mean and log_std, or action")
    return Reading(f"{name} as action", True, lambda found, n: shaped(found[name], n, action.size, given, name))


def _discrete_reading(outputs: dict[str, np.ndarray], action: ActionSpace, given: str) -> Reading:
    lists = nvec_of(action)
    name = _only(outputs, ("probabilities", "logits", "action"))
    if name is None:
        raise _unread(outputs, given, "probabilities, logits or action")
    whole = np.issubdtype(outputs[name].dtype, np.integer)
    if name == "action" or (whole and name not in ("probabilities", "logits")):
        return Reading(f"{name} as action", True, lambda found, n: as_discrete(found[name], n, action, given))

    def numbers(found: dict[str, np.ndarray], count: int) -> np.ndarray:
        return shaped(found[name], count, action.size, given, name)

    first = outputs[name]
    sums_to_one = name == "probabilities" or (
        name != "logits" and first.ndim == 2 and first.shape[1] == action.size and are_probabilities(first, lists)
    )
    if sums_to_one:
        return Reading(f"{name} as probabilities", False, numbers)
    return Reading(f"{name} as logits", False, lambda found, n: softmax(numbers(found, n), lists))


def _only(outputs: dict[str, np.ndarray], known: tuple[str, ...]) -> str | None:
    for name in known:
        if name in outputs:
            return name
    return next(iter(outputs)) if len(outputs) == 1 else None


def _unread(outputs: dict[str, np.ndarray], given: str, allowed: str) -> InputError:
    return InputError(f"'{given}' has outputs named {', '.join(outputs)}: allowed are {allowed}, or a single output")


def shaped(value: Any, count: int, size: int, given: str, what: str) -> np.ndarray:
    """Numbers (count, size); one row or one number for all observations will do."""
    array = np.asarray(value, np.float32)
    if array.shape[:1] == (count,) and array.size == count * size:
        return array.reshape(count, size)
    try:
        return np.broadcast_to(array, (count, size)).copy()
    except ValueError as error:
        raise InputError(
            f"'{given}' gave {what} of shape {array.shape} for {count} observations: {(count, size)} is expected"
        ) from error


def as_discrete(value: Any, count: int, action: ActionSpace, given: str) -> np.ndarray:
    """Discrete actions as integers, (count,) for one list and (count, D) for D lists."""
    lists = nvec_of(action)
    shape = (count,) if action.kind == "discrete" else (count, len(lists))
    array = np.asarray(value)
    if array.size != count * len(lists) or array.shape[:1] != (count,):
        raise InputError(f"'{given}' gave actions of shape {array.shape} for {count} observations: {shape} is expected")
    whole = np.rint(array).reshape(count, len(lists))
    if not (np.array_equal(whole, array.reshape(whole.shape)) and np.all(whole >= 0) and np.all(whole < lists)):
        raise InputError(f"'{given}' gave actions that are no whole numbers from 0 to below {list(lists)}")
    return whole.astype(np.int64).reshape(shape)


def nvec_of(action: ActionSpace) -> tuple[int, ...]:
    return tuple(action.nvec) if action.kind == "multidiscrete" else (action.size,)


def _lists(array: np.ndarray, lists: tuple[int, ...]) -> list[np.ndarray]:
    return np.split(array, np.cumsum(lists)[:-1], axis=-1)


def are_probabilities(array: np.ndarray, lists: tuple[int, ...]) -> bool:
    return bool(np.all(array >= 0)) and all(np.allclose(x.sum(-1), 1.0, atol=1e-4) for x in _lists(array, lists))


def softmax(logits: np.ndarray, lists: tuple[int, ...]) -> np.ndarray:
    """Probabilities of every list of actions, side by side."""
    powers = [np.exp(x - x.max(-1, keepdims=True)) for x in _lists(logits, lists)]
    return np.concatenate([x / x.sum(-1, keepdims=True) for x in powers], axis=-1)


def probe(obs_shape: tuple[int, ...], rows: int = 8) -> np.ndarray:
    """Observations to try a policy on: zeros, then numbers from 0 to 1."""
    numbers = np.random.default_rng(0).uniform(size=(rows, *obs_shape)).astype(np.float32)
    numbers[: rows // 2] = 0.0
    return numbers
