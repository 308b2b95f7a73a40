"""Colours, dashes and matplotlib settings that all drawings of a report share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spacerl.reporting.groups import Group

# Light and dark variant of each series colour, told apart under the common colour deficiencies (after Okabe and Ito).
SERIES = (
    ("#0072b2", "#4fa8e8"),  # blue
    ("#d55e00", "#ff8f52"),  # vermilion
    ("#009e73", "#2fc79a"),  # green
    ("#b0609a", "#dc94c8"),  # purple
    ("#c98b00", "#f0bd4a"),  # ochre
    ("#3d9fd6", "#9ad6f8"),  # sky
)
DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (3, 1.2)), (0, (6, 1.5, 1, 1.5)))  # for more groups than colours
INK, FAINT, UNSAFE, APPLE = "#1c2024", "#8a929a", "#c8102e", "#3c8d2f"
# In a page these colours become CSS, so that one drawing suits light and dark alike.
PAGE_COLOURS = {light: f"var(--series-{i})" for i, (light, _) in enumerate(SERIES)} | {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    UNSAFE: "var(--unsafe)",
    APPLE: "var(--apple)",
}

Style = tuple[str, Any]  # colour, dash pattern
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "spacerl",
}


def group_styles(groups: Sequence[Group]) -> dict[str, Style]:
    """A colour and a dash pattern per label; the same label keeps its style across tasks."""
    labels = dict.fromkeys(group.label for group in groups)
    styles = {}
    for number, label in enumerate(labels):
        colour, _ = SERIES[number % len(SERIES)]
        styles[label] = (colour, DASHES[number // len(SERIES) % len(DASHES)])
    return styles
