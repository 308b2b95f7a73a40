"""The summary of groups as rows of cells, for the page and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spacerl.reporting.groups import Group
from spacerl.reporting.statistics import MILESTONES, Interval, SummaryRow, summary_table
from spacerl.reporting.text import excess_text, interval_text, number_text, satisfied_text


def end_cells(row: SummaryRow) -> dict[str, str]:
    """The numbers of one row at its end, as text by column heading."""
    limit = number_text(row.limit_end)
    return {
        "seeds": str(row.seeds),
        "updates": str(row.updates),
        "J_R at the end": interval_text(row.reward_end),
        "J_C at the end": interval_text(row.cost_end),
        "h_C": limit,
        "limit kept": "–" if not row.constrained else "yes" if row.within_limit else excess_text(row),
        "cumulative violation": interval_text(row.violation),
        "updates over h_C": f"{100 * row.share_over.mean:.0f} %" if math.isfinite(row.share_over.mean) else "–",
        "within h_C from update": satisfied_text(row),
        "s per update": number_text(row.seconds_per_update),
    }


def course_cells(row: SummaryRow, milestones: Sequence[int]) -> dict[str, str]:
    """J_R along the way, as text by column heading; the mean over all updates is the normalised area."""
    unmeasured = Interval(math.nan, math.nan, math.nan, math.nan, 0)
    cells = {f"J_R at {m}": interval_text(row.reward_at.get(m, unmeasured)) for m in milestones}
    return cells | {
        "J_R at the last": interval_text(row.reward_last),
        "J_C at the last": interval_text(row.cost_last),
        "J_R over all updates": interval_text(row.reward_area),
        "J_R interquartile": number_text(row.reward_iqm),
    }


def write_table_markdown(groups: Sequence[Group]) -> str:
    """The summary as a Markdown table, one row per group; ± is half the 95 % interval of the mean over seeds."""
    rows = summary_table(groups)
    milestones = reached_milestones(rows)
    lines: list[str] = []
    for row in rows:
        cells = {"task": row.task, "algorithm": row.label} | end_cells(row)
        course = course_cells(row, milestones)
        cells |= {heading: course[heading] for heading in [*(f"J_R at {m}" for m in milestones), "J_R at the last"]}
        if not lines:
            lines = [_markdown_row(cells), _markdown_row(["---"] * len(cells))]
        lines.append(_markdown_row(cells.values()))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def reached_milestones(rows: Sequence[SummaryRow]) -> list[int]:
    return [m for m in MILESTONES if any(m in row.reward_at for row in rows)]


def best_safe(rows: Sequence[SummaryRow]) -> str | None:
    """Label of the highest J_R among several that keep the limit."""
    safe = [row for row in rows if row.within_limit and math.isfinite(row.reward_end.mean)]
    return max(safe, key=lambda row: row.reward_end.mean).label if len(rows) > 1 and safe else None
