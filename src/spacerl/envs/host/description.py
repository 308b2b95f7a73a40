"""Gymnasium spaces as plain data, so that a policy file says what it observes and how it acts without any code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gymnasium import spaces

from spacerl.types import EnvSpec


def described(space: spaces.Space) -> dict[str, Any]:
    """A space as JSON can hold it; keys of a Dict keep their order."""
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "parts": [[key, described(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [described(inner) for inner in space.spaces]}
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"kind": "box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name, **bounds}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multidiscrete", "nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multibinary", "shape": list(space.shape)}
    raise ValueError(f"a space of kind {type(space).__name__} cannot be described")


def space_of(content: dict[str, Any]) -> spaces.Space:
    """The space that `described` described; ValueError for what it did not write."""
    kind = content.get("kind")
    if kind == "dict":
        return spaces.Dict({key: space_of(inner) for key, inner in content["parts"]})
    if kind == "tuple":
        return spaces.Tuple([space_of(inner) for inner in content["parts"]])
    if kind == "box":
        shape, dtype = tuple(content["shape"]), np.dtype(content["dtype"])
        low, high = (_array(content[name], shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "discrete":
        return spaces.Discrete(content["n"], start=content["start"])
    if kind == "multidiscrete":
        return spaces.MultiDiscrete(content["nvec"], start=content["start"])
    if kind == "multibinary":
        return spaces.MultiBinary(content["shape"])
    raise ValueError(f"a space of kind {kind!r} is not known")


def _bound(values: np.ndarray) -> Any:
    """One number where all are the same, which the bounds of images are; infinite ones as texts."""
    flat = values.ravel()
    if flat.size and np.all(flat == flat[0]):
        return _number(flat[0])
    return [_number(value) for value in flat]


def _number(value: Any) -> float | int | str:
    number = value.item()
    return number if np.isfinite(number) else str(number)


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    values = [float(value) if isinstance(value, str) else value for value in np.atleast_1d(np.asarray(bound, object))]
    return np.full(shape, values[0], dtype) if len(values) == 1 else np.array(values, dtype).reshape(shape)


def spaces_text(observation: spaces.Space, action: spaces.Space, scaled: bool) -> str:
    """Both spaces of an environment, and whether its policy acts in [-1, 1] for the bounds of a box."""
    return json.dumps({"observation": described(observation), "action": described(action), "scaled": scaled})


def spaces_of(text: str) -> tuple[spaces.Space, spaces.Space, bool]:
    content = json.loads(text)
    return space_of(content["observation"]), space_of(content["action"]), bool(content["scaled"])


def spaces_of_spec(spec: EnvSpec) -> str:
    """The spaces that an environment stated, or those that its shapes amount to."""
    if spec.spaces:
        return spec.spaces
    action, dtype = spec.action, np.dtype(spec.obs_dtype)
    whole = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    low, high = (whole.min, whole.max) if whole else (-np.inf, np.inf)
    observation = spaces.Box(low, high, spec.obs_shape, dtype.type)
    if action.kind == "discrete":
        return spaces_text(observation, spaces.Discrete(action.size), False)
    if action.kind == "multidiscrete":
        return spaces_text(observation, spaces.MultiDiscrete(list(action.nvec)), False)
    least = np.array(action.low or (-np.inf,) * action.size, np.float32)
    most = np.array(action.high or (np.inf,) * action.size, np.float32)
    return spaces_text(observation, spaces.Box(least, most, dtype=np.float32), action.scaled)
