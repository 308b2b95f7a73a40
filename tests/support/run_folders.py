"""Made-up run folders for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from spacerl.reporting import group_runs, read_runs


def write_run(
    folder: Path, *, algorithm="space", task="point-circle", baseline="near", seed=0, updates=40, reward=18.0,
    cost=4.5, limit=5.0, divergence=True, measured_baseline=True, trajectories=None, columns=None, **config,
) -> Path:  # fmt: skip
    """A run folder whose J_R rises to ``reward`` and whose J_C decays to ``cost``, both with a little noise."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(algorithm), updates])
    k = np.arange(updates, dtype=float)
    J_R = reward * (1 - np.exp(-k / (updates / 6))) + 0.02 * reward * rng.standard_normal(updates)
    J_C = cost + 6.0 * np.exp(-k / (updates / 15)) + 0.02 * cost * rng.standard_normal(updates)
    nan = np.full(updates, np.nan)
    table = {
        "update": k, "env_steps": 5000 * (k + 1), "J_R": J_R, "J_C": J_C,
        "J_D": 900 * np.exp(-k / (updates / 5)) + 8 if divergence else nan,
        "h_C": np.full(updates, limit), "h_D": np.minimum(5 + 3 * k, 60.0) if divergence else nan,
        "cumulative_violation": np.cumsum(np.maximum(0, J_C - limit)), "kl": np.full(updates, 1e-4),
        "entropy": 2.8 - 0.02 * k, "seconds_collect": np.full(updates, 0.25), "seconds_update": np.full(updates, 0.5),
    } | (columns or {})  # fmt: skip
    lines = [",".join(table)] + [",".join(repr(float(v)) for v in row) for row in zip(*table.values(), strict=True)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    names = [] if baseline is None else baseline if isinstance(baseline, list) else [baseline]
    settings = {"format": 2, "task": task, "algorithm": algorithm, "baseline": names, "updates": updates, "seed": seed}
    settings |= {"cost_limit": [limit], "divergence_threshold": 5.0, "projection": "kl"} | config
    (folder / "config.json").write_text(json.dumps(settings))
    versions = {"spacerl": "0.1.0", "python": "3.11", "commit": "abcdef0123456789", "hardware": "8-core test machine"}
    (folder / "versions.json").write_text(json.dumps(versions | {"started": f"2025-01-0{seed % 9 + 1}T12:00:00"}))
    if baseline and measured_baseline:
        (folder / "baseline.json").write_text(json.dumps({"name": baseline, "J_R": 12.0, "J_C": 3.0, "h_C": limit}))
    if trajectories:
        (folder / "trajectories.json").write_text(json.dumps(trajectories))
    return folder


def circle_trajectories(steps=120, episodes=4) -> dict:
    rng = np.random.default_rng(1)
    policies = []
    for name, squeeze in (("baseline", 0.9), ("learned", 0.46)):
        made = []
        for _ in range(episodes):
            angle = rng.uniform(0, 6.28) + np.linspace(0, 5.5, steps)
            grown = 5.0 * (1 - np.exp(-np.arange(steps) / 12))
            xy = np.stack([squeeze * grown * np.cos(angle), grown * np.sin(angle)], axis=1)
            made.append({"xy": xy.round(3).tolist(), "cost": (np.abs(xy[:, 0]) > 2.5).astype(int).tolist()})
        policies.append({"name": name, "J_R": 17.0, "J_C": 31.0 if name == "baseline" else 0.0, "episodes": made})
    arena = {"kind": "circle", "radius": 5.0, "x_limit": 2.5}
    return {"task": "point-circle", "arena": arena, "policies": policies}


def gather_trajectories() -> dict:
    rng = np.random.default_rng(2)
    policies = []
    for name in ("baseline", "learned"):
        made = []
        for _ in range(3):
            apples, bombs = rng.uniform(-5, 5, (2, 2)), rng.uniform(-5, 5, (8, 2))
            xy = np.cumsum(rng.normal(0.1, 0.5, (16, 2)), axis=0)  # one position more than steps: the start
            gap = np.linalg.norm(xy[1:, None] - bombs[None], axis=-1).min(axis=1)
            made.append({"xy": xy.tolist(), "cost": (gap < 1).astype(int).tolist()}
                        | {"apples": apples.tolist(), "bombs": bombs.tolist()})  # fmt: skip
        policies.append({"name": name, "J_R": 3.0, "J_C": 0.4, "episodes": made})
    return {"task": "point-gather", "arena": {"kind": "gather", "half_width": 6.0, "catch_range": 1.0},
            "policies": policies}  # fmt: skip


def two_algorithms(folder: Path, seeds=3, space=None, pcpo=None) -> Path:
    for seed in range(seeds):
        write_run(folder / f"space-{seed}", seed=seed, **(space or {}))
        opponent = {"algorithm": "pcpo", "baseline": None, "reward": 9.0, "divergence": False} | (pcpo or {})
        write_run(folder / f"pcpo-{seed}", seed=seed, **opponent)
    return folder


def groups_in(folder: Path):
    return group_runs(read_runs(folder).runs)
