"""The record of a run: the paper's table as presets, a text that reads back the same, and no key that does nothing."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from spacerl import config as configuration
from spacerl.config import ALGORITHM_SUMMARIES, TASKS, InputError, RunConfig
from spacerl.training import assemble, baseline_thetas, fused_step
from spacerl.types import Worth
from spacerl.update import initial_state

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
    monkeypatch.setitem(TASKS, task, dataclasses.replace(TASKS[task], available=True))
    config = RunConfig(task=task, algorithm="space", baseline="near").resolved()
    given = {name: row[COLUMNS.index(task)] for name, row in TABLE.items()}
    given["cost_limit"] = (given["cost_limit"],)
    assert {name: getattr(config, name) for name in TABLE} == given
    assert config.threshold_constant == 10.0  # appendix, "Implementation of Updating h_D"


@pytest.mark.parametrize("task", COLUMNS[:4])
def test_ants_begin_calm_and_the_others_as_in_the_original_code(task):
    config = RunConfig(task=task, algorithm="pcpo").resolved()
    calm = task.startswith("ant")
    assert (config.initial_std, config.initial_gain) == ((0.15, 0.01) if calm else (1.0, 1.0))
    asked = RunConfig(task=task, algorithm="pcpo", initial_std=2.0, initial_gain=0.5).resolved()
    assert (asked.initial_std, asked.initial_gain) == (2.0, 0.5)


def test_the_table_has_these_seven_tasks():
    assert tuple(TASKS) == COLUMNS
    assert [name for name in TASKS if TASKS[name].available] == list(COLUMNS[:4])


def test_the_environments_have_the_tables_rollout_length():
    from spacerl.library import make_env

    for task in COLUMNS[:4]:
        assert make_env(task).horizon == TABLE["rollout_length"][COLUMNS.index(task)]


# ---------------------------------------------------------------- filling in and reading back


def test_what_is_given_wins_over_the_preset():
    given = {"delta": 0.5, "hidden": [3, 2], "cost_limit": 1, "critic": "linear", "updates": 7, "gae_lambda": 0.0}
    config = RunConfig("point-circle", algorithm="pcpo", **given).resolved()
    assert {name: getattr(config, name) for name in given} == given | {"hidden": (3, 2), "cost_limit": (1,)}
    assert config.batch_size == 50_000


def test_filling_in_twice_changes_nothing():
    config = RunConfig("point-gather", baseline="near").resolved()
    assert config.resolved() == config
    free = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) is None]
    assert free == ["workers", "projection_kl_bound", "pretrain_delta"]


@pytest.mark.parametrize(
    "config",
    [
        RunConfig("point-circle", algorithm="trpo"),
        RunConfig("point-circle", algorithm="trpo").resolved(),
        RunConfig("own:mine", algorithm="pcpo", cost_limit=(1.0, 0.1), hidden=(7, 5), delta=1 / 3).resolved(),
        RunConfig("point-gather", baseline="runs/a b", projection_kl_bound=1e-3, bootstrap_truncation=True).resolved(),
    ],
)
def test_a_config_written_and_read_is_the_same(config):
    assert RunConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json()).keys() == {field.name for field in dataclasses.fields(RunConfig)}


def test_a_config_with_an_unknown_key_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown config key 'deltas'.*did you mean 'delta'"):
        RunConfig.from_json('{"task": "point-circle", "deltas": 1}')


# ---------------------------------------------------------------- every key does something

TINY = {"task": "point-circle", "batch_size": 100, "hidden": (4,), "baseline": "reward"}
BASES = {name: {"algorithm": name} for name in ALGORITHM_SUMMARIES} | {
    f"space {choice}": {"algorithm": "space", "combine": choice} for choice in configuration._CHOICES["combine"]
}
BASES["d-pcpo"] |= {"weight_schedule": "decay"}
LOOP = {"updates", "checkpoint_every", "keep_checkpoints"}  # not part of an update: see test_training
# Of environments on the host and of baselines that are functions: see test_own_environment.
LOOP |= {"env_args", "cost", "environments", "workers", "worker_timeout", "filters"}
LOOP |= {"baseline_std", "baseline_exploration", "simulator"}
LIKELY = {"backtrack": "cpo", "weight": "d-pcpo", "divergence_weight": "f-cpo", "pretrain": "pretrain"}
LIKELY |= {start: "space guarded" for start in ("pull", "cost_margin", "margin", "promise")}


@functools.cache
def program(*settings) -> str:
    """All that one update computes, from the first state on, as text: operations, shapes and constants."""
    parts = assemble(RunConfig(**dict(settings)))
    start = jax.make_jaxpr(lambda: initial_state(parts.learner, parts.config.seed, Worth(1.0, 0.0)))()
    state = jax.eval_shape(lambda: initial_state(parts.learner, 0))
    thetas = baseline_thetas(parts)
    update = jax.make_jaxpr(lambda state, thetas: fused_step(parts, state, thetas))(state, thetas)
    numbers = [np.asarray(x).tobytes() for x in (*start.consts, *update.consts, *thetas)]
    return f"{start}{update}{numbers}"


def another(name: str, value):
    """A valid value of the field that is not `value`."""
    if name in configuration._CHOICES:
        return next(choice for choice in configuration._CHOICES[name] if choice != value)
    if name in ("task", "algorithm", "baseline"):
        return {"task": "point-gather", "algorithm": "trpo", "baseline": "cost"}[name]
    if name in ("hidden", "cost_limit"):
        return tuple(number + 1 for number in value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return 0.01 if value is None else 0.5 * value


def changes_the_program(name: str, base: str) -> bool:
    settings = TINY | BASES[base]
    value = getattr(RunConfig(**settings).resolved(), name)
    return program(*sorted(settings.items())) != program(*sorted((settings | {name: another(name, value)}).items()))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunConfig) if field.name not in LOOP])
def test_every_key_changes_what_some_algorithm_computes(name):
    likely = [base for start, base in LIKELY.items() if name.startswith(start) and base in BASES]
    assert any(changes_the_program(name, base) for base in [*likely, "space printed", *BASES])


def test_a_key_that_does_nothing_would_be_noticed():
    assert not changes_the_program("weight_decay", "trpo")
    assert not changes_the_program("combine", "pcpo")
