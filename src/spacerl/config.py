"""One frozen record of a run, the paper's parameter table as presets, and the messages for bad input.

No jax here: the command line must answer at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal


class InputError(ValueError):
    """Something the user gave cannot be used; one sentence says what, what is allowed, and the nearest match."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    allowed = list(allowed)
    near = difflib.get_close_matches(given, allowed, n=1, cutoff=0.4)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {kind} '{given}': allowed are {', '.join(allowed)}{hint}")


ALGORITHM_SUMMARIES = {
    "trpo": "trust-region step for reward; ignores costs and the baseline",
    "trpo-lagrangian": "trust-region step for reward minus multipliers times cost, which grow with the violation",
    "cpo": "reward, trust region and one cost solved together, with line search",
    "pcpo": "trust-region step, then projection onto the cost constraint",
    "f-cpo": "CPO on reward minus a fixed weight times the divergence from the baseline",
    "f-pcpo": "PCPO on reward minus a fixed weight times the divergence from the baseline",
    "d-cpo": "f-CPO with a weight that follows a schedule",
    "d-pcpo": "f-PCPO with a weight that follows a schedule",
    "pretrain": "imitate the baseline until its reward is reached, then PCPO",
    "space": "trust-region step, projection toward the baseline, projection onto the cost constraint",
}
NEEDS_BASELINE = ("f-cpo", "f-pcpo", "d-cpo", "d-pcpo", "pretrain", "space")
ONE_COST_ONLY = ("cpo", "f-cpo", "d-cpo")


@dataclasses.dataclass(frozen=True)
class TaskPreset:
    """One column of the paper's parameter table, with what its text says about networks and projections, and what it
    does not say."""

    summary: str
    discount: float
    gae_lambda: float
    cost_gae_lambda: float
    divergence_gae_lambda: float
    delta: float
    batch_size: int
    rollout_length: int
    cost_limit: float
    divergence_threshold: float
    updates: int
    hidden: tuple[int, ...]
    critic: Literal["neural", "linear"]
    projection: Literal["kl", "l2"]
    available: bool = False
    baseline_std: float = 0.3
    environments: int = 16
    projection_kl_bound: float | None = None
    cg_damping: float = 1e-5
    fisher_subsample: float = 0.2
    critic_steps: int = 1
    critic_sees_time: bool = False
    initial_std: float = 1.0
    initial_gain: float = 1.0


# Under a fresh policy with deviation 1 an ant throws itself about and falls, and an algorithm that must lower the cost
# learns to fall sooner. Ants begin calm.
CALM: dict[str, Any] = {"initial_std": 0.15, "initial_gain": 0.01}
TASKS = {
    "point-circle": TaskPreset(
        "point robot rewarded for a wide circle, kept between two walls",
        0.995, 0.95, 1.0, 0.95, 1e-4, 50_000, 50, 5.0, 5.0, 1000, (64, 32), "neural", "kl", True,
    ),
    "point-gather": TaskPreset(
        "point robot collects green apples and must avoid red ones",
        0.995, 0.95, 1.0, 0.95, 1e-4, 50_000, 15, 0.5, 3.0, 1200, (64, 32), "neural", "kl", True,
    ),
    "ant-circle": TaskPreset(
        "MuJoCo ant rewarded for a wide circle, kept between two walls",
        0.995, 0.95, 0.5, 0.95, 1e-4, 100_000, 500, 5.0, 5.0, 2500, (64, 32), "neural", "kl", True, environments=200,
        **CALM,
    ),
    "ant-gather": TaskPreset(
        "MuJoCo ant collects green apples and must avoid red ones",
        0.995, 0.95, 0.5, 0.95, 1e-4, 100_000, 500, 0.2, 3.0, 1500, (64, 32), "neural", "kl", True, environments=200,
        **CALM,
    ),
    "grid": TaskPreset(
        "traffic lights of a road grid, no light red for more than 7 seconds",
        0.999, 0.97, 0.5, 0.90, 1e-4, 10_000, 400, 0.0, 10.0, 200, (16, 16), "linear", "l2",
    ),
    "bottleneck": TaskPreset(
        "autonomous vehicles in a traffic merge, no human slow for more than 10 seconds",
        0.999, 0.97, 1.0, 0.90, 1e-4, 25_000, 500, 0.0, 10.0, 300, (50, 25), "linear", "l2",
    ),
    "car-racing": TaskPreset(
        "race track from pixels, at most five uses of the brake",
        0.990, 0.95, 1.0, 0.95, 5e-4, 10_000, 1000, 5.0, 5.0, 600, (32, 16), "neural", "kl",
    ),
}  # fmt: skip
# A user's own environment: usual values, and a cost limit that only the user can know. Its cost may start far above the
# limit, where an unbounded projection would leap; and its batches may be smaller than its network, whose Fisher matrix
# then needs the whole batch and the damping that other libraries use.
OWN_ENVIRONMENT = TaskPreset(
    "your own environment",
    0.99, 0.95, 0.95, 0.95, 1e-2, 10_000, 1000, math.nan, 5.0, 100, (64, 64), "neural", "kl", True,
    projection_kl_bound=0.01, cg_damping=0.1, fisher_subsample=1.0, critic_steps=5, critic_sees_time=True,
)  # fmt: skip
OWN_PREFIX = "own:"  # an environment that was passed as an object, and must be again
ENV_PREFIX = "env:"  # a Gymnasium id, module:factory or file.py:factory: built again from its name


def is_own(task: str) -> bool:
    return task.startswith((OWN_PREFIX, ENV_PREFIX))


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. None means: what the paper's table says for the task."""

    task: str
    """Task to learn: a name (`spacerl tasks` lists them), or env:ID for any Gymnasium environment."""
    algorithm: str = "space"
    """Update rule; `spacerl algorithms` lists them."""
    baseline: str | tuple[str, ...] | None = None
    """Policy to learn from (pi_B): cost, reward or near (shipped with the task), rule (a hand-written one), a policy
    file, a run folder, a Stable-Baselines3 .zip, an .onnx or TorchScript .pt file, module:function or file.py:function.
    Of several, each update takes the nearest."""
    updates: int | None = None
    """Policy updates."""
    seed: int = 0
    """Seed of everything random in the run."""

    cost_limit: float | tuple[float, ...] | dict[str, float] | None = None
    """Threshold h_C on the undiscounted episode cost: one number, one per cost in their order, or by name."""
    delta: float | None = None
    """Trust-region radius: mean KL of the reward step."""
    batch_size: int | None = None
    """Environment steps per update; whole episodes are collected until it is reached."""
    rollout_length: int | None = None
    """Time limit of an episode, in steps; for your own environment by default its own limit."""

    env_args: tuple[str, ...] = ()
    """Your own environment: arguments it is made with, as NAME=VALUE."""
    cost: tuple[str, ...] = ()
    """Your own environment: where its cost comes from, each SOURCE or NAME=SOURCE with SOURCE one of info, info:KEY,
    step (Safety-Gymnasium's six values), none, file.py:function or module:function of (obs, action, next_obs, info).
    By default what its step or its info calls cost."""
    environments: int | None = None
    """Environments on the host that are stepped side by side."""
    workers: int | None = None
    """Processes (threads of a simulator that has its own) that step them; 0 steps them in the run's own process.
    None: one per core."""
    worker_timeout: float = 60.0
    """Seconds after which a worker that does not answer is replaced."""
    simulator: Literal["auto", "host", "device"] = "auto"
    """Ant tasks: MuJoCo's threads on the host, or one program with the update on the device. auto: the device where it
    is an accelerator. A run may be resumed on the other one."""

    discount: float | None = None
    """Discount of the reward."""
    cost_discount: float = 1.0
    """Discount of the costs' advantages; J_C itself is never discounted."""
    divergence_discount: float = 1.0
    """Discount of the divergence's advantages; J_D itself is never discounted."""
    gae_lambda: float | None = None
    """GAE lambda of the reward."""
    cost_gae_lambda: float | None = None
    """GAE lambda of the costs."""
    divergence_gae_lambda: float | None = None
    """GAE lambda of the divergence."""
    bootstrap_truncation: bool = False
    """Take the critic's value over a time limit, for every signal with a discount below 1; the paper's code takes zero.
    A terminated episode never bootstraps."""

    hidden: tuple[int, ...] | None = None
    """Hidden layers of the policy, and of neural critics."""
    filters: tuple[int, ...] = (24, 12)
    """Convolutions that pictures go through before the hidden layers: filters of each."""
    normalise_observations: bool = False
    """Scale observations by their running mean and deviation. The statistics are kept with the policy."""
    initial_std: float | None = None
    """Standard deviation of a fresh Gaussian policy: 1 as in the original code, 0.15 for ants, which fall otherwise."""
    initial_gain: float | None = None
    """Factor on the last layer of a fresh policy, 1 but for ants. 0.01 lets it begin near the same action whatever it
    sees, which keeps a robot calm at first."""
    critic: Literal["neural", "linear"] | None = None
    """Value functions: a neural network, or ridge regression on features of observation and time."""
    critic_kl: float = 0.01
    """Neural critics: trust-region radius of each of their natural-gradient steps."""
    critic_steps: int | None = None
    """Neural critics: natural-gradient steps per update; one in the paper's tasks, five for your own environment."""
    critic_sees_time: bool | None = None
    """Neural critics: the step within the episode is part of what they see; not in the paper's tasks, but for your own
    environment, whose time limit is part of every sum that is predicted."""

    cg_iterations: int = 10
    """Conjugate-gradient iterations of each solve with the Fisher matrix."""
    cg_damping: float | None = None
    """Multiple of the identity added to the Fisher matrix; 1e-5 in the paper's tasks, 0.1 for your own environment."""
    fisher_subsample: float | None = None
    """Share of the batch that estimates the Fisher matrix: 0.2 as in the original CPO script, 1 for your own
    environment."""
    backtrack_factor: float = 0.8
    """Line search of TRPO, CPO and their variants: each try shrinks the step by this."""
    backtrack_tries: int = 15
    """Line search: tries before a step is dropped."""

    projection: Literal["kl", "l2"] | None = None
    """Metric of the projections: KL (the Fisher matrix of the reward step) or the 2-norm of the parameters."""
    combine: Literal["printed", "sequential", "joint", "guarded"] = "guarded"
    """SPACE: how the two corrections combine. printed: the paper's equation, both from the reward step, added;
    sequential: the cost correction starts where the baseline's ended; joint: exact projection onto both;
    guarded: joint, with a cost margin, and the baseline followed only as far as it pays (docs/theory.md)."""
    projection_kl_bound: float | None = None
    """Most KL each projection of PCPO and SPACE may spend; None leaves them unbounded, as printed (and the cost
    projection of guarded SPACE at pull-kl-max). 0.01 for your own environment."""
    divergence_gradient: Literal["full", "direct", "score"] | None = None
    """Gradient of J_D: direct term, score term (effect through the states visited), or both (full).
    None: direct for SPACE's guarded form, full for everything else."""
    divergence_threshold: float | None = None
    """SPACE: initial radius h_D around the baseline."""
    threshold_rule: Literal["lemma", "fixed"] = "lemma"
    """SPACE: how h_D moves: the paper's lemma, or not at all."""
    threshold_constant: float = 10.0
    """SPACE: the constant v of the lemma's rule h_D <- h_D + v (J_C - h_C)^2."""

    pull_kl: float = 0.02
    """SPACE, guarded: KL the first pull toward the baseline may spend; later ones follow what the pulls deliver."""
    pull_kl_max: float = 0.05
    """SPACE, guarded: most KL any pull may spend."""
    cost_margin: float = 0.5
    """SPACE, guarded: safety margin below h_C, in standard errors of J_C."""
    margin_rate: float = 0.1
    """SPACE, guarded: rate at which the margin learns how much cost its predictions leave out."""

    seek_baseline: bool = True
    """SPACE, guarded: a baseline that was measured to earn more than the policy and to keep the constraint is followed
    even where the gradient sees no reward on the way."""
    promise_rate: float = 0.3
    """SPACE, guarded: rate at which promised and measured gains of the pulls are averaged."""

    baseline_std: float | None = None
    """Standard deviation given to a baseline that states none, in the policy's units ([-1, 1] for scaled actions)."""
    baseline_exploration: float = 0.1
    """Probability that a baseline which states one choice leaves to all choices."""

    divergence_weight: float = 1.0
    """f- and d- variants: initial weight lambda of the divergence in the objective."""
    weight_schedule: Literal["printed", "decay"] = "printed"
    """d- variants: lambda <- lambda^beta as printed (which stays at 1), or lambda <- beta lambda."""
    weight_decay: float = 0.95
    """d- variants: beta."""
    multiplier_rate: float = 0.05
    """trpo-lagrangian: step of the multipliers, in reward per squared unit of cost."""
    pretrain_tolerance: float = 0.05
    """pretrain: imitation ends when J_R is within this fraction of the baseline's."""
    pretrain_updates: int = 100_000
    """pretrain: imitation ends after this many updates at the latest."""
    pretrain_delta: float | None = None
    """pretrain: trust-region radius of the imitation; None: delta. Its gradient is exact, so it may be far wider."""

    checkpoint_every: int = 10
    """Updates between checkpoints."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept; older ones are removed."""

    def resolved(self) -> RunConfig:
        """The same run with every None of the task's preset filled in, checked; raises InputError."""
        plain: dict[str, Any] = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        self = dataclasses.replace(self, **plain)
        _check_types(self)
        preset = preset_of(self.task)
        filled = {
            field.name: getattr(preset, field.name)
            for field in dataclasses.fields(preset)
            if field.name not in ("summary", "available") and getattr(self, field.name) is None
        }
        if self.divergence_gradient is None:
            guarded = self.algorithm == "space" and self.combine == "guarded"
            filled["divergence_gradient"] = "direct" if guarded else "full"
        config = dataclasses.replace(self, **filled)
        limits = config.cost_limit
        if not isinstance(limits, dict):  # limits by name are ordered once the environment's costs are known
            limits = tuple(limits) if isinstance(limits, tuple | list) else (limits,)
        baseline = config.baseline
        if isinstance(baseline, tuple | list):
            baseline = tuple(baseline) if len(baseline) > 1 else (baseline[0] if baseline else None)
        if config.cost and config.cost[0].rpartition("=")[2] == "none" and self.cost_limit is None:
            limits = (0.0,)  # of a cost that is always zero
        lists: Any = {name: tuple(getattr(config, name)) for name in ("hidden", "filters", "env_args", "cost")}
        config = dataclasses.replace(config, cost_limit=limits, baseline=baseline, **lists)  # type: ignore[arg-type]
        _check(config)
        return config

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> RunConfig:
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise InputError(f"a config is an object of settings, and {type(raw).__name__} was given")
        known = {field.name for field in dataclasses.fields(RunConfig)}
        for name in raw:
            if name not in known:
                raise unknown_name("config key", name, sorted(known))
        tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
        return RunConfig(**tuples)

    @property
    def baselines(self) -> tuple[str, ...]:
        """The baselines by name, however many there are."""
        if self.baseline is None:
            return ()
        return (self.baseline,) if isinstance(self.baseline, str) else self.baseline

    def with_limits(self, cost_names: tuple[str, ...]) -> RunConfig:
        """The same run with one limit per cost of the environment, in their order."""
        limits, named = self.cost_limit, ", ".join(cost_names)
        if isinstance(limits, dict):
            for name in limits:
                if name not in cost_names:
                    raise unknown_name("cost in cost-limit", name, cost_names)
            missing = [name for name in cost_names if name not in limits]
            if missing:
                raise InputError(f"cost-limit says nothing about '{missing[0]}': give one per cost ({named})")
            limits = tuple(limits[name] for name in cost_names)
        assert isinstance(limits, tuple)
        if len(limits) != len(cost_names):
            raise InputError(
                f"{len(limits)} cost limits were given and task '{self.task}' has {len(cost_names)} costs ({named})"
            )
        return dataclasses.replace(self, cost_limit=limits)


_TEXTS, _FLAGS = (
    ("task", "algorithm"),
    ("bootstrap_truncation", "normalise_observations", "critic_sees_time", "seek_baseline"),
)
_TEXT_LISTS = ("env_args", "cost")


def _check_types(config: RunConfig) -> None:
    """What a hand-edited file or a caller may get wrong before a range can be looked at."""
    for name in _TEXTS:
        value = getattr(config, name)
        _require(isinstance(value, str), name, value, "a text")
    several = config.baseline if isinstance(config.baseline, tuple | list) else [config.baseline]
    texts = all(isinstance(each, str) for each in several)
    _require(config.baseline is None or texts, "baseline", config.baseline, "a text, or several")
    for name in _TEXT_LISTS:
        value = getattr(config, name)
        fine = isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)
        _require(fine, name.replace("_", "-"), value, "a list of texts")
    for name in _FLAGS:
        value = getattr(config, name)
        if name == "critic_sees_time" and value is None:
            continue
        _require(isinstance(value, bool), name.replace("_", "-"), value, "true or false")
    for name, sizes in (("hidden", config.hidden), ("filters", config.filters)):
        whole = isinstance(sizes, tuple | list) and all(_is_count(size) for size in sizes)
        missing = name == "hidden" and sizes is None
        _require(missing or whole, name, sizes, "a list of whole numbers above 0")
    limit: Any = config.cost_limit
    limit = list(limit.values()) if isinstance(limit, dict) else limit
    for each in limit if isinstance(limit, tuple | list) else [limit]:
        number = isinstance(each, int | float) and not isinstance(each, bool)
        _require(each is None or number, "cost-limit", each, "a finite number that is not negative, or one per cost")


def preset_of(task: str) -> TaskPreset:
    if is_own(task):
        return OWN_ENVIRONMENT
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    return TASKS[task]


def _check(config: RunConfig) -> None:
    if not preset_of(config.task).available:
        ready = [name for name, preset in TASKS.items() if preset.available]
        raise InputError(
            f"task '{config.task}' has its parameters here but no environment yet: allowed are {', '.join(ready)}"
        )
    if config.algorithm not in ALGORITHM_SUMMARIES:
        raise unknown_name("algorithm", config.algorithm, ALGORITHM_SUMMARIES)
    if config.algorithm in NEEDS_BASELINE and config.baseline is None:
        free = [name for name in ALGORITHM_SUMMARIES if name not in NEEDS_BASELINE]
        raise InputError(
            f"algorithm '{config.algorithm}' learns from a baseline and none was given: pass --baseline cost, reward "
            f"or near, a policy file or a run folder, or take one that needs none ({', '.join(free)})"
        )
    if config.algorithm == "pretrain" and len(config.baselines) > 1:
        raise InputError(f"algorithm 'pretrain' imitates one baseline and {len(config.baselines)} were given")
    limits = config.cost_limit
    limits = tuple(limits.values()) if isinstance(limits, dict) else limits if isinstance(limits, tuple) else ()
    if config.algorithm in ONE_COST_ONLY and len(limits) > 1:
        raise InputError(
            f"algorithm '{config.algorithm}' handles one cost and {len(limits)} limits were given: "
            "pcpo, f-pcpo, d-pcpo and space handle several"
        )
    if not is_own(config.task) and (config.cost or config.env_args):
        given = "cost" if config.cost else "env-args"
        raise InputError(
            f"{given} was given and task '{config.task}' has its own: it is for your own environment, --env"
        )
    if is_own(config.task) and any(limit is None or math.isnan(limit) for limit in limits):
        raise InputError("cost-limit was not given: your environment needs one, a number or one per cost")
    for limit in limits:
        _require(_is_number(limit) and limit >= 0, "cost-limit", limit, "a finite number that is not negative")
    for name, (test, allowed) in _RANGES.items():
        value = getattr(config, name)
        if value is not None:
            _require(_is_number(value) and test(value), name.replace("_", "-"), value, allowed)
    _require(bool(config.hidden), "hidden", config.hidden, "a list of whole numbers above 0")
    _require(bool(config.filters), "filters", config.filters, "a list of whole numbers above 0")
    for name in _CHOICES:
        allowed = _CHOICES[name]
        if getattr(config, name) not in allowed:
            raise unknown_name(name.replace("_", "-"), str(getattr(config, name)), allowed)


_POSITIVE = (lambda x: x > 0, "a finite number above 0")
_FRACTION = (lambda x: 0 < x <= 1, "a number above 0 and at most 1")
_COUNT = (lambda x: _is_count(x), "a whole number of at least 1")
_RANGES: dict[str, Any] = {
    "updates": _COUNT,
    "seed": (lambda x: isinstance(x, int) and 0 <= x < 2**31, "a whole number from 0 to 2147483647"),
    "delta": _POSITIVE,
    "batch_size": _COUNT,
    "rollout_length": _COUNT,
    "discount": _FRACTION,
    "cost_discount": _FRACTION,
    "divergence_discount": _FRACTION,
    "gae_lambda": (lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "cost_gae_lambda": (lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "divergence_gae_lambda": (lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "initial_std": _POSITIVE,
    "initial_gain": _POSITIVE,
    "critic_kl": _POSITIVE,
    "critic_steps": _COUNT,
    "cg_iterations": _COUNT,
    "cg_damping": (lambda x: x >= 0, "a finite number that is not negative"),
    "fisher_subsample": _FRACTION,
    "backtrack_factor": (lambda x: 0 < x < 1, "a number between 0 and 1"),
    "backtrack_tries": _COUNT,
    "projection_kl_bound": _POSITIVE,
    "pull_kl": _POSITIVE,
    "pull_kl_max": _POSITIVE,
    "cost_margin": (lambda x: x >= 0, "a finite number that is not negative"),
    "margin_rate": _FRACTION,
    "promise_rate": _FRACTION,
    "divergence_threshold": (lambda x: x >= 0, "a finite number that is not negative"),
    "threshold_constant": (lambda x: x >= 0, "a finite number that is not negative"),
    "divergence_weight": (lambda x: x >= 0, "a finite number that is not negative"),
    "weight_decay": (lambda x: 0 < x < 1, "a number between 0 and 1"),
    "multiplier_rate": _POSITIVE,
    "pretrain_tolerance": (lambda x: 0 <= x < 1, "a number from 0 to below 1"),
    "pretrain_updates": _COUNT,
    "pretrain_delta": _POSITIVE,
    "environments": _COUNT,
    "workers": (lambda x: isinstance(x, int) and x >= 0, "a whole number that is not negative"),
    "worker_timeout": _POSITIVE,
    "baseline_std": _POSITIVE,
    "baseline_exploration": (lambda x: 0 < x < 1, "a number between 0 and 1"),
    "checkpoint_every": _COUNT,
    "keep_checkpoints": _COUNT,
}
_CHOICES = {
    "critic": ("neural", "linear"),
    "projection": ("kl", "l2"),
    "combine": ("printed", "sequential", "joint", "guarded"),
    "divergence_gradient": ("full", "direct", "score"),
    "threshold_rule": ("lemma", "fixed"),
    "weight_schedule": ("printed", "decay"),
    "simulator": ("auto", "host", "device"),
}


def _plain(value: Any) -> Any:
    """Python's own number for a NumPy scalar, such as a seed out of np.arange."""
    if isinstance(value, tuple | list):
        return tuple(_plain(each) for each in value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(holds: bool, name: str, given: Any, allowed: str) -> None:
    if not holds:
        raise InputError(f"{name} is {given!r}: allowed is {allowed}")


def require_seed(seed: Any) -> None:
    test, allowed = _RANGES["seed"]
    _require(_is_number(seed) and test(seed), "seed", seed, allowed)


def require_new_folder(out: Path) -> None:
    """Nothing a user trained is overwritten."""
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(f"output folder '{out}' cannot be made: '{parent}' is a file, give a path below a folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"output folder '{out}' exists and is not empty: give a new folder, or continue that run with "
            f"`spacerl resume {out}`"
        )
