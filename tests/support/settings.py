"""Every setting there is, of a run and of the algorithms, with what its type says about it."""

from __future__ import annotations

import math
import typing
from typing import Any, Literal

from spacerl.algorithms import ALGORITHMS
from spacerl.runs.config import SETTINGS, RunConfig
from spacerl.runs.fields import Range, hints_of, names_of
from spacerl.training.settings import needs_of

OWNERS: dict[str, list[str]] = {}  # option -> algorithms that have it
for _algorithm, _entry in ALGORITHMS.items():
    for _name in names_of(_entry.options):
        OWNERS.setdefault(_name, []).append(_algorithm)

HINTS = {name: hint for name, hint in hints_of(RunConfig).items() if name in SETTINGS}
HINTS |= {name: hints_of(ALGORITHMS[owners[0]].options)[name] for name, owners in OWNERS.items()}

NEED_BASELINE = tuple(name for name in ALGORITHMS if needs_of(name).baseline)
ONE_COST_ONLY = tuple(name for name in ALGORITHMS if not needs_of(name).many_costs)


def _parts(hint: Any) -> list[Any]:
    """A hint and all that it is made of."""
    return [hint] + [part for each in typing.get_args(hint) for part in _parts(each)]


def is_number(hint: Any) -> bool:
    """A single number, or a word in the place of one."""
    return bool({int, float} & set(map(_hashable, _parts(hint)))) and tuple not in map(typing.get_origin, _parts(hint))


def _hashable(part: Any) -> Any:
    return part if isinstance(part, type) else None


def has_range(hint: Any) -> bool:
    return any(isinstance(part, Range) for part in _parts(hint))


def choices_of(hint: Any) -> tuple[str, ...]:
    """All that a setting may be where it is one of several words, else nothing."""
    if typing.get_origin(hint) is typing.Annotated:
        return choices_of(typing.get_args(hint)[0])
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


NUMBERS = [name for name, hint in HINTS.items() if is_number(hint)]
CHOICES = {name: choices_of(hint) for name, hint in HINTS.items() if choices_of(hint)}


def algorithm_with(name: str, usual: str = "pcpo") -> str:
    """An algorithm that has a setting."""
    return usual if name in SETTINGS or usual in OWNERS[name] else OWNERS[name][0]


def asking_for(algorithm: str) -> dict[str, str]:
    """What a run of an algorithm must be given besides its task."""
    return {"algorithm": algorithm} | ({"baseline": "near"} if algorithm in NEED_BASELINE else {})


def another(name: str, value: Any) -> Any:
    """A valid value of a setting that is not `value`."""
    if name in CHOICES:
        return next(choice for choice in CHOICES[name] if choice != value)
    if name in ("task", "algorithm", "baseline"):
        return {"task": "point-gather", "algorithm": "trpo", "baseline": "cost"}[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return tuple(number + 1 for number in value)
    if isinstance(value, int):
        return value + 1
    return 0.01 if isinstance(value, str) or math.isinf(value) else 0.5 * value if value else 0.5
