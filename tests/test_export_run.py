"""`spacerl.export` of whole runs: the file acts as the policy does, in the environment's units."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from spacerl.api import export, load_policy
from spacerl.cli import main
from spacerl.types import InputError
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_hosted_run_exports_in_the_units_of_its_environment(capsys):
    run = made(Path("run"), task="env:Pendulum-v1", cost=("none",), cost_limit=1.0)
    main(["export", "run", "policy.py"])
    assert "policy.py: differs from the policy by at most" in capsys.readouterr().out
    obs = np.array([[0.1, 0.9, 2.0], [1.0, 0.0, -7.0]], np.float32)
    policy = load_policy(run)
    assert policy.family is not None
    expected = 2.0 * np.asarray(policy.family.apply(policy.theta, obs).mode())  # [-1, 1] stands for [-2, 2]
    np.testing.assert_allclose(runpy.run_path("policy.py")["act"](obs), np.clip(expected, -2, 2), atol=1e-5)


def test_a_native_run_exports_in_physical_units():
    run = made(Path("run"), task="point-circle")
    assert export(run, "policy.npz") < 1e-4
    assert Path("policy.npz").is_file()


def test_what_is_no_run_or_no_format_is_bad_input():
    with pytest.raises(InputError, match="run folder 'nowhere' does not exist"):
        export("nowhere", "policy.py")
    run = made(Path("run"), task="point-circle")
    with pytest.raises(InputError, match="allowed are"):
        export(run, "policy.txt")
