"""Evaluations of the deterministic policy while a run learns, and the best policy that keeps its limits."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.cli import main
from spacerl.rollout.acting import acting
from spacerl.rollout.evaluate import Play, play_episodes
from spacerl.runs.folder import RunFolder
from spacerl.training import evaluation
from spacerl.training.assemble import assemble
from spacerl.training.settings import resolve
from spacerl.types import InputError
from support.learners import Toy
from support.runs import outcome

pytestmark = pytest.mark.usefixtures("quick_compilation")

TINY = {"algorithm": "trpo", "cost_limit": 50.0, "batch_size": 100, "hidden": (4,), "progress": False, "log": ()}


class Payment(Toy):
    """One step: reward is the action; the first cost is the action too, the second its square."""

    name = "payment"
    obs_shape = (1,)
    horizon = 1
    cost_names = ("paid", "squared")

    def reset(self, key):
        return jnp.zeros(1)

    def observe(self, state):
        return state

    def step(self, state, action):
        return state, action[0], jnp.stack([action[0], action[0] ** 2]), True

    def __eq__(self, other):
        return type(self) is type(other)

    def __hash__(self):
        return hash(type(self))


def always(parts, action):
    """A policy that does one thing."""
    family = parts.learner.family
    named = {name: np.zeros_like(leaf) for name, leaf in family.named(jnp.zeros(family.parameters)).items()}
    named["layers.1.bias"] = np.array([action], np.float32)
    return acting(spacerl.policies.policy.NetworkPolicy(family, family.from_named(named)), "")


def test_the_best_is_the_one_that_earns_most_within_all_limits_and_else_the_one_nearest_to_them(tmp_path):
    settings = {"algorithm": "trpo", "hidden": (4,), "cost_limit": (2.0, 9.0), "batch_size": 4}
    parts = assemble(resolve({**settings, "task": "own:payment"}), spacerl.training.assemble.Given(env=Payment()))
    folder, kept = RunFolder(tmp_path), []
    for update, action in enumerate((5.0, 4.0, 1.0, 1.5, 1.2, 8.0), start=1):
        row = evaluation.evaluated(parts, always(parts, action), update, 10 * update)
        evaluation.keep_evaluation(folder, parts.config, always(parts, action), row)
        kept.append(spacerl.load_policy(folder.best_path).predict(np.zeros(1), deterministic=True)[0].item())
    assert kept == [5.0, 4.0, 1.0, 1.5, 1.5, 1.5]
    rows = folder.evaluations()
    assert [row["best"] for row in rows] == [1, 1, 1, 1, 0, 0]
    assert [row["J_C_squared"] for row in rows] == pytest.approx([25, 16, 1, 2.25, 1.44, 64])
    assert [row["h_C"] for row in rows] == pytest.approx([9, 2, 2, 2, 2, 9])  # of the cost that is farthest above
    assert rows[0]["episode_return"] == pytest.approx(5.0)


def test_the_best_earns_most_within_the_limits_and_their_tolerance(tmp_path):
    settings = {"algorithm": "trpo", "hidden": (4,), "cost_limit": (0.0, 0.0), "cost_tolerance": 4.0, "batch_size": 4}
    parts = assemble(resolve({**settings, "task": "own:payment"}), spacerl.training.assemble.Given(env=Payment()))
    folder = RunFolder(tmp_path)
    for update, action in enumerate((2.1, 1.0, 1.9, 2.1), start=1):
        row = evaluation.evaluated(parts, always(parts, action), update, 10 * update)
        evaluation.keep_evaluation(folder, parts.config, always(parts, action), row)
    rows = folder.evaluations()
    assert [row["best"] for row in rows] == [1, 1, 1, 0]
    assert [row["excess"] > 0 for row in rows] == [True, False, False, True]
    assert {row["h_C"] for row in rows} == {0.0}


@pytest.mark.parametrize("algorithm", ["pcpo", "space-alone"])
def test_a_tolerance_changes_nothing_that_is_learned(algorithm, tmp_path):
    learned = []
    for tolerance in (0.0, 50.0):
        settings = {**TINY, "algorithm": algorithm, "cost_limit": 0.0, "cost_tolerance": tolerance, "seed": 2}
        result = spacerl.train("point-circle", out=tmp_path / str(tolerance), updates=3, **settings)
        assert result.metrics[-1]["J_C"] > 0.0
        learned.append(result.policy.theta)
    np.testing.assert_array_equal(*learned)


EVALUATED = {"evaluate_every": 2, "evaluation_episodes": 3, "evaluation_mode": "deterministic"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    spacerl.train("point-circle", out=folder, updates=5, **EVALUATED, **TINY)
    return folder


def test_a_run_is_evaluated_every_so_often_and_at_its_end_and_learns_the_same(run, tmp_path):
    rows = RunFolder(run).evaluations()
    assert [row["update"] for row in rows] == [2, 4, 5]
    last = spacerl.load_policy(run)
    env = spacerl.make_env("point-circle")
    played = play_episodes(env, last, 0.995, Play(3, 50, evaluation.SEED, deterministic=True))
    assert rows[-1]["J_R"] == pytest.approx(played.J_R.mean(), rel=1e-4)
    best = max((row for row in rows if row["excess"] <= 0), key=lambda row: row["J_R"])
    assert spacerl.load_policy(run, policy="best").info["update"] == best["update"]
    other = spacerl.train("point-circle", out=tmp_path / "other", updates=5, evaluate_every=0, **TINY).folder
    mine, theirs = outcome(run), outcome(other)
    assert mine["metrics"] == theirs["metrics"]
    assert mine["policy"] == theirs["policy"]
    assert not (other / "best.safetensors").exists()
    with pytest.raises(InputError, match="has no best policy"):
        spacerl.load_policy(other, policy="best")
    with pytest.raises(InputError, match="did you mean 'best'"):
        spacerl.load_policy(other, policy="bets")


def test_the_random_policy_is_evaluated_where_that_is_asked_for(run, tmp_path):
    folder = tmp_path / "run"
    settings = {"updates": 2, "evaluate_every": 2, "evaluation_episodes": 3}  # of point circle: its policies need it
    spacerl.train("point-circle", out=folder, **settings, **TINY)
    (row,) = RunFolder(folder).evaluations()
    played = play_episodes(
        spacerl.make_env("point-circle"), spacerl.load_policy(folder), 0.995, Play(3, 50, evaluation.SEED)
    )
    assert row["J_R"] == pytest.approx(played.J_R.mean(), rel=1e-4)
    assert row["J_R"] != pytest.approx(RunFolder(run).evaluations()[0]["J_R"], rel=1e-3)


def test_a_resumed_run_evaluates_what_is_left(run, tmp_path):
    folder = tmp_path / "run"
    settings = {"updates": 5, "checkpoint_every": 3, **EVALUATED}
    stop = iter(range(1, 9))
    spacerl.train("point-circle", out=folder, on_update=lambda row: next(stop) == 3, **settings, **TINY)
    assert [row["update"] for row in RunFolder(folder).evaluations()] == [2]
    spacerl.resume(folder, progress=False, log=())
    assert (folder / "evaluations.csv").read_text() == (run / "evaluations.csv").read_text()


def test_the_best_policy_is_chosen_on_the_command_line(run, tmp_path, capsys):
    main(["evaluate", str(run), "--episodes", "4", "--policy", "best", "--json", "--quiet"])
    report = json.loads(capsys.readouterr().out)
    assert report["policy"] == "best"
    assert report["update"] == spacerl.load_policy(run, policy="best").info["update"]
    assert report == spacerl.evaluate(run, episodes=4, policy="best")
    for which in ("best", "last"):
        main(["export", str(run), str(tmp_path / f"{which}.npz"), "--policy", which])
    best, last = (np.load(tmp_path / f"{which}.npz")["layers.0.weight"] for which in ("best", "last"))
    same = report["update"] == 5
    assert np.array_equal(best, last) == same


def test_a_table_of_an_earlier_version_gets_the_columns_it_lacks(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "metrics.csv").write_text("update,J_R\n0,1.0\n1,2.0\n")
    folder.append_metrics({"update": 2, "episode_return": 7.0, "J_R": 3.0})
    folder.append_metrics({"update": 3, "J_R": 4.0, "episode_return": 8.0})
    columns = folder.metrics_table().columns
    assert columns["J_R"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert columns["episode_return"].tolist()[2:] == [7.0, 8.0]
    assert np.isnan(columns["episode_return"][:2]).all()
