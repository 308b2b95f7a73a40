"""Run folders: making them, reading what is in them, comparing them; and the processes that worked on them."""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

from spacerl.training.assemble import assemble
from spacerl.training.loop import create_folder
from spacerl.training.settings import resolve
from spacerl.training.update import initial_state

MEASURED = ("seconds_collect", "seconds_update")


def made(folder: Path, **settings: Any) -> Path:
    """A run folder with a fresh policy, without training one."""
    given = {"algorithm": "trpo", "hidden": (4,), "batch_size": 20, "workers": 0, "environments": 1, **settings}
    parts = assemble(resolve(given))
    try:
        create_folder(parts, folder, initial_state(parts.learner, 0), None)
    finally:
        parts.close()
    return folder


def rows_of(folder: Path) -> list[dict[str, float]]:
    with open(folder / "metrics.csv", newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]


def rows_written(folder: Path) -> int:
    path = folder / "metrics.csv"
    return max(0, len(path.read_bytes().splitlines()) - 1) if path.exists() else 0


def contents(path: Path) -> dict[str, bytes]:
    """A safetensors file as bytes by name. (The order of its metadata varies from one write to the next.)"""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = {name: f"{a.dtype}{a.shape}".encode() + a.tobytes() for name, a in arrays.items()}
        return described | {f"metadata {key}": value.encode() for key, value in file.metadata().items()}


def newest(folder: Path) -> Path:
    return max(folder.glob("checkpoints/update-*.safetensors"))


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run leaves that is not a measurement or a date; texts as written, so equality is bit for bit."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{key: text for key, text in row.items() if key not in MEASURED} for row in csv.DictReader(file)]
    return {
        "metrics": rows,
        "last checkpoint": newest(folder).name,
        "checkpoint": contents(newest(folder)),
        "policy": contents(folder / "policy.safetensors"),
        "config": json.loads((folder / "config.json").read_text()),
    }


def assert_same(resumed: Path, uninterrupted: Path) -> None:
    mine, other = outcome(resumed), outcome(uninterrupted)
    for part in mine:
        assert mine[part] == other[part], f"{part} differs"


def processes(folder: Path) -> list[int]:
    """All processes that ever held a faulty environment of this folder."""
    return [int(path.name.removeprefix("process-")) for path in folder.glob("process-*")]


def alive(pid: int) -> bool:
    """Whether a process is there and is no corpse waiting for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_gone(folder: Path) -> None:
    pids = [pid for pid in processes(folder) if pid != os.getpid()]
    assert pids
    patience = time.monotonic() + 5.0
    while any(map(alive, pids)) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not [pid for pid in pids if alive(pid)]
