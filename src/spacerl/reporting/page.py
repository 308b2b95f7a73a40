"""Run folders in, one self-contained HTML page out: no network, no other file, readable in light and dark.

The markup is in ``templates/``, where whatever comes from a file is escaped. Jinja is imported when a page is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacerl.reporting.groups import Group, by_task, group_runs
from spacerl.reporting.palette import SERIES, group_styles
from spacerl.reporting.provenance import provenance
from spacerl.reporting.remarks import remarks
from spacerl.reporting.sections import task_section
from spacerl.reporting.statistics import END_WINDOW
from spacerl.reporting.svg import inline_svg
from spacerl.reporting.text import counted, symbols
from spacerl.runs.folder import is_run, write_atomically
from spacerl.runs.records import read_runs
from spacerl.types import InputError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from matplotlib.figure import Figure

GENERATOR = b'<meta name="generator" content="spacerl report">'
PathLike = str | os.PathLike[str]


def write_report(run_dirs: PathLike | Iterable[PathLike], out_path: PathLike, title: str | None = None) -> Path:
    """Write one HTML page about the given runs (or folders of runs) and return its path.

    The same folders give the same bytes. ``out_path`` may be a directory, which then receives ``report.html``.
    """
    reading = read_runs(run_dirs)
    groups = group_runs(reading.runs)
    out = Path(out_path)
    if out.is_dir():
        out = out / "report.html"
    _require_no_other_file(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Bytes in a folder's name that are no UTF-8 are question marks in the page.
    write_atomically(out, page(groups, title, reading.skipped).encode(errors="replace"))
    return out


def _require_no_other_file(out: Path) -> None:
    """A page may take the place of an earlier one, and of nothing else."""
    own = out.name == "report.html" and is_run(out.parent)  # may be of a version that said nothing
    if out.is_file() and not own:
        with open(out, "rb") as file:
            if GENERATOR not in file.read(2000):
                raise InputError(
                    f"'{out}' exists and is no report of spacerl: give another name, nothing is overwritten"
                )


def page(groups: Sequence[Group], title: str | None = None, skipped: Sequence[str] = ()) -> str:
    """The whole page as text."""
    tasks = by_task(groups)
    styles = group_styles(groups)
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=title or f"Report on {', '.join(tasks)}",
            series=SERIES,
            note=_note(tasks),
            tasks=[task_section(i, name, members, styles, _drawn) for i, (name, members) in enumerate(tasks.items())],
            remarks=[*remarks(groups), *(f"Left out: {sentence}." for sentence in skipped)],
            provenance=[provenance(members) for members in tasks.values()],
            end_window=END_WINDOW,
        )
    )


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    loader = PackageLoader("spacerl.reporting", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **options)
    environment.filters["symbols"] = symbols
    return environment


def _drawn(figure: Figure, prefix: str, description: str) -> Markup:
    """The only markup that does not come from a template, and so the only text that is not escaped there."""
    from markupsafe import Markup

    return Markup(inline_svg(figure, prefix, description))


def _note(tasks: Mapping[str, Sequence[Group]]) -> str:
    runs = sum(len(group.runs) for groups in tasks.values() for group in groups)
    settings = sum(map(len, tasks.values()))
    counts = [counted(runs, "run"), counted(settings, "setting"), counted(len(tasks), "task")]
    return " · ".join([*counts, f"end values are means of the last {END_WINDOW} updates"])
