"""What a page carries besides its drawings: the numbers behind them as CSV, and the videos of its runs."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from spacerl.reporting.groups import Group

LEADING = ("update", "env_steps", "wall_seconds", "J_R", "episode_return", "episode_length", "J_C", "h_C", "J_D", "h_D")
TYPES = {".gif": "image/gif", ".mp4": "video/mp4"}
LARGEST_VIDEO = 12_000_000  # bytes; a page with more of them is slow to open


@dataclass(frozen=True)
class Video:
    """A film of one run, as it stands in the page."""

    label: str
    name: str
    moving: bool  # a video with controls, not an image that moves by itself
    source: str


def csv_link(groups: Sequence[Group]) -> str:
    """The curves of every seed as a file that the page itself holds."""
    named = {column for group in groups for _, value, limit in group.cost_columns for column in (value, limit)}
    columns = [*LEADING, *sorted(named - set(LEADING)), "cumulative_violation"]
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["setting", "seed", *columns])
    for group in groups:
        for run in group.runs:
            curves = [run.column(column) for column in columns]
            for row in zip(*curves, strict=True):
                table.writerow([_harmless(group.label), run.seed, *(_cell(value) for value in row)])
    return _data("text/csv;charset=utf-8", out.getvalue().encode())


def _harmless(text: str) -> str:
    """A label that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _cell(value: float) -> str:
    return f"{value:.8g}" if math.isfinite(value) else ""


def videos_of(groups: Sequence[Group]) -> tuple[Video, ...]:
    """Films that lie in the run folders and are small enough; of each setting those of one seed."""
    found = []
    for group in groups:
        filmed = [(run.seed, run.videos) for run in group.runs if run.videos]
        for path in filmed[0][1] if filmed else ():
            if path.stat().st_size <= LARGEST_VIDEO:
                kind = TYPES[path.suffix]
                label = f"{group.label}, seed {filmed[0][0]}"
                found.append(Video(label, path.name, kind.startswith("video"), _data(kind, path.read_bytes())))
    return tuple(found)


def too_large(groups: Sequence[Group]) -> list[str]:
    """Names of films that a page leaves out."""
    films = [path for group in groups for run in group.runs for path in run.videos]
    return [path.name for path in films if path.stat().st_size > LARGEST_VIDEO]


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
