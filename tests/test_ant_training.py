"""Runs on the ant tasks: every algorithm, exact resumption, and the seam between the two simulators."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.policies.loading import rules_of
from spacerl.runs.folder import RunFolder, write_atomically
from spacerl.training.settings import needs_of, resolve

pytestmark = pytest.mark.usefixtures("quick_compilation")

pytest.importorskip("mujoco")

TINY = {"batch_size": 120, "rollout_length": 30, "environments": 4, "hidden": (6,), "cg_iterations": 3}
HOST = TINY | {"simulator": "host", "workers": 1, "progress": False}


def pairs() -> list[Any]:
    """Every algorithm on both tasks; by default each on one of them, in turns."""
    tasks = ("ant-circle", "ant-gather")
    return [
        pytest.param(algorithm, task, marks=[pytest.mark.slow] if (i + k) % 2 else [])
        for i, algorithm in enumerate(ALGORITHMS)
        for k, task in enumerate(tasks)
    ]


@pytest.mark.parametrize(("algorithm", "task"), pairs())
def test_every_algorithm_learns_from_mujoco_s_threads(algorithm, task, tmp_path):
    given = {"baseline": "careful-rule"} if needs_of(algorithm).baseline else {}
    result = spacerl.train(task, algorithm=algorithm, updates=2, out=tmp_path / task, **given, **HOST)
    assert [row["on_device"] for row in result.metrics] == [0.0, 0.0]
    for column in ("J_R", "J_C", "kl", "episode_length"):
        assert np.all(np.isfinite([row[column] for row in result.metrics]))
    assert result.metrics[-1]["env_steps"] >= 240


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    settings = HOST | {"baseline": "near", "checkpoint_every": 1}
    whole = spacerl.train("ant-circle", updates=4, out=tmp_path / "whole", **settings)
    spacerl.train("ant-circle", updates=2, out=tmp_path / "half", **settings)
    resumed = spacerl.resume(tmp_path / "half", updates=4, progress=False)
    for one, other in zip(whole.metrics, resumed.metrics, strict=True):
        timed = {"seconds_collect", "seconds_update"}
        assert {k: v for k, v in one.items() if k not in timed} == pytest.approx(
            {k: v for k, v in other.items() if k not in timed}, nan_ok=True, rel=0.0, abs=0.0
        )
    kept = [RunFolder(tmp_path / name) for name in ("whole", "half")]
    assert [folder.newest_update() for folder in kept] == [4, 4]
    arrays, others = (folder.checkpoint(4)[0] for folder in kept)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])


def moved(run: Path, simulator: str) -> Path:
    config = dataclasses.replace(RunFolder(run).config(), simulator=simulator)
    write_atomically(run / "config.json", config.to_json())
    return run


@pytest.mark.slow
def test_a_run_goes_on_in_the_other_simulator(tmp_path):
    """New episodes begin at the seam, the metrics say where, and nothing else changes."""
    run = tmp_path / "run"
    spacerl.train("ant-circle", updates=2, out=run, **HOST | {"baseline": "near"})
    spacerl.resume(moved(run, "device"), updates=4, progress=False)
    result = spacerl.resume(moved(run, "host"), updates=5, progress=False)
    assert [row["on_device"] for row in result.metrics] == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert [row["update"] for row in result.metrics] == [0, 1, 2, 3, 4]
    steps = [row["env_steps"] for row in result.metrics]
    assert np.all(np.diff(steps) >= 120)
    # The same calm policy before and after a seam: as long, and nearly as far from the baseline.
    lengths = [row["episode_length"] for row in result.metrics]
    assert lengths == [30.0] * 5
    J_D = [row["J_D"] for row in result.metrics]
    for before, after in ((1, 2), (3, 4)):
        assert 0.5 < J_D[after] / J_D[before] < 1.5


def test_careful_rules_are_baselines_by_name():
    for task in ("ant-circle", "ant-gather"):
        assert rules_of(task) == ["rule", "careful-rule"]
    assert rules_of("point-circle") == ["rule"]
    with pytest.raises(spacerl.InputError, match=r"'careful-rul'.*did you mean 'careful-rule'"):
        spacerl.train("ant-circle", baseline="careful-rul", **HOST)
    assert resolve({"task": "ant-circle", "baseline": "careful-rule"}).baseline == ("careful-rule",)
