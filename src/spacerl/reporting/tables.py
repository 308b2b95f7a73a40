"""The summary of groups as rows of cells, for the page and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from spacerl.reporting.groups import Group
from spacerl.reporting.statistics import MILESTONES, UNMEASURED, SummaryRow, mean_interval, summary_table
from spacerl.reporting.text import excess_text, interval_text, number_text, satisfied_text


def end_cells(row: SummaryRow) -> dict[str, str]:
    """The numbers of one row at its end, as text by column heading."""
    several = len(row.costs) > 1
    costs = "; ".join(f"{each.name} {interval_text(each.end)}" for each in row.costs)
    limits = "; ".join(f"{each.name} {number_text(each.limit)}" for each in row.costs)
    tolerated = f" (tolerance {row.tolerance:g})" if row.tolerance else ""
    return {
        "seeds": str(row.seeds),
        "updates": str(row.updates),
        "J_R at the end": interval_text(row.reward_end),
        "return": interval_text(row.return_end),
        "episode length": interval_text(row.length_end),
        "J_C at the end": costs if several else interval_text(row.cost_end),
        "h_C": (limits if several else number_text(row.limit_end)) + tolerated,
        "limit kept": "–" if not row.constrained else "yes" if row.within_limit else excess_text(row),
        "cumulative violation": interval_text(row.violation),
        "updates over h_C": f"{100 * row.share_over.mean:.0f} %" if math.isfinite(row.share_over.mean) else "–",
        "within h_C from update": satisfied_text(row),
        "s per update": number_text(row.seconds_per_update),
    }


def course_cells(row: SummaryRow, milestones: Sequence[int]) -> dict[str, str]:
    """J_R along the way, as text by column heading; the mean over all updates is the normalised area."""
    cells = {f"J_R at {m}": interval_text(row.reward_at.get(m, UNMEASURED)) for m in milestones}
    costs = "; ".join(f"{each.name} {interval_text(each.last)}" for each in row.costs)
    return cells | {
        "J_R at the last": interval_text(row.reward_last),
        "J_C at the last": costs if len(row.costs) > 1 else interval_text(row.cost_last),
        "J_R over all updates": interval_text(row.reward_area),
        "J_R interquartile": number_text(row.reward_iqm),
    }


def evaluation_cells(group: Group) -> dict[str, str] | None:
    """The best evaluated policy of every seed and its last one, deterministic; None where nothing was evaluated."""
    seeds = [run.evaluations for run in group.runs if len(run.evaluations.get("best", ()))]
    if not seeds:
        return None
    cells = {}
    for which in ("best", "last"):
        rows = [len(each["best"]) - 1 if which == "last" else int(np.flatnonzero(each["best"])[-1]) for each in seeds]
        chosen = [
            {name: float(column[i]) for name, column in each.items()} for each, i in zip(seeds, rows, strict=True)
        ]
        costs = [name for name in chosen[0] if name.startswith("J_C_")] or ["J_C"]
        told = [(column.removeprefix("J_C").removeprefix("_"), [row[column] for row in chosen]) for column in costs]
        cells |= {
            f"{which}: update": ", ".join(f"{row['update']:.0f}" for row in chosen),
            f"{which}: J_R": interval_text(mean_interval([row["J_R"] for row in chosen])),
            f"{which}: return": interval_text(mean_interval([row["episode_return"] for row in chosen])),
            f"{which}: J_C": "; ".join(
                f"{name} {interval_text(mean_interval(values))}".strip() for name, values in told
            ),
            f"{which}: limits kept": f"{sum(row['excess'] <= 0 for row in chosen)} of {len(chosen)}",
        }
    return cells


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
