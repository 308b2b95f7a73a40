"""Where the metrics of every update go: metrics.csv, TensorBoard, the progress display, trackers, the user's function.

A sink gets the start of a run, every row of its metrics, and its end. One that returns True from `update` asks for a
stop: the run saves its state and ends, and can be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacerl.runs.config import RunConfig
from spacerl.runs.folder import RunFolder
from spacerl.runs.metrics import hash_after
from spacerl.types import InputError, Row, unknown_name


class RunInfo(NamedTuple):
    """Which run a row is of."""

    folder: Path
    config: RunConfig


class Sink:
    """Does nothing; a subclass overrides what it wants to know. It may serve several runs at once."""

    durable = False  # whether a row must be with it before the state moves on: an interrupt then waits for it

    def start(self, run: RunInfo, done: int) -> None:
        """A run begins, or goes on after `done` updates."""

    def update(self, run: RunInfo, row: Row) -> bool | None:
        """One update is done. True asks for a stop."""

    def finish(self, run: RunInfo) -> None:
        """The run ends, for whatever reason."""


class CsvSink(Sink):
    """metrics.csv of the run folder; a resumed run keeps the rows up to its checkpoint."""

    durable = True

    def __init__(self) -> None:
        self._hashes: dict[Path, dict[int, str]] = {}  # of the rows of so many updates: the last two such numbers

    def start(self, run: RunInfo, done: int) -> None:
        folder = RunFolder(run.folder)
        folder.keep_metrics_until(done)
        folder.keep_evaluations_until(done)
        self._hashes[run.folder] = {done: folder.history().hash_of(done)}

    def update(self, run: RunInfo, row: Row) -> None:
        RunFolder(run.folder).append_metrics(row)
        done = int(row["update"])
        before = self._hashes[run.folder][done]
        # The one before stays: another sink may fail, and the state then does not move on.
        self._hashes[run.folder] = {done: before, done + 1: hash_after(before, row)}

    def rows_hash(self, folder: Path, updates: int) -> str:
        """Of what was written for so many updates, whatever the file says now."""
        return self._hashes[folder][updates]


class TensorBoardSink(Sink):
    """Events in the run folder; a resumed run continues after the rows that are kept."""

    # An interrupt inside of the writer can leave it with a lock held.
    durable = True

    def __init__(self) -> None:
        self._writers: dict[Path, Any] = {}

    def start(self, run: RunInfo, done: int) -> None:
        from tensorboardX import SummaryWriter

        self._writers[run.folder] = SummaryWriter(str(run.folder / "events"), purge_step=done or None)

    def update(self, run: RunInfo, row: Row) -> None:
        for name, value in row.items():
            if name != "update" and not math.isnan(value):
                self._writers[run.folder].add_scalar(name, value, int(row["update"]))

    def finish(self, run: RunInfo) -> None:
        writer = self._writers.pop(run.folder, None)
        if writer is not None:
            writer.close()


class FunctionSink(Sink):
    """The user's own function of a row: the metrics by name, with the run's folder name and seed."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]):
        self._function = function

    def update(self, run: RunInfo, row: Row) -> bool:
        return bool(self._function({"run": run.folder.name, "seed": run.config.seed, **row}))


def as_sinks(given: Any) -> list[Sink]:
    """What a user gave as `on_update`: a function of a row, a Sink, or several of them."""
    if given is None:
        return []
    several = given if isinstance(given, list | tuple) else [given]
    for each in several:
        if not (isinstance(each, Sink) or callable(each)):
            raise InputError(f"on_update is {type(each).__name__}: allowed is a function of a row, a Sink, or several")
    return [each if isinstance(each, Sink) else FunctionSink(each) for each in several]


def _wandb() -> Sink:
    from spacerl.training.trackers import WandbSink

    return WandbSink()


def _mlflow() -> Sink:
    from spacerl.training.trackers import MlflowSink

    return MlflowSink()


LOGS: dict[str, Callable[[], Sink]] = {"tensorboard": TensorBoardSink, "wandb": _wandb, "mlflow": _mlflow}
USUAL_LOGS = ("tensorboard",)


def named_sinks(given: Sequence[str] | str | None) -> list[Sink]:
    names = () if given is None else (given,) if isinstance(given, str) else given
    for name in names:
        if name not in LOGS:
            unknown = unknown_name("log", name, LOGS)
            raise InputError(f"{unknown}; to log to none of them, give --log without a name (log=() in Python)")
    return [LOGS[name]() for name in names]
