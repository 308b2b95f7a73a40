"""Runs that differ in nothing but their seed, gathered, and the names that tell such groups apart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.runs.config import BOOKKEEPING
from spacerl.runs.records import Run

ACRONYMS = frozenset({"space", "pcpo", "cpo", "trpo", "ppo", "ddpg"})


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
    def is_space(self) -> bool:
        """Whether its algorithm is SPACE in any of its forms: space, space-printed, space-joint, ..."""
        return self.algorithm.lower().partition("-")[0] == "space"

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
    def cost_names(self) -> tuple[str, ...]:
        """What its costs are: where the config says they come from, and their names in the metrics."""
        given = self.runs[0].config.get("cost") or ()
        named = [name for name, _, _ in self.cost_columns if name]
        return tuple(map(str, given)) or tuple(named)

    @property
    def tolerance(self) -> float:
        """Cost above h_C up to which a limit counts as kept; runs of earlier versions have none."""
        given = self.runs[0].config.get("cost_tolerance", 0.0)
        return float(given) if isinstance(given, int | float) and given >= 0.0 else 0.0

    @property
    def cost_columns(self) -> tuple[tuple[str, str, str], ...]:
        """(name, J_C column, h_C column) per constraint: the single cost, or each named one when there are several."""
        names = [column.removeprefix("J_C_") for column in self.runs[0].metrics if column.startswith("J_C_")]
        names = [name for name in names if f"h_C_{name}" in self.runs[0].metrics]
        return tuple((name, f"J_C_{name}", f"h_C_{name}") for name in names) or (("", "J_C", "h_C"),)


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Gather seeds: one `Group` per task and setting, SPACE first, then by label.

    The label is the algorithm with its baseline, e.g. "SPACE (near)". Groups of one task that share both are told
    apart by the settings in which they differ: "SPACE (near, delta=0.01)".
    """
    members: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        settings = json.dumps(_settings(run.config), sort_keys=True, default=str)
        members.setdefault((run.task, _label(run, {})), {}).setdefault(settings, []).append(run)
    groups: list[Group] = []
    for (task, _), by_settings in members.items():
        groups += _namesakes(task, [sorted(seeds, key=lambda run: run.seed) for seeds in by_settings.values()])
    return tuple(sorted(groups, key=lambda group: (group.task, not group.is_space, group.label)))


def _namesakes(task: str, settings: Sequence[Sequence[Run]]) -> list[Group]:
    """A group per setting of one algorithm with one baseline, each with a label of its own."""
    groups: list[Group] = []
    differences = differing_settings([seeds[0].config for seeds in settings])
    for seeds, differing in zip(settings, differences, strict=True):
        label = _unused(_label(seeds[0], differing), {group.label for group in groups})
        groups.append(Group(task, label, tuple(seeds), differing))
    return groups


def by_task(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups that may be compared, by name: those of one task with the same costs, in order of appearance."""
    costs: dict[str, set[tuple[str, ...]]] = {}
    for group in groups:
        costs.setdefault(group.task, set()).add(group.cost_names)
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        several = len(costs[group.task]) > 1
        name = f"{group.task}, cost {', '.join(group.cost_names) or 'as it comes'}" if several else group.task
        tasks.setdefault(name, []).append(group)
    return tasks


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


def _algorithm_text(name: str) -> str:
    return "-".join(part.upper() if part in ACRONYMS else part for part in name.split("-"))


def _label(run: Run, differing: Mapping[str, Any]) -> str:
    shown = [f"{key}={setting_text(value)}" for key, value in list(differing.items())[:3]]
    if len(differing) > 3:
        shown.append(f"+{len(differing) - 3} more")
    inside = ", ".join(filter(None, [baseline_text(run.config.get("baseline")), *shown]))
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
