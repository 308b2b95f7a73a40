"""What a check found, and the report about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what is so, and how to fix it where it should be otherwise."""

    level: str  # ok: nothing to do; note: a run works, but look at it; problem: a run cannot work, or learns nonsense
    kind: str
    text: str
    fix: str = ""


@dataclasses.dataclass(frozen=True)
class Findings:
    """The outcome of a check."""

    env: str
    understood: tuple[tuple[str, str], ...]
    found: tuple[Finding, ...]
    command: str = ""

    @property
    def broken(self) -> bool:
        """Whether something must be fixed before training."""
        return any(finding.level == PROBLEM for finding in self.found)

    def __str__(self) -> str:
        return self.text()

    def of_level(self, level: str) -> list[Finding]:
        return [finding for finding in self.found if finding.level == level]

    def text(self) -> str:
        """The report, the worst first."""
        problems, notes = (len(self.of_level(level)) for level in (PROBLEM, NOTE))
        lines = [f"environment '{self.env}': {count(problems, 'problem')}, {count(notes, 'note')}", ""]
        lines += [f"  {name:<13}{value}" for name, value in self.understood] + [""]
        for finding in (each for level in (PROBLEM, NOTE, OK) for each in self.of_level(level)):
            lines.append(f"  {finding.level:<9}{finding.text}")
            lines += [f"  {'':<9}to fix it: {finding.fix}"] if finding.fix else []
        ending = f"train with: {self.command}" if self.command else ""
        ending = "fix the problems before training" if self.broken else ending
        return "\n".join([*lines, *(["", ending] if ending else [])])


def count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


class Recorder:
    """Findings as they come up. Of each kind the first is kept: one wrong line in a step is wrong in all of them."""

    def __init__(self, watch: Callable[[str], None] | None = None) -> None:
        self.kinds: dict[str, Finding] = {}
        self._watch = watch

    def at(self, doing: str) -> None:
        """What is about to be done: whoever watches knows where a process is that never comes back."""
        if self._watch is not None:
            self._watch(doing)

    def add(self, level: str, kind: str, text: str, fix: str = "") -> None:
        self.kinds.setdefault(kind, Finding(level, kind, text, fix))

    def ok(self, kind: str, text: str) -> None:
        self.add(OK, kind, text)

    def note(self, kind: str, text: str, fix: str = "") -> None:
        self.add(NOTE, kind, text, fix)

    def problem(self, kind: str, text: str, fix: str = "") -> None:
        self.add(PROBLEM, kind, text, fix)

    @property
    def broken(self) -> bool:
        return any(finding.level == PROBLEM for finding in self.kinds.values())

    def found(self) -> tuple[Finding, ...]:
        return tuple(self.kinds.values())


class CannotContinue(Exception):
    """The environment cannot be stepped any further; why is recorded already."""
