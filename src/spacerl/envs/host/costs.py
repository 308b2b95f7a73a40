"""Where the cost of a step comes from: the environment's info, a sixth value of its step, or a function of the user's.

A source is written `SOURCE` or `NAME=SOURCE`, where SOURCE is `info` (info["cost"]), `info:KEY`, `info:KEY=0` (a key
that is only there when it is not zero; another number is a default too), `step` (the cost of
Safety-Gymnasium's six-tuple), `none` (no cost at all), or a function `file.py:function` or `module:function` of
(observation, action, next observation, info). None given means `step` or `info`, whichever the environment has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from spacerl.runs.names import names_python, python_object
from spacerl.types import InputError

AUTOMATIC = "automatic"
Source = str | Callable[..., Any]
Named = tuple[tuple[str, Source], ...]


def named_sources(given: Any) -> Named:
    """What the user gave as `cost`, as (name, source) pairs: a text, a function, several of them, or a dictionary."""
    if given is None or (isinstance(given, Sequence | dict) and not given):
        return (("cost", AUTOMATIC),)
    if isinstance(given, dict):
        pairs = list(given.items())
    else:
        each = given if isinstance(given, list | tuple) else [given]
        pairs = [_pair(source) for source in each]
    names = [name for name, _ in pairs]
    for name, source in pairs:
        if not re.fullmatch(r"[A-Za-z_][\w-]*", str(name)):
            hint = "; several costs are given with spaces between them" if "," in str(name) else ""
            raise InputError(f"cost '{name}' is not a usable name: letters, digits, '_' and '-' are allowed{hint}")
        if len(names) > 1 and name in ("error", "reward", "divergence"):
            raise InputError(f"cost '{name}' has a name that a column of the metrics has already: give it another")
        if names.count(name) > 1:
            raise InputError(f"cost '{name}' was given twice: name them with NAME=SOURCE")
        if isinstance(source, str):
            _require_known(source)
        elif not callable(source):
            raise InputError(f"cost '{name}' is {type(source).__name__}: a text or a function is expected")
    return tuple(pairs)


def _pair(source: Any) -> tuple[str, Any]:
    if callable(source):
        name = getattr(source, "__name__", type(source).__name__)
        return ("cost" if name == "<lambda>" else name), source
    if not isinstance(source, str):
        raise InputError(f"a cost is {type(source).__name__}: a text or a function is expected")
    name, equals, rest = source.partition("=")
    if equals and re.fullmatch(r"[A-Za-z_][\w-]*", name):
        return name, rest
    if source.startswith("info:"):
        return source.removeprefix("info:").partition("=")[0], source
    return (source.rpartition(":")[2] if names_python(source) else "cost"), source


def _require_known(source: str) -> None:
    if source.startswith("info:"):
        _key_and_default(source)
        return
    if source in ("info", "step", "none", AUTOMATIC) or names_python(source):
        return
    hint = f"; the key '{source}' of info is info:{source}" if source.isidentifier() else ""
    raise InputError(
        f"cost '{source}' is unknown: allowed are info, info:KEY, info:KEY=0, step, none, FILE.py:FUNCTION and "
        f"MODULE:FUNCTION{hint}"
    )


def _key_and_default(source: str) -> tuple[str, float | None]:
    """Of `info:KEY` or `info:KEY=NUMBER`; the number stands in where the key is missing."""
    key, equals, text = source.removeprefix("info:").rpartition("=")
    if not equals:
        return text, None
    try:
        return key, float(text)
    except ValueError:
        raise InputError(
            f"cost '{source}' has the default '{text}': allowed is a number, such as info:{key}=0"
        ) from None


def is_function(source: Source) -> bool:
    """Whether a source is a function of (obs, action, next obs, info), as an object or by name."""
    return not isinstance(source, str) or (names_python(source) and not source.startswith("info:"))


class MissingCost(InputError):
    """The environment does not give the cost it was asked for."""


def cost_function(name: str, source: Source) -> Callable[[Any, Any, Any, dict[str, Any], Any], Any]:
    """(obs, action, next obs, info, sixth value of the step or None) -> cost."""
    if source == "none":
        return lambda obs, action, following, info, sixth: 0.0
    if is_function(source):
        function: Any = python_object(source, "cost") if isinstance(source, str) else source
        if not callable(function):
            raise InputError(f"cost '{source}' is {type(function).__name__}: a function is expected")
        return lambda obs, action, following, info, sixth: function(obs, action, following, info)
    key, default = _key_and_default(str(source)) if str(source).startswith("info:") else ("cost", None)

    def read(obs: Any, action: Any, following: Any, info: dict[str, Any], sixth: Any) -> float:
        if source in ("step", AUTOMATIC) and sixth is not None:
            return sixth
        if source == "step":
            raise MissingCost("its step returns five values, the cost of --cost step is a sixth one")
        if key in info:
            return info[key]
        if default is not None:
            return default
        known = ", ".join(sorted(map(str, info))) or "nothing"
        raise MissingCost(
            f"it gives no cost: info['{key}'] is missing (info holds {known}); pass --cost FILE.py:FUNCTION, a "
            "function of (obs, action, next_obs, info), --cost info:KEY with a key that is there, --cost info:KEY=0 "
            "with one that is only there when it is not zero, or --cost none"
        )

    return read
