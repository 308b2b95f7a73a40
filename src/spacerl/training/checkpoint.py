"""Checkpoints: a TrainState as named arrays, and back."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.runs.config import RunConfig
from spacerl.runs.fields import shortened
from spacerl.runs.folder import (
    RunFolder,
    require_evaluations_as_written,
    require_rows,
    require_rows_as_written,
)
from spacerl.runs.formats import FORMAT
from spacerl.runs.metrics import History
from spacerl.training.learner import Learner
from spacerl.training.update import initial_state
from spacerl.types import InputError, TrainState

# Arrays of checkpoints that earlier versions called otherwise.
RENAMED = {"algorithm.goal": "algorithm.target_J_R", "algorithm.faith": "algorithm.seek_kl"}

# Numbers that checkpoints of earlier versions do not have, and what is known then.
LATER = {"algorithm.baseline_J_R": math.nan, "algorithm.baseline_share": 1.0, "algorithm.recovery": 1.0}


class OutOfDate(InputError):
    """A whole checkpoint of a version whose runs cannot go on; an older one would be no better."""


def to_arrays(state: TrainState) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf) for path, leaf in leaves}


def as_named_now(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of a checkpoint, whatever version wrote it, as this version names them.

    Guarded SPACE once kept its promises in other units. Such a run goes on with the policy, critics, thresholds and
    radii it had; what the last step promised is unknown, and the averages of promises begin anew.
    """
    arrays = {RENAMED.get(name, name): array for name, array in arrays.items()}
    if "algorithm.J_C_error" in arrays:
        arrays |= _estimates_of(arrays["algorithm.previous_J_C"], arrays.pop("algorithm.J_C_error"))
    if "algorithm.due_gain" not in arrays:
        return arrays
    gone = ("gained", "promised_gain", "promised_J_C", "due_gain", "due_J_C")
    kept = {name: array for name, array in arrays.items() if name.removeprefix("algorithm.") not in gone}
    zero, unknown = np.zeros((), np.float32), np.full((), np.nan, np.float32)
    costs = np.full_like(arrays["algorithm.due_J_C"], np.nan)
    promise = {"pull_gain": unknown, "safe_gain": unknown, "cost_change": costs, "sought": zero}
    kept["algorithm.nearest_J_D"] = kept.pop("algorithm.previous_J_D")
    kept |= {"algorithm.shortfall": zero, "algorithm.promised": zero, "algorithm.trust": np.ones((), np.float32)}
    return kept | {f"algorithm.promise.{name}": array for name, array in promise.items()}


def _estimates_of(J_C: np.ndarray, error: np.ndarray) -> dict[str, np.ndarray]:
    """What guarded SPACE knows of its costs, from when it was the newest batch alone."""
    known = {"mean": J_C, "variance": error**2, "noise": error**2, "drift": np.zeros_like(J_C)}
    return {f"algorithm.cost.{name}": array for name, array in known.items()}


def from_arrays(arrays: dict[str, np.ndarray], template: TrainState, source: str) -> TrainState:
    arrays = as_named_now(arrays)
    if "algorithm.multipliers" in arrays and "algorithm.integral" not in arrays:
        raise OutOfDate(
            f"{source} has multipliers in reward per unit of cost, which this version does not use: the run can be "
            "evaluated, exported and used as a baseline, and must be trained anew to go on"
        )
    wanted = to_shapes(template)
    arrays = {name: np.array(value, np.float32) for name, value in LATER.items() if name in wanted} | arrays
    given = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if wanted != given:
        differing = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise InputError(f"{source} does not fit its config: {', '.join(differing[:4])} differ in name, shape or type")
    return jax.tree.unflatten(jax.tree.structure(template), [jnp.asarray(arrays[name]) for name in wanted])


def to_shapes(state: Any) -> dict[str, tuple]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path).lstrip("."): (leaf.shape, np.dtype(leaf.dtype)) for path, leaf in leaves}


def settings_text(config: RunConfig) -> str:
    """What a checkpoint keeps of its run's settings."""
    return json.dumps({"format": FORMAT, **config.identity()})


def read_state(folder: RunFolder, learner: Learner, update: int, history: History | None) -> TrainState:
    """The state of a run after an update, checked against its config and, where they are given, its metrics."""
    kept = folder.checkpoint(update)
    source = f"checkpoint of update {kept.update} in '{folder.path}'"
    _require_same_settings(kept.settings, learner.config, source)
    template = jax.eval_shape(lambda: initial_state(learner, 0))
    state = from_arrays(kept.arrays, template, source)
    if int(state.update) != update or kept.update != update:
        raise InputError(
            f"{source} is foreign: the state in it is of update {int(state.update)}, its name says {update}"
        )
    if history is not None:
        require_rows_as_written(folder, history, kept)
        require_evaluations_as_written(folder, kept)
    return state


def _require_same_settings(settings: str, config: RunConfig, source: str) -> None:
    """A checkpoint of another run, or a config that was changed. One without settings is of an earlier version."""
    if not settings:
        return
    try:
        theirs = RunConfig.from_json(settings).identity()
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{source} is foreign: its settings cannot be read ({error})") from error
    ours = config.identity()
    for name in sorted(theirs.keys() & ours.keys()):
        if theirs[name] != ours[name]:
            raise InputError(
                f"{source} is of a run with {name} {shortened(theirs[name])}, and config.json says "
                f"{shortened(ours[name])}: one of them is not of this run"
            )


class Found(NamedTuple):
    """States of runs after the newest update that all of them can go on from, and what was wrong with later ones."""

    update: int
    states: list[TrainState]
    problems: list[str]


def newest_states(
    runs: Sequence[tuple[RunFolder, Learner]], only: int | None = None, accept_metrics: bool = False
) -> Found:
    """Where runs that are stepped together go on: with whole metrics and whole checkpoints, of one update. `only` is
    that update where it is known; `accept_metrics` takes tables that were changed since they were written."""
    histories = [folder.history() for folder, _ in runs]
    shared = set.intersection(*(set(folder.checkpoint_updates()) for folder, _ in runs))
    problems: list[str] = []
    for update in sorted(shared if only is None else shared & {only}, reverse=True):
        try:
            states = []
            for (folder, learner), history in zip(runs, histories, strict=True):
                require_rows(folder, history, update)
                states.append(read_state(folder, learner, update, None if accept_metrics else history))
            return Found(update, states, problems)
        except OutOfDate:
            raise
        except InputError as problem:
            problems.append(str(problem))
    if problems:
        raise InputError(problems[0])
    raise InputError(f"'{runs[0][0].path}' has no checkpoint to continue from: the run stopped before its first one")


def go_on_from(found: Found, folders: Sequence[RunFolder]) -> None:
    """Say what could not be used, and put it aside."""
    for problem in found.problems:
        print(f"{problem}; the run goes on from update {found.update}", file=sys.stderr)
    for folder in folders:
        folder.keep_metrics_until(found.update)
        folder.go_back_to(found.update)
