"""The run folder: config, versions, metrics, checkpoints. Atomic writes, no pickle, no jax.

config.json  versions.json  metrics.csv  policy.safetensors  checkpoints/update-000060.safetensors
baseline.json  trajectories.json  events/  report.html
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import functools
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.config import InputError, RunConfig

CHECKPOINT_FORMAT = "spacerl-checkpoint-1"
POLICY_FORMAT = "spacerl-policy-1"


def write_atomically(path: Path, content: bytes | str) -> None:
    """The file holds the old content or the new one, never a part, whenever the process dies."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as (handle, _), os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path, ending: str = ".tmp") -> Iterator[tuple[int, Path]]:
    """An open handle and the name of a new file beside `path`, which takes its place at the end, or goes on failure."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=ending)
    try:
        yield handle, Path(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file()


class RunFolder:
    """Paths and files of one run. Holds no training state."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metrics_path = self.path / "metrics.csv"
        self.checkpoints = self.path / "checkpoints"

    @classmethod
    @contextlib.contextmanager
    def created(cls, path: str | Path, config: RunConfig, versions: dict[str, Any]) -> Iterator[RunFolder]:
        """A new run folder, filled inside the `with` and put in its place at once at its end.

        A process killed before that leaves no half-made run behind, only a folder whose name ends in .tmp.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        making = cls(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        try:
            os.chmod(making.path, 0o755)
            making.checkpoints.mkdir()
            write_json(making.path / "versions.json", versions)
            write_atomically(making.path / "config.json", config.to_json())
            yield making
            os.rename(making.path, path)  # replaces nothing but an empty folder
        except BaseException:
            shutil.rmtree(making.path, ignore_errors=True)
            raise

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not is_run(folder.path):
            raise InputError(f"'{path}' is not a run folder: it has no config.json (`spacerl train --out` makes one)")
        return folder

    def config(self) -> RunConfig:
        path = self.path / "config.json"
        try:
            return RunConfig.from_json(path.read_text()).resolved()
        except InputError as error:
            raise InputError(f"'{path}': {error}") from error
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
            raise InputError(f"'{path}' is not a spacerl config: {error}") from error

    # Metrics ---------------------------------------------------------------------------------------------------------

    def append_metrics(self, row: dict[str, float | int]) -> None:
        """One row, written whole; the header comes with the first."""
        new = not self.metrics_path.exists() or self.metrics_path.stat().st_size == 0
        text = (",".join(row) + "\n" if new else "") + ",".join(_cell(value) for value in row.values()) + "\n"
        with open(self.metrics_path, "a", newline="") as file:
            file.write(text)

    def metrics(self) -> list[dict[str, float]]:
        if not self.metrics_path.exists():
            return []
        with open(self.metrics_path, newline="") as file:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]

    def keep_metrics_until(self, updates: int) -> None:
        """Drop rows that a resumed run will write again, and a row that a killed process left half written."""
        lines = self.metrics_path.read_text().splitlines(keepends=True) if self.metrics_path.exists() else []
        kept = lines[: updates + 1] if updates else []
        if len(kept) != (updates + 1 if updates else 0) or any(not line.endswith("\n") for line in kept):
            raise InputError(
                f"'{self.metrics_path}' has fewer rows than its checkpoint has updates ({updates}): it was cut"
            )
        write_atomically(self.metrics_path, "".join(kept))

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def save_checkpoint(self, arrays: dict[str, np.ndarray], update: int, keep: int) -> Path:
        path = self.checkpoints / f"update-{update:06d}.safetensors"
        write_arrays(path, arrays, {"format": CHECKPOINT_FORMAT, "update": str(update)})
        for old in self.checkpoint_paths()[:-keep]:
            old.unlink()
        return path

    def checkpoint_paths(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.checkpoints.glob("update-*.safetensors"))

    def is_finished(self) -> bool:
        """Whether its last update is saved."""
        paths = self.checkpoint_paths()
        return bool(paths) and paths[-1].stem == f"update-{self.config().updates:06d}"

    def newest_checkpoint(self) -> tuple[dict[str, np.ndarray], int]:
        paths = self.checkpoint_paths()
        if not paths:
            raise InputError(f"'{self.path}' has no checkpoint to continue from: the run stopped before its first one")
        arrays, info = read_arrays(paths[-1], CHECKPOINT_FORMAT, "checkpoint")
        if not info.get("update", "").isdigit():
            raise InputError(f"checkpoint '{paths[-1]}' is foreign: it does not say which update it is of")
        return arrays, int(info["update"])


def _cell(value: float | int) -> str:
    return repr(float(value)) if isinstance(value, float | np.floating) else str(int(value))


def write_arrays(path: Path, arrays: dict[str, np.ndarray], info: dict[str, str]) -> None:
    from safetensors.numpy import save

    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps scalars scalars
    write_atomically(path, save(contiguous, metadata=info))


def read_arrays(path: Path, expected: str, kind: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a safetensors file of ours; such a file holds numbers only and cannot run code."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            info = file.metadata() or {}
            if info.get("format") != expected:
                raise InputError(
                    f"{kind} '{path}' is foreign: its format is {info.get('format', 'not given')!r}, not '{expected}'"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, info  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{kind} '{path}' cannot be read (corrupt, cut short or not a safetensors file): {error}"
        ) from error


def versions(device: str) -> dict[str, Any]:
    """What a reader needs to judge or repeat a result."""
    packages = ("spacerl", "jax", "jaxlib", "equinox", "numpy", "gymnasium")
    found = {name: _version(name) for name in packages}
    return {
        **found,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": _commit(),
        "device": device,
        "hardware": f"{_processor()}, {os.cpu_count()} cores; computing on {device}",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache  # a sweep asks once per run
def _commit() -> str:
    """Commit of a source checkout, with "+" where files differ from it; "release" where there is none."""
    here = Path(__file__).parent
    try:
        options = {"capture_output": True, "text": True, "timeout": 5, "cwd": here, "check": True}
        top = Path(subprocess.run(["git", "rev-parse", "--show-toplevel"], **options).stdout.strip())
        if here.parent.parent != top:
            return "release"  # installed below somebody else's repository
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **options).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "src"], **{**options, "cwd": top}
        ).stdout.strip()
        return commit + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "release"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
