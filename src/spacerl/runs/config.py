"""The settings of a run: one frozen record, in groups, each field with its range and what it means. No jax.

A `RunConfig` is complete: nothing in it is left to be decided. How a user's few settings become one (the task's preset,
the algorithm's options, the environment's costs) is in `spacerl.training.settings`. Settings that belong to one
algorithm are its options, declared in its file.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from spacerl.runs.fields import (
    Bookkeeping,
    Count,
    Fraction,
    NotNegative,
    OpenUnitInterval,
    Positive,
    Range,
    Seconds,
    Seed,
    Sizes,
    UnitInterval,
    bookkeeping_of,
    check_value,
    checked,
    names_of,
)
from spacerl.runs.formats import FORMAT, upgraded
from spacerl.runs.lock import holds_nothing
from spacerl.types import InputError, unknown_name

OWN_PREFIX = "own:"  # an environment or algorithm that was passed as an object, and must be again
ENV_PREFIX = "env:"  # a Gymnasium id, module:factory or file.py:factory: built again from its name


def is_own(task: str) -> bool:
    """Whether a task is the user's environment."""
    return task.startswith((OWN_PREFIX, ENV_PREFIX))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MainSettings:
    """What everyone sets."""

    task: str
    """Task to learn: a name (`spacerl tasks` lists them), or env:ID for any Gymnasium environment."""
    algorithm: str = "space"
    """Update rule; `spacerl algorithms` lists them."""
    baseline: tuple[str, ...] = ()
    """Policy to learn from (pi_B): cost, reward or near (shipped with the task), rule (a hand-written one), a policy
    file, a run folder, a Stable-Baselines3 .zip, an .onnx or TorchScript .pt file, module:function or file.py:function.
    Of several, each update takes the nearest."""
    start: Literal["auto", "fresh", "baseline"] = "auto"
    """Policy to begin with: a fresh one, the baseline itself, or (auto, guarded SPACE) the baseline where it keeps the
    limit, or nearly, or breaks it far less than a fresh policy, and earns more. Others begin fresh unless asked."""
    preset: Annotated[Literal["spacerl", "paper"], Bookkeeping] = "spacerl"
    """Whose settings those are that are not given: ours, or those of the paper's tables (trust region, critics, lambda
    of the costs)."""
    updates: Annotated[Count, Bookkeeping] = 100
    """Policy updates."""
    seed: Annotated[Seed, Bookkeeping] = 0
    """Seed of everything random in the run."""
    cost_limit: tuple[float, ...] = ()
    """Threshold h_C on the undiscounted episode cost, one per cost."""
    cost_tolerance: NotNegative = 0.0
    """Cost above h_C up to which a limit counts as kept, by a policy and by a baseline alike and in what costs trust,
    for a limit that nobody meets exactly. No algorithm steps toward anything but h_C itself."""
    delta: Positive = 1e-2
    """Trust-region radius: mean KL of the reward step."""
    batch_size: Count = 10_000
    """Environment steps per update; whole episodes are collected until it is reached."""
    rollout_length: Count = 1000
    """Time limit of an episode, in steps; for your own environment by default its own limit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvSettings:
    """The environment, and who steps it."""

    env_args: tuple[str, ...] = ()
    """Arguments that your own environment, or a traffic task, is made with, as NAME=VALUE."""
    cost: tuple[str, ...] = ()
    """Your own environment: where its cost comes from, each SOURCE or NAME=SOURCE with SOURCE one of info, info:KEY,
    info:KEY=0 (a key that is only there when it is not zero), step (Safety-Gymnasium's six values), none,
    file.py:function or module:function of (obs, action, next_obs, info).
    By default what its step or its info calls cost."""
    environments: Count = 16
    """Environments on the host that are stepped side by side."""
    workers: Annotated[
        int | Literal["auto"],
        Range(lambda x: x >= 0, "a whole number that is not negative"),
        Bookkeeping,
    ] = "auto"
    """Processes that step them, or threads of a simulator that has its own; 0 steps them in the run's own thread.
    auto: one per core."""
    worker_timeout: Annotated[Seconds, Bookkeeping] = 60.0
    """Seconds after which a worker that does not answer is replaced; each environment must be made within that time."""
    simulator: Annotated[Literal["auto", "host", "device"], Bookkeeping] = "auto"
    """Ant tasks: MuJoCo's threads on the host, or one program with the update on the device. auto: the device where it
    is an accelerator. A run may be resumed on the other one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorSettings:
    """Returns and advantages."""

    discount: Fraction = 0.99
    """Discount of the reward."""
    cost_discount: Fraction = 1.0
    """Discount of the costs' advantages; J_C itself is never discounted."""
    divergence_discount: Fraction = 1.0
    """Discount of the divergence's advantages; J_D itself is never discounted."""
    gae_lambda: UnitInterval = 0.95
    """GAE lambda of the reward."""
    cost_gae_lambda: UnitInterval = 0.95
    """GAE lambda of the costs."""
    divergence_gae_lambda: UnitInterval = 0.95
    """GAE lambda of the divergence."""
    bootstrap_truncation: bool = False
    """Take the critic's value over a time limit, for every signal with a discount below 1; the paper's code takes zero.
    A terminated episode never bootstraps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Policy network and critics."""

    hidden: Sizes = (64, 64)
    """Hidden layers of the policy, and of neural critics."""
    filters: Sizes = (24, 12)
    """Convolutions that images go through before the hidden layers: filters of each."""
    normalise_observations: bool = False
    """Scale observations by their running mean and standard deviation. The statistics are kept with the policy."""
    initial_std: Positive = 1.0
    """Standard deviation of a fresh Gaussian policy: 1 as in the original code, 0.15 for ants, which fall otherwise."""
    initial_gain: Positive = 1.0
    """Factor on the last layer of a fresh policy, 1 but for ants. 0.01 lets it begin near the same action whatever it
    sees, which keeps a robot calm at first."""
    critic: Literal["neural", "linear"] = "neural"
    """Value functions: a neural network, or ridge regression on features of observation and time."""
    critic_kl: Positive = 0.01
    """Neural critics: trust-region radius of each of their natural-gradient steps."""
    critic_steps: Count = 5
    """Neural critics: natural-gradient steps per update; one in the paper's tasks, five for your own environment."""
    critic_sees_time: bool = True
    """Neural critics: the step within the episode is part of what they see; not in the paper's tasks, but for your own
    environment, whose time limit is part of every sum that is predicted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolverSettings:
    """The Fisher matrix and its inverse."""

    cg_iterations: Count = 10
    """Conjugate-gradient iterations of each solve with the Fisher matrix."""
    cg_damping: NotNegative = 0.1
    """Multiple of the identity added to the Fisher matrix; 1e-5 in the paper's tasks, 0.1 for your own environment."""
    fisher_subsample: Fraction = 1.0
    """Share of the batch that estimates the Fisher matrix: 0.2 as in the original CPO script, 1 for your own
    environment."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings:
    """What a baseline that states actions only is given to be a distribution."""

    baseline_std: Positive = 0.3
    """Standard deviation given to a baseline that states none, in the policy's units ([-1, 1] for scaled actions)."""
    baseline_exploration: OpenUnitInterval = 0.1
    """Discrete actions: probability that a baseline which states one action leaves to all of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Checkpoints and evaluations."""

    checkpoint_every: Annotated[Count, Bookkeeping] = 10
    """Updates between checkpoints."""
    keep_checkpoints: Annotated[Count, Bookkeeping] = 3
    """Newest checkpoints kept; older ones are removed."""
    evaluate_every: Annotated[int, Range(lambda x: x >= 0, "a whole number that is not negative"), Bookkeeping] = 10
    """Updates between evaluations of the policy; the best one that keeps the limits is kept beside the
    last. 0: none."""
    evaluation_episodes: Annotated[Count, Bookkeeping] = 20
    """Episodes of each evaluation, the same ones every time."""
    evaluation_mode: Annotated[Literal["deterministic", "stochastic"], Bookkeeping] = "deterministic"
    """Policy that is evaluated: its most likely actions, or random ones as in training; some policies act by their
    randomness alone, as those of point circle do, and stand still without it."""


GROUPS = (
    MainSettings,
    EnvSettings,
    EstimatorSettings,
    NetworkSettings,
    SolverSettings,
    BaselineSettings,
    CheckpointSettings,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(
    CheckpointSettings,
    BaselineSettings,
    SolverSettings,
    NetworkSettings,
    EstimatorSettings,
    EnvSettings,
    MainSettings,
):
    """All settings but those of the algorithm."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(RunSettings):
    """Everything that decides a run. `options` are the settings of its algorithm, by name."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """One flat object; an infinite number is the text "inf", which JSON can hold."""
        flat = {"format": FORMAT, **self.settings()}
        return json.dumps({name: _to_json(value) for name, value in flat.items()}, indent=2) + "\n"

    def settings(self) -> dict[str, Any]:
        """All settings by name, the algorithm's among them."""
        own = {name: getattr(self, name) for name in SETTINGS}
        return own | dict(self.options)

    def identity(self) -> dict[str, Any]:
        """Everything that decides what the run computes, as JSON holds it."""
        own = {name: value for name, value in self.settings().items() if name in IDENTITY or name in self.options}
        return {name: _to_json(value) for name, value in sorted(own.items())}

    @staticmethod
    def from_json(text: str) -> RunConfig:
        """The inverse of `to_json`."""
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise InputError(f"a config is an object of settings, and {type(raw).__name__} was given")
        return RunConfig.from_settings(raw)

    @staticmethod
    def from_settings(raw: dict[str, Any]) -> RunConfig:
        """The config of a run folder, whatever version wrote it. Options are checked where the algorithm is known."""
        given = {name: _from_json(value) for name, value in upgraded(raw).items() if name != "format"}
        own = checked(RunConfig, {name: value for name, value in given.items() if name in SETTINGS})
        for missing in ("task", "cost_limit"):
            if missing not in own:
                raise InputError(f"a config says nothing about '{missing}'")
        check_limits(own["cost_limit"])
        return RunConfig(**own, options={name: value for name, value in given.items() if name not in SETTINGS})


SETTINGS = tuple(name for name in names_of(RunConfig) if name != "options")
# Settings that say how long, where or how a run is kept, not what it computes: they never make it another setting.
BOOKKEEPING = bookkeeping_of(RunConfig)


# What makes two runs different ones: all that decides what a run computes, and its seed.
IDENTITY = frozenset(SETTINGS) - BOOKKEEPING | {"seed"}


def _to_json(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return math.inf if value == "inf" else value


def check_limits(limits: tuple[float, ...]) -> None:
    for limit in limits:
        check_value("cost_limit", limit, NotNegative)


def limits_in_order(limits: Any, cost_names: tuple[str, ...], task: str) -> tuple[float, ...]:
    """One limit per cost of the environment, in their order, from a number, several, or a dictionary by name."""
    named = ", ".join(cost_names)
    if isinstance(limits, dict):
        for name in limits:
            if name not in cost_names:
                raise unknown_name("cost in cost-limit", name, cost_names)
        missing = [name for name in cost_names if name not in limits]
        if missing:
            raise InputError(f"cost-limit says nothing about '{missing[0]}': give one per cost ({named})")
        limits = tuple(limits[name] for name in cost_names)
    limits = limits if isinstance(limits, tuple) else (limits,)
    if len(limits) != len(cost_names):
        raise InputError(
            f"{len(limits)} cost limits were given and task '{task}' has {len(cost_names)} costs ({named})"
        )
    return tuple(check_value("cost_limit", limit, NotNegative) for limit in limits)


def require_seed(seed: Any) -> None:
    check_value("seed", seed, Seed)


def require_new_folder(out: Path) -> None:
    """Nothing a user trained is overwritten."""
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(f"output folder '{out}' cannot be made: '{parent}' is a file, give a path below a folder")
    if out.exists() and (not out.is_dir() or not holds_nothing(out)):
        raise InputError(
            f"output folder '{out}' exists and is not empty: give a new folder, or continue that run with "
            f"`spacerl resume {out}`"
        )
