"""The record of a run: the paper's table as presets, a text that reads back the same, and no key that does nothing."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.envs.tasks import TASKS
from spacerl.runs.config import GROUPS, SETTINGS, RunConfig
from spacerl.runs.fields import names_of
from spacerl.runs.folder import RunFolder
from spacerl.training.assemble import assemble
from spacerl.training.programs import baseline_parameters, fused_step
from spacerl.training.settings import read_config, resolve
from spacerl.training.update import initial_state
from spacerl.types import BaselineMeasurement, InputError
from support.settings import another, asking_for


def resolved(task: str, **settings) -> RunConfig:
    """The whole config of a run, with the costs and the time limit of its task."""
    name = task if task in TASKS and TASKS[task].available else "point-circle"
    return resolve({"task": task, **settings}).config(spacerl.make_env(name).spec)


# ---------------------------------------------------------------- the paper's table

COLUMNS = ("point-circle", "point-gather", "ant-circle", "ant-gather", "grid", "bottleneck", "car-racing")
# Table "Parameters used in all tasks", row by row, and the paragraph "Architectures and Parameters" above it.
TABLE = {
    "discount": (0.995, 0.995, 0.995, 0.995, 0.999, 0.999, 0.990),
    "cost_discount": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "divergence_discount": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "delta": (1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 5e-4),
    "gae_lambda": (0.95, 0.95, 0.95, 0.95, 0.97, 0.97, 0.95),
    "cost_gae_lambda": (1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0),
    "divergence_gae_lambda": (0.95, 0.95, 0.95, 0.95, 0.90, 0.90, 0.95),
    "batch_size": (50_000, 50_000, 100_000, 100_000, 10_000, 25_000, 10_000),
    "rollout_length": (50, 15, 500, 500, 400, 500, 1000),
    "cost_limit": (5, 0.5, 5, 0.2, 0, 0, 5),
    "divergence_threshold": (5, 3, 5, 3, 10, 10, 5),
    "updates": (1000, 1200, 2500, 1500, 200, 300, 600),
    "hidden": ((64, 32), (64, 32), (64, 32), (64, 32), (16, 16), (50, 25), (32, 16)),
    "critic": ("neural", "neural", "neural", "neural", "linear", "linear", "neural"),
    "projection": ("kl", "kl", "kl", "kl", "l2", "l2", "kl"),
}


@pytest.mark.parametrize("task", COLUMNS)
def test_presets_are_the_papers_table(task, monkeypatch):
    somewhere = dataclasses.replace(TASKS[task], jax_env=TASKS["point-circle"].jax_env)
    monkeypatch.setitem(TASKS, task, somewhere)
    settings = resolved(task, algorithm="space", baseline="near", preset="paper").settings()
    given = {name: row[COLUMNS.index(task)] for name, row in TABLE.items()}
    given["cost_limit"] = (given["cost_limit"],)
    assert {name: settings[name] for name in TABLE} == given
    assert settings["threshold_constant"] == 10.0  # appendix, "Implementation of Updating h_D"


@pytest.mark.parametrize("task", COLUMNS[:4])
def test_ants_begin_calm_and_the_others_as_in_the_original_code(task):
    config = resolved(task, algorithm="pcpo")
    calm = task.startswith("ant")
    assert (config.initial_std, config.initial_gain) == ((0.15, 0.01) if calm else (1.0, 1.0))
    asked = resolved(task, algorithm="pcpo", initial_std=2.0, initial_gain=0.5)
    assert (asked.initial_std, asked.initial_gain) == (2.0, 0.5)


def test_the_table_has_these_seven_tasks():
    assert tuple(TASKS) == COLUMNS
    assert all(task.available for task in TASKS.values())


def test_the_environments_have_the_tables_rollout_length():
    for task in COLUMNS[:4]:
        assert spacerl.make_env(task).spec.horizon == TABLE["rollout_length"][COLUMNS.index(task)]


# ---------------------------------------------------------------- filling in and reading back


@pytest.mark.parametrize("algorithm", ["pcpo", "space"])
def test_our_preset_is_the_default_and_the_same_for_every_algorithm(algorithm):
    ours = {"delta": 1e-2, "cost_gae_lambda": 0.95, "critic_steps": 5, "critic_sees_time": True}
    ours_given, papers = (resolved("point-circle", algorithm=algorithm, baseline="near", **given).settings()
                          for given in ({}, {"preset": "paper"}))  # fmt: skip
    assert {name: ours_given[name] for name in ours} == ours
    assert (papers["delta"], papers["critic_steps"], papers["critic_sees_time"]) == (1e-4, 1, False)
    changed = {name for name in papers if papers[name] != ours_given[name]}
    assert changed == {"preset", *ours} - {name for name in ours if papers[name] == ours[name]}
    assert resolved("point-circle", algorithm=algorithm, baseline="near", preset="spacerl").settings() == ours_given


def test_what_is_given_wins_over_the_preset():
    given = {"delta": 0.5, "hidden": [3, 2], "cost_limit": 1, "critic": "linear", "updates": 7, "gae_lambda": 0.0}
    config = resolved("point-circle", algorithm="pcpo", **given)
    assert {name: getattr(config, name) for name in given} == given | {"hidden": (3, 2), "cost_limit": (1,)}
    assert config.batch_size == 50_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_filling_in_twice_changes_nothing_and_nothing_is_left_open(algorithm):
    config = resolved("point-gather", **asking_for(algorithm))
    assert resolved("point-gather", **{k: v for k, v in config.settings().items() if k != "task"}) == config
    assert config.settings().keys() == {*SETTINGS, *names_of(ALGORITHMS[algorithm].options)}
    assert None not in config.settings().values()


def own_environment() -> RunConfig:
    spec = dataclasses.replace(spacerl.make_env("point-circle").spec, cost_names=("one", "two"))
    settings = {"cost_limit": (1.0, 0.1), "hidden": (7, 5), "delta": 1 / 3}
    return resolve({"task": "own:mine", "algorithm": "pcpo", **settings}).config(spec)


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(task="point-circle", algorithm="trpo", cost_limit=(5.0,)),
        resolved("point-circle", algorithm="trpo"),
        own_environment(),
        resolved("point-gather", baseline="runs/a b", projection_kl_bound=1e-3, bootstrap_truncation=True),
    ],
)
def test_a_config_written_and_read_is_the_same(config):
    assert RunConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json()).keys() == {"format", *SETTINGS, *config.options}


def refuse(constant: str):
    raise AssertionError(f"{constant} is not JSON")


def written(folder: Path, text: str) -> RunFolder:
    (folder / "config.json").write_text(text)
    return RunFolder(folder)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_setting_and_option_of_every_algorithm_is_read_back(algorithm, tmp_path):
    usual = resolved("point-circle", **asking_for(algorithm))
    fixed = {"task": usual.task, "algorithm": algorithm, "baseline": ("cost", "near")[: 1 + bool(usual.baseline)]}
    fixed |= {"env_args": ("length=3",), "cost": ("far=info:far", "step"), "workers": 3, "rollout_length": 17}
    changed = {name: fixed.get(name, another(name, value)) for name, value in usual.settings().items()}
    assert all(changed[name] != value for name, value in usual.settings().items() if name not in ("task", "algorithm"))
    own = {name: value for name, value in changed.items() if name in SETTINGS}
    options = {name: value for name, value in changed.items() if name not in SETTINGS}
    assert own.keys() == {name for group in GROUPS for name in names_of(group)}
    for config in (usual, RunConfig(**own, options=options)):
        text = config.to_json()
        flat = json.loads(text, parse_constant=refuse)
        assert "null" not in text
        assert None not in flat.values()
        endless = {name for name, value in config.settings().items() if value == math.inf}
        assert {name for name, value in flat.items() if value == "inf"} == endless
        again, _ = read_config(written(tmp_path, text))
        assert again == config
        assert again.settings() == config.settings()
        assert {name: type(value) for name, value in again.settings().items()} == {
            name: type(value) for name, value in config.settings().items()
        }


def test_an_endless_bound_is_written_as_text():
    text = resolved("point-circle", algorithm="pcpo").to_json()
    assert '"projection_kl_bound": "inf"' in text
    assert RunConfig.from_json(text).options["projection_kl_bound"] == math.inf


@pytest.mark.parametrize("lines", ["", '"format": 2, '])
def test_a_config_with_an_unknown_key_names_the_nearest(lines, tmp_path):
    text = f'{{{lines}"task": "point-circle", "algorithm": "pcpo", "cost_limit": [5.0], "deltas": 1}}'
    with pytest.raises(InputError, match=r"unknown config key 'deltas'.*did you mean 'delta'"):
        read_config(written(tmp_path, text))


def test_a_config_of_a_later_version_is_refused(tmp_path):
    text = '{"format": 3, "task": "point-circle", "algorithm": "pcpo", "cost_limit": [5.0]}'
    with pytest.raises(InputError, match=r"config\.json': its format is 3 and this version of spacerl reads up to 2"):
        RunFolder.open(written(tmp_path, text).path).config()


# ---------------------------------------------------------------- what earlier versions wrote

# config.json of a run that was trained before files had a format: one record for all algorithms, null for "not set".
FORMAT_1 = """{
  "task": "point-circle", "algorithm": "space", "baseline": "reward", "updates": 5, "seed": 3, "cost_limit": [5.0],
  "delta": 0.0001, "batch_size": 400, "rollout_length": 50, "env_args": [], "cost": [], "environments": 16,
  "workers": null, "worker_timeout": 60.0, "simulator": "auto", "discount": 0.995, "cost_discount": 1.0,
  "divergence_discount": 1.0, "gae_lambda": 0.95, "cost_gae_lambda": 1.0, "divergence_gae_lambda": 0.95,
  "bootstrap_truncation": false, "hidden": [64, 32], "filters": [24, 12], "normalise_observations": false,
  "initial_std": 1.0, "initial_gain": 1.0, "critic": "neural", "critic_kl": 0.01, "critic_steps": 1,
  "critic_sees_time": false, "cg_iterations": 10, "cg_damping": 1e-05, "fisher_subsample": 0.2,
  "backtrack_factor": 0.7, "backtrack_tries": 15, "projection": "l2", "combine": "printed",
  "projection_kl_bound": null, "divergence_gradient": "full", "divergence_threshold": 6.0, "threshold_rule": "lemma",
  "threshold_constant": 10.0, "pull_kl": 0.02, "pull_kl_max": 0.04, "cost_margin": 0.5, "margin_rate": 0.1,
  "seek_baseline": true, "promise_rate": 0.3, "baseline_std": 0.3, "baseline_exploration": 0.1,
  "divergence_weight": 2.0, "weight_schedule": "printed", "weight_decay": 0.95, "multiplier_rate": 0.05,
  "pretrain_tolerance": 0.05, "pretrain_updates": 100000, "pretrain_delta": null, "checkpoint_every": 10,
  "keep_checkpoints": 3
}"""
PROJECTED = {"projection": "l2", "projection_kl_bound": math.inf}
PRINTED = PROJECTED | {"divergence_gradient": "full", "divergence_threshold": 6.0, "threshold_rule": "lemma"}
PRINTED |= {"threshold_constant": 10.0}
SEARCHED = {"backtrack_factor": 0.7, "backtrack_tries": 15}
GUARDED = PRINTED | SEARCHED | {"projection_kl_bound": 0.04, "pull_kl": 0.02, "pull_kl_max": 0.04, "cost_margin": 0.5}
GUARDED |= {"margin_rate": 0.1, "seek_baseline": True, "promise_rate": 0.3}
# Which there were not: a run of before goes on as it was.
GUARDED |= {"ascent_factor": 1.0, "earned_trust": False, "shrink_cost_gradients": False, "filter_costs": False}
GUARDED |= {"mean_cost_gradients": False}
IMITATED = {"pretrain_tolerance": 0.05, "pretrain_updates": 100_000, "pretrain_delta": "delta"}
WEIGHTED = {"divergence_gradient": "full", "divergence_weight": 2.0}
SCHEDULED = WEIGHTED | {"weight_schedule": "printed", "weight_decay": 0.95}
# Algorithm and form that the file says -> the algorithm of today and all of its options.
UPGRADES = {
    ("space", "printed"): ("space-printed", PRINTED),
    ("space", "sequential"): ("space-sequential", PRINTED),
    ("space", "joint"): ("space-joint", PRINTED),
    ("space", "guarded"): ("space", GUARDED),
    ("trpo", "guarded"): ("trpo", SEARCHED),
    ("trpo-lagrangian", "guarded"): ("trpo-lagrangian", SEARCHED | {"multiplier_rate": 0.05}),
    ("cpo", "guarded"): ("cpo", SEARCHED),
    ("pcpo", "guarded"): ("pcpo", PROJECTED),
    ("f-cpo", "guarded"): ("f-cpo", WEIGHTED | SEARCHED),
    ("f-pcpo", "guarded"): ("f-pcpo", WEIGHTED | PROJECTED),
    ("d-cpo", "guarded"): ("d-cpo", SCHEDULED | SEARCHED),
    ("d-pcpo", "guarded"): ("d-pcpo", SCHEDULED | PROJECTED),
    ("pretrain", "guarded"): ("pretrain", PROJECTED | IMITATED | {"divergence_gradient": "full"}),
}


@pytest.mark.parametrize("form", UPGRADES, ids="-".join)
def test_a_config_of_an_earlier_version_is_read_with_its_options(form, tmp_path):
    old = json.loads(FORMAT_1) | {"algorithm": form[0], "combine": form[1]}
    config, algorithm = read_config(written(tmp_path, json.dumps(old)))
    name, options = UPGRADES[form]
    assert (config.algorithm, algorithm.name) == (name, name)
    assert config.options == options
    assert (config.baseline, config.workers) == (("reward",), "auto")
    kept = {key: tuple(value) if isinstance(value, list) else value for key, value in old.items()}
    kept |= {"start": "fresh", "preset": "paper", "cost_tolerance": 0.0}  # as every run did
    kept |= {
        "evaluate_every": 10,
        "evaluation_episodes": 20,
        "evaluation_mode": "deterministic",
    }  # which change nothing of what a run computes
    others = {key for key in SETTINGS if key not in ("algorithm", "baseline", "workers")}
    assert {key: getattr(config, key) for key in others} == {key: kept[key] for key in others}
    assert read_config(written(tmp_path, config.to_json()))[0] == config


def test_every_algorithm_has_its_upgrade():
    younger = {"trpo-pid", "space-alone"}  # than the last version whose files had no format
    assert {name for name, _ in UPGRADES.values()} == set(ALGORITHMS) - younger


@pytest.mark.parametrize(
    ("old", "names"), [(None, ()), ("near", ("near",)), (["near", "cost"], ("near", "cost"))], ids=str
)
def test_baselines_of_an_earlier_version_are_read(old, names, tmp_path):
    given = json.loads(FORMAT_1) | {"algorithm": "pcpo", "baseline": old, "workers": 2, "projection_kl_bound": 0.5}
    config, _ = read_config(written(tmp_path, json.dumps(given)))
    assert (config.baseline, config.workers, config.options["projection_kl_bound"]) == (names, 2, 0.5)


# ---------------------------------------------------------------- every key does something

TINY = {"task": "point-circle", "batch_size": 100, "hidden": (4,), "baseline": "reward"}
BASES = {name: {"algorithm": name} for name in ALGORITHMS}
BASES["d-pcpo"] |= {"weight_schedule": "decay"}
LOOP = {"updates", "checkpoint_every", "keep_checkpoints"}  # not part of an update: see test_training
# Of environments on the host and of baselines that are functions: see test_own_environment.
LOOP |= {"env_args", "cost", "environments", "workers", "worker_timeout", "filters"}
LOOP |= {"baseline_std", "baseline_exploration", "simulator"}
LOOP |= {"evaluate_every", "evaluation_episodes", "evaluation_mode"}  # beside the updates: see test_best_policy
LOOP |= {"start"}  # before the first update: see test_start


@functools.cache
def program(*settings) -> str:
    """All that one update computes, from the first state on, as text: operations, shapes and constants."""
    parts = assemble(resolve(dict(settings)))
    start = jax.make_jaxpr(lambda: initial_state(parts.learner, parts.config.seed, BaselineMeasurement(1.0, 0.0)))()
    state = jax.eval_shape(lambda: initial_state(parts.learner, 0))
    thetas = baseline_parameters(parts)
    update = jax.make_jaxpr(lambda state, thetas: fused_step(parts, state, thetas))(state, thetas)
    numbers = [np.asarray(x).tobytes() for x in (*start.consts, *update.consts, *thetas)]
    return f"{start}{update}{numbers}"


def changes_the_program(name: str, base: str, **more) -> bool:
    settings = TINY | BASES[base] | more
    draft = resolve(settings)
    changed = settings | {name: another(name, {**draft.values, **draft.options}[name])}
    return program(*sorted(settings.items())) != program(*sorted(changed.items()))


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in LOOP])
def test_every_key_changes_what_some_algorithm_computes(name):
    assert any(changes_the_program(name, base) for base in ["space-printed", *BASES])


# One of each kind of options; the others have them from the same classes.
KINDS_OF_OPTIONS = ("space", "space-printed", "d-cpo", "d-pcpo", "pretrain", "trpo-lagrangian", "trpo-pid")


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=[] if name in KINDS_OF_OPTIONS else [pytest.mark.slow]) for name in ALGORITHMS],
)
def test_every_option_changes_what_its_own_algorithm_computes(algorithm):
    """An option belongs to those that use it."""
    idle = [name for name in names_of(ALGORITHMS[algorithm].options) if not changes_the_program(name, algorithm)]
    assert not idle


def test_a_key_that_does_nothing_would_be_noticed():
    assert not changes_the_program("worker_timeout", "trpo")
    assert changes_the_program("threshold_constant", "space-printed")
    assert not changes_the_program("threshold_constant", "space-printed", threshold_rule="fixed")
    with pytest.raises(InputError, match=r"weight-decay is not a setting of algorithm 'trpo': it belongs to d-cpo, d-"):
        resolve(TINY | {"algorithm": "trpo", "weight_decay": 0.5})
