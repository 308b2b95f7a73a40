"""What a run folder says about its environment, so that a policy can be exported without making it again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.runs.fields import plain
from spacerl.types import ActionSpace, EnvSpec, ImageSpec, InputError

LARGEST = 2**31  # numbers in an observation or an action: more cannot be meant
DTYPES = ("float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "bool")
KINDS = ("box", "discrete", "multidiscrete")


def described(spec: EnvSpec) -> dict[str, Any]:
    """The content of environment.json."""
    action = plain(spec.action._asdict())
    bounds = {end: [_as_text(bound) for bound in action[end]] for end in ("low", "high")}
    return {
        "name": spec.name,
        "obs_shape": plain(spec.obs_shape),
        "obs_dtype": np.dtype(spec.obs_dtype).name,
        "images": [plain(image._asdict()) for image in spec.images],
        "action": action | bounds,
        "horizon": plain(spec.horizon),
        "cost_names": list(spec.cost_names),
        "spaces": spec.spaces,
    }


def _as_text(bound: float) -> float | str:
    """JSON has no infinite numbers."""
    return float(bound) if math.isfinite(bound) else str(float(bound))


def read_described(content: Mapping[str, Any], path: Path) -> EnvSpec:
    """What environment.json says; InputError for what no environment can be."""
    try:
        action = content["action"]
        size = _whole(action["size"])
        bounds = {end: tuple(_bound(each) for each in action[end]) for end in ("low", "high")}
        spec = EnvSpec(
            name=str(content["name"]),
            obs_shape=_shape(content["obs_shape"]),
            action=ActionSpace(
                kind=_among(action["kind"], KINDS),
                size=size,
                nvec=tuple(_whole(count) for count in action["nvec"]),
                scaled=action["scaled"] is True,
                **bounds,
            ),
            horizon=_whole(content["horizon"]),
            cost_names=tuple(map(str, content["cost_names"])),
            obs_dtype=_among(content["obs_dtype"], DTYPES),
            images=tuple(_image(image) for image in content["images"]),
            spaces=_text(content["spaces"]),
        )
        if any(len(ends) not in (0, size) for ends in bounds.values()) or sum(spec.action.nvec) not in (0, size):
            raise ValueError("the action's bounds or lists are not of its size")
        return spec
    except KeyError as problem:
        raise InputError(f"'{path}' says nothing about {problem}") from problem
    except (TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise InputError(f"'{path}' does not describe an environment: {problem}") from problem


def _whole(value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number from {least} to {LARGEST - 1}")
    return value


def _shape(sizes: Any) -> tuple[int, ...]:
    shape = tuple(_whole(size) for size in sizes)
    if math.prod(shape) >= LARGEST:
        raise ValueError(f"an observation of shape {shape} is too large")
    return shape


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is not a text")
    return value


def _bound(value: Any) -> float:
    number = float(value)
    if math.isnan(number):
        raise ValueError("a bound of an action is not a number")
    return number


def _among(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{str(value)[:40]!r} is none of {', '.join(allowed)}")
    return value


def _image(image: Mapping[str, Any]) -> ImageSpec:
    height, width, channels = _shape(image["shape"])
    return ImageSpec(_whole(image["offset"], 0), (height, width, channels), _bound(image["scale"]))
