"""Commands that look at things: runs, policies, environments, tasks."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from spacerl.types import InputError


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play the newest policy of a run: J_R and every J_C with 95 % intervals."""

    run: Positional[Path]
    """Run folder."""
    episodes: int = 1000
    """Episodes to play, for the stochastic and for the deterministic policy each."""
    seed: int = 1
    """Seed of the episodes."""
    video: Path | None = None
    """Also film an episode of the stochastic policy: an .mp4 or .gif file."""
    video_episodes: int = 1
    """Episodes to film."""
    video_baseline: bool = False
    """Film the run's baseline beside it, in the same episodes."""

    def __call__(self) -> None:
        from spacerl.api import evaluate

        if self.video is not None:
            from spacerl.api import film

            shown = {"episodes": self.video_episodes, "seed": self.seed, "beside_baseline": self.video_baseline}
            print(f"video: {film(self.run, self.video, **shown)}")
        report = evaluate(self.run, episodes=self.episodes, seed=self.seed)
        rows = []
        for mode in ("stochastic", "deterministic"):
            rows.append((mode, "J_R", report[mode]["J_R"], ""))
            for name, cost in report[mode]["J_C"].items():
                verdict = "within" if cost["mean"] <= cost["limit"] else "above"
                rows.append(("", f"J_C {name}", cost, f"{verdict} h_C = {cost['limit']:g}"))
        print_table(
            f"{report['episodes']} episodes of {self.run}",
            ("policy", "quantity", "mean", "95 % interval", "standard deviation", ""),
            [
                (mode, what, f"{v['mean']:.4f}", f"± {v['interval']:.4f}", f"{v['std']:.4f}", note)
                for mode, what, v, note in rows
            ],
        )


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the policy of a run for use elsewhere: ONNX, or one file that needs nothing but NumPy."""

    run: Positional[Path]
    """Run folder."""
    out: Positional[Path]
    """File to write: .onnx, .py (NumPy only) or .npz (arrays only)."""

    def __call__(self) -> None:
        from spacerl.api import export

        difference = export(self.run, self.out)
        print(f"{self.out}: differs from the policy by at most {difference:.1e} on random observations")


@dataclasses.dataclass(frozen=True)
class CheckEnv:
    """Step an environment and say in plain words what a run would fail on."""

    env: Positional[str]
    """A Gymnasium id, module:factory or file.py:factory."""
    cost: tuple[str, ...] = ()
    """Where its cost comes from, as for train."""
    env_args: tuple[str, ...] = ()
    """Arguments it is made with, as NAME=VALUE."""
    episodes: int = 5
    """Episodes to play with random actions."""
    max_steps: int = 5000
    """Steps after which an episode counts as one that never ends."""
    seed: int = 0
    """Seed of episodes and actions."""

    def __call__(self) -> None:
        from spacerl.envs.host.check import check_environment

        findings = check_environment(self.env, self.cost, self.env_args, self.episodes, self.max_steps, self.seed)
        print(findings.text())
        if findings.broken:
            raise SystemExit(2)


@dataclasses.dataclass(frozen=True)
class Report:
    """One self-contained HTML page about one or several runs."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders of run folders."""
    out: Path | None = None
    """Page to write; by default report.html in the first folder."""
    title: str | None = None
    """Title of the page."""

    def __call__(self) -> None:
        from spacerl.reporting import write_report

        if not self.runs:
            raise InputError("no run folder was given: pass one or several")
        missing = [run for run in self.runs if not run.exists()]
        if missing:
            raise InputError(
                f"'{missing[0]}' does not exist: give a run folder, which is what `spacerl train --out` makes"
            )
        try:
            page = write_report(list(self.runs), self.out or self.runs[0] / "report.html", self.title)
        except (ValueError, OSError) as error:
            raise InputError(str(error)) from error
        print(f"report: {page}")


@dataclasses.dataclass(frozen=True)
class Tasks:
    """List the tasks with their parameters."""

    def __call__(self) -> None:
        from spacerl.envs.tasks import TASKS

        rows = [
            (
                task.name,
                task.summary,
                f"{task.settings['cost_limit']:g}",
                f"{task.settings['rollout_length']}",
                f"{task.settings['batch_size']:,}",
                f"{task.settings['updates']:,}",
                "ready" if task.available else "parameters only",
            )
            for task in TASKS.values()
        ]
        print_table("tasks", ("task", "what it is", "h_C", "steps", "batch", "updates", "state"), rows)


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """List the algorithms."""

    def __call__(self) -> None:
        from spacerl.algorithms import ALGORITHMS
        from spacerl.training.settings import needs_of

        rows = [(name, "yes" if needs_of(name).baseline else "", entry.summary) for name, entry in ALGORITHMS.items()]
        print_table("algorithms", ("algorithm", "needs pi_B", "what it does"), rows)


@dataclasses.dataclass(frozen=True)
class BaselineShow:
    """Say what is known about baseline policies: those shipped for a task, or a policy file."""

    which: Positional[str]
    """Task, policy file or run folder."""

    def __call__(self) -> None:
        from spacerl.api import load_policy
        from spacerl.envs.tasks import TASKS

        files = TASKS[self.which].shipped() if self.which in TASKS else {self.which: self.which}
        if not files:
            raise InputError(
                f"no baseline is shipped for task '{self.which}': make one with `spacerl baseline make {self.which}`"
            )
        for name, path in files.items():
            policy = load_policy(path)
            facts = {"parameters": f"{policy.family.parameters:,}", **policy.info}
            print_table(str(name), ("fact", "value"), [(key, str(value)) for key, value in facts.items()])


def print_table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False).print(table)
