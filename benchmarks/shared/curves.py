"""Curves of runs in folders, and the cells of tables made from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from spacerl.reporting import mean_interval
from spacerl.runs.folder import RunFolder


def curves_of(folders: Iterable[Path], updates: int, columns: Sequence[str]) -> np.ndarray | None:
    """(runs, updates, columns) of the runs that have all their updates; None where none has."""
    found = []
    for folder in folders:
        if not (folder / "metrics.csv").exists():
            continue
        rows = RunFolder.open(folder).metrics()
        if len(rows) >= updates:
            found.append([[float(each.get(name, np.nan)) for name in columns] for each in rows[:updates]])
    return np.array(found) if found else None


def at_end(values: np.ndarray) -> np.ndarray:
    """(runs,) means over the last tenth of the updates."""
    return values[:, -max(1, values.shape[1] // 10) :].mean(axis=1)


def kept_from(cost: np.ndarray, limit: float) -> float:
    """First update from which on a curve stays at or below the limit; infinite where its end is above."""
    over = np.flatnonzero(cost > limit)
    first = 0 if not len(over) else over[-1] + 1
    return float(first) if first < len(cost) else np.inf


def kept_in_words(costs: np.ndarray, limit: float) -> str:
    """`kept_from` of every run."""
    found = [kept_from(each, limit) for each in costs]
    return " ".join("never" if np.isinf(each) else f"{each:.0f}" for each in found)


def with_interval(values: np.ndarray) -> str:
    """The mean and half of its interval; of two values both, since an interval from two says nothing."""
    if np.isnan(values).all():
        return "-"
    if len(values) <= 2:
        return ", ".join(f"{value:.4g}" for value in values)
    interval = mean_interval(values)
    half = (interval.high - interval.low) / 2
    return f"{values.mean():.4g}" + (f" ± {half:.2g}" if np.isfinite(half) else "")
