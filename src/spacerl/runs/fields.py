"""Settings that check themselves: what a field may hold stands in its type, once, and messages are made from it.

delta: Positive = 1e-4
critic: Literal["neural", "linear"] = "neural"
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from spacerl.types import InputError, unknown_name


class Range(NamedTuple):
    """Which numbers a field allows, as a test and in words."""

    holds: Callable[[Any], bool]
    allowed: str
    infinite: bool = False


LARGEST = 3.4e38  # of single precision, which everything is computed in


class Bookkeeping:
    """Marks a field that says how long, where or how a run is kept, not what it computes."""


Positive = Annotated[float, Range(lambda x: x > 0, "a finite number above 0")]
FromOne = Annotated[float, Range(lambda x: x >= 1, "a number from 1 on")]
PositiveOrInf = Annotated[float, Range(lambda x: x > 0, "a number above 0, or inf", infinite=True)]
NotNegative = Annotated[float, Range(lambda x: x >= 0, "a finite number that is not negative")]
Fraction = Annotated[float, Range(lambda x: 0 < x <= 1, "a number above 0 and at most 1")]
UnitInterval = Annotated[float, Range(lambda x: 0 <= x <= 1, "a number from 0 to 1")]
OpenUnitInterval = Annotated[float, Range(lambda x: 0 < x < 1, "a number between 0 and 1")]
Count = Annotated[int, Range(lambda x: 1 <= x < 2**31, "a whole number from 1 to 2147483647")]
Seed = Annotated[int, Range(lambda x: 0 <= x < 2**31, "a whole number from 0 to 2147483647")]
Seconds = Annotated[float, Range(lambda x: 0.01 <= x <= 1e6, "a number of seconds from 0.01 to 1000000")]
Sizes = Annotated[
    tuple[int, ...],
    Range(lambda x: min(x, default=0) >= 1 and max(x) < 2**31, "a list of whole numbers from 1 to 2147483647"),
]


@functools.cache
def hints_of(settings: type) -> dict[str, Any]:
    """Types of a dataclass's fields, with what their annotations say."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(settings)}


def names_of(settings: type) -> list[str]:
    return [field.name for field in dataclasses.fields(settings)]


def defaults_of(settings: type) -> dict[str, Any]:
    """The defaults of a dataclass of settings, without the fields that have none."""
    return {f.name: f.default for f in dataclasses.fields(settings) if f.default is not dataclasses.MISSING}


def bookkeeping_of(settings: type) -> frozenset[str]:
    marked = (name for name, hint in hints_of(settings).items() if Bookkeeping in typing.get_args(hint))
    return frozenset(marked)


def checked(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of some fields, each brought to its field's type; InputError for one that is not allowed."""
    hints = hints_of(settings)
    return {name: check_value(name, value, hints[name]) for name, value in values.items()}


def check_value(name: str, value: Any, hint: Any) -> Any:
    value = plain(value)
    base, ranges = _unwrapped(hint)
    fitting = next((kind for kind in _alternatives(base) if _is(value, kind)), None)
    if fitting is None:
        choices = _literals(base)
        if choices and isinstance(value, str) and not ranges:
            raise unknown_name(name.replace("_", "-"), value, choices)
        raise _refused(name, value, _in_words(base, ranges))
    for text in _texts(value):
        if any("\ud800" <= each <= "\udfff" for each in text):  # names of files may hold bytes that are no text
            raise _refused(name, text, "a text that UTF-8 can write: a run keeps its settings")
    if fitting is float:
        try:
            value = float(value)
        except OverflowError:
            raise _refused(name, "a number of hundreds of digits", _in_words(base, ranges)) from None
        if LARGEST < abs(value) < math.inf:
            raise _refused(name, value, f"{_in_words(base, ranges)}, of at most {LARGEST:.3g}")
    for allowed in ranges if typing.get_origin(fitting) is not Literal else ():
        if not (_is_finite(value, allowed) and allowed.holds(value)):
            raise _refused(name, value, _in_words(base, ranges))
    return value


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, tuple) else [value]) if isinstance(each, str)]


def _is_finite(value: Any, allowed: Range) -> bool:
    return not isinstance(value, float) or math.isfinite(value) or (allowed.infinite and value == math.inf)


def _refused(name: str, given: Any, allowed: str) -> InputError:
    return InputError(f"{name.replace('_', '-')} is {shortened(given)}: allowed is {allowed}")


def shortened(given: Any) -> str:
    """A value as a sentence can hold it."""
    try:
        text = repr(given)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 100 else f"{text[:100]}..."


def plain(value: Any) -> Any:
    """Python's own number for a NumPy scalar, such as a seed out of np.arange; tuples for lists."""
    if isinstance(value, tuple | list):
        return tuple(plain(each) for each in value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def _unwrapped(hint: Any) -> tuple[Any, list[Range]]:
    """A hint without its annotations, and the ranges among them."""
    if typing.get_origin(hint) is Annotated:
        base, *marks = typing.get_args(hint)
        inner, ranges = _unwrapped(base)
        return inner, [*ranges, *(mark for mark in marks if isinstance(mark, Range))]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_unwrapped(part) for part in typing.get_args(hint)]
        return typing.Union[tuple(part for part, _ in parts)], [r for _, ranges in parts for r in ranges]  # noqa: UP007
    return hint, []


def _alternatives(base: Any) -> tuple[Any, ...]:
    return typing.get_args(base) if typing.get_origin(base) in (typing.Union, types.UnionType) else (base,)


def _literals(base: Any) -> list[str]:
    return [str(c) for each in _alternatives(base) if typing.get_origin(each) is Literal for c in typing.get_args(each)]


def _is(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(each, typing.get_args(kind)[0]) for each in value)
    if kind in (int, float):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _in_words(base: Any, ranges: list[Range]) -> str:
    words = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    words[tuple[str, ...]] = "a list of texts"
    said = [allowed.allowed for allowed in ranges] or [words[each] for each in _alternatives(base) if each in words]
    return " or ".join([*said, *(f"'{choice}'" for choice in _literals(base))])
