"""An episode on a road as a traffic engineer draws it: space-time diagram, queues, how long lights have been red."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spacerl.reporting.palette import APPLE, FAINT, INK, RC, SERIES, UNSAFE
from spacerl.runs.records import PolicyEpisodes, Traffic, Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AUTONOMOUS = SERIES[1][0]
PANEL = (3.4, (2.3, 1.2, 1.2))  # inches: width, heights


def traffic_figure(trajectories: Trajectories, title: Callable[[PolicyEpisodes], str]) -> Figure:
    """A column for each policy, before and after: the same episode."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = [(policy, episode.traffic) for policy in trajectories.policies for episode in policy.episodes[:1]]
    columns = [(policy, traffic) for policy, traffic in shown if traffic is not None]
    has_lights = any(traffic.red.shape[1] for _, traffic in columns)
    width, heights = PANEL[0], PANEL[1] if has_lights else PANEL[1][:2]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width * len(columns), sum(heights) + 0.3), layout="constrained")
        grid = figure.subplots(
            len(heights), len(columns), squeeze=False, sharex=True, sharey="row", height_ratios=list(heights)
        )
        for j, (policy, traffic) in enumerate(columns):
            _space_time(grid[0][j], traffic, trajectories.arena)
            _queues(grid[1][j], traffic)
            if has_lights:
                _red_times(grid[2][j], traffic, trajectories.arena)
            grid[0][j].set_title(title(policy), loc="left", fontsize=8.5, parse_math=False)
            grid[-1][j].set_xlabel("time, s")
        for i, words in enumerate(("place along the road, m", "vehicles that queue", "seconds of red")[: len(heights)]):
            grid[i][0].set_ylabel(words)
    return figure


def _space_time(axes: Axes, traffic: Traffic, arena: Mapping[str, Any]) -> None:
    """A line for every vehicle: steep is fast, level stands. Autonomous ones in their colour, where slow in red."""
    slow = float(arena["slow"])
    for points in traffic.vehicles:
        time, place, speed, autonomous = points.T
        axes.plot(time, place, color=AUTONOMOUS if autonomous[0] else FAINT, linewidth=0.7)
        axes.plot(time, np.where(speed < slow, place, np.nan), color=UNSAFE, linewidth=1.0)


def _queues(axes: Axes, traffic: Traffic) -> None:
    """Faint for each approach, dark for all of them together."""
    axes.plot(traffic.time, traffic.queues, color=FAINT, linewidth=0.5)
    axes.plot(traffic.time, traffic.queues.sum(axis=1), color=INK, linewidth=1.2)


def _red_times(axes: Axes, traffic: Traffic, arena: Mapping[str, Any]) -> None:
    """How long each light has been red: green up to the limit, which is dashed, and red above it."""
    limit = float(arena.get("red_limit", np.inf))
    for light in traffic.red.T:
        axes.plot(traffic.time, light, color=APPLE, linewidth=0.6)
        axes.plot(traffic.time, np.where(light > limit, light, np.nan), color=UNSAFE, linewidth=1.0)
    if np.isfinite(limit):
        axes.axhline(limit, color=INK, linestyle="--", linewidth=0.8)
