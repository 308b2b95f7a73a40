"""Safety-Gymnasium's six-tuple steps: found, trained on, evaluated, resumed.

The real one cannot be installed beside us, so a stand-in takes its place, and is held against traces recorded from the
real one. Where SPACERL_SAFETY_PYTHON names a Python that has it, the real one is trained on through the bridge, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import spacerl
from spacerl.cli import main
from spacerl.envs.host.check import check_environment
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.single import Recipe, SingleEnv
from spacerl.runs.folder import RunFolder
from spacerl.types import InputError
from support.record_safety_gymnasium import form_of
from support.safety import PointGoal

pytestmark = pytest.mark.usefixtures("quick_compilation")

HERE = Path(__file__).parent
SOURCE = HERE / "support" / "safety.py"
STAND_IN = f"{SOURCE}:make"
BRIDGE = HERE.parent / "examples" / "safety_bridge.py"
TRACES = json.loads((HERE / "support" / "safety_gymnasium_traces.json").read_text())["environments"]
REAL = os.environ.get("SPACERL_SAFETY_PYTHON")
SMALL = "--batch-size 60 --rollout-length 20 --hidden 4 --workers 0 --environments 3"
TINY = f"--algorithm pcpo --cost-limit 25 {SMALL} --quiet"


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    monkeypatch.chdir(tmp_path)


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- the stand-in is faithful


def test_the_stand_in_has_the_form_of_the_real_one():
    """Everything but the numbers of an episode: spaces, time limit, types and names of all that is returned."""
    real, ours = TRACES["SafetyPointGoal1-v0"], form_of(loaded(SOURCE).make())
    reached = ours["step"]["types"].pop("info goal_met", None)  # random actions of the real robot reached no goal
    assert reached in (None, ["bool"])
    for form in (real, ours):
        del form["first_rewards_and_costs"]
    assert ours == real


def test_all_tasks_that_were_recorded_have_the_form_we_rely_on():
    assert len(TRACES) == 4
    for form in TRACES.values():
        assert form["step"]["values"] == 6
        assert form["cost_is_cost_sum"]
        assert form["observations_inside_the_space"]
        assert form["action"]["finite"] == [True, True]
        assert "cost" not in [name.removeprefix("info ") for name in form["step"]["types"] if name.startswith("info ")]


# ---------------------------------------------------------------- the stand-in, through our room for such environments


def test_the_cost_is_found_in_the_step_without_being_named():
    single = SingleEnv(Recipe(STAND_IN, named_sources(())))
    draw = np.random.default_rng(0)
    assert single.horizon == 1000
    costs, sums, ended = [], [], False
    for seed in range(4):
        obs = single.reset(seed)
        assert (obs.shape, obs.dtype) == ((60,), np.float32)
        ended = False
        while not ended:
            obs, _, cost, terminated, truncated = single.step(draw.uniform(-1, 1, 2))
            costs.append(float(cost[0]))
            ended = terminated or truncated
        sums.append(sum(costs))
    assert set(costs) >= {0.0, 1.0}
    assert single.cost_names == ("cost",)


def test_other_costs_of_its_info_can_be_named_beside_it():
    sources = named_sources(("step", "info:cost_hazards", "info:cost_sum"))
    single = SingleEnv(Recipe(STAND_IN, sources))
    single.reset(3)
    for _ in range(100):
        cost = single.step(np.array([1.0, 0.2]))[2]
        assert cost[0] == cost[1] == cost[2]
    single = SingleEnv(Recipe(STAND_IN, named_sources(("info:cost_pillars",))))
    single.reset(0)
    with pytest.raises(InputError, match=r"info\['cost_pillars'\] is missing \(info holds cost_hazards, cost_sum"):
        single.step(np.zeros(2))


def test_check_env_has_nothing_to_complain_about():
    findings = check_environment(STAND_IN, (), (), 3, 2000, 0)
    assert not findings.broken, findings.text()
    assert "from the third of the six values of a step" in findings.text()
    assert "time limit 1000" in findings.text()


def test_training_evaluation_and_resumption(capsys):
    """Two updates at once equal one and one more; the evaluated cost is that of the very same environment."""
    train = ["train", "--env", STAND_IN, *TINY.split()]
    main([*train, "--updates", "2", "--out", "whole"])
    main([*train, "--updates", "1", "--out", "parts"])
    main(["resume", "parts", "--updates", "2", "--quiet"])
    whole, parts = RunFolder("whole").metrics(), RunFolder("parts").metrics()
    assert len(whole) == len(parts) == 2
    for one, other in zip(whole, parts, strict=True):
        same = [name for name in one if not name.startswith("seconds")]
        assert [one[name] for name in same] == pytest.approx([other[name] for name in same], nan_ok=True, abs=0)
    for name in ("policy.safetensors", "checkpoints/update-000002.safetensors"):
        one, other = load_file(Path("whole", name)), load_file(Path("parts", name))
        assert {key: array.tobytes() for key, array in one.items()} == {k: a.tobytes() for k, a in other.items()}
    assert all(np.isfinite(row["J_C"]) and row["worker_restarts"] == 0 for row in whole)
    capsys.readouterr()
    main(["evaluate", "whole", "--episodes", "12", "--video", "film.gif"])
    printed = capsys.readouterr().out
    assert "J_C cost" in printed
    assert "h_C = 25" in printed
    assert Path("film.gif").stat().st_size > 1000
    assert spacerl.evaluate("whole", episodes=12)["stochastic"]["J_C"]["cost"]["limit"] == 25


def test_the_evaluated_cost_is_the_one_the_environment_gave(monkeypatch):
    main(["train", "--env", "support.safety:make", *TINY.split(), "--updates", "1", "--out", "run"])
    given: list[float] = []
    step = PointGoal.step

    def recorded(self: Any, action: Any) -> Any:
        answer = step(self, action)
        given.append(answer[2] + 0.5)
        return *answer[:2], answer[2] + 0.5, *answer[3:]

    monkeypatch.setattr(PointGoal, "step", recorded)
    report = spacerl.evaluate("run", episodes=3)
    means = [report[mode]["J_C"]["cost"]["mean"] for mode in ("stochastic", "deterministic")]
    probe = 1  # building the environment makes one step, to see that there is a cost
    assert sum(given[probe:]) == pytest.approx(3 * sum(means))


# ---------------------------------------------------------------- the bridge to the real one


def test_what_travels_over_the_bridge_arrives():
    bridge = loaded(BRIDGE)
    info = {"cost_sum": np.float64(1.5), "place": np.arange(6, dtype=np.float32).reshape(2, 3), "goal_met": True}
    arrived = bridge.unpacked(bridge.packed(info))
    assert arrived["cost_sum"] == 1.5
    assert type(arrived["cost_sum"]) is float
    assert arrived["goal_met"] is True
    np.testing.assert_array_equal(arrived["place"], info["place"])
    assert arrived["place"].dtype == np.float32
    env = loaded(SOURCE).make()
    for space in (env.observation_space, env.action_space):
        assert bridge.rebuilt(bridge.described(space)) == space


def test_the_bridge_carries_steps_between_processes(tmp_path):
    """The stand-in takes the real one's name in the other process."""
    (tmp_path / "safety_gymnasium.py").write_text(SOURCE.read_text())
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    bridge, here = loaded(BRIDGE).make(python=str(python)), loaded(SOURCE).make()
    try:
        assert bridge.observation_space == here.observation_space
        assert bridge.spec.max_episode_steps == 1000
        pairs = [(bridge.reset(seed=4), here.reset(seed=4))]
        for _ in range(5):
            pairs.append((bridge.step(np.array([1.0, 0.5])), here.step(np.array([1.0, 0.5]))))
        for there, ours in pairs:
            np.testing.assert_array_equal(there[0], ours[0])
            assert there[1:] == ours[1:]
        with pytest.raises(RuntimeError, match="IndexError"):
            bridge.step(np.zeros(1))
        assert len(bridge.step(np.zeros(2))) == 6  # a fault does not end it
    finally:
        bridge.close()
    assert bridge._process.returncode == 0


@pytest.mark.skipif(REAL is None, reason="SPACERL_SAFETY_PYTHON names no Python with Safety-Gymnasium")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_one_is_trained_on_through_the_bridge():
    env = [f"{BRIDGE}:make", "--env-args", "id=SafetyPointGoal1-v0", f"python={REAL}"]
    main(["train", "--env", *env, *TINY.split(), "--updates", "2", "--out", "run"])
    main(["resume", "run", "--updates", "3", "--quiet"])
    assert len(RunFolder("run").metrics()) == 3
    report = spacerl.evaluate("run", episodes=2)
    assert report["stochastic"]["J_C"]["cost"]["limit"] == 25
