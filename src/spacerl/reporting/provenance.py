"""What was run, from which commit and where: everything needed to judge or repeat a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spacerl.reporting.groups import Group, differing_settings, setting_text
from spacerl.reporting.remarks import where


@dataclass(frozen=True)
class FullConfig:
    """Every setting of one group."""

    label: str
    seed: int
    folders: str
    text: str


@dataclass(frozen=True)
class Provenance:
    """How the groups of one task were made, and in which settings they differ; rows of text."""

    name: str
    labels: tuple[str, ...]
    made_with: tuple[tuple[str, ...], ...]  # label, seeds, updates, commit, hardware, started, versions
    differences: tuple[tuple[str, ...], ...]  # setting, its value in each group
    configs: tuple[FullConfig, ...]


def provenance(groups: Sequence[Group]) -> Provenance:
    """Of the groups of one task."""
    return Provenance(
        name=groups[0].task,
        labels=tuple(group.label for group in groups),
        made_with=tuple(_made_with(group) for group in groups),
        differences=_differences(groups),
        configs=tuple(_full_config(group) for group in groups),
    )


def _made_with(group: Group) -> tuple[str, ...]:
    recorded = {key: _values_of(group, key) for key in ("commit", "hardware", "started")}
    libraries = [key for key in group.runs[0].versions if key not in recorded]
    versions = ", ".join(f"{key} {_values_of(group, key)}" for key in libraries)
    seeds, updates = ", ".join(map(str, group.seeds)), str(len(group.updates))
    return (group.label, seeds, updates, *recorded.values(), versions or "–")


def _values_of(group: Group, key: str) -> str:
    """What versions.json says of this key, over all seeds; starting times as their range."""
    values = sorted({str(run.versions[key]) for run in group.runs if run.versions.get(key)})
    if key == "commit":
        values = sorted({value[:10] for value in values})
    if key == "started" and len(values) > 1:
        return f"{values[0]} to {values[-1]}"
    return " / ".join(values) or "–"


def _differences(groups: Sequence[Group]) -> tuple[tuple[str, ...], ...]:
    differing = differing_settings([group.runs[0].config for group in groups])
    return tuple((key, *(setting_text(own[key]) for own in differing)) for key in differing[0])


def _full_config(group: Group) -> FullConfig:
    run = group.runs[0]
    folders = ", ".join(where(each) for each in group.runs)
    return FullConfig(
        group.label, run.seed, folders, json.dumps(dict(run.config), indent=2, default=str, ensure_ascii=False)
    )
