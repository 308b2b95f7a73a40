"""Many runs of one setting as one compiled program: seeds and baselines are an axis, the update is vmapped over it.

On an accelerator five seeds cost little more than one. The run folders are those of `spacerl train`; only bits differ,
because a batched product rounds differently from a single one.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.config import ENV_PREFIX, InputError, RunConfig, require_new_folder
from spacerl.environments import has_two_places
from spacerl.evaluation import baseline_summary, write_trajectories
from spacerl.progress import Progress
from spacerl.runs import RunFolder
from spacerl.training import (
    Parts,
    RunStopped,
    assemble,
    baseline_thetas,
    create_folder,
    default_folder,
    fused_step,
    metrics_row,
    save,
)
from spacerl.types import TrainState
from spacerl.update import initial_state, raw_theta


def sweep(
    config: RunConfig, seeds: Sequence[int], baselines: Sequence[str | None], out: str | Path, progress: bool = True
) -> list[Path]:
    """Train every seed with every baseline at once; one run folder each below `out`. Returns the folders."""
    if not seeds:
        raise InputError("no seed was given: pass at least one")
    configs = [dataclasses.replace(config, seed=seed, baseline=name) for name in baselines for seed in seeds]
    parts = [_assembled(each, Path(out)) for each in configs]
    _require_one_architecture(parts)
    names = [default_folder(part.config).name for part in parts]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"run folder '{twice[0]}' would be made twice: give every seed and every baseline once")
    first, summaries = parts[0], [baseline_summary(part) for part in parts]
    worths = jax.tree.map(lambda *each: jnp.array(each, jnp.float32), *(worth for worth, _ in summaries))
    state = jax.vmap(lambda seed, worth: initial_state(first.learner, seed, worth))(
        jnp.array([p.config.seed for p in parts]), worths
    )
    folders = [RunFolder(Path(out) / name) for name in names]
    for part, folder, own, (_, summary) in zip(parts, folders, _lanes(state, len(parts)), summaries, strict=True):
        create_folder(part, folder.path, own, summary)
    thetas = jax.tree.map(lambda *each: jnp.stack(each), *(baseline_thetas(part) for part in parts))
    program = lanes_program(first)
    title = f"{config.algorithm} on {config.task}: {len(seeds)} seeds x {len(baselines)} baselines"
    with Progress(title, first.config.updates, 0, progress) as show:  # type: ignore[arg-type]
        for done in range(first.config.updates):  # type: ignore[arg-type]
            started = time.perf_counter()
            following, metrics = program(state, thetas)
            values, steps = jax.device_get((metrics, following.env_steps))
            seconds = (time.perf_counter() - started) / len(parts)
            broken = [part.config.seed for part, finite in zip(parts, values["finite"], strict=True) if not finite]
            if broken:
                _save(parts, folders, state)
                raise RunStopped(
                    f"numbers stopped being finite in update {done + 1} of seed {broken[0]}; "
                    f"the states before it are saved below '{out}'"
                )
            state = following
            lanes = [{name: column[i] for name, column in values.items()} for i in range(len(parts))]
            rows = [metrics_row(done, int(steps[i]), lane, math.nan, seconds) for i, lane in enumerate(lanes)]
            for folder, row in zip(folders, rows, strict=True):
                folder.append_metrics(row)
            if (done + 1) % first.config.checkpoint_every == 0 or done + 1 == first.config.updates:
                _save(parts, folders, state)
            show({key: float(np.mean([row[key] for row in rows])) for key in rows[0]} | {"update": done})
    for part, folder, own in zip(parts, folders, _lanes(state, len(parts)), strict=True):
        write_trajectories(part, raw_theta(part.learner, own), folder.path)
    return [folder.path for folder in folders]


def _save(parts: Sequence[Parts], folders: Sequence[RunFolder], state: TrainState) -> None:
    """Save every lane's own state as a checkpoint of its run."""
    for part, folder, own in zip(parts, folders, _lanes(state, len(parts)), strict=True):
        save(part, folder, own)


def lanes_program(parts: Parts) -> Any:
    """(states, baselines' parameters) -> (states, metrics), everything with a leading axis of lanes."""
    return jax.jit(jax.vmap(lambda state, thetas: fused_step(parts, state, thetas)))


def _assembled(config: RunConfig, out: Path) -> Parts:
    if config.task.startswith(ENV_PREFIX):
        raise InputError(f"a sweep compiles its task and '{config.task}' is stepped outside: train each seed instead")
    if has_two_places(config.task):
        config = dataclasses.replace(config, simulator="device")
    parts = assemble(config)
    if not all(baseline.native for baseline in parts.baselines):
        raise InputError("a sweep compiles its baseline: a Python function cannot be one, train each seed instead")
    require_new_folder(out / default_folder(parts.config).name)
    return parts


def _lanes(state: TrainState, count: int) -> list[TrainState]:
    return [jax.tree.map(lambda leaf, i=lane: leaf[i], state) for lane in range(count)]


def _require_one_architecture(parts: list[Parts]) -> None:
    shapes = {tuple(baseline.family for baseline in p.baselines) for p in parts}
    if len(shapes) > 1:
        raise InputError("the baselines of one sweep must share an architecture: sweep those that differ one by one")
