"""Runs and sweeps that are killed, at file operations and at any moment, and go on to the same bits."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import spacerl
from attacks.common import EVALUATED, QUIET, Outcome, outcome_of, rows_in, so_far, started
from spacerl.policies.files import read_policy
from spacerl.runs.folder import RunFolder, read_json

# Kills at every file operation --------------------------------------------------------------------------------------

WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")
_watcher: Callable[[Path | None], None] | None = None
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watcher is None or event not in WATCHED:
        return
    written = None
    if event == "open":
        if not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if isinstance(arguments[0], int):  # a file that is open already
            return
        written = Path(os.fsdecode(arguments[0]))
    _watcher(written)


class _Copies:
    """A folder as it was before every operation that changes a file, and as it was in the midst of every write."""

    def __init__(self, folder: Path, copies: Path):
        self.folder, self.copies, self.busy = folder.resolve(), copies, False
        self.made: list[Path] = []
        self.opened: tuple[Path, int] | None = None  # what is being written, and its size before

    def __call__(self, written: Path | None) -> None:
        if self.busy or not (self.folder / "config.json").exists():
            return
        self.busy = True
        try:
            if self.opened is not None:
                self._half_written(*self.opened)
            self._copy()
            self.opened = None
            if written is not None and self.folder in written.resolve().parents and written.name != ".lock":
                kept = written.suffix == ".csv" and written.exists()  # rows are appended, all else is written anew
                self.opened = written.resolve(), written.stat().st_size if kept else 0
        finally:
            self.busy = False

    def _copy(self) -> Path:
        copy = self.copies / str(len(self.made))
        self.made.append(Path(shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns(".lock"))))
        return copy

    def _half_written(self, path: Path, before: int) -> None:
        if path.exists() and path.stat().st_size > before:
            os.truncate(self._copy() / path.relative_to(self.folder), (before + path.stat().st_size) // 2)


@contextlib.contextmanager
def copied_before_every_operation(folder: Path, copies: Path) -> Iterator[list[Path]]:
    """What a kill at every operation that changes a file, and in the midst of every write, would leave."""
    global _watcher, _hooked
    if not _hooked:
        sys.addaudithook(_audit)  # for ever, so once
        _hooked = True
    _watcher = watcher = _Copies(folder, copies)
    try:
        yield watcher.made
    finally:
        _watcher = None


def kills(count: int, work: Path) -> Outcome:
    """Copies of a run at its file operations, each resumed: all must end as the run that was never stopped."""
    whole = work / "whole"
    with copied_before_every_operation(whole, work / "copies") as copies:
        spacerl.train("point-circle", updates=20, out=whole, **EVALUATED, **QUIET)
    expected = outcome_of(whole)
    chosen = random.Random(0).sample(copies, min(count, len(copies)))
    failures = []
    for copy in chosen:
        try:
            read_all(copy)
            spacerl.resume(copy, **QUIET)
            differing = [part for part, value in outcome_of(copy).items() if value != expected[part]]
            if differing or list(copy.rglob("*.tmp")):
                failures.append(f"killed at operation {copy.name}: {', '.join(differing) or 'leftovers'} differ")
        except Exception as error:
            failures.append(f"killed at operation {copy.name}: {type(error).__name__}: {error}")
        shutil.rmtree(copy)
    return Outcome("kills at file operations", len(chosen), failures, f"of {len(copies)} operations of a run")


def read_all(folder: Path) -> None:
    """Every file of a run under its own name is whole at any moment, also for who only looks at it."""
    run = RunFolder(folder)
    run.config()
    run.evaluations()
    if run.metrics_path.exists():
        run.metrics_table()
    for path in folder.glob("*.json"):
        read_json(path)
    for update in run.checkpoint_updates():
        run.checkpoint(update)
    for path in folder.glob("*.safetensors"):
        read_policy(path, path.name)


# Real SIGKILLs -------------------------------------------------------------------------------------------------------

POINT = ["point-circle", "--batch-size", "100", "--hidden", "4", "--checkpoint-every", "3", "--quiet"]
RUN = [*POINT, "--algorithm", "pcpo"]
ENDLESS = "1000000"  # updates: it is always killed
SOON, LATER = 0.4, 40  # share of kills at any moment of a process's life; rows after which the others come


def killed_at_random(process: subprocess.Popen, rows: Callable[[], int], chance: random.Random, life: float) -> bool:
    """SIGKILL at any moment from the first instruction on, or while rows are written; whether it was still at work."""
    if chance.random() < SOON:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, life))
    else:
        wanted = rows() + chance.randrange(1, LATER)
        while process.poll() is None and rows() < wanted:
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.02))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def real_kills(count: int, work: Path) -> Outcome:
    """A process killed by SIGKILL at random moments and resumed, again and again; then compared with one that lived."""
    chance, failures, killed, early = random.Random(1), [], 0, 0
    out = work / "killed"
    began = time.monotonic()
    started(["train", *RUN, "--updates", "1", "--out", str(work / "tried")]).communicate()
    life = time.monotonic() - began
    for i in range(count):
        there = (out / "config.json").exists()
        before = rows_in(out)
        new = ["train", *RUN, "--updates", ENDLESS, "--out", str(out)]
        process = started(["resume", str(out), "--quiet"] if there else new)
        killed += killed_at_random(process, lambda: rows_in(out), chance, life)
        early += rows_in(out) == before
        so_far("real SIGKILLs", i + 1, failures)
    updates = str(rows_in(out) + LATER)
    process = started(["resume", str(out), "--quiet", "--updates", updates])
    if process.communicate()[1] or process.returncode:
        failures.append(f"the last resume ended with code {process.returncode}")
    whole = work / "never"
    started(["train", *RUN, "--updates", updates, "--out", str(whole)]).communicate()
    expected = outcome_of(whole)
    failures += [f"{part} differs" for part, value in outcome_of(out).items() if value != expected[part]]
    if rows_in(out) != int(updates):
        failures.append(f"{rows_in(out)} rows of {updates} updates")
    if killed < count:
        failures.append(f"{killed} processes were at work when they were killed")
    return Outcome("real SIGKILLs", killed, failures, f"{early} before the process wrote a row; {updates} updates")


def killed_sweeps(count: int, work: Path) -> Outcome:
    """One program that steps many runs, killed at random moments; every run ends as in a sweep that lived."""
    chance, failures, killed = random.Random(5), [], 0
    seeds = [str(seed) for seed in range(6)]
    sweep = ["sweep", *POINT, "--algorithm", "space", "--baselines", "reward", "near", "--seeds", *seeds]
    sweep += ["--updates", str(10 * count), "--evaluate-every", "5", "--evaluation-episodes", "4"]
    whole, out = work / "whole-sweep", work / "killed-sweep"
    began = time.monotonic()
    started([*sweep, "--out", str(whole)]).communicate()
    life = time.monotonic() - began
    names = sorted(path.name for path in whole.iterdir() if path.is_dir())

    def rows() -> int:
        return min((rows_in(out / name) for name in names), default=0)

    for _ in range(count):
        killed += killed_at_random(started([*sweep, "--out", str(out)]), rows, chance, life / 2)
    process = started([*sweep, "--out", str(out)])
    if process.communicate()[1] or process.returncode:
        failures.append(f"the last call ended with code {process.returncode}")
    for name in names:
        mine, other = outcome_of(out / name), outcome_of(whole / name)
        failures += [f"{name}: {part} differs" for part in other if mine[part] != other[part]]
        for file in ("trajectories.json", "baseline.json", "evaluations.csv"):
            if (out / name / file).read_bytes() != (whole / name / file).read_bytes():
                failures.append(f"{name}: {file} differs")
    return Outcome("killed sweeps", killed, failures, f"{len(names)} runs of one program")
