"""What it takes to add something: an algorithm is one entry, a task is one row, and both then work by name."""

from __future__ import annotations

import dataclasses
import re
import types
from pathlib import Path

import jax.numpy as jnp
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.cli import main
from spacerl.core.steps import natural_step
from spacerl.envs.tasks import TASKS, Task
from spacerl.runs.fields import Positive
from spacerl.types import ActionSpace, EnvSpec, JaxEnv, Proposal

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.usefixtures("quick_compilation")

# A toy algorithm: one file's worth ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimidOptions:
    timidity: Positive = 4.0
    """By how much the trust region is divided."""


def timid(options: TimidOptions) -> Algorithm:
    def step(inputs, state) -> Proposal:
        x = inputs.solve(inputs.g[None])[0]
        return Proposal(natural_step(inputs.g, x, inputs.delta / options.timidity), info={"timid": jnp.array(1.0)})

    return Algorithm(Needs(cost=False, baseline=False), step)


TIMID = AlgorithmEntry("a trust-region step that is smaller than it might be", TimidOptions, timid)


# A toy task: one package's worth --------------------------------------------------------------------------------------


class Drift(JaxEnv):
    """A point on a line that is paid for moving right and charged for being right of 1."""

    spec = EnvSpec("drift", (1,), ActionSpace("box", 1), horizon=8, cost_names=("beyond",))

    def reset(self, key):
        return jnp.zeros(1)

    def observe(self, state):
        return state

    def step(self, state, action):
        moved = state + 0.2 * jnp.clip(action, -1.0, 1.0)
        return moved, moved[0] - state[0], (moved > 1.0).astype(jnp.float32), jnp.array(False)


DRIFT = Task(
    name="drift",
    summary="a point on a line",
    settings={"rollout_length": 8, "batch_size": 200, "cost_limit": 1.0, "updates": 3, "hidden": (8,)},
    jax_env="toy_task:Drift",
)


@pytest.fixture
def toys(monkeypatch):
    """The registry line and the row; the row names a module, as those of the package do."""
    monkeypatch.setitem(ALGORITHMS, "timid", TIMID)
    monkeypatch.setitem(TASKS, "drift", DRIFT)
    module = types.ModuleType("toy_task")
    module.Drift = Drift  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "toy_task", module)


def test_an_added_algorithm_and_task_work_by_name(toys, tmp_path, capsys):
    out = tmp_path / "run"
    main(["train", "drift", "--algorithm", "timid", "--timidity", "2", "--seed", "3", "--out", str(out), "--quiet"])
    rows = spacerl.resume(out, updates=4, progress=False).metrics
    assert len(rows) == 4
    assert all(row["timid"] == 1.0 for row in rows)
    main(["evaluate", str(out), "--episodes", "10"])
    main(["report", str(out)])
    assert "J_C beyond" in capsys.readouterr().out
    assert "timid" in (out / "report.html").read_text().lower()


def test_an_added_algorithm_and_task_are_in_lists_and_help(toys, capsys):
    main(["tasks"])
    main(["algorithms"])
    with pytest.raises(SystemExit):
        main(["train", "drift", "--algorithm", "timid", "--help-all"])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(
        text in printed for text in ("a point on a line", "smaller than it might be", "--timidity", "default: 4")
    )


def test_an_added_algorithm_checks_its_options(toys, tmp_path):
    with pytest.raises(spacerl.InputError, match=r"timidity is -1\.0: allowed is a finite number above 0"):
        spacerl.train("drift", algorithm="timid", timidity=-1.0, out=tmp_path / "run")
    with pytest.raises(spacerl.InputError, match="timidity is not a setting of algorithm 'pcpo': it belongs to timid"):
        spacerl.train("drift", algorithm="pcpo", timidity=1.0, out=tmp_path / "run")


@pytest.mark.parametrize("number", [0, 1])
def test_the_algorithms_of_the_documentation_run_as_printed(number, tmp_path, monkeypatch):
    program = re.findall(r"```python\n(.*?)```", (DOCS / "own-algorithm.md").read_text(), re.DOTALL)[number]
    assert len(program.splitlines()) < 30
    monkeypatch.chdir(tmp_path)
    small = re.sub(r"updates=\d+", "updates=2, batch_size=1000, progress=False", program)
    exec(compile(small, "own-algorithm.md", "exec"), {})
    (run,) = (tmp_path / "runs").iterdir()
    config = (run / "config.json").read_text()
    assert '"algorithm": "own:' in config
