"""Where policies went, drawn in the arena they moved in. Kinds of arena that are not known here are not drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spacerl.reporting.palette import APPLE, FAINT, INK, RC, SERIES, UNSAFE
from spacerl.reporting.traffic import traffic_figure
from spacerl.runs.records import Episode, PolicyEpisodes, Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPISODES_SHOWN = 3
TRAFFIC = "traffic"  # roads, which are not drawn as an arena


@dataclass(frozen=True)
class Arena:
    """How one kind of arena is drawn."""

    needs: tuple[str, ...]  # numbers above zero that trajectories.json must give
    draw: Callable[[Any, Mapping[str, Any], Sequence[Episode]], None]
    overlaid: bool  # all episodes of a policy in one panel, or a panel each
    panel_size: float  # inches


def undrawable(trajectories: Trajectories) -> str | None:
    """Why these trajectories cannot be drawn, as the end of a sentence; None where they can.

    An environment of the user's own may name any kind, so this is a remark on the page and no error.
    """
    kind = trajectories.arena.get("kind")
    if not isinstance(kind, str) or kind not in ARENAS:
        return f"the report draws arenas of kind {' and '.join(ARENAS)}, not {kind!r}"
    for name in ARENAS[kind].needs:
        value = trajectories.arena.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            return f"an arena of kind {kind!r} needs a number above 0 as {name!r}, not {value!r}"
    return None


def trajectory_figure(trajectories: Trajectories, colour: str = SERIES[0][0]) -> Figure:
    """Where each policy went, side by side: circle arenas overlay the episodes, gather arenas show them one by one.

    Steps that cost something are red. The baseline is drawn in grey, other policies in ``colour``.
    """
    if trajectories.arena["kind"] == TRAFFIC:
        return traffic_figure(trajectories, _policy_title)
    arena = ARENAS[trajectories.arena["kind"]]
    policies = trajectories.policies
    rows, columns = (1, len(policies)) if arena.overlaid else (len(policies), max(1, _episodes_shown(policies)))
    figure, grid = _grid(rows, columns, arena.panel_size)
    for number, policy in enumerate(policies):
        panels = [grid[0][number]] if arena.overlaid else list(grid[number])
        line = FAINT if policy.name == "baseline" else colour
        shown = [policy.episodes] if arena.overlaid else [policy.episodes[i : i + 1] for i in range(columns)]
        for axes, episodes in zip(panels, shown, strict=True):
            _draw_panel(axes, trajectories.arena, episodes, line)
        panels[0].set_title(_policy_title(policy), loc="left", fontsize=8.5, parse_math=False)
    return figure


def _draw_panel(axes: Axes, arena: Mapping[str, Any], episodes: Sequence[Episode], colour: str) -> None:
    ARENAS[arena["kind"]].draw(axes, arena, episodes)
    for episode in episodes:
        _draw_episode(axes, episode, colour, alpha=0.75 if len(episodes) > 1 else 1.0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal")


def _grid(rows: int, columns: int, size: float) -> tuple[Figure, np.ndarray]:
    import matplotlib
    from matplotlib.figure import Figure

    framed: dict[Any, Any] = {**RC, "axes.spines.top": True, "axes.spines.right": True, "axes.linewidth": 0.5}
    with matplotlib.rc_context(framed):
        figure = Figure(figsize=(size * columns, (size + 0.25) * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)


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


def _draw_nothing(axes: Axes, arena: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
    return


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


ARENAS = {
    "circle": Arena(("radius", "x_limit"), _draw_circle_arena, overlaid=True, panel_size=2.7),
    "gather": Arena(("half_width", "catch_range"), _draw_gather_arena, overlaid=False, panel_size=1.9),
    TRAFFIC: Arena(("slow",), _draw_nothing, overlaid=False, panel_size=3.4),
}
