"""Commands that train."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from spacerl.cli.options import Words, defaults_for, settings_of, with_settings
from spacerl.types import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a policy on a task, or in your own environment, and leave a run folder."""

    task: Positional[str] = ""
    """Task to learn; `spacerl tasks` lists them. Or leave it out and give --env."""
    out: Path | None = None
    """Run folder to make; by default below runs/."""
    trust: bool = False
    """Load baselines from files that can run code when they are loaded (pickles inside)."""
    log: tuple[str, ...] = ("tensorboard",)
    """What is kept beside metrics.csv: tensorboard, wandb, mlflow; without a name none of them."""
    config: Path | None = None
    """TOML file of settings, such as the config.toml of a run; options given beside it have the last word."""
    device: str = ""
    """Device that computes: cpu, gpu or tpu; by default the one that JAX takes."""
    quiet: bool = False
    """No progress."""

    @staticmethod
    def usual_algorithm(arguments: Sequence[str]) -> str:
        return "space"

    @classmethod
    def options_for(cls, words: Words, arguments: Sequence[str], filed: Mapping[str, Any]) -> Any:
        return with_settings(cls, words, arguments, filed)

    def arguments(self) -> dict[str, Any]:
        """Arguments of `spacerl.train` from the options given."""
        how = {"trust": self.trust, "out": self.out, "log": self.log, "progress": not self.quiet}
        how["device"] = self.device or None
        return {**settings_of(self), **how}

    def __call__(self) -> None:
        from spacerl.api import train

        print(f"run folder: {train(**self.arguments()).folder}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Iterate(Train):
    """SPACE again and again: every round starts afresh with the policy of the round before as its baseline."""

    rounds: int = 3
    """Rounds in all; the same command continues one that was stopped."""

    def __call__(self) -> None:
        from spacerl.api import iterate

        folders = iterate(self.rounds, **self.arguments())
        print("\n".join(f"run folder: {folder}" for folder in folders))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(Train):
    """Train several seeds, and several baselines: one compiled program where there can be one, else run after run."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; --seed is not used."""
    baselines: tuple[str, ...] = ()
    """Baselines, each with every seed; by default those of --baseline."""
    out: Path | None = Path("runs/sweep")
    """Folder that gets a run folder per seed and baseline; the same command continues a sweep that was stopped."""

    def __call__(self) -> None:
        from spacerl.api import sweep

        arguments = self.arguments()
        baseline = arguments.pop("baseline")
        folders = sweep(seeds=self.seeds, baselines=self.baselines or baseline, **arguments)
        print(f"{len(folders)} run folders below {self.out}")


@dataclasses.dataclass(frozen=True)
class Resume:
    """Continue a run exactly where its newest checkpoint left it."""

    run: Positional[Path]
    """Run folder."""
    updates: int | None = None
    """New total number of updates; by default the run's own."""
    trust: bool = False
    """Run the code that the folder names (environment, costs, baseline), although it may be somebody else's."""
    accept_metrics: bool = False
    """Go on with a metrics.csv or evaluations.csv that was changed since it was written."""
    log: tuple[str, ...] = ("tensorboard",)
    """What is kept beside metrics.csv: tensorboard, wandb, mlflow; without a name none of them."""
    device: str = ""
    """Device that computes: cpu, gpu or tpu; by default the one that JAX takes."""
    quiet: bool = False
    """No progress."""

    def __call__(self) -> None:
        from spacerl.api import resume

        how = {"log": self.log, "progress": not self.quiet, "device": self.device or None}
        how |= {"trust": self.trust, "accept_metrics": self.accept_metrics}
        result = resume(self.run, updates=self.updates, **how)
        print(f"run folder: {result.folder}")


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Run a comparison of the paper: every algorithm on a task, with every kind of baseline."""

    experiment: Positional[str]
    """point-circle, point-gather, ant-circle or ant-gather (an accelerator's work, or a night's)."""
    out: Path = Path("runs/reproduce")
    """Folder that gets a folder per setting; the same command continues what was stopped."""
    updates: int = 300
    """Policy updates of each run."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds."""
    jobs: int = 1
    """Settings at a time; each is a process of its own."""
    batch_size: int | None = None
    """Environment steps per update, where not the paper's number."""

    def __call__(self) -> None:
        from spacerl.training.reproduce import reproduce, summarise

        reproduce(self.experiment, self.out, self.updates, self.seeds, self.jobs, self.batch_size)
        for path in summarise(self.experiment, self.out):
            print(path)


BASELINE_DEFAULTS = {"updates": 150, "delta": 1e-2, "cost_limit": ()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineMake:
    """Train a baseline policy pi_B with PCPO at another threshold. All options of train are there; --cost-limit is by
    default a tenth, one or three times the task's h_C. With --baseline that policy is imitated first."""

    task: Positional[str] = ""
    """Task; `spacerl tasks` lists them."""
    kind: str = "near"
    """cost (J_C about 0), near (about h_C) or reward (above h_C)."""
    out: Path | None = None
    """Policy file to write; by default TASK-KIND.safetensors here."""
    quiet: bool = False
    """No progress."""

    @staticmethod
    def usual_algorithm(arguments: Sequence[str]) -> str:
        return "pretrain" if "--baseline" in arguments else "pcpo"

    @classmethod
    def options_for(cls, words: Words, arguments: Sequence[str], filed: Mapping[str, Any]) -> Any:
        return with_settings(cls, words, arguments, BASELINE_DEFAULTS)

    def __call__(self) -> None:
        from spacerl.envs.tasks import task_named
        from spacerl.training.baselines import make_baseline

        settings = settings_of(self)
        task, limit, _ = settings.pop("task"), settings.pop("cost_limit"), settings.pop("env")
        if task is None:
            raise InputError("no task was given: `spacerl tasks` lists them")
        task_named(task, only=True)
        usual, options = defaults_for(Words(task, settings["algorithm"], settings["preset"]), BASELINE_DEFAULTS)
        known = {**usual, **options, "rollout_length": usual["rollout_length"] or None}
        changed = {name: value for name, value in settings.items() if value != known.get(name)}
        out = self.out or Path(f"{task}-{self.kind}.safetensors")
        facts = make_baseline(task, self.kind, out, changed, limit, not self.quiet)
        print(f"{out}: J_R {facts['J_R']:.3f}, J_C {facts['J_C']:.3f} (the task's h_C is {facts['task_h_C']:g})")
