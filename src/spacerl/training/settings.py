"""A user's few settings become a complete `RunConfig`: the task's preset, the algorithm's options, checks.

resolve({"task": "point-circle", "algorithm": "pcpo"}).config(env.spec)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from spacerl.algorithms import ALGORITHMS, Algorithm, Needs
from spacerl.envs.tasks import TASKS, preset_settings, task_named
from spacerl.runs.config import (
    BOOKKEEPING,
    OWN_PREFIX,
    SETTINGS,
    EnvSettings,
    RunConfig,
    is_own,
    limits_in_order,
)
from spacerl.runs.elsewhere import algorithm_elsewhere, known_elsewhere
from spacerl.runs.fields import check_value, checked, defaults_of, names_of, plain
from spacerl.runs.folder import RunFolder
from spacerl.types import EnvSpec, InputError, unknown_name


@dataclasses.dataclass(frozen=True)
class Draft:
    """A run's settings before its environment is made: all but its cost limits in order, and its own time limit."""

    values: Mapping[str, Any]  # of RunConfig's fields
    options: Mapping[str, Any]  # of its algorithm
    algorithm: Algorithm

    @property
    def task(self) -> str:
        return self.values["task"]

    @property
    def baseline(self) -> tuple[str, ...]:
        return self.values["baseline"]

    def env_settings(self) -> EnvSettings:
        return EnvSettings(**{name: self.values[name] for name in names_of(EnvSettings)})

    def config(self, spec: EnvSpec) -> RunConfig:
        limits = limits_in_order(self.values["cost_limit"], spec.cost_names, self.task)
        length = self.values["rollout_length"] or spec.horizon
        values = {**self.values, "cost_limit": limits, "rollout_length": length}
        return RunConfig(**values, options=dict(self.options))


def resolve(settings: Mapping[str, Any], algorithm: Algorithm | None = None) -> Draft:
    """Every setting that was not given from the task's preset and the defaults; InputError for what cannot be.

    `algorithm` is one that was passed as an object: it has no options here.
    """
    values, options = completed(settings, algorithm is not None)
    if not values["task"]:
        raise InputError("task was not given: `spacerl tasks` lists them")
    values["cost_limit"] = _required_limits(values)
    rule = algorithm or make_algorithm(values["algorithm"], options)
    if values["start"] == "auto" and not rule.starts_at_baseline:
        values["start"] = "fresh"
    draft = Draft(values, options, rule)
    _require_needs(draft)
    return draft


def completed(settings: Mapping[str, Any], own_rule: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """All settings and options by name: what was given, checked, and the task's and the algorithm's own for the rest.

    Without a task the rest is as for an environment of the user's. A rule of the user's has no options.
    """
    given = {name: plain(value) for name, value in settings.items() if value is not None}
    task = check_value("task", given.get("task", ""), str)
    own = not task or is_own(task)
    if not own:
        task_named(task)
    named = check_value("preset", given.get("preset", "spacerl"), Literal["spacerl", "paper"])
    preset = preset_settings(None if own else task, named)
    name = check_value("algorithm", given.get("algorithm", "space"), str)
    allowed = [] if own_rule else _option_names(name)
    for unknown in given:
        if unknown not in SETTINGS and unknown not in allowed:
            raise _unknown_setting(unknown, name, allowed)
    values = defaults_of(RunConfig) | {"task": task} | {key: preset[key] for key in preset if key in SETTINGS}
    values |= {key: value for key, value in given.items() if key in SETTINGS}
    values["baseline"] = _as_tuple(values["baseline"])
    limits = values.pop("cost_limit", ())
    values = checked(RunConfig, values)
    values["cost_limit"] = _checked_limits(limits)
    if own and "rollout_length" not in given:
        values["rollout_length"] = None  # the environment's own
    preferred = {key: value for key, value in {**preset, **given}.items() if key in allowed}
    return values, {} if own_rule else algorithm_options(name, preferred)


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def _option_names(algorithm: str) -> list[str]:
    if algorithm not in ALGORITHMS:
        if near := algorithm_elsewhere(algorithm):
            raise InputError(
                f"unknown algorithm '{algorithm}': nearest to it here is {near}; `spacerl algorithms` lists all"
            )
        raise unknown_name("algorithm", algorithm, ALGORITHMS)
    return names_of(ALGORITHMS[algorithm].options)


def _unknown_setting(name: str, algorithm: str, allowed: list[str]) -> InputError:
    owners = [other for other, entry in ALGORITHMS.items() if name in names_of(entry.options)]
    if owners:
        return InputError(
            f"{name.replace('_', '-')} is not a setting of algorithm '{algorithm}': it belongs to {', '.join(owners)}"
        )
    if here := known_elsewhere(name, option=False):
        return InputError(f"unknown setting '{name}': here it is {here}")
    return unknown_name("setting", name, sorted([*SETTINGS, *allowed]))


def algorithm_options(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an algorithm by name, checked."""
    options = ALGORITHMS[algorithm].options
    return defaults_of(options) | checked(options, given)


def make_algorithm(name: str, options: Mapping[str, Any]) -> Algorithm:
    entry = ALGORITHMS[name]
    return entry.make(entry.options(**options))._replace(name=name)


def needs_of(algorithm: str) -> Needs:
    """What an algorithm needs, whatever its options."""
    entry = ALGORITHMS[algorithm]
    return entry.make(entry.options()).needs


def _checked_limits(limits: Any) -> Any:
    """A number, several, or a dictionary by name, as far as it can be checked without the environment."""
    limits = limits if isinstance(limits, dict) else _as_tuple(limits)
    for limit in limits.values() if isinstance(limits, dict) else limits:
        number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if not number or not math.isfinite(limit) or limit < 0:
            allowed = "a finite number that is not negative" + ("" if number else ", or one per cost")
            raise InputError(f"cost-limit is {limit!r}: allowed is {allowed}")
    return limits


def _required_limits(values: Mapping[str, Any]) -> Any:
    """The limits that were given, of which a cost that is always zero needs none."""
    limits, cost = values["cost_limit"], values["cost"]
    if not limits and cost and cost[0].rpartition("=")[2] == "none":
        return (0.0,)
    if not limits and is_own(values["task"]):
        raise InputError(
            "cost-limit was not given: your environment needs one, a number or one per cost; `spacerl check-env` says "
            "what random actions cost"
        )
    return limits


def _baselines_for(draft: Draft) -> str:
    """Which baselines there are for a task: those shipped, its rules, and whatever its user has."""
    own = "a policy file, a run folder, or a policy of yours (.zip, .onnx, file.py:function)"
    if draft.task not in TASKS:
        return own
    task = TASKS[draft.task]
    shipped = [*sorted(task.shipped(), key=lambda kind: kind != "near"), *task.rules]
    return f"{', '.join(shipped)} (which {task.name} brings; near is the usual one), {own}" if shipped else own


def _require_needs(draft: Draft) -> None:
    """What a run lacks or has too much of for its algorithm and its task."""
    name, needs, values = draft.values["algorithm"], draft.algorithm.needs, draft.values
    if needs.baseline and not draft.baseline:
        free = [other for other in ALGORITHMS if not needs_of(other).baseline]
        raise InputError(
            f"algorithm '{name}' learns from a baseline and none was given: pass --baseline with "
            f"{_baselines_for(draft)}; or take an algorithm that needs none ({', '.join(free)})"
        )
    if not needs.many_baselines and len(draft.baseline) > 1:
        raise InputError(f"algorithm '{name}' takes one baseline and {len(draft.baseline)} were given")
    limits = values["cost_limit"]
    if len(limits) > 1 and not needs.many_costs:
        several = [other for other in ALGORITHMS if needs_of(other).many_costs]
        raise InputError(
            f"algorithm '{name}' handles one cost and {len(limits)} limits were given: {', '.join(several)} handle "
            "several"
        )
    has_own_arguments = is_own(draft.task) or task_named(draft.task).hosted
    if (values["cost"] and not is_own(draft.task)) or (values["env_args"] and not has_own_arguments):
        given = "cost" if values["cost"] else "env-args"
        raise InputError(
            f"{given} was given and task '{draft.task}' has its own: it is for your own environment, --env"
        )


# Configs of run folders -----------------------------------------------------------------------------------------------


def read_config(folder: RunFolder, algorithm: Algorithm | None = None) -> tuple[RunConfig, Algorithm]:
    """The config of a run folder with its options checked, and its algorithm."""
    config = folder.config()
    try:
        if not is_own(config.task):
            task_named(config.task)
        if config.algorithm.startswith(OWN_PREFIX):
            if algorithm is None:
                raise InputError(
                    f"algorithm '{config.algorithm}' was passed as an object: this run goes on in Python, with "
                    "spacerl.resume(run, algorithm=...), not on the command line"
                )
            return config, algorithm
        known = _option_names(config.algorithm)
        for name in config.options:
            if name not in known:
                raise unknown_name("config key", name, sorted([*SETTINGS, *known]))
        options = algorithm_options(config.algorithm, config.options)
    except InputError as error:
        raise InputError(f"'{folder.path / 'config.json'}': {error}") from error
    return dataclasses.replace(config, options=options), make_algorithm(config.algorithm, options)


def require_same_run(path: Path, draft: Draft) -> None:
    """A run that is there must be the one that was asked for, but for where and how it is stepped and kept."""
    there = RunFolder.open(path).config().settings()
    ignored = BOOKKEEPING - {"seed", "updates"}
    for name, value in {**draft.values, **draft.options}.items():
        # Limits by name, and a length that is left open, are known once the environment is made.
        known = not isinstance(value, dict) and value is not None
        if known and name not in ignored and there.get(name) != value:
            raise InputError(
                f"'{path}' is a run with {name} {there.get(name)!r} and {value!r} was asked for: give a new --out"
            )


def default_folder(draft: Draft) -> Path:
    baseline = "+".join(Path(name).name for name in draft.baseline) or "none"
    values = draft.values
    stem = f"{values['task']}-{values['algorithm']}-{baseline}-seed{values['seed']}"
    return Path("runs") / stem.replace(":", "-").replace("/", "-")
