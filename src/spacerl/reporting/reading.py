"""Run folders in, checked records out. Nothing here draws, averages or imports jax.

A run folder holds ``config.json`` and ``metrics.csv``, and may hold ``versions.json``, ``baseline.json`` and
``trajectories.json``. A run is one seed; runs that differ in nothing but their seed form a `Group`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Settings that say how long, where or how noisily a run was made, not what was computed: they never split a group.
BOOKKEEPING = frozenset(
    {"seed", "seeds", "updates", "out", "output", "folder", "run_dir", "name", "resume", "overwrite", "device"}
    | {
        "quiet",
        "verbose",
        "progress",
        "tensorboard",
        "log_every",
        "save_every",
        "checkpoint_every",
        "keep_checkpoints",
        "trajectories",
    }
)
REQUIRED_COLUMNS = ("update", "J_R")
ACRONYMS = frozenset({"space", "pcpo", "cpo", "trpo", "ppo", "ddpg"})


@dataclass(frozen=True)
class Baseline:
    """What pi_B itself achieves on the task: discounted reward J_R, episode cost J_C, and the h_C it was made for."""

    name: str
    J_R: float
    J_C: float
    h_C: float


@dataclass(frozen=True)
class Episode:
    """One episode of a point: positions xy (T, 2), one cost per position (T,), apples (A, 2) and bombs (B, 2)."""

    xy: np.ndarray
    cost: np.ndarray
    apples: np.ndarray
    bombs: np.ndarray

    def __post_init__(self) -> None:
        for name in ("xy", "apples", "bombs"):
            shape = getattr(self, name).shape
            if len(shape) != 2 or shape[1] != 2:
                raise ValueError(f"an episode's {name} must be a list of [x, y] pairs, got shape {shape}")
        if self.cost.shape != self.xy.shape[:1]:
            raise ValueError(f"an episode has {len(self.xy)} positions but costs of shape {self.cost.shape}")


@dataclass(frozen=True)
class PolicyEpisodes:
    """Episodes of one policy ("baseline" or "learned") with its own J_R and J_C (NaN where not measured)."""

    name: str
    J_R: float
    J_C: float
    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class Trajectories:
    """Where policies went in an arena of kind "circle" (radius, x_limit) or "gather" (half_width, catch_range)."""

    task: str
    arena: Mapping[str, Any]
    policies: tuple[PolicyEpisodes, ...]

    def __post_init__(self) -> None:
        expected = {"circle": ("radius", "x_limit"), "gather": ("half_width", "catch_range")}
        kind = self.arena.get("kind")
        if kind not in expected:
            raise ValueError(f"arena kind {kind!r} is unknown; expected one of {', '.join(expected)}")
        for key in expected[kind]:
            if not math.isfinite(_number(self.arena.get(key))):
                raise ValueError(f"an arena of kind {kind!r} needs the number {key!r}")


@dataclass(frozen=True)
class Run:
    """One seed of one algorithm on one task. ``metrics`` maps a column to its values, one per update, (U,)."""

    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    metrics: Mapping[str, np.ndarray]
    baseline: Baseline | None = None
    trajectories: Trajectories | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("task", "algorithm"):
            if not isinstance(self.config.get(key), str) or not self.config[key]:
                raise ValueError(f"{self.folder}: config.json must name {key!r}, got {self.config.get(key)!r}")
        if not isinstance(self.config.get("seed"), int):
            raise ValueError(f"{self.folder}: config.json must give a whole number as 'seed', "
                             f"got {self.config.get('seed')!r}")  # fmt: skip
        missing = [name for name in REQUIRED_COLUMNS if name not in self.metrics]
        if missing:
            raise ValueError(f"{self.folder}: metrics.csv lacks the columns {', '.join(missing)}; "
                             f"it has {', '.join(self.metrics) or 'none'}")  # fmt: skip
        if len(self.updates) == 0:
            raise ValueError(f"{self.folder}: metrics.csv holds no whole row yet; expected one row per update")
        if not (np.isfinite(self.updates).all() and np.all(np.diff(self.updates) > 0)):
            raise ValueError(f"{self.folder}: the 'update' column of metrics.csv must grow from row to row")

    @property
    def task(self) -> str:
        return self.config["task"]

    @property
    def algorithm(self) -> str:
        return self.config["algorithm"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def updates(self) -> np.ndarray:
        return self.metrics["update"]

    def column(self, name: str) -> np.ndarray:
        """Values of one metric, (U,); NaN throughout where the run did not record it."""
        if name in self.metrics:
            return self.metrics[name]
        if name == "h_C":
            return np.full(len(self.updates), _first_limit(self.config))
        if name == "cumulative_violation":
            over = np.maximum(0.0, self.column("J_C") - self.column("h_C"))
            return np.cumsum(over)
        return np.full(len(self.updates), np.nan)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, cut to the updates that every one of them reached.

    The cut is deliberate: averaging whoever is left would flatter an algorithm whose bad seeds stopped early.
    """

    task: str
    label: str
    runs: tuple[Run, ...]
    differing: Mapping[str, Any] = field(default_factory=dict)  # settings that tell it from its namesakes

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(f"the group {self.label!r} has no runs; expected at least one")
        if any(run.task != self.task for run in self.runs):
            raise ValueError(f"the group {self.label!r} mixes tasks: {sorted({run.task for run in self.runs})}")
        if len(self.updates) == 0:
            raise ValueError(f"the runs of {self.label!r} on {self.task} have no update in common; report them apart")

    @property
    def algorithm(self) -> str:
        return self.runs[0].algorithm

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def updates(self) -> np.ndarray:
        """Update numbers recorded by every run, (U,)."""
        shared = self.runs[0].updates
        for run in self.runs[1:]:
            shared = np.intersect1d(shared, run.updates)
        return shared

    def curve(self, name: str, last_update: float = math.inf) -> np.ndarray:
        """One metric of every seed at the shared updates up to ``last_update``, (S, U)."""
        shared = self.updates[self.updates <= last_update]
        return np.stack([run.column(name)[np.searchsorted(run.updates, shared)] for run in self.runs])

    def has(self, name: str) -> bool:
        """Whether any seed has a finite value of this metric."""
        return bool(np.isfinite(self.curve(name)).any())

    @property
    def cost_columns(self) -> tuple[tuple[str, str, str], ...]:
        """(name, J_C column, h_C column) per constraint: the single cost, or each named one when there are several."""
        names = [column.removeprefix("J_C_") for column in self.runs[0].metrics if column.startswith("J_C_")]
        names = [name for name in names if f"h_C_{name}" in self.runs[0].metrics]
        return tuple((name, f"J_C_{name}", f"h_C_{name}") for name in names) or (("", "J_C", "h_C"),)


@dataclass(frozen=True)
class Reading:
    """Every run found below the given folders, and one sentence for each folder that had to be left out."""

    runs: tuple[Run, ...]
    skipped: tuple[str, ...] = ()


def is_run(folder: Path) -> bool:
    """Whether a folder looks like a run: it holds config.json and metrics.csv."""
    return (folder / "config.json").is_file() and (folder / "metrics.csv").is_file()


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read one run folder; ValueError, in one sentence, when it is not one."""
    folder = Path(folder)
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run folder: expected a directory with config.json and metrics.csv")
    metrics, remarks = _read_metrics(folder / "metrics.csv")
    baseline, trajectories = folder / "baseline.json", folder / "trajectories.json"
    return Run(
        folder=folder,
        config=_read_json(folder / "config.json"),
        versions=_read_json(folder / "versions.json") if (folder / "versions.json").is_file() else {},
        metrics=metrics,
        baseline=_parse_baseline(_read_json(baseline)) if baseline.is_file() else None,
        trajectories=_read_trajectories(trajectories) if trajectories.is_file() else None,
        remarks=remarks,
    )


def read_runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Reading:
    """Read run folders, and every run below folders of runs. A folder given twice is read once.

    A broken run that was named raises; one that was merely found below a named folder is left out and reported.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    runs: dict[Path, Run] = {}
    skipped: list[str] = []
    for path in map(Path, paths):
        if is_run(path):
            runs.setdefault(path.resolve(), read_run(path))
            continue
        before = len(runs) + len(skipped)
        for folder in _runs_below(path):
            try:
                runs.setdefault(folder.resolve(), read_run(folder))
            except ValueError as problem:
                skipped.append(str(problem))
        if len(runs) + len(skipped) == before and not any(path.resolve() in run.parents for run in runs):
            raise ValueError(f"{path} is neither a run folder nor a folder of runs: "
                             "expected a directory with config.json and metrics.csv, here or below")  # fmt: skip
    if not runs:
        reason = f" ({skipped[0]})" if skipped else ""
        raise ValueError(f"there is no readable run to report on{reason}; give at least one run folder")
    return Reading(tuple(runs.values()), tuple(skipped))


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Gather seeds: one `Group` per task and setting, SPACE first, then by label.

    The label is the algorithm with its baseline, e.g. "SPACE (near)". Groups of one task that share both are told
    apart by the settings in which they differ: "SPACE (near, combine=joint)".
    """
    members: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        settings = json.dumps(_settings(run.config), sort_keys=True, default=str)
        members.setdefault((run.task, _base_label(run)), {}).setdefault(settings, []).append(run)
    groups: list[Group] = []
    for (task, _), by_settings in members.items():
        namesakes = [sorted(seeds, key=lambda run: run.seed) for seeds in by_settings.values()]
        taken: set[str] = set()
        for own, differing in zip(namesakes, differing_settings([n[0].config for n in namesakes]), strict=True):
            label = _unused(_label(own[0], differing), taken)
            taken.add(label)
            groups.append(Group(task, label, tuple(own), differing))
    return tuple(sorted(groups, key=lambda group: (group.task, group.algorithm.lower() != "space", group.label)))


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per config, the settings (nested ones dotted) whose value is not the same in all; bookkeeping left out."""
    settings = [_settings(config) for config in configs]
    keys = dict.fromkeys(key for one in settings for key in one)
    varying = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in settings}) > 1]
    return [{key: one.get(key) for key in varying} for one in settings]


def setting_text(value: Any) -> str:
    """A config value as short text: None is "none", numbers without a needless tail."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value))
    return str(value)


def baseline_text(baseline: Any) -> str | None:
    """The config's baseline as a short name: a bare name as it is, a path by its last telling part, None as None."""
    if baseline is None or baseline in ("", "none", [], ()):
        return None
    if isinstance(baseline, list | tuple):
        return " + ".join(filter(None, map(baseline_text, baseline)))
    if isinstance(baseline, Mapping):
        return str(baseline.get("name") or baseline.get("kind") or "given")
    parts = [part for part in str(baseline).replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if len(parts) < 2:
        return str(baseline)
    # "runs/near-seed0/checkpoints/last.safetensors" is best known as "near-seed0"
    telling = [part for part in parts if part != "checkpoints"]
    return telling[-2] if "checkpoints" in parts and len(telling) > 1 else Path(parts[-1]).stem


def _unused(label: str, taken: set[str]) -> str:
    candidates = [label] + [f"{label} #{number}" for number in range(2, len(taken) + 2)]
    return next(candidate for candidate in candidates if candidate not in taken)


def _base_label(run: Run) -> str:
    return f"{_algorithm_text(run.algorithm)}|{_baseline_name(run)}"


def _baseline_name(run: Run) -> str | None:
    return baseline_text(run.config.get("baseline"))


def _algorithm_text(name: str) -> str:
    return "-".join(part.upper() if part in ACRONYMS else part for part in name.split("-"))


def _label(run: Run, differing: Mapping[str, Any]) -> str:
    shown = [f"{key}={setting_text(value)}" for key, value in list(differing.items())[:3]]
    if len(differing) > 3:
        shown.append(f"+{len(differing) - 3} more")
    inside = ", ".join(filter(None, [_baseline_name(run), *shown]))
    return f"{_algorithm_text(run.algorithm)} ({inside})" if inside else _algorithm_text(run.algorithm)


def _settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in BOOKKEEPING:
            continue
        if isinstance(value, Mapping):
            flat |= _settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _runs_below(folder: Path) -> list[Path]:
    """Run folders below ``folder`` in name order; a run's own subfolders are not searched."""
    found: list[Path] = []
    for where, subfolders, files in os.walk(folder):
        if {"config.json", "metrics.csv"} <= set(files):
            found.append(Path(where))
            subfolders.clear()
        subfolders.sort()
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path} is not JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _read_metrics(path: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Columns of a metrics.csv up to its last whole row, and a remark when a half-written one was left out.

    A last line without its line break may have lost digits even when every column is there, so it is not whole.
    """
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    table = [row for row in csv.reader(io.StringIO(whole)) if row]
    header, lines = (table[0], table[1:]) if table else ([], [])
    rows: dict[float, list[float]] = {}
    half_written = bool(text[len(whole) :].strip())
    for number, line in enumerate(lines):
        row = _parse_row(line, len(header))
        if row is None and number < len(lines) - 1:
            raise ValueError(f"{path}, row {number + 1}: expected {len(header)} numbers, got {','.join(line)[:80]!r}")
        if row is None:
            half_written = True
        else:  # a resumed run may write an update again: the later row is the one that led on
            rows[row[header.index("update")] if "update" in header else number] = row
    values = np.array([rows[key] for key in sorted(rows)], dtype=float).reshape(len(rows), len(header))
    remark = "its last row of metrics.csv was half-written and is left out"
    return dict(zip(header, values.T, strict=True)), (remark,) if half_written else ()


def _parse_row(line: Sequence[str], width: int) -> list[float] | None:
    words = {"true": 1.0, "false": 0.0, "": math.nan}
    try:
        row = [words[cell.strip().lower()] if cell.strip().lower() in words else float(cell) for cell in line]
    except ValueError:
        return None
    return row if len(row) == width else None


def _number(value: Any) -> float:
    """A JSON value as a float; NaN where there is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _first_limit(config: Mapping[str, Any]) -> float:
    limit = config.get("cost_limit")
    if isinstance(limit, list | tuple):
        return _number(limit[0]) if len(limit) == 1 else math.nan
    return _number(limit)


def _parse_baseline(content: Mapping[str, Any]) -> Baseline:
    numbers = {key: _number(content.get(key)) for key in ("J_R", "J_C", "h_C")}
    return Baseline(name=str(baseline_text(content.get("name")) or "baseline"), **numbers)


def _read_trajectories(path: Path) -> Trajectories:
    content = _read_json(path)
    try:
        policies = tuple(_parse_policy(policy) for policy in content["policies"])
        return Trajectories(str(content.get("task", "")), dict(content["arena"]), policies)
    except KeyError as problem:
        raise ValueError(f"{path} lacks the key {problem}; expected arena, and policies with episodes") from problem
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path} does not hold trajectories: {problem}") from problem


def _parse_policy(policy: Mapping[str, Any]) -> PolicyEpisodes:
    episodes = tuple(_parse_episode(episode) for episode in policy["episodes"])
    return PolicyEpisodes(str(policy["name"]), _number(policy.get("J_R")), _number(policy.get("J_C")), episodes)


def _parse_episode(episode: Mapping[str, Any]) -> Episode:
    xy = _points(episode["xy"])
    cost = np.asarray(episode["cost"], dtype=float).reshape(-1)
    if len(cost) == len(xy) - 1:  # the start position was recorded too: it cost nothing
        cost = np.concatenate([[0.0], cost])
    return Episode(xy, cost, _points(episode.get("apples") or []), _points(episode.get("bombs") or []))


def _points(pairs: Sequence[Sequence[float]]) -> np.ndarray:
    return np.asarray(pairs, dtype=float) if len(pairs) else np.zeros((0, 2))
