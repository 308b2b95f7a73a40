"""Every algorithm on the point tasks gives the metrics it gave before the packages were cut anew.

`data/point_metrics.json` holds the first five updates at commit 926bb5a (batch 2,000, seed 0, two cores, AMD EPYC).
On that machine the same bits come out; another machine, and the quick compilation of
the tests, round differently, which grows from update to update.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("quick_compilation")
RECORDED = json.loads((Path(__file__).parent / "data" / "point_metrics.json").read_text())


def baseline_of(algorithm: str) -> str | None:
    if algorithm.startswith("space"):
        return "reward"
    return "near" if algorithm.startswith(("f-", "d-", "pretrain")) else None


def assert_as_recorded(task: str, algorithm: str, folder: Path) -> None:
    settings = {"updates": 5, "batch_size": 2000, "baseline": baseline_of(algorithm)}
    rows = spacerl.train(task, algorithm=algorithm, out=folder, progress=False, log=(), **settings).metrics
    for name, values in RECORDED[f"{task} {algorithm}"].items():
        expected = np.array([np.nan if value is None else value for value in values])
        measured = np.array([row[name] for row in rows])
        np.testing.assert_allclose(measured[:1], expected[:1], rtol=1e-3, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(measured, expected, rtol=0.15, atol=0.1, err_msg=name)


def test_every_algorithm_is_recorded():
    assert {key.split()[1] for key in RECORDED} == set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", ["space", "cpo"])
def test_point_circle(algorithm, tmp_path):
    assert_as_recorded("point-circle", algorithm, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("key", RECORDED)
def test_every_algorithm_on_both_tasks(key, tmp_path):
    assert_as_recorded(*key.split(), tmp_path / "run")
