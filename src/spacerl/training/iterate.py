"""Iterated SPACE: run again with the learned policy as pi_B, as the paper's conclusion proposes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacerl.runs.config import require_new_folder
from spacerl.runs.folder import is_run
from spacerl.runs.lock import sole_writer
from spacerl.training.assemble import Given
from spacerl.training.settings import default_folder, require_same_run, resolve
from spacerl.training.train import Watching, resume_run, train_run
from spacerl.types import InputError


def iterate_runs(
    settings: Mapping[str, Any], rounds: int, out: Path | None, given: Given, watching: Watching
) -> list[Path]:
    """`rounds` runs, each with the policy of the one before as its baseline; returns their folders.

    The first has the baseline given. Folders are round-1, round-2, ... below `out`; rounds that are there already are
    kept, and one that was stopped is continued, so the same call again goes on where it was.
    """
    if not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"rounds is {rounds!r}: allowed is a whole number of at least 1")
    first = resolve(settings, given.algorithm)
    if not first.baseline:
        name = first.values["algorithm"]
        raise InputError(f"algorithm '{name}' learns from no baseline: iterating needs one that does")
    parent = out if out is not None else Path(f"{default_folder(first)}-iterated")
    folders = [parent / f"round-{number}" for number in range(1, rounds + 1)]
    if not is_run(folders[0]):
        require_new_folder(parent)
    with sole_writer(parent):
        for number, folder in enumerate(folders):
            draft, own = first, given
            if number > 0:
                before = {"baseline": str(folders[number - 1])}
                draft, own = resolve({**settings, **before}, given.algorithm), given._replace(baseline=None)
            if is_run(folder):
                require_same_run(folder, draft)
                resume_run(folder, own, watching, asked=True)
            else:
                train_run(draft, own, folder, watching)
    return folders
