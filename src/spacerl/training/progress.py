"""Live progress: cost against its threshold, divergence against its radius, speed, time left."""

from __future__ import annotations

import io
import math
import sys
import time
from typing import Any

from spacerl.runs.text import number_text
from spacerl.training.sinks import RunInfo, Sink
from spacerl.types import Row

PLAIN_LINES = 20  # about so many lines when the output is not a terminal


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookLive:
    """A panel in the output of a notebook's cell, replaced by every update."""

    def __init__(self, panel: Any):
        from IPython.display import display  # type: ignore[import-not-found]

        self._handle: Any = display(self._html(panel), display_id=True)

    def _html(self, panel: Any) -> Any:
        from IPython.display import HTML  # type: ignore[import-not-found]
        from rich.console import Console

        console = Console(record=True, file=io.StringIO(), width=80, force_jupyter=False)
        console.print(panel)
        return HTML(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))

    def update(self, panel: Any) -> None:
        self._handle.update(self._html(panel))

    def stop(self) -> None:
        return


class ProgressSink(Sink):
    """A live display on a terminal or in a notebook, plain lines elsewhere; of several runs the mean."""

    def __init__(self, title: str):
        self.title = title
        self.updates = self.first = self.runs = 0
        self.started = time.monotonic()
        self.first_steps: float | None = None
        self.rows: list[Row] = []
        self.live: Any = None

    def start(self, run: RunInfo, done: int) -> None:
        self.runs += 1
        if self.runs > 1:
            return
        self.updates, self.first = run.config.updates, done
        if in_notebook():
            self.live = NotebookLive(self._panel(None))
        elif sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(self._panel(None), refresh_per_second=8)
            self.live.start()
        else:
            print(self.title, flush=True)

    def finish(self, run: RunInfo) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def update(self, run: RunInfo, row: Row) -> None:
        self.rows.append(row)
        if len(self.rows) == self.runs:
            together = {name: sum(each[name] for each in self.rows) / self.runs for name in row}
            self._show(together | {"env_steps": sum(each["env_steps"] for each in self.rows)})
            self.rows = []

    def _show(self, row: dict[str, Any]) -> None:
        row["update"] = round(row["update"])
        if self.live is not None:
            self.live.update(self._panel(row))
        elif (row["update"] + 1) % max(1, self.updates // PLAIN_LINES) == 0 or row["update"] + 1 == self.updates:
            print(_line(row, self.updates, *self._speed(row)), flush=True)

    def _speed(self, row: dict[str, Any]) -> tuple[float, float]:
        """Steps per second and seconds left; the first update, which compiles, is left out as soon as possible."""
        now, done = time.monotonic(), row["update"] + 1 - self.first
        if self.first_steps is None:
            self.first_steps, self.started, self.first = row["env_steps"], now, row["update"] + 1
            return math.nan, math.nan
        elapsed = max(now - self.started, 1e-9)
        return (row["env_steps"] - self.first_steps) / elapsed, elapsed / max(done, 1) * (
            self.updates - row["update"] - 1
        )

    def _panel(self, row: dict[str, Any] | None) -> Any:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        if row is None:
            grid.add_row("compiling the update ...")
            return Panel(grid, title=Text(self.title), title_align="left", width=78)
        speed, left = self._speed(row)
        grid.add_row(
            "update", f"{row['update'] + 1} of {self.updates}", ProgressBar(self.updates, row["update"] + 1, width=34)
        )
        grid.add_row("J_R", _shown(row["J_R"]), "discounted reward")
        length = f"undiscounted, in {row['episode_length']:.0f} steps"
        grid.add_row("return", _shown(row["episode_return"]), length)
        for name, cost, limit in costs_of(row):
            verdict = f"[red]above h_C = {limit:g}[/]" if cost > limit else f"[green]within h_C = {limit:g}[/]"
            grid.add_row(f"J_C {name}".strip(), _shown(cost), verdict)
        if not math.isnan(row["J_D"]):
            radius = "" if math.isnan(row["h_D"]) else f"h_D = {row['h_D']:.4g}"
            grid.add_row("J_D", f"{row['J_D']:.4g}", radius)
        if not math.isnan(speed):
            grid.add_row("speed", f"{speed:,.0f} steps/s", f"time left {_duration(left)}")
        return Panel(grid, title=Text(self.title), title_align="left", width=78)


def costs_of(row: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(name, J_C, h_C) of every cost; of a single one, which has no name here."""
    names = [column.removeprefix("h_C_") for column in row if column.startswith("h_C_")]
    return [(name, row[f"J_C_{name}"], row[f"h_C_{name}"]) for name in names] or [("", row["J_C"], row["h_C"])]


def _line(row: dict[str, Any], updates: int, speed: float, left: float) -> str:
    costs = ", ".join(f"{name} {_shown(cost)} / {limit:g}".strip() for name, cost, limit in costs_of(row))
    divergence = "" if math.isnan(row["J_D"]) else f"  J_D {row['J_D']:.4g}"
    divergence += "" if math.isnan(row["h_D"]) else f" / {row['h_D']:.4g}"
    pace = "" if math.isnan(speed) else f"  {speed:,.0f} steps/s  left {_duration(left)}"
    return (
        f"update {row['update'] + 1}/{updates}  J_R {_shown(row['J_R'])}  J_C {costs}{divergence}"
        f"  return {_shown(row['episode_return'])} in {row['episode_length']:.0f} steps{pace}"
    )


def _shown(value: float) -> str:
    return number_text(value, 3)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
