"""The run folder: the one place that knows, reads and writes its files. Atomic writes, no pickle, no jax.

config.json  versions.json  metrics.csv  policy.safetensors  checkpoints/update-000060.safetensors
environment.json  evaluations.csv  best.safetensors  baseline.json  trajectories.json  origin.json  events/  report.html
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spacerl.runs.arrays import as_file, read_arrays
from spacerl.runs.config import RunConfig
from spacerl.runs.formats import upgraded
from spacerl.runs.lock import UNFINISHED, cannot_write, remove_unfinished_of, sole_writer
from spacerl.runs.metrics import History, MetricsTable, hash_of_lines, read_history, read_metrics
from spacerl.runs.spaces import described, read_described
from spacerl.runs.text import LARGEST_JSON, LARGEST_TABLE, content_of, text_of
from spacerl.runs.toml import toml_text
from spacerl.types import EnvSpec, InputError

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


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    try:
        content = json.loads(text_of(path, LARGEST_JSON))
        json.dumps(content, ensure_ascii=False).encode()  # half a character is no text that a page can hold
    except InputError:
        raise
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror or problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


class Checkpoint(NamedTuple):
    """What a checkpoint holds beside its format and hash."""

    arrays: dict[str, np.ndarray]
    update: int  # that it says it is of
    settings: str  # of its run; nothing in one of an earlier version
    rows_hash: str  # of the rows of metrics up to its update; nothing in one of an earlier version
    evaluations_hash: str  # of those up to its update that there were; nothing in one of an earlier version


def is_run(folder: Path) -> bool:
    """Whether a folder is a run, begun or done."""
    return (folder / "config.json").is_file()


def is_reportable(folder: Path) -> bool:
    """Whether a folder is a run with something to report on: a table of metrics."""
    return is_run(folder) and (folder / "metrics.csv").is_file()


class RunFolder:
    """Paths and files of one run. Holds no training state."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.versions_path = self.path / "versions.json"
        self.metrics_path = self.path / "metrics.csv"
        self.baseline_path = self.path / "baseline.json"
        self.trajectories_path = self.path / "trajectories.json"
        self.evaluations_path = self.path / "evaluations.csv"
        self.best_path = self.path / "best.safetensors"
        self.environment_path = self.path / "environment.json"
        self.origin_path = self.path / "origin.json"
        self.checkpoints = self.path / "checkpoints"

    @classmethod
    @contextlib.contextmanager
    def created(cls, path: str | Path, config: RunConfig, versions: dict[str, Any]) -> Iterator[RunFolder]:
        """A new run folder, filled inside the `with` and put in its place at once at its end.

        A process killed before that leaves no half-made run behind, only a folder whose name ends in .tmp.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished_of(path)
            making = cls(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED))
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            with sole_writer(making.path):
                os.chmod(making.path, 0o755)
                making.checkpoints.mkdir()
                write_json(making.versions_path, versions)
                making.write_config(config)
                yield making
            os.rename(making.path, path)  # replaces nothing but an empty folder
        except OSError as error:
            shutil.rmtree(making.path, ignore_errors=True)
            if is_run(path):
                raise InputError(f"'{path}' was made by another process in the meantime: give a new folder") from error
            raise cannot_write(path, error) from error
        except BaseException:
            shutil.rmtree(making.path, ignore_errors=True)
            raise

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not folder.path.exists():
            beside = folder.path.parent
            there = [each.name for each in beside.iterdir() if is_run(each)] if beside.is_dir() else []
            near = difflib.get_close_matches(folder.path.name, sorted(there), n=1, cutoff=0.4)
            hint = f"; did you mean '{beside / near[0]}'?" if near else ""
            raise InputError(f"run folder '{path}' does not exist{hint}")
        if not is_run(folder.path):
            raise InputError(f"'{path}' is not a run folder: it has no config.json (`spacerl train --out` makes one)")
        return folder

    def config(self) -> RunConfig:
        path = self.config_path
        try:
            return RunConfig.from_settings(read_json(path))
        except InputError as error:
            raise InputError(f"'{path}': {error}" if str(path) not in str(error) else str(error)) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"'{path}' is not a spacerl config: {error}") from error

    def settings(self) -> dict[str, Any]:
        """What config.json says, as this version names it, without asking whether such a run could be made today."""
        return upgraded(read_json(self.config_path))

    def write_config(self, config: RunConfig) -> None:
        write_atomically(self.config_path, config.to_json())
        write_atomically(self.path / "config.toml", toml_text(config.settings()))

    def write_baseline(self, summary: Mapping[str, Any]) -> None:
        """What pi_B itself achieves: name, J_R, J_C, h_C."""
        write_json(self.baseline_path, summary)

    def write_trajectories(self, content: Mapping[str, Any]) -> None:
        """Episodes to draw: task, arena, policies."""
        write_json(self.trajectories_path, content)

    def write_environment(self, spec: EnvSpec) -> None:
        write_json(self.environment_path, described(spec))

    def environment(self) -> EnvSpec | None:
        """What the run's environment is; None in a folder of an earlier version."""
        path = self.environment_path
        return read_described(read_json(path), path) if path.is_file() else None

    def write_origin(self, content: Mapping[str, Any]) -> None:
        """Who asked for the code that the config names."""
        write_json(self.origin_path, content)

    def origin(self) -> dict[str, Any]:
        return read_json(self.origin_path) if self.origin_path.is_file() else {}

    # Metrics ---------------------------------------------------------------------------------------------------------

    def append_metrics(self, row: dict[str, float | int]) -> None:
        """One row, written whole; the header comes with the first. A run of an earlier version gets new columns."""
        append_row(self.metrics_path, row)

    def metrics_table(self) -> MetricsTable:
        """Every whole row so far, by column; empty before the first."""
        return read_metrics(self.metrics_path) if self.metrics_path.is_file() else MetricsTable({})

    def metrics(self) -> list[dict[str, float]]:
        """Every whole row so far, one dictionary per update."""
        return self.metrics_table().rows()

    def history(self) -> History:
        """The rows that a run that goes on may rely on."""
        return read_history(self.metrics_path)

    def keep_metrics_until(self, updates: int) -> None:
        """Drop rows that a resumed run will write again, and a row that a killed process left half written."""
        history = self.history()
        require_rows(self, history, updates)
        write_atomically(self.metrics_path, history.until(updates))

    # Evaluations of the deterministic policy --------------------------------------------------------------------------

    def append_evaluation(self, row: dict[str, float | int]) -> None:
        append_row(self.evaluations_path, row)

    def evaluations(self) -> list[dict[str, float | int]]:
        """Every evaluation so far, in the order of the updates they followed."""
        rows = read_metrics(self.evaluations_path).rows() if self.evaluations_path.is_file() else []
        for needed in ("update", "J_R", "excess"):
            if rows and needed not in rows[0]:
                raise InputError(f"'{self.evaluations_path}' has no column '{needed}': remove it to evaluate anew")
        return list(rows)

    def keep_evaluations_until(self, updates: int) -> None:
        """Drop those that a resumed run will make again."""
        if not self.evaluations_path.is_file():
            return
        header, kept = self._evaluation_lines(updates)
        write_atomically(self.evaluations_path, "".join(f"{line}\n" for line in [header, *kept]) if kept else "")

    def evaluations_hash(self, updates: int) -> str:
        """Of every number and column of those up to an update."""
        header, lines = self._evaluation_lines(updates)
        return hash_of_lines(header if lines else "", lines)

    def _evaluation_lines(self, updates: int) -> tuple[str, list[str]]:
        """The header, and every whole line of a later update than the one before it."""
        path = self.evaluations_path
        content = content_of(path, LARGEST_TABLE) if path.is_file() else b""
        header, *lines = content.decode(errors="replace").split("\n")
        kept, last = [], -1
        for line in lines[:-1]:
            first = line.partition(",")[0]
            if first.isascii() and first.isdigit() and last < int(first[:12]) <= updates:
                kept.append(line)
                last = int(first[:12])
        return header, kept

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self, arrays: dict[str, np.ndarray], update: int, settings: str = "", rows_hash: str = ""
    ) -> Path:
        """`settings` are those of its run, `rows_hash` is of its metrics so far: a checkpoint that came from another
        run is found out, and so is a table that was changed since."""
        path = self._checkpoint_path(update)
        info = {"format": CHECKPOINT_FORMAT, "update": str(update), "settings": settings, "rows": rows_hash}
        info["evaluations"] = self.evaluations_hash(update)
        write_arrays(path, arrays, info | {"content": content_hash(arrays, info)})
        return path

    def remove_old_checkpoints(self, keep: int) -> None:
        for update in self.checkpoint_updates()[:-keep]:
            self._checkpoint_path(update).unlink()

    def _checkpoint_path(self, update: int) -> Path:
        return self.checkpoints / f"update-{update:06d}.safetensors"

    def checkpoint_updates(self) -> list[int]:
        """Updates that have a checkpoint, oldest first."""
        files = filter(Path.is_file, self.checkpoints.glob("update-*.safetensors"))
        numbers = (path.stem.removeprefix("update-") for path in files)
        return sorted(int(number) for number in numbers if number.isdigit())

    def is_finished(self) -> bool:
        """Whether its last update is saved."""
        return self.checkpoint_updates()[-1:] == [self.config().updates]

    def newest_update(self) -> int:
        """Of the checkpoint to continue from."""
        updates = self.checkpoint_updates()
        if not updates:
            raise InputError(f"'{self.path}' has no checkpoint to continue from: the run stopped before its first one")
        return updates[-1]

    def checkpoint(self, update: int) -> Checkpoint:
        """The checkpoint named after an update. One without a hash of its content is of an earlier version."""
        path = self._checkpoint_path(update)
        arrays, info = read_arrays(path, CHECKPOINT_FORMAT, "checkpoint")
        if not (info.get("update", "").isascii() and info.get("update", "").isdigit()):
            raise InputError(f"checkpoint '{path}' is foreign: it does not say which update it is of")
        said = info.pop("content", None)
        if said is not None and said != content_hash(arrays, info):
            raise InputError(f"checkpoint '{path}' is damaged: its content is not what was written")
        hashes = [info.get(name, "") for name in ("rows", "evaluations")]
        return Checkpoint(arrays, int(info["update"][:12]), info.get("settings", ""), *hashes)

    def go_back_to(self, update: int) -> None:
        """Put checkpoints after an update aside: they cannot be used, and must not be taken for newer ones."""
        for later in self.checkpoint_updates():
            if later > update:
                path = self._checkpoint_path(later)
                os.replace(path, path.with_name(f"{path.name}.unused"))


def require_rows(folder: RunFolder, history: History, updates: int) -> None:
    if len(history.rows) < updates:
        raise InputError(
            f"'{folder.metrics_path}' has fewer whole rows ({len(history.rows)}) than its checkpoint has updates "
            f"({updates}): {history.fault or 'it was cut'}"
        )


def require_rows_as_written(folder: RunFolder, history: History, kept: Checkpoint) -> None:
    """The rows up to a checkpoint are those that led to it. One of an earlier version has no hash of them."""
    if kept.rows_hash not in ("", history.hash_of(kept.update)):
        raise InputError(
            f"'{folder.metrics_path}' is not the table that was written: a number or the name of a column was changed "
            f"in its first {kept.update} rows; put that table back, or go on with this one as it is by `spacerl resume "
            f"{folder.path} --accept-metrics`"
        )


def require_evaluations_as_written(folder: RunFolder, kept: Checkpoint) -> None:
    """Those up to a checkpoint are the ones that there were. That of its own update may have come after it, from a run
    that was stopped before it could be made."""
    known = [folder.evaluations_hash(update) for update in (kept.update, kept.update - 1)]
    if kept.evaluations_hash not in ("", *known):
        raise InputError(
            f"'{folder.evaluations_path}' is not the table that was written: up to update {kept.update} a row is "
            "missing, or a number or the name of a column was changed; put that table back, or go on with what there "
            f"is by `spacerl resume {folder.path} --accept-metrics`"
        )


def content_hash(arrays: Mapping[str, np.ndarray], info: Mapping[str, str]) -> str:
    """Of arrays, their names and types, and what is said about them."""
    digest = hashlib.sha256(json.dumps(sorted(info.items())).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def append_row(path: Path, row: dict[str, float | int]) -> None:
    """One row of a table, written whole. A table of an earlier version gets the columns that it lacks, empty so far."""
    header = []
    if path.exists():
        with open(path, newline="") as file:
            header = file.readline().rstrip("\r\n").split(",")
    columns = list(row) if header in ([], [""]) else header
    missing = [name for name in row if name not in columns]
    if missing:
        _, *lines = path.read_text().splitlines()
        columns, empty = [*columns, *missing], "," * len(missing)
        write_atomically(path, "".join(f"{line}\n" for line in [",".join(columns), *(each + empty for each in lines)]))
    new = header in ([], [""])
    cells = ",".join(_cell(row[name]) if name in row else "" for name in columns)
    with open(path, "a", newline="") as file:
        file.write((",".join(columns) + "\n" if new else "") + cells + "\n")


def _cell(value: float | int) -> str:
    return repr(float(value)) if isinstance(value, float | np.floating) else str(int(value))


def write_arrays(path: Path, arrays: dict[str, np.ndarray], info: dict[str, str]) -> None:
    write_atomically(path, as_file(arrays, info))
