"""metrics.csv as a table of numbers: the one reader of that file, also while a run is still writing it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spacerl.runs.text import LARGEST_TABLE, content_of, text_of
from spacerl.types import InputError

WORDS = {"true": 1.0, "false": 0.0, "": math.nan}
MEASURED = ("seconds_collect", "seconds_update")  # columns whose numbers are others each time


@dataclass(frozen=True)
class MetricsTable:
    """Every whole row of a metrics.csv: a column's name to its values, (U,), in the order of the updates."""

    columns: Mapping[str, np.ndarray]
    half_written: bool = False  # whether a last row that was cut off is left out

    def rows(self) -> list[dict[str, float]]:
        """One dictionary per update."""
        return [
            dict(zip(self.columns, map(float, row), strict=True)) for row in zip(*self.columns.values(), strict=True)
        ]


def read_metrics(path: Path) -> MetricsTable:
    """The table up to its last whole row; a row damaged before that is an error.

    A last line without its line break may have lost digits even when every column is there, so it is not whole.
    """
    text = _text(path)
    whole = text[: text.rfind("\n") + 1]
    try:
        table = [row for row in csv.reader(io.StringIO(whole)) if row]
    except csv.Error as error:
        raise InputError(f"{path} is not a table of metrics: {error}") from error
    if table and len(set(table[0])) < len(table[0]):
        raise InputError(f"{path} has a column twice: expected a name of its own for each")
    header, lines = (table[0], table[1:]) if table else ([], [])
    parsed = [_parsed_row(line, len(header)) for line in lines]
    for number, row in enumerate(parsed[:-1], start=1):
        if row is None:
            given = ",".join(lines[number - 1])[:80]
            raise InputError(f"{path}, row {number}: expected {len(header)} numbers, got {given!r}")
    rows = [row for row in parsed if row is not None]
    cut = bool(text[len(whole) :].strip()) or len(rows) < len(parsed)
    return MetricsTable(_columns(header, rows), cut)


@dataclass(frozen=True)
class History:
    """What a run that goes on may rely on: the header, and the rows of updates 0, 1, ... as far as they are whole."""

    header: str = ""
    rows: tuple[str, ...] = ()  # each with its line break
    fault: str = ""  # what is wrong with the row after the last one; nothing where there is none, or a half-written one
    hashes: tuple[str, ...] = ()  # of the table up to each of the rows

    def until(self, updates: int) -> str:
        """The file with the rows of so many updates."""
        return self.header + "".join(self.rows[:updates]) if updates else ""

    def hash_of(self, updates: int) -> str:
        """Of the table with the rows of so many updates."""
        return self.hashes[updates - 1] if updates else ""


def hash_after(before: str, row: Mapping[str, float]) -> str:
    """The hash of a table that had the hash `before` and got one more row: of every number and the name of its column,
    in whatever order they stand. What was measured is left out, so that a run has the same hashes each time."""
    kept = {name: float(value) for name, value in row.items() if name not in MEASURED}
    return hashlib.sha256((before + json.dumps(kept, sort_keys=True)).encode()).hexdigest()


def hash_of_lines(header: str, lines: Sequence[str]) -> str:
    """Of a table's columns and numbers, however these are spelled; also of what is no number."""
    rows = [_parsed_row(line.split(","), line.count(",") + 1) or line for line in lines]
    return hashlib.sha256(json.dumps([header.strip(), rows]).encode()).hexdigest()


def read_history(path: Path) -> History:
    """The rows of a metrics.csv up to the first that is not the next update's."""
    *lines, _ = content_of(path, LARGEST_TABLE).split(b"\n") if path.is_file() else [b""]
    if not lines:
        return History()
    texts = [line.decode("utf-8", errors="replace").removesuffix("\r") for line in lines]
    columns = texts[0].split(",")
    if "update" not in columns or len(set(columns)) < len(columns):
        return History(fault="its first line does not name the columns, 'update' among them")
    rows: list[str] = []
    hashes = [""]
    for text in texts[1:]:
        cells = text.split(",")
        row = _parsed_row(cells, len(columns))
        if row is None or row[columns.index("update")] != len(rows):
            wanted = f"expected {len(columns)} numbers of update {len(rows)}"
            fault = f"row {len(rows) + 1}: {wanted}, got {text[:60]!r}"
            return History(texts[0] + "\n", tuple(rows), fault, tuple(hashes[1:]))
        rows.append(text + "\n")
        # Empty cells are those of columns that came later, or that are written no more.
        known = {name: number for name, number, cell in zip(columns, row, cells, strict=True) if cell.strip()}
        hashes.append(hash_after(hashes[-1], known))
    return History(texts[0] + "\n", tuple(rows), hashes=tuple(hashes[1:]))


def _text(path: Path) -> str:
    try:
        return text_of(path, LARGEST_TABLE)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a table of metrics: {error}") from error


def _columns(header: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, np.ndarray]:
    if "update" in header:  # a resumed run may write an update again: the later row is the one that led on
        by_update = {row[header.index("update")]: row for row in rows}
        rows = [by_update[update] for update in sorted(by_update)]
    values = np.array(rows, dtype=float).reshape(len(rows), len(header))
    return dict(zip(header, values.T, strict=True))


def _parsed_row(line: Sequence[str], width: int) -> list[float] | None:
    words = [cell.strip().lower() for cell in line]
    try:
        row = [WORDS[word] if word in WORDS else float(word) for word in words]
    except ValueError:
        return None
    return row if len(row) == width else None
