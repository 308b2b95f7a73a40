"""The Python of the README, and of the page about Python, runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import spacerl

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROOT = Path(__file__).parent.parent


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    """One program from top to bottom; the first block is a file of its own, cost.py. Fewer steps than there."""
    monkeypatch.chdir(tmp_path)
    cost, *program = blocks("python")
    Path("cost.py").write_text(cost)
    text = "\n".join(program)
    assert "updates=5," in text
    names: dict = {}
    exec(compile(text.replace("updates=5,", "updates=1, batch_size=400, hidden=(4,),"), "README.md", "exec"), names)
    assert isinstance(names["action"], np.ndarray)
    assert np.abs(names["action"]) <= 2.0
    assert spacerl.load_policy("runs/mine").observation_space.shape == (3,)


def test_the_example_of_a_config_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("python", "docs/api.md")
    assert "updates=5, batch_size=2000" in program
    names: dict = {}
    small = program.replace("updates=5, batch_size=2000", "updates=1, batch_size=100, hidden=(4,)")
    exec(compile(small, "api.md", "exec"), names)
    assert names["again"] == names["config"].replace(seed=1)
    assert spacerl.Config.from_toml("pcpo.toml").algorithm == "pcpo"


@pytest.mark.slow
def test_evaluate_policy_of_stable_baselines3_takes_our_policy(tmp_path):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    import gymnasium

    result = spacerl.train(
        env="Pendulum-v1", cost="none", algorithm="trpo", updates=1, batch_size=400, hidden=(4,), workers=0,
        progress=False, out=tmp_path / "run",
    )  # fmt: skip
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    env = monitor.Monitor(gymnasium.make("Pendulum-v1"))
    env.reset(seed=0)
    returns, lengths = evaluation.evaluate_policy(
        result.policy, env, n_eval_episodes=3, deterministic=True, return_episode_rewards=True
    )
    assert lengths == [200, 200, 200]
    measured = spacerl.evaluate(result.folder, episodes=100)["deterministic"]["episode_return"]
    assert abs(np.mean(returns) - measured["mean"]) < 4 * measured["std"] / np.sqrt(3)
