"""MODULE:FUNCTION and FILE.py:FUNCTION. Naming one's own code is the request to run it, so no trust is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spacerl.policies.foreign.common import Foreign, Output, Raw, as_discrete, shaped
from spacerl.runs.names import in_words, python_object
from spacerl.types import ActionSpace, InputError


def load_python(given: str, action: ActionSpace, obs_shape: tuple[int, ...], raw: Raw | None) -> Foreign:
    found = python_object(given, "baseline")
    if isinstance(found, type):
        raise InputError(f"baseline '{given}' is a class: give a function of a batch of observations, or an object")
    if not callable(found):
        raise InputError(
            f"baseline '{given}' is of type {type(found).__name__} and cannot be called: "
            "give a function of a batch of observations"
        )
    return from_callable(found, given, action, obs_shape, raw)


def from_callable(
    function: Callable[[Any], Any], name: str, action: ActionSpace, obs_shape: tuple[int, ...], raw: Raw | None = None
) -> Foreign:
    """Any function of a batch of the environment's observations; it may return arrays, lists or tensors."""

    def call(obs: np.ndarray) -> Any:
        given = obs if raw is None else raw(obs)
        try:
            output = function(given)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"baseline '{name}' raised {in_words(error)}, given {len(obs)} observations {_shapes(given)}"
            ) from error
        # What `predict` of Stable-Baselines3 returns: actions, and the state of a policy that has none.
        acted = isinstance(output, tuple) and len(output) == 2 and output[1] is None
        return output[0] if acted else output

    # Three rows: a pair (mean, std) cannot be mistaken for the actions of two observations.
    first = call(np.zeros((3, *obs_shape), np.float32))
    pair = action.kind == "box" and isinstance(first, tuple | list) and len(first) == 2
    settle = _pair if pair else _actions if action.kind == "box" else _discrete
    settled = settle(first, 3, action, name)
    whole = isinstance(settled, np.ndarray) and settled.dtype == np.int64
    deterministic = not pair and (action.kind == "box" or whole)
    return Foreign(
        name,
        "python",
        lambda obs: settle(call(obs), len(obs), action, name),
        deterministic,
        {"returned": _returned(action, deterministic)},
    )


def _pair(output: Any, count: int, action: ActionSpace, name: str) -> Output:
    if not (isinstance(output, tuple | list) and len(output) == 2):
        raise InputError(
            f"baseline '{name}' returned a pair (mean, standard deviation) at first, and now something else"
        )
    mean, std = (_array(part, name) for part in output)
    mean = shaped(mean, count, action.size, name, "means")
    return mean, shaped(std, count, action.size, name, "standard deviations")


def _actions(output: Any, count: int, action: ActionSpace, name: str) -> Output:
    return shaped(_array(output, name), count, action.size, name, "actions")


def _discrete(output: Any, count: int, action: ActionSpace, name: str) -> Output:
    """Probabilities where there is a number for every action, and actions where there is an integer for every list."""
    if isinstance(output, tuple):
        raise InputError(f"baseline '{name}' returned a tuple: probabilities, or actions as integers, are expected")
    array = _array(output, name)
    if np.issubdtype(array.dtype, np.integer) and array.shape != (count, action.size):
        return as_discrete(array, count, action, name)
    return shaped(array, count, action.size, name, "probabilities")


def _array(value: Any, name: str) -> np.ndarray:
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype == bool or not np.issubdtype(array.dtype, np.number):
            raise ValueError(array.dtype)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"baseline '{name}' returned {type(value).__name__}: numbers are expected, "
            "as (mean, standard deviation), actions, or probabilities"
        ) from error
    return array


def _returned(action: ActionSpace, deterministic: bool) -> str:
    if deterministic:
        return "actions"
    return "mean and standard deviation" if action.kind == "box" else "probabilities"


def _shapes(obs: Any) -> str:
    if isinstance(obs, dict):
        return "{" + ", ".join(f"{key}: {np.shape(value)}" for key, value in obs.items()) + "}"
    return f"of shape {np.shape(obs)}"
