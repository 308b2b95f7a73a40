"""Groups in, matplotlib figures out, and figures into inline SVG. matplotlib is imported only where something is drawn.

Lines are means over seeds; bands are one sample standard deviation to each side, as in the paper. Nothing is smoothed.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spacerl.reporting.reading import Episode, Group, PolicyEpisodes, Trajectories
from spacerl.reporting.statistics import finite, mean, standard_deviation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
PANEL_SIZE = (4.9, 3.1)  # inches
LARGEST_SVG = 400_000  # characters; beyond this a PNG is lighter
EPISODES_SHOWN = 3

Style = tuple[str, Any]  # colour, dash pattern
Level = tuple[float, str, str]  # height of a horizontal line, its name, its colour
_RC: dict[Any, Any] = {
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


def task_figures(groups: Sequence[Group], styles: Mapping[str, Style] | None = None) -> dict[str, Figure]:
    """Every curve figure that the groups of one task have data for, by name, in reading order."""
    styles = styles or group_styles(groups)
    figures = {"reward": reward_figure(groups, styles)}
    if any(group.has("J_C") for group in groups):
        costs = dict.fromkeys(columns for group in groups for columns in group.cost_columns)
        for name, value, limit in costs:
            figures[f"cost {name}".strip()] = cost_figure(groups, styles, value, limit)
        if any(group.has("cumulative_violation") for group in groups):
            figures["violation"] = violation_figure(groups, styles)
            figures["reward against violation"] = reward_against_violation_figure(groups, styles)
    if any(group.has("J_D") for group in groups):
        figures["divergence"] = divergence_figure(groups, styles)
    if any(group.has("entropy") for group in groups):
        figures["entropy"] = curve_figure(groups, styles, "entropy", "policy entropy, nats")
    return figures


def curve_figure(groups: Sequence[Group], styles: Mapping[str, Style], column: str, title: str) -> Figure:
    """One metric over updates: mean line and band of each group that recorded it."""
    figure, axes = _panel("update", title)
    for group in reversed(groups):  # the first group on top
        _draw_curve(axes, group, column, styles[group.label])
    return figure


def reward_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """J_R over updates, with pi_B's own J_R as a dotted line."""
    figure = curve_figure(groups, styles, "J_R", "J_R, discounted reward")
    _mark_levels(figure.axes[0], _baseline_levels(groups, "J_R"))
    return figure


def cost_figure(groups: Sequence[Group], styles: Mapping[str, Style], value: str = "J_C", limit: str = "h_C") -> Figure:
    """J_C over updates, its threshold h_C dashed, the violating zone above it tinted, pi_B's own J_C dotted."""
    name = value.removeprefix("J_C").removeprefix("_")
    figure = curve_figure(groups, styles, value, f"J_C, {name or 'cost'} per episode")
    axes = figure.axes[0]
    thresholds = sorted({round(mean(group.curve(limit)), 9) for group in groups if group.has(limit)})
    levels = [(threshold, f"h_C {threshold:g}", UNSAFE) for threshold in thresholds]
    _mark_levels(axes, levels + (_baseline_levels(groups, "J_C") if value == "J_C" else []))
    if thresholds:
        axes.axhspan(thresholds[-1], axes.get_ylim()[1], color=UNSAFE, alpha=0.08, linewidth=0, zorder=0)
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
    figure = curve_figure(shown, styles, "J_D", "J_D, divergence per episode")
    axes = figure.axes[0]
    for group in reversed(shown):
        if group.has("h_D"):
            threshold = _column_means(group.curve("h_D"))
            axes.plot(group.updates, threshold, color=styles[group.label][0], linestyle=(0, (2, 1.5)), linewidth=1.1)
    _stretch_if_wide(axes, [group.curve(name) for group in shown for name in ("J_D", "h_D")])
    return figure


def reward_against_violation_figure(groups: Sequence[Group], styles: Mapping[str, Style]) -> Figure:
    """J_R against the cumulative violation spent to reach it; a dot marks the last update. Up and left is better."""
    figure, axes = _panel("cumulative violation", "J_R, discounted reward")
    for group in reversed(groups):
        if not group.has("cumulative_violation"):
            continue
        colour, dash = styles[group.label]
        spent, reward = group.curve("cumulative_violation"), group.curve("J_R")
        for x, y in zip(spent, reward, strict=True) if len(group.runs) > 1 else ():
            axes.plot(x, y, color=colour, linewidth=0.6, alpha=0.35)
        x, y = _column_means(spent), _column_means(reward)
        axes.plot(x, y, color=colour, linestyle=dash, label=group.label)
        axes.plot(x[-1:], y[-1:], color=colour, marker="o", markersize=4.5)
    axes.set_xlim(left=min(0.0, -0.015 * axes.get_xlim()[1]))  # from nothing spent
    return figure


def trajectory_figure(trajectories: Trajectories, colour: str = SERIES[0][0]) -> Figure:
    """Where each policy went, side by side: circle arenas overlay the episodes, gather arenas show them one by one.

    Steps that cost something are red. The baseline is drawn in grey, other policies in ``colour``.
    """
    circle = trajectories.arena["kind"] == "circle"
    policies = trajectories.policies
    rows, columns = (1, len(policies)) if circle else (len(policies), max(1, _episodes_shown(policies)))
    figure, grid = _grid(rows, columns, size=2.7 if circle else 1.9)
    for row, policy in enumerate(policies):
        panels = [grid[0][row]] if circle else list(grid[row])
        line = FAINT if policy.name == "baseline" else colour
        for number, axes in enumerate(panels):
            episodes = policy.episodes if circle else policy.episodes[number : number + 1]
            _ARENAS[trajectories.arena["kind"]](axes, trajectories.arena, episodes)
            for episode in episodes:
                _draw_episode(axes, episode, line, alpha=0.75 if len(episodes) > 1 else 1.0)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_aspect("equal")
        panels[0].set_title(_policy_title(policy), loc="left", fontsize=8.5, parse_math=False)
    return figure


def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """A figure as markup for an HTML page: no outside reference, ids unique by ``prefix``, colours from its theme.

    ``description`` is what a screen reader says. A drawing too large as SVG becomes an embedded PNG.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    spoken = html.escape(description, quote=True)
    if len(svg) > LARGEST_SVG:
        return f'<img class="plot" alt="{spoken}" src="data:image/png;base64,{_png(figure)}">'
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box is not None
    svg = re.sub(r"<svg[^>]*>", f'<svg class="plot" role="img" aria-label="{spoken}" {view_box[0]}>', svg, count=1)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", svg)
    for fixed, themed in PAGE_COLOURS.items():
        svg = svg.replace(fixed, themed)
    return _subscripts(svg)


def _subscripts(svg: str) -> str:
    """Set J_R, h_C and the like with a lowered index; the zero-width space carries the return to the baseline."""
    lowered = r'\1<tspan dy="2" style="font-size: 75%">\2</tspan><tspan dy="-2">&#8203;</tspan>'
    return re.sub(r"([Jh]|π)_([RCDB])", lowered, svg)


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=170, facecolor="white")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _panel(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=PANEL_SIZE, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(True, axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label, parse_math=False)  # names come from files: a dollar sign is a dollar sign
        axes.tick_params(length=2.5)
        axes.margins(x=0.015)
        if x_label == "update":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _grid(rows: int, columns: int, size: float) -> tuple[Figure, np.ndarray]:
    import matplotlib
    from matplotlib.figure import Figure

    framed: dict[Any, Any] = {**_RC, "axes.spines.top": True, "axes.spines.right": True, "axes.linewidth": 0.5}
    with matplotlib.rc_context(framed):
        figure = Figure(figsize=(size * columns, (size + 0.25) * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)


def _column_means(curves: np.ndarray) -> np.ndarray:
    return np.array([mean(column) for column in curves.T])


def _draw_curve(axes: Axes, group: Group, column: str, style: Style) -> None:
    curves = group.curve(column)
    if not np.isfinite(curves).any():
        return
    colour, dash = style
    centre = _column_means(curves)
    single = len(group.updates) == 1
    axes.plot(group.updates, centre, color=colour, linestyle=dash, label=group.label, marker="o" if single else "")
    if len(group.runs) > 1:
        spread = np.array([standard_deviation(values) for values in curves.T])
        axes.fill_between(group.updates, centre - spread, centre + spread, color=colour, alpha=0.18, linewidth=0)


def _baseline_levels(groups: Sequence[Group], column: str) -> list[Level]:
    """Each baseline's own J_R or J_C, averaged over the runs that measured it."""
    measured: dict[str, list[float]] = {}
    for run in (run for group in groups for run in group.runs):
        if run.baseline is not None:
            measured.setdefault(run.baseline.name, []).append(getattr(run.baseline, column))
    known = {name: values for name, values in measured.items() if len(finite(values))}
    return [(mean(values), f"π_B {_shortened(name)}", FAINT) for name, values in known.items()]


def _shortened(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _mark_levels(axes: Axes, levels: Sequence[Level]) -> None:
    """Horizontal lines (thresholds dashed, baselines dotted), each named just outside the right edge.

    Names that would overlap are pushed apart; the axis keeps room above the highest line.
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


def _episodes_shown(policies: Sequence[PolicyEpisodes]) -> int:
    return min(EPISODES_SHOWN, max((len(policy.episodes) for policy in policies), default=1))


def _policy_title(policy: PolicyEpisodes) -> str:
    name = "baseline π_B" if policy.name == "baseline" else policy.name
    numbers = [f"{key} {value:.3g}" for key, value in (("J_R", policy.J_R), ("J_C", policy.J_C)) if np.isfinite(value)]
    return ":  ".join(filter(None, [name, ", ".join(numbers)]))


def _draw_episode(axes: Axes, episode: Episode, colour: str, alpha: float) -> None:
    x, y = episode.xy.T
    axes.plot(x, y, color=colour, linewidth=1.1, alpha=alpha, zorder=3)
    axes.plot(x[:1], y[:1], color=colour, marker="o", markersize=3.5, zorder=4)
    unsafe = episode.cost > 0
    axes.plot(x[unsafe], y[unsafe], color=UNSAFE, marker="o", markersize=2.6, linestyle="none", zorder=5)


def _draw_circle_arena(axes: Axes, arena: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
    """The rewarded circle of radius d dashed, the walls x = +-x_limit, and what lies beyond them tinted."""
    from matplotlib.patches import Circle

    radius, wall = float(arena["radius"]), float(arena["x_limit"])
    visited = np.concatenate([np.abs(episode.xy).reshape(-1) for episode in episodes] or [np.zeros(1)])
    half = float(np.clip(1.08 * visited.max(initial=0.0), 1.25 * radius, 3.0 * radius))
    for side in (-1, 1):
        axes.axvspan(side * wall, side * half * 1.1, color=UNSAFE, alpha=0.10, linewidth=0, zorder=0)
        axes.axvline(side * wall, color=UNSAFE, linewidth=1.0, zorder=1)
    axes.add_patch(Circle((0, 0), radius, fill=False, edgecolor=INK, linestyle="--", linewidth=0.9, zorder=1))
    axes.set(xlim=(-half, half), ylim=(-half, half))


def _draw_gather_arena(axes: Axes, arena: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
    """The square with its apples green and its bombs red, each with the range in which it is caught."""
    from matplotlib.patches import Circle, Rectangle

    half, catch = float(arena["half_width"]), float(arena["catch_range"])
    axes.add_patch(Rectangle((-half, -half), 2 * half, 2 * half, fill=False, edgecolor=INK, linewidth=0.9, zorder=1))
    for episode in episodes:
        for places, colour, marker in ((episode.apples, APPLE, "o"), (episode.bombs, UNSAFE, "X")):
            for place in places:
                axes.add_patch(Circle((place[0], place[1]), catch, color=colour, alpha=0.15, linewidth=0, zorder=0))
            axes.plot(*places.T, color=colour, marker=marker, markersize=5, linestyle="none", zorder=2)
    axes.set(xlim=(-1.12 * half, 1.12 * half), ylim=(-1.12 * half, 1.12 * half), frame_on=False)


_ARENAS: dict[str, Callable[[Any, Mapping[str, Any], Sequence[Episode]], None]] = {
    "circle": _draw_circle_arena,
    "gather": _draw_gather_arena,
}
