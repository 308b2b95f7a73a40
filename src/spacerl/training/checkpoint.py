"""Checkpoints: a TrainState as named arrays, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.runs.folder import RunFolder
from spacerl.training.update import Learner, initial_state
from spacerl.types import InputError, TrainState

# Arrays of checkpoints that earlier versions called otherwise.
RENAMED = {"algorithm.goal": "algorithm.target_J_R", "algorithm.faith": "algorithm.seek_kl"}


def to_arrays(state: TrainState) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf) for path, leaf in leaves}


def as_named_now(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of a checkpoint, whatever version wrote it, as this version names them.

    Guarded SPACE once kept its promises in other units. Such a run goes on with the policy, critics, thresholds and
    radii it had; what the last step promised is unknown, and the averages of promises begin anew.
    """
    arrays = {RENAMED.get(name, name): array for name, array in arrays.items()}
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


def from_arrays(arrays: dict[str, np.ndarray], template: TrainState, source: str) -> TrainState:
    arrays = as_named_now(arrays)
    if "algorithm.multipliers" in arrays and "algorithm.integral" not in arrays:
        raise InputError(
            f"{source} has multipliers in reward per unit of cost, which this version does not use: the run can be "
            "evaluated, exported and used as a baseline, and must be trained anew to go on"
        )
    wanted = to_shapes(template)
    given = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if wanted != given:
        differing = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise InputError(f"{source} does not fit its config: {', '.join(differing[:4])} differ in name, shape or type")
    return jax.tree.unflatten(jax.tree.structure(template), [jnp.asarray(arrays[name]) for name in wanted])


def to_shapes(state: Any) -> dict[str, tuple]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path).lstrip("."): (leaf.shape, np.dtype(leaf.dtype)) for path, leaf in leaves}


def read_state(folder: RunFolder, learner: Learner, update: int | None = None) -> TrainState:
    """The state of a run after an update, by default of its newest checkpoint."""
    arrays, done = folder.checkpoint(folder.newest_update() if update is None else update)
    template = jax.eval_shape(lambda: initial_state(learner, 0))
    state = from_arrays(arrays, template, f"checkpoint of update {done} in '{folder.path}'")
    if int(state.update) != done:
        raise InputError(
            f"checkpoint of update {done} in '{folder.path}' is foreign: the state in it is of update "
            f"{int(state.update)}"
        )
    return state
