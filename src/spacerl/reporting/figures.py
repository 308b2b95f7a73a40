"""Groups in, matplotlib figures of their curves out. matplotlib is imported only where something is drawn.

Lines are means over seeds; bands are the 95 % interval of the mean (Student's t), as in the tables. Nothing is
smoothed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spacerl.reporting.groups import Group, baseline_text
from spacerl.reporting.palette import FAINT, INK, RC, UNSAFE, Style, group_styles
from spacerl.reporting.statistics import finite, mean, mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"update": "update", "env_steps": "environment steps", "wall_seconds": "wall time, s"}  # column -> its name
PANEL_SIZE = (4.9, 3.1)  # inches

Level = tuple[float, str, str]  # height of a horizontal line, its name, its colour


def task_figures(groups: Sequence[Group], styles: Mapping[str, Style] | None = None) -> dict[str, Figure]:
    """Every curve figure that the groups of one task have data for, by name, in reading order.

    Reward, return and costs are drawn over environment steps and wall time too: "reward by env_steps".
    """
    styles = styles or group_styles(groups)
    figures: dict[str, Figure] = {}
    for axis in (axis for axis in AXES if axis == "update" or any(group.has(axis) for group in groups)):
        ending = "" if axis == "update" else f" by {axis}"
        figures[f"reward{ending}"] = reward_figure(groups, styles, axis)
        if any(group.has("episode_return") for group in groups):
            figures[f"return{ending}"] = return_figure(groups, styles, axis)
        if any(group.has("J_C") for group in groups):
            costs = dict.fromkeys(columns for group in groups for columns in group.cost_columns)
            for name, value, limit in costs:
                figures[f"cost {name}".strip() + ending] = cost_figure(groups, styles, value, limit, axis)
    if any(group.has("J_C") and group.has("cumulative_violation") for group in groups):
        figures["violation"] = violation_figure(groups, styles)
        figures["reward against violation"] = reward_against_violation_figure(groups, styles)
    if any(group.has("J_D") for group in groups):
        figures["divergence"] = divergence_figure(groups, styles)
    if any(group.has("rho") for group in groups):
        figures["stationarity"] = stationarity_figure(groups, styles)
    if any(group.has("predicted_gain") for group in groups):
        figures["predicted gain"] = predicted_gain_figure(groups, styles)
    if any(group.has("entropy") for group in groups):
        figures["entropy"] = curve_figure(groups, styles, "entropy", "policy entropy, nats")
    return figures


def curve_figure(
    groups: Sequence[Group], styles: Mapping[str, Style], column: str, title: str, axis: str = "update"
) -> Figure:
    """One metric over updates, or over another axis: mean line and band of each group that recorded it."""
    figure, axes = _panel(AXES[axis], title)
    for number, group in reversed(list(enumerate(groups))):  # the first group on top
        _draw_curve(axes, group, column, styles[group.label], axis, number)
    return figure


def reward_figure(groups: Sequence[Group], styles: Mapping[str, Style], axis: str = "update") -> Figure:
    """J_R over updates, with pi_B's own J_R as a dotted line."""
    figure = curve_figure(groups, styles, "J_R", "J_R, discounted reward", axis)
    _mark_levels(figure.axes[0], _baseline_levels(groups, "J_R"))
    return figure


def return_figure(groups: Sequence[Group], styles: Mapping[str, Style], axis: str = "update") -> Figure:
    """The undiscounted return over updates, with pi_B's own as a dotted line."""
    figure = curve_figure(groups, styles, "episode_return", "return, undiscounted reward", axis)
    _mark_levels(figure.axes[0], _baseline_levels(groups, "episode_return"))
    return figure


def cost_figure(
    groups: Sequence[Group],
    styles: Mapping[str, Style],
    value: str = "J_C",
    limit: str = "h_C",
    axis: str = "update",
) -> Figure:
    """J_C over updates, its threshold h_C dashed and what is tolerated above it too, the zone beyond tinted, and pi_B's
    own J_C dotted."""
    name = value.removeprefix("J_C").removeprefix("_")
    figure = curve_figure(groups, styles, value, f"J_C, {name or 'cost'} per episode", axis)
    axes = figure.axes[0]
    thresholds = sorted({round(mean(group.curve(limit)), 9) for group in groups if group.has(limit)})
    levels = [(threshold, f"h_C {threshold:g}", UNSAFE) for threshold in thresholds]
    highest = max(thresholds, default=0.0)
    if thresholds and (tolerance := max(group.tolerance for group in groups)):
        highest += tolerance
        levels.append((highest, f"tolerated {highest:g}", UNSAFE))
    _mark_levels(axes, levels + _baseline_levels(groups, value))
    if thresholds:
        axes.axhspan(highest, axes.get_ylim()[1], color=UNSAFE, alpha=0.08, linewidth=0, zorder=0)
    return figure


def violation_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """Sum over updates so far of max(0, J_C - h_C), from zero."""
    figure = curve_figure(groups, styles, "cumulative_violation", "cumulative violation")
    top = figure.axes[0].get_ylim()[1]
    figure.axes[0].set_ylim(-0.02 * top, top)
    return figure


def divergence_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """J_D over updates (solid) with its threshold h_D (dashed, same colour); a log axis when the span is large."""
    shown = [group for group in groups if group.has("J_D")]
    figure = curve_figure(groups, styles, "J_D", "J_D, divergence per episode")
    axes = figure.axes[0]
    for group in reversed(shown):
        if group.has("h_D"):
            threshold = _column_means(group.curve("h_D"))
            (line,) = axes.plot(
                group.updates, threshold, color=styles[group.label][0], linestyle=(0, (2, 1.5)), linewidth=1.1
            )
            line.set_gid(f"curve{groups.index(group)}-threshold")
    _stretch_if_wide(axes, [group.curve(name) for group in shown for name in ("J_D", "h_D")])
    return figure


def stationarity_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """rho over updates, 1 dotted; a log axis when the span is large, as it is after a far exceeded constraint."""
    figure = curve_figure(groups, styles, "rho", "rho, in parts of the reward step")
    axes = figure.axes[0]
    axes.axhline(1.0, color=FAINT, linestyle=":", linewidth=1.2, zorder=1.5)
    curves = [group.curve("rho") for group in groups]
    _stretch_if_wide(axes, curves)
    lowest = min(float(finite(_column_means(curve)).min(initial=1.0)) for curve in curves)
    if axes.get_yscale() == "log":  # a band that reaches below zero has no lower end there
        axes.set_ylim(bottom=lowest / 1.5)
    else:
        axes.set_ylim(bottom=0.0)
    return figure


def predicted_gain_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """The change of J_R that a step within all constraints promises, over updates; zero dotted."""
    figure = curve_figure(groups, styles, "predicted_gain", "promised change of J_R")
    figure.axes[0].axhline(0.0, color=FAINT, linestyle=":", linewidth=1.2, zorder=1.5)
    return figure


def reward_against_violation_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """J_R against the cumulative violation spent to reach it; a dot marks the last update. Up and left is better."""
    figure, axes = _panel("cumulative violation", "J_R, discounted reward")
    for number, group in reversed(list(enumerate(groups))):
        if not group.has("cumulative_violation"):
            continue
        colour, dash = styles[group.label]
        spent, reward = group.curve("cumulative_violation"), group.curve("J_R")
        for seed, (x, y) in enumerate(zip(spent, reward, strict=True) if len(group.runs) > 1 else ()):
            axes.plot(x, y, color=colour, linewidth=0.6, alpha=0.35, gid=f"curve{number}-seed{seed}")
        x, y = _column_means(spent), _column_means(reward)
        axes.plot(x, y, color=colour, linestyle=dash, label=group.label, gid=f"curve{number}-line")
        axes.plot(x[-1:], y[-1:], color=colour, marker="o", markersize=4.5, gid=f"curve{number}-end")
    axes.set_xlim(left=min(0.0, -0.015 * axes.get_xlim()[1]))  # from nothing spent
    return figure


def _panel(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=PANEL_SIZE, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(True, axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label, parse_math=False)  # names come from files: a dollar sign is a dollar sign
        axes.tick_params(length=2.5)
        axes.margins(x=0.015)
        if x_label == AXES["update"]:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, axes


def _column_means(curves: np.ndarray) -> np.ndarray:
    return np.array([mean(column) for column in curves.T])


def _draw_curve(axes: Axes, group: Group, column: str, style: Style, axis: str, number: int) -> None:
    """Parts of a curve carry the number of their group, by which the page switches them off."""
    curves = group.curve(column)
    if not np.isfinite(curves).any():
        return
    colour, dash = style
    x = group.updates if axis == "update" else _column_means(group.curve(axis))
    centre, marker = _column_means(curves), "o" if len(group.updates) == 1 else ""
    axes.plot(x, centre, color=colour, linestyle=dash, label=group.label, marker=marker, gid=f"curve{number}-line")
    if len(group.runs) > 1:
        intervals = [mean_interval(values) for values in curves.T]
        low, high = (np.array([getattr(each, end) for each in intervals]) for end in ("low", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, gid=f"curve{number}-band")


def _baseline_levels(groups: Sequence[Group], column: str) -> list[Level]:
    """What each baseline itself has of a column, averaged over the runs that measured it."""
    measured: dict[str, list[float]] = {}
    for run in (run for group in groups for run in group.runs):
        if run.baseline is not None:
            name = baseline_text(run.baseline.name) or "baseline"
            cost = run.baseline.costs.get(column.removeprefix("J_C_"), np.nan)
            measured.setdefault(name, []).append(getattr(run.baseline, column, cost))
    known = {name: values for name, values in measured.items() if len(finite(values))}
    return [(mean(values), f"π_B {_shortened(name)}", FAINT) for name, values in known.items()]


def _shortened(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _mark_levels(axes: Axes, levels: Sequence[Level]) -> None:
    """Horizontal lines (thresholds dashed, baselines dotted), each named just outside the right edge.

    Names that would overlap are pushed apart; the axis reaches beyond the highest line.
    """
    if not levels:
        return
    for height, _, colour in levels:
        axes.axhline(height, color=colour, linestyle="--" if colour == UNSAFE else ":", linewidth=1.2, zorder=1.5)
    bottom, top = axes.get_ylim()
    highest = max(height for height, _, _ in levels)
    top = max(top, highest + 0.15 * (highest - bottom))
    axes.set_ylim(bottom, top)
    points_per_unit = 0.82 * PANEL_SIZE[1] * 72 / (top - bottom)
    free_from = -np.inf
    for height, text, colour in sorted(levels):
        wanted = (height - bottom) * points_per_unit
        placed = max(wanted, free_from)
        free_from = placed + 10.0
        axes.annotate(
            text, (1.0, height), xycoords=("axes fraction", "data"), xytext=(4, placed - wanted),
            textcoords="offset points", va="center", fontsize=7.5, color=colour if colour == UNSAFE else INK,
            annotation_clip=False, parse_math=False,
        )  # fmt: skip


def _stretch_if_wide(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    """A log axis when the positive values span more than a factor of 50; symlog when some are not positive."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    values = finite(np.concatenate([curve.reshape(-1) for curve in curves])) if curves else np.zeros(0)
    positive = values[values > 0]
    if len(positive) == 0 or positive.max() < 50 * np.quantile(positive, 0.02):
        return
    if len(positive) == len(values):
        axes.set_yscale("log")
    else:
        axes.set_yscale("symlog", linthresh=float(np.quantile(positive, 0.02)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1 else f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
