"""Iterated SPACE: run again with the learned policy as pi_B, as the paper's conclusion proposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spacerl.config import InputError, RunConfig, require_new_folder
from spacerl.environments import cost_texts, task_name
from spacerl.runs import is_run
from spacerl.training import baseline_names, default_folder, require_same_run, resume, train


def iterate(
    rounds: int,
    *,
    task: str | None = None,
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    trust: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> list[Path]:
    """`rounds` runs, each with the policy of the one before as its baseline; returns their folders.

    The first has the `baseline` given. Folders are round-1, round-2, ... below `out`; rounds that are there already are
    kept, and one that was stopped is continued, so the same call again goes on where it was.
    """
    if not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"rounds is {rounds!r}: allowed is a whole number of at least 1")
    name: Any = task if env is None else task_name(env)
    first = RunConfig(task=name, baseline=baseline_names(baseline), cost=cost_texts(cost), **settings).resolved()
    if not first.baselines:
        raise InputError(f"algorithm '{first.algorithm}' learns from no baseline: iterating needs one that does")
    parent = Path(out) if out is not None else Path(f"{default_folder(first)}-iterated")
    folders = [parent / f"round-{number}" for number in range(1, rounds + 1)]
    if not is_run(folders[0]):
        require_new_folder(parent)
    objects = {"env": env, "cost": cost, "trust": trust, "progress": progress}
    for number, folder in enumerate(folders):
        given = baseline if number == 0 else str(folders[number - 1])
        if is_run(folder):
            same = {name: getattr(first, name) for name in ("task", "algorithm", "seed", "updates")}
            require_same_run(folder, same | {"baseline": first.baseline if number == 0 else given})
            resume(folder, baseline=given, **objects)
        else:
            train(task, out=folder, baseline=given, **objects, **settings)
    return folders
