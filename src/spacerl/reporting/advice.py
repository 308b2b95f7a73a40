"""One sentence about every setting that ends above a limit, with what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spacerl.reporting.groups import Group
from spacerl.reporting.statistics import END_WINDOW, SummaryRow, mean
from spacerl.reporting.text import cost_text

FALLING = 0.98  # a cost that lost this part of itself over the last windows was still on its way down


def advice(groups: Sequence[Group], rows: Sequence[SummaryRow]) -> list[str]:
    broken = [(g, r) for g, r in zip(groups, rows, strict=True) if r.constrained and not r.within_limit]
    return [
        f"{row.label} ends above its limit (J_C {cost_text(row)} allowed): {_to_try(group)}." for group, row in broken
    ]


def _to_try(group: Group) -> str:
    best = [run for run in group.runs if _best_is_feasible(run.evaluations)]
    ready = ""
    if best:
        seeds = (
            "its best policy" if len(group.runs) == 1 else f"the best policy of {len(best)} of {len(group.runs)} seeds"
        )
        ready = f"{seeds} kept it when evaluated (--policy best); otherwise "
    if _was_falling(group):
        return f"{ready}its cost was still falling, so give it more updates (spacerl resume RUN --updates N)"
    return f"{ready}try a smaller --delta, a larger --batch-size, or a --cost-limit somewhat below the one you need"


def _best_is_feasible(evaluations: Mapping[str, np.ndarray]) -> bool:
    return bool(np.any(evaluations.get("excess", np.zeros(0) + 1.0) <= 0.0))


def _was_falling(group: Group) -> bool:
    """Whether some cost above its limit is lower in the last updates than in those before them."""
    for _, value, limit in group.cost_columns:
        cost, allowed = group.curve(value), group.curve(limit)
        if cost.shape[1] < 2 * END_WINDOW:
            continue
        last, before = mean(cost[:, -END_WINDOW:]), mean(cost[:, -2 * END_WINDOW : -END_WINDOW])
        if last > mean(allowed[:, -END_WINDOW:]) and last < FALLING * before:
            return True
    return False
