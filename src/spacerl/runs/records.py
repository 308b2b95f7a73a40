"""Run folders in, checked records out: one `Run` per folder, with everything that was written there.

A run folder holds ``config.json`` and ``metrics.csv``, and may hold ``versions.json``, ``baseline.json`` and
``trajectories.json``. A run is one seed of one algorithm on one task.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.runs.folder import RunFolder, is_reportable, read_json
from spacerl.runs.metrics import read_metrics
from spacerl.types import InputError

VIDEOS = (".gif", ".mp4")
REQUIRED_COLUMNS = ("update", "J_R")


@dataclass(frozen=True)
class BaselineSummary:
    """What pi_B itself achieves on the task: discounted reward J_R, episode cost J_C, and the h_C it was made for.

    ``name`` is the baseline as it was given: a text, or several.
    """

    name: Any
    J_R: float
    J_C: float
    h_C: float
    costs: Mapping[str, float] = field(default_factory=dict)  # J_C of every cost by name
    episode_return: float = math.nan


@dataclass(frozen=True)
class Traffic:
    """One episode on a road: for every vehicle (n, 4) its time in s, place in m, speed in m/s, and 1 if autonomous;
    at the times (T,) how many vehicles queue on each approach (T, A) and how long each light has been red (T, L)."""

    vehicles: tuple[np.ndarray, ...]
    time: np.ndarray
    queues: np.ndarray
    red: np.ndarray

    def __post_init__(self) -> None:
        for numbers in (*self.vehicles, self.time, self.queues, self.red):
            if not np.isfinite(numbers).all():
                raise ValueError("an episode on a road must be finite numbers")


@dataclass(frozen=True)
class Episode:
    """One episode of a point: positions xy (T, 2), one cost per position (T,), apples (A, 2) and bombs (B, 2)."""

    xy: np.ndarray
    cost: np.ndarray
    apples: np.ndarray
    bombs: np.ndarray
    traffic: Traffic | None = None  # instead of positions

    def __post_init__(self) -> None:
        for name in ("xy", "apples", "bombs"):
            points = getattr(self, name)
            if points.ndim != 2 or points.shape[1] != 2:
                raise ValueError(f"an episode's {name} must be a list of [x, y] pairs, got shape {points.shape}")
            if not np.isfinite(points).all():
                raise ValueError(f"an episode's {name} must be finite numbers")
        if self.cost.shape != self.xy.shape[:1] and self.traffic is None:
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
    """Where policies went. ``arena`` has a "kind" and the numbers of it; whoever draws it says which kinds it knows."""

    task: str
    arena: Mapping[str, Any]
    policies: tuple[PolicyEpisodes, ...]


@dataclass(frozen=True)
class Run:
    """One seed of one algorithm on one task. ``metrics`` maps a column to its values, one per update, (U,).

    ``config`` names its settings as this version does, whichever version wrote them.
    """

    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    metrics: Mapping[str, np.ndarray]
    baseline: BaselineSummary | None = None
    trajectories: Trajectories | None = None
    evaluations: Mapping[str, np.ndarray] = field(default_factory=dict)  # of the deterministic policy, by column
    videos: tuple[Path, ...] = ()
    remarks: tuple[str, ...] = ()  # what was left out of its files, and why

    def __post_init__(self) -> None:
        for key in ("task", "algorithm"):
            if not isinstance(self.config.get(key), str) or not self.config[key]:
                raise InputError(f"{self.folder}: config.json must name {key!r}, got {self.config.get(key)!r}")
        if not isinstance(self.config.get("seed"), int):
            given = self.config.get("seed")
            raise InputError(f"{self.folder}: config.json must give a whole number as 'seed', got {given!r}")
        missing = [name for name in REQUIRED_COLUMNS if name not in self.metrics]
        if missing:
            there = ", ".join(self.metrics) or "none"
            raise InputError(f"{self.folder}: metrics.csv lacks the columns {', '.join(missing)}; it has {there}")
        if len(self.updates) == 0:
            raise InputError(f"{self.folder}: metrics.csv holds no whole row yet; expected one row per update")
        if not (np.isfinite(self.updates).all() and np.all(np.diff(self.updates) > 0)):
            raise InputError(f"{self.folder}: the 'update' column of metrics.csv must grow from row to row")

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
        if name == "wall_seconds":
            # Tasks in JAX collect inside the compiled update and cannot time it apart: their seconds_collect is NaN.
            spent = np.nan_to_num(self.column("seconds_collect")) + self.column("seconds_update")
            return np.cumsum(np.nan_to_num(spent)) if np.isfinite(spent).any() else spent
        if name == "cumulative_violation":
            over = np.maximum(0.0, self.column("J_C") - self.column("h_C"))
            return np.cumsum(over)
        return np.full(len(self.updates), np.nan)


@dataclass(frozen=True)
class Reading:
    """Every run found below the given folders, and one sentence for each folder that had to be left out."""

    runs: tuple[Run, ...]
    skipped: tuple[str, ...] = ()


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read one run folder; InputError, in one sentence, when it is not one.

    Trajectories only illustrate a run: where they cannot be read the run is whole without them, with a remark.
    """
    files = RunFolder(Path(folder))
    if not is_reportable(files.path):
        raise InputError(f"{folder} is not a run folder: expected a directory with config.json and metrics.csv")
    table = files.metrics_table()
    remarks = ["its last row of metrics.csv was half-written and is left out"] if table.half_written else []
    trajectories = None
    try:
        trajectories = read_trajectories(files.trajectories_path)
    except (ValueError, OSError) as problem:
        reason = str(problem).replace(str(files.trajectories_path), files.trajectories_path.name)
        remarks.append(f"its trajectories are not drawn: {reason}")
    return Run(
        folder=files.path,
        config=files.settings(),
        versions=read_json(files.versions_path) if files.versions_path.is_file() else {},
        metrics=table.columns,
        baseline=read_baseline(files.baseline_path),
        trajectories=trajectories,
        evaluations=_evaluations(files, remarks),
        videos=tuple(sorted(filter(_is_film, files.path.iterdir()))),
        remarks=tuple(remarks),
    )


def _is_film(path: Path) -> bool:
    """A link in a folder that somebody sent may lead to any file of the user's, which a page would then hold."""
    return path.suffix in VIDEOS and path.is_file() and not path.is_symlink()


def _evaluations(files: RunFolder, remarks: list[str]) -> Mapping[str, np.ndarray]:
    """Like trajectories they only add to a run: where they cannot be read the run is whole without them."""
    if not files.evaluations_path.is_file():
        return {}
    try:
        return read_metrics(files.evaluations_path).columns
    except (ValueError, OSError) as problem:
        reason = str(problem).replace(str(files.evaluations_path), files.evaluations_path.name)
        remarks.append(f"its evaluations are not shown: {reason}")
        return {}


def read_runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Reading:
    """Read run folders, and every run below folders of runs. A folder given twice is read once.

    A broken run that was named raises; one that was merely found below a named folder is left out and reported.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    runs: dict[Path, Run] = {}
    skipped: list[str] = []
    for path in map(Path, paths):
        if is_reportable(path):
            runs.setdefault(path.resolve(), read_run(path))
            continue
        before = len(runs) + len(skipped)
        for folder in runs_below(path):
            try:
                runs.setdefault(folder.resolve(), read_run(folder))
            except ValueError as problem:
                skipped.append(str(problem))
        if len(runs) + len(skipped) == before and not any(path.resolve() in run.parents for run in runs):
            raise InputError(f"{path} is neither a run folder nor a folder of runs: "
                             "expected a directory with config.json and metrics.csv, here or below")  # fmt: skip
    if not runs:
        reason = f" ({skipped[0]})" if skipped else ""
        raise InputError(f"there is no readable run to report on{reason}; give at least one run folder")
    return Reading(tuple(runs.values()), tuple(skipped))


def runs_below(folder: Path) -> list[Path]:
    """Run folders that can be reported below ``folder`` in name order; a run's own subfolders are not searched."""
    found: list[Path] = []
    for where, subfolders, _ in os.walk(folder):
        if is_reportable(Path(where)):
            found.append(Path(where))
            subfolders.clear()
        subfolders.sort()
    return found


def read_baseline(path: Path) -> BaselineSummary | None:
    """The summary of pi_B in a baseline.json; None where there is no such file."""
    if not path.is_file():
        return None
    content = read_json(path)
    numbers = {key: _number(content.get(key)) for key in ("J_R", "J_C", "h_C")}
    costs = content.get("costs")
    each_cost = costs.items() if isinstance(costs, Mapping) else ()
    named = {name: _number(each.get("J_C")) for name, each in each_cost if isinstance(each, Mapping)}
    earned = _number(content.get("episode_return"))
    return BaselineSummary(name=content.get("name"), **numbers, costs=named, episode_return=earned)


def read_trajectories(path: Path) -> Trajectories | None:
    """The episodes of a trajectories.json; None where there is no such file."""
    if not path.is_file():
        return None
    content = read_json(path)
    try:
        policies = tuple(_policy(policy) for policy in content["policies"])
        return Trajectories(str(content.get("task", "")), dict(content["arena"]), policies)
    except KeyError as problem:
        raise InputError(f"{path} lacks the key {problem}; expected arena, and policies with episodes") from problem
    except (TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise InputError(f"{path} does not hold trajectories: {problem}") from problem


def _policy(policy: Mapping[str, Any]) -> PolicyEpisodes:
    episodes = tuple(_episode(episode) for episode in policy["episodes"])
    return PolicyEpisodes(str(policy["name"]), _number(policy.get("J_R")), _number(policy.get("J_C")), episodes)


def _traffic(episode: Mapping[str, Any]) -> Traffic:
    vehicles = tuple(np.asarray(points, dtype=float).reshape(-1, 4) for points in episode["vehicles"])
    time = np.asarray(episode["time"], dtype=float)
    queues, red = (np.asarray(episode[key], dtype=float).reshape(len(time), -1) for key in ("queues", "red"))
    return Traffic(vehicles, time, queues, red)


def _episode(episode: Mapping[str, Any]) -> Episode:
    if "vehicles" in episode:
        cost = np.asarray(episode["cost"], dtype=float).reshape(-1)
        return Episode(np.zeros((0, 2)), cost, np.zeros((0, 2)), np.zeros((0, 2)), _traffic(episode))
    xy = _points(episode["xy"])
    cost = np.asarray(episode["cost"], dtype=float).reshape(-1)
    if len(cost) == len(xy) - 1:  # the start position was recorded too: it cost nothing
        cost = np.concatenate([[0.0], cost])
    return Episode(xy, cost, _points(episode.get("apples") or []), _points(episode.get("bombs") or []))


def _points(pairs: Sequence[Sequence[float]]) -> np.ndarray:
    return np.asarray(pairs, dtype=float) if len(pairs) else np.zeros((0, 2))


def _number(value: Any) -> float:
    """A JSON value as a float; NaN where there is none, or one that no float can hold."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _first_limit(config: Mapping[str, Any]) -> float:
    limit = config.get("cost_limit")
    if isinstance(limit, list | tuple):
        return _number(limit[0]) if len(limit) == 1 else math.nan
    return _number(limit)
