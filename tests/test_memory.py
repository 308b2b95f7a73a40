"""Sizes are checked against the machine before anything is made, in one sentence."""

from __future__ import annotations

import resource

import pytest

import spacerl
from spacerl.envs import memory
from spacerl.types import InputError
from support.runs import made

SMALL = {"algorithm": "pcpo", "batch_size": 100, "hidden": (4,), "updates": 1, "progress": False}
OWN = SMALL | {"env": "Pendulum-v1", "cost": "none", "cost_limit": 1.0}
MANY = 2**31 - 1
SIZES = {
    "hidden": ({"hidden": (MANY,)}, "--hidden"),
    "filters": ({"env": "support.environments:Image", "cost": "none", "filters": (MANY,)}, "--hidden"),
    "batch": ({"batch_size": MANY}, "--batch-size"),
    "length": ({"rollout_length": MANY}, "--rollout-length"),
    "environments": (OWN | {"environments": MANY, "workers": 0}, "--environments"),
    "workers": (OWN | {"environments": 20_000, "workers": 20_000}, "--workers"),
    "evaluations": ({"evaluation_episodes": MANY, "evaluate_every": 1}, "number of episodes"),
}


@pytest.fixture
def a_small_machine(monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: 16e9)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_beyond_the_machine_is_one_sentence_and_makes_nothing(name, tmp_path, a_small_machine):
    given, said = SIZES[name]
    task = None if "env" in given else "point-circle"
    with pytest.raises(
        InputError, match=f"this needs at least .* GB of memory and there are .*: give a smaller .*{said}"
    ) as stop:
        spacerl.train(task, out=tmp_path / "run", **SMALL | {"cost_limit": 1.0} | given)
    assert "\n" not in str(stop.value)
    assert not (tmp_path / "run").exists()


def test_more_workers_than_files_may_be_open_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: 1e15)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    with pytest.raises(InputError, match=r"500 worker processes need more open files .* at most 231"):
        spacerl.train(out=tmp_path / "run", **OWN | {"environments": 500, "workers": 500})


def test_runs_of_one_program_are_counted_together(tmp_path, monkeypatch):
    """Each would fit by itself."""
    settings = SMALL | {"batch_size": 10_000_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "host_memory", lambda: 1e6)
        with pytest.raises(InputError) as stop:
            spacerl.sweep("point-circle", seeds=[0], out=tmp_path / "sweep", **settings)
    one = float(str(stop.value).split("at least ")[1].split()[0]) * 1e9
    monkeypatch.setattr(memory, "host_memory", lambda: 5 * one)
    with pytest.raises(InputError, match="give a smaller number of seeds or baselines of one sweep"):
        spacerl.sweep("point-circle", seeds=range(8), out=tmp_path / "sweep", **settings)
    assert not (tmp_path / "sweep").exists()


def test_episodes_that_are_evaluated_are_counted_too(tmp_path, a_small_machine):
    run = made(tmp_path / "run", task="point-circle")
    with pytest.raises(InputError, match=r"needs at least .* give a smaller number of episodes, or --rollout-length"):
        spacerl.evaluate(run, episodes=10**9)
