"""What all attacks share: their outcome, small runs, what a run leaves, processes, and patience."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spacerl.runs.arrays import read_arrays
from spacerl.runs.folder import RunFolder
from spacerl.runs.metrics import read_metrics
from spacerl.types import InputError, RunStopped

SMALL = {"algorithm": "pcpo", "batch_size": 100, "hidden": (4,), "checkpoint_every": 2, "keep_checkpoints": 2}
EVALUATED = {**SMALL, "evaluate_every": 2, "evaluation_episodes": 2}
QUIET = {"progress": False, "log": ()}
MEASURED = ("seconds_collect", "seconds_update")
PATIENCE = 60  # seconds of computing after which something hangs, and ten times as many of waiting
TOLD_EVERY = 100  # of many things that are tried one after the other


class Outcome(NamedTuple):
    """What one kind of attack tried, and what went wrong, one line each."""

    name: str
    tried: int
    failures: list[str]
    note: str = ""


class Hangs(BaseException):
    """Something takes longer than it may."""


@contextlib.contextmanager
def patient(seconds: int = PATIENCE) -> Iterator[None]:
    def over(number: int, frame: Any) -> None:
        raise Hangs(f"longer than {seconds} seconds")

    before = {number: signal.signal(number, over) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # a busy machine takes its time
    # A library that never returns to Python hears no signal: then the attack ends there, and says where it was.
    faulthandler.dump_traceback_later(20 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def complaint(use: Callable[[], Any]) -> str:
    """What is wrong with how something ends: anything but an answer or one sentence."""
    try:
        with patient():
            use()
    except (InputError, RunStopped) as told:
        return f"more than one sentence: {str(told)[:80]!r}" if "\n" in str(told) else ""
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return ""


def so_far(name: str, tried: int, failures: list[str]) -> None:
    """A line now and then of what takes long, for who waits and for what is left when it is stopped."""
    if tried % TOLD_EVERY == 0:
        print(f"{name}: {tried} tried so far, {len(failures)} failed", file=sys.__stderr__, flush=True)


def outcome_of(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that is no measurement of time, bit for bit: numbers, however they are spelled."""
    newest = RunFolder(folder).newest_update()
    arrays, *_ = RunFolder(folder).checkpoint(newest)
    policies = {}
    for name in ("policy", "best"):
        if (path := folder / f"{name}.safetensors").exists():
            policy, _ = read_arrays(path, "spacerl-policy-1", "policy file")
            policies[name] = {part: array.tobytes() for part, array in policy.items()}
    return {
        "metrics": numbers_in(folder / "metrics.csv"),
        "evaluations": numbers_in(folder / "evaluations.csv"),
        "newest": newest,
        "checkpoint": {name: array.tobytes() for name, array in arrays.items()},
        "policies": policies,
        "files": sorted(path.name for path in folder.iterdir() if path.suffix == ".json"),
    }


def numbers_in(path: Path) -> list[dict[str, str]]:
    """Rows of a table but for what was measured; a number as its bits, so that NaN is NaN."""
    rows = read_metrics(path).rows() if path.exists() else []
    return [{key: number.hex() for key, number in row.items() if key not in MEASURED} for row in rows]


def started(command: list[str], **options: Any) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "spacerl", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def rows_in(folder: Path) -> int:
    path = folder / "metrics.csv"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
