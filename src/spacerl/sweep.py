"""Many runs of one setting, as one compiled program: seeds and baselines are an axis, the update is vmapped over it.

On an accelerator five seeds cost little more than one. The run folders are those of `spacerl train`; only bits differ,
because a batched product rounds differently from a single one. What no program can step is trained run after run.
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

from spacerl.config import InputError, RunConfig, require_new_folder
from spacerl.environments import cost_texts
from spacerl.evaluation import baseline_summary, write_trajectories
from spacerl.progress import Progress
from spacerl.runs import RunFolder, is_run
from spacerl.training import (
    Parts,
    RunStopped,
    assemble,
    baseline_thetas,
    create_folder,
    default_folder,
    fused_step,
    metrics_row,
    require_same_run,
    resume,
    save,
    train,
)
from spacerl.types import TrainState
from spacerl.update import initial_state, raw_theta

ELSEWHERE = ("simulator", "workers", "worker_timeout", "checkpoint_every", "keep_checkpoints")  # the same run anywhere


def sweep(
    config: RunConfig,
    seeds: Sequence[int],
    baselines: Sequence[str | None],
    out: str | Path,
    progress: bool = True,
    trust: bool = False,
) -> list[Path]:
    """Train every seed with every baseline; one run folder each below `out`. Returns the folders.

    All of them at once in one program, unless something is stepped outside of it: your own environment, MuJoCo's
    threads, a Python function as baseline. Runs that are there already are kept, and those that were stopped are
    continued, each by itself: the same call again goes on where it was.
    """
    if not seeds:
        raise InputError("no seed was given: pass at least one")
    config = dataclasses.replace(config, cost=cost_texts(config.cost))
    configs = [dataclasses.replace(config, seed=seed, baseline=name) for name in baselines for seed in seeds]
    folders = _folders(configs, Path(out))
    if not _fit_one_program(configs[:: len(seeds)], trust) or any(is_run(folder) for folder in folders):
        _train_one_by_one(configs, folders, progress, trust)
    else:
        _train_at_once(configs, folders, progress, trust)
    return folders


def _folders(configs: Sequence[RunConfig], out: Path) -> list[Path]:
    """Where each run goes: a new folder, or that of the same run."""
    wanted = [config.resolved() for config in configs]
    folders = [out / default_folder(each).name for each in wanted]
    twice = [folder.name for folder in folders if folders.count(folder) > 1]
    if twice:
        raise InputError(f"run folder '{twice[0]}' would be made twice: give every seed and every baseline once")
    for folder, config, each in zip(folders, configs, wanted, strict=True):
        if is_run(folder):
            given = {name for name, value in vars(config).items() if value is not None}
            settings = {name: value for name, value in vars(each).items() if name in given.difference(ELSEWHERE)}
            if isinstance(each.cost_limit, dict):  # limits by name are in order only where the environment is known
                del settings["cost_limit"]
            require_same_run(folder, settings)
        else:
            require_new_folder(folder)
    return folders


def _fit_one_program(configs: Sequence[RunConfig], trust: bool) -> bool:
    parts: list[Parts] = []
    try:
        for config in configs:
            parts.append(assemble(config, trust=trust))
        return all(not part.hosted and all(baseline.native for baseline in part.baselines) for part in parts)
    finally:
        for part in parts:
            part.close()


def _train_one_by_one(configs: Sequence[RunConfig], folders: Sequence[Path], progress: bool, trust: bool) -> None:
    for config, folder in zip(configs, folders, strict=True):
        if is_run(folder):
            if not RunFolder(folder).is_finished():
                resume(folder, trust=trust, progress=progress)
        else:
            train(**vars(config), out=folder, trust=trust, progress=progress)


def _train_at_once(configs: Sequence[RunConfig], paths: Sequence[Path], progress: bool, trust: bool) -> None:
    parts = [assemble(config, trust=trust) for config in configs]
    _require_one_architecture(parts)
    first, summaries = parts[0], [baseline_summary(part) for part in parts]
    worths = jax.tree.map(lambda *each: jnp.array(each, jnp.float32), *(worth for worth, _ in summaries))
    state = jax.vmap(lambda seed, worth: initial_state(first.learner, seed, worth))(
        jnp.array([p.config.seed for p in parts]), worths
    )
    folders = [RunFolder(path) for path in paths]
    for part, folder, own, (_, summary) in zip(parts, folders, _lanes(state, len(parts)), summaries, strict=True):
        create_folder(part, folder.path, own, summary)
    thetas = jax.tree.map(lambda *each: jnp.stack(each), *(baseline_thetas(part) for part in parts))
    program = lanes_program(first)
    title = f"{first.config.algorithm} on {first.config.task}: {len(parts)} runs at once"
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
                    f"the states before it are saved below '{paths[0].parent}'"
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


def _save(parts: Sequence[Parts], folders: Sequence[RunFolder], state: TrainState) -> None:
    """Save every lane's own state as a checkpoint of its run."""
    for part, folder, own in zip(parts, folders, _lanes(state, len(parts)), strict=True):
        save(part, folder, own)


def lanes_program(parts: Parts) -> Any:
    """(states, baselines' parameters) -> (states, metrics), everything with a leading axis of lanes."""
    return jax.jit(jax.vmap(lambda state, thetas: fused_step(parts, state, thetas)))


def _lanes(state: TrainState, count: int) -> list[TrainState]:
    return [jax.tree.map(lambda leaf, i=lane: leaf[i], state) for lane in range(count)]


def _require_one_architecture(parts: list[Parts]) -> None:
    shapes = {tuple(baseline.family for baseline in p.baselines) for p in parts}
    if len(shapes) > 1:
        raise InputError("the baselines of one sweep must share an architecture: sweep those that differ one by one")
