"""Many runs of one setting as one compiled program: seeds and baselines are an axis, the update is vmapped over it.

On an accelerator five seeds cost little more than one. The run folders are those of `spacerl train`; only bits differ,
because a batched product rounds differently from a single one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.config import InputError, RunConfig, require_new_folder
from spacerl.evaluation import baseline_summary, write_trajectories
from spacerl.progress import Progress
from spacerl.runs import RunFolder, versions, write_json
from spacerl.training import Parts, RunStopped, assemble, default_folder, device_name, fused_step, metrics_row, save
from spacerl.types import TrainState
from spacerl.update import initial_state


def sweep(
    config: RunConfig, seeds: Sequence[int], baselines: Sequence[str | None], out: str | Path, progress: bool = True
) -> list[Path]:
    """Train every seed with every baseline at once; one run folder each below `out`. Returns the folders."""
    if not seeds:
        raise InputError("no seed was given: pass at least one")
    runs = [
        _prepare(dataclasses.replace(config, seed=seed, baseline=name), Path(out))
        for name in baselines
        for seed in seeds
    ]
    parts, folders, targets = [run[0] for run in runs], [run[1] for run in runs], [run[2] for run in runs]
    _require_one_architecture(parts)
    first = parts[0]
    state = jax.vmap(lambda seed, target: initial_state(first.learner, seed, target))(
        jnp.array([p.config.seed for p in parts]), jnp.array(targets, jnp.float32)
    )
    thetas = None if first.baseline is None else jnp.stack([p.baseline.theta for p in parts])  # type: ignore[union-attr]
    program = lanes_program(first)
    names = sorted(jax.eval_shape(lambda s, t: jax.vmap(lambda a, b: fused_step(first, a, b))(s, t), state, thetas)[1])
    title = f"{config.algorithm} on {config.task}: {len(seeds)} seeds x {len(baselines)} baselines"
    with Progress(title, first.config.updates, 0, progress) as show:  # type: ignore[arg-type]
        for done in range(first.config.updates):  # type: ignore[arg-type]
            started = time.perf_counter()
            state, packed = program(state, thetas)
            values, steps = jax.device_get((packed, state.env_steps))
            seconds = time.perf_counter() - started
            rows = [_row(done, names, values[lane], steps[lane], seconds / len(parts)) for lane in range(len(parts))]
            for folder, row in zip(folders, rows, strict=True):
                folder.append_metrics(row)
            show({key: float(np.mean([row[key] for row in rows])) for key in rows[0]} | {"update": done})
            broken = [parts[i].config for i, value in enumerate(values[:, names.index("finite")]) if not value]
            if broken:
                raise RunStopped(f"numbers stopped being finite in update {done + 1} of seed {broken[0].seed}")
    for lane, (part, folder) in enumerate(zip(parts, folders, strict=True)):
        own: TrainState = jax.tree.map(lambda leaf: leaf[lane], state)  # noqa: B023
        save(part, folder, own)
        write_trajectories(part, own.theta, folder.path)
    return [folder.path for folder in folders]


def lanes_program(parts: Parts) -> Any:
    """(states, baseline parameters), each with a leading axis of lanes -> (states, metrics packed as (lanes, M))."""

    def lane(state: TrainState, theta: Any) -> tuple[TrainState, Any]:
        following, metrics = fused_step(parts, state, theta)
        return following, jnp.stack([metrics[name] for name in sorted(metrics)])

    return jax.jit(jax.vmap(lane))


def _prepare(config: RunConfig, out: Path) -> tuple[Parts, RunFolder, float]:
    parts = assemble(config)
    if parts.baseline is not None and not parts.baseline.native:
        raise InputError(
            "a sweep compiles its baseline: a Python function cannot be one, use `spacerl train` for each seed"
        )
    path = out / default_folder(parts.config).name
    require_new_folder(path)
    target, summary = baseline_summary(parts)
    folder = RunFolder.create(path, parts.config, versions(device_name()))
    if summary is not None:
        write_json(folder.path / "baseline.json", summary)
    return parts, folder, target


def _require_one_architecture(parts: list[Parts]) -> None:
    shapes = {None if p.baseline is None else p.baseline.family for p in parts}
    if len(shapes) > 1:
        raise InputError("the baselines of one sweep must share an architecture: sweep those that differ one by one")


def _row(done: int, names: list[str], values: np.ndarray, steps: Any, seconds: float) -> dict[str, float | int]:
    metrics = dict(zip(names, values, strict=True))
    return metrics_row(done, int(steps), metrics, float("nan"), seconds)
