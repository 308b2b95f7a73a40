"""Everything about the runs that a careful reader should know before trusting a difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spacerl.reporting.arenas import undrawable
from spacerl.reporting.data import too_large
from spacerl.reporting.groups import Group
from spacerl.reporting.statistics import END_WINDOW
from spacerl.reporting.text import listed
from spacerl.runs.records import Run


def remarks(groups: Sequence[Group]) -> list[str]:
    """One sentence each: about single runs, about seeds of one group, about groups of one seed."""
    found = [remark for group in groups for run in group.runs for remark in _of_run(run)]
    found += [remark for group in groups for remark in _of_group(group)]
    found += [f"{name} is too large to be part of this page." for name in too_large(groups)]
    single = [group.label for group in groups if len(group.runs) == 1]
    if single:
        found.append(f"One seed only, so no interval: {', '.join(dict.fromkeys(single))}.")
    return found


def where(run: Run) -> str:
    """A run's folder, short."""
    return "/".join(run.folder.parts[-2:])


def _of_run(run: Run) -> list[str]:
    found = list(run.remarks)
    reason = undrawable(run.trajectories) if run.trajectories else None
    if reason:
        found.append(f"its trajectories are not drawn: {reason}")
    return [f"{where(run)}: {remark}." for remark in found]


def _of_group(group: Group) -> list[str]:
    found = []
    lengths = sorted({int(run.updates[-1]) for run in group.runs})
    if len(lengths) > 1:
        ends = ", ".join(map(str, lengths))
        found.append(f"seeds end at different updates ({ends}); its numbers stop where the shortest does")
    repeated = sorted({seed for seed in group.seeds if group.seeds.count(seed) > 1})
    if repeated:
        seeds = listed(list(map(str, repeated)))
        found.append(f"seed {seeds} appears more than once, so its interval is narrower than it should be")
    lost = [run.seed for run in group.runs if not np.isfinite(run.column("J_R")[-END_WINDOW:]).all()]
    if lost:
        seeds = listed(list(map(str, lost)))
        found.append(f"J_R is not a number in some of the last {END_WINDOW} updates of seed {seeds}")
    commits = sorted({str(run.versions["commit"])[:10] for run in group.runs if run.versions.get("commit")})
    if len(commits) > 1:
        found.append(f"its seeds come from different commits ({', '.join(commits)})")
    return [f"{group.label} on {group.task}: {remark}." for remark in found]
