"""Two writers, a full disk, one that may not be written to, orphans, and workers that are killed all the time."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np

import spacerl
from attacks.common import MEASURED, QUIET, SMALL, Outcome, alive, children, rows_in, started


def two_writers(count: int, work: Path) -> Outcome:
    """Two processes resume one run at once: one is refused, and no row is lost or doubled."""
    failures = []
    for i in range(count):
        out = work / f"two-{i}"
        spacerl.train("point-circle", updates=2, out=out, **SMALL, **QUIET)
        both = [started(["resume", str(out), "--updates", "300", "--quiet"]) for _ in range(2)]
        told = [process.communicate()[1] for process in both]
        codes = sorted(process.returncode for process in both)
        if codes != [0, 2] or not any("is being written by process" in text for text in told):
            failures.append(f"codes {codes}: {' / '.join(text.strip()[:100] for text in told)}")
        if rows_in(out) != 300:
            failures.append(f"{rows_in(out)} rows of 300 updates")
    return Outcome("two writers", count, failures)


def full_disk(work: Path) -> Outcome:
    """A disk that fills up while a run writes: one sentence, the newest whole checkpoint, and the run goes on later."""
    disk = work / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        return Outcome("full disk", 0, [], "not tried: no file system may be mounted here")
    try:
        failures = []
        command = ["train", "point-circle", "--algorithm", "pcpo", "--batch-size", "100", "--hidden", "4", "--quiet"]
        command += ["--updates", "2000", "--checkpoint-every", "5", "--out", str(disk / "run")]
        process = started(command)
        told = process.communicate()[1]
        if process.returncode != 3 or told.count("\n") != 1 or "No space left on device" not in told:
            failures.append(f"code {process.returncode}: {told.strip()[-200:]}")
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        done = rows_in(disk / "run")
        process = started(["resume", str(disk / "run"), "--updates", str(done + 5), "--quiet"])
        told = process.communicate()[1]
        if process.returncode or rows_in(disk / "run") != done + 5:
            failures.append(f"resumed with code {process.returncode}: {told.strip()[-200:]}")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for command in (["resume", str(disk / "run"), "--updates", str(done + 9)], ["report", str(disk / "run")]):
            process = started(command)
            told = process.communicate()[1]
            if process.returncode != 2 or told.count("\n") != 1:
                failures.append(f"{command[0]} where nothing may be written: code {process.returncode}: {told[-200:]}")
        return Outcome("full disk, and read-only", 3, failures, f"full after {done} updates")
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def orphans(work: Path) -> Outcome:
    """A run with workers that is killed leaves none of them behind."""
    failures = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        command = ["train", "--env", "Pendulum-v1", "--cost", "none", "--workers", "2", "--batch-size", "400"]
        command += ["--algorithm", "trpo", "--updates", "1000", "--quiet", "--out", str(work / f"orphans-{number}")]
        process = started(command)
        while process.poll() is None and sum(map(is_at_work, children(process.pid))) < 2:
            time.sleep(0.01)
        workers = [child for child in children(process.pid) if is_at_work(child)]
        process.send_signal(number)
        process.communicate()
        patience = time.monotonic() + 1.0
        while any(map(alive, workers)) and time.monotonic() < patience:
            time.sleep(0.01)
        left = [worker for worker in workers if alive(worker)]
        if left or not workers:
            failures.append(f"{signal.Signals(number).name}: {len(left)} of {len(workers)} workers left after a second")
    return Outcome("orphans", 2, failures)


def killed_workers(minutes: float, work: Path, every: float = 10.0) -> Outcome:
    """A worker killed every ten seconds: batches are whole, and every row is that of a run whose workers lived.
    Episodes are of many lengths: were those left out that a kill falls into, their mean would be too short."""
    settings = {"env": "CartPole-v1", "cost": "none", "algorithm": "trpo", "batch_size": 2000, "hidden": (16,)}
    settings |= {"workers": 2, "environments": 4, "rollout_length": 500, "delta": 1e-5, "cost_limit": 1.0, **QUIET}
    stop, ended, killed, said = time.monotonic() + 60.0 * minutes, threading.Event(), [], io.StringIO()

    def kill() -> None:
        while not ended.wait(every):
            # One that still begins has no episode to lose, and on a busy machine that may take more than ten seconds.
            workers = [child for child in children(os.getpid()) if is_at_work(child)]
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                killed.append(workers)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with contextlib.redirect_stderr(said):
            run = spacerl.train(
                updates=10**6, out=work / "hurt", on_update=lambda row: time.monotonic() > stop, **settings
            )
    finally:
        ended.set()
        thread.join()
    whole = spacerl.train(updates=len(run.metrics), out=work / "well", **settings)
    counted = ("worker_restarts", "lost_episodes", *MEASURED)
    differing = [
        f"update {i}: {name} is {row[name]} and {other[name]}"
        for i, (row, other) in enumerate(zip(run.metrics, whole.metrics, strict=True))
        for name in row
        if name not in counted and not (row[name] == other[name] or np.isnan(row[name]))
    ]
    restarts, lost = (int(sum(row[name] for row in run.metrics)) for name in counted[:2])
    means = [np.mean([row["episode_length"] for row in each.metrics]) for each in (run, whole)]
    spread = np.std([row["episode_length"] for row in run.metrics])
    if f"workers were replaced {restarts} times" not in said.getvalue():
        differing.append("the end of the run does not sum up its restarts")
    note = (
        f"{len(run.metrics)} updates in {minutes:g} minutes, {restarts} restarts counted, {lost} episodes lost; mean "
        f"episode {means[0]:.4f} steps, {means[1]:.4f} without kills (standard deviation over updates {spread:.2f})"
    )
    return Outcome("killed workers", len(killed), differing, note)


def is_at_work(pid: int) -> bool:
    """Whether a process is a worker that has made its environments: it then maps the memory it shares with its run."""
    with contextlib.suppress(OSError):
        return b"memfd:spacerl" in Path(f"/proc/{pid}/maps").read_bytes()
    return False
