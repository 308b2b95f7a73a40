"""Commands that look at things: runs, policies, environments, tasks."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from spacerl.runs.names import printable
from spacerl.runs.text import number_text
from spacerl.types import InputError, unknown_name


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play a policy of a run, and its baselines: J_R, return and every J_C with 95 % intervals."""

    run: Positional[Path]
    """Run folder."""
    episodes: tuple[str, ...] = ("1000",)
    """Episodes to play in each mode, or stochastic=N deterministic=N; 0 leaves one out."""
    policy: Literal["last", "best"] = "last"
    """The last policy, or the best one that an evaluation found to keep the limits."""
    seed: int = 1
    """Seed of the episodes."""
    json: bool = False
    """Print the numbers as JSON."""
    out: Path | None = None
    """Also write them to a JSON file."""
    trust: bool = False
    """Load baselines from files that can run code when they are loaded."""
    video: Path | None = None
    """Also film an episode of the stochastic policy: an .mp4 or .gif file."""
    video_episodes: int = 1
    """Episodes to film."""
    video_baseline: bool = False
    """Film the run's baseline beside it, in the same episodes."""
    device: str = ""
    """Device that computes: cpu, gpu or tpu; by default the one that JAX takes."""
    quiet: bool = False
    """No progress."""

    def __call__(self) -> None:
        from spacerl.api import evaluate
        from spacerl.runs.folder import write_atomically
        from spacerl.runs.lock import require_new_file

        if self.out is not None:
            require_new_file(self.out)
        if self.video is not None:
            from spacerl.api import film

            shown = {"episodes": self.video_episodes, "seed": self.seed, "beside_baseline": self.video_baseline}
            made = film(self.run, self.video, policy=self.policy, trust=self.trust, **shown)
            print(f"video: {made}", file=sys.stderr if self.json else sys.stdout)
        asked = {"episodes": parse_episodes(self.episodes), "seed": self.seed, "policy": self.policy}
        report = evaluate(self.run, trust=self.trust, progress=not self.quiet, device=self.device or None, **asked)
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.out, as_json(report))
        if self.json:
            print(as_json(report), end="")
        else:
            print_evaluation(report)


def parse_episodes(texts: Sequence[str]) -> int | dict[str, int]:
    """A number for every mode, or MODE=NUMBER for each."""
    try:
        if len(texts) == 1 and "=" not in texts[0]:
            return int(texts[0])
        return {mode: int(count) for mode, _, count in (text.partition("=") for text in texts)}
    except ValueError:
        given = " ".join(texts)
        raise InputError(
            f"episodes is '{given}': allowed is a whole number, or stochastic=NUMBER deterministic=NUMBER"
        ) from None


def as_json(report: dict[str, Any]) -> str:
    """JSON has no NaN: what was not measured is null."""
    return json.dumps(_without_nan(report), indent=2) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tolerated(tolerance: float) -> str:
    return f" (tolerance {tolerance:g})" if tolerance else ""


VERDICTS = {"within": "within h_C = {:g}", "above": "above h_C = {:g}", "at": "at its limit h_C = {:g}"}


def print_evaluation(report: dict[str, Any]) -> None:
    rows = []
    played = [(mode, report[mode]) for mode in ("stochastic", "deterministic") if mode in report]
    for each in report["baselines"]:
        source = ", as measured before training" if each["recorded"] else ""
        played.append((f"pi_B {each['name']}{source}", each))
    for name, values in played:
        quantities = [(what, values[key], "") for what, key in EVALUATED.items()]
        for cost, value in values["J_C"].items():
            note = VERDICTS[value["verdict"]].format(value["limit"]) + tolerated(value["tolerance"])
            quantities.append((f"J_C {cost}", value, note))
        for number, (what, value, note) in enumerate(quantities):
            rows.append((name if number == 0 else "", what, *_figures(value), note))
    counts = ", ".join(f"{name} {values['episodes']}" for name, values in played if values["episodes"])
    update = "" if report["update"] is None else f", update {report['update']}"
    print_table(
        f"{report['policy']} policy of {report['run']}{update}; episodes: {counts}",
        ("policy", "quantity", "mean", "95 % interval", "standard deviation", ""),
        rows,
    )
    for each in report["baselines"]:
        if each["recorded"]:
            print(printable(f"pi_B {each['name']} was not played: {each['why']}"))


EVALUATED = {"J_R": "J_R", "return": "episode_return", "length": "episode_length"}


def _figures(value: dict[str, Any]) -> tuple[str, str, str]:
    mean, interval, std = (value[key] for key in ("mean", "interval", "std"))
    return (
        "–" if math.isnan(mean) else number_text(mean, 4),
        "" if math.isnan(interval) else f"± {number_text(interval, 4)}",
        "" if math.isnan(std) else number_text(std, 4),
    )


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the policy of a run for use elsewhere: ONNX, or one file that needs nothing but NumPy."""

    run: Positional[Path]
    """Run folder."""
    out: Positional[Path]
    """File to write: .onnx, .py (NumPy only) or .npz (arrays only)."""
    policy: Literal["last", "best"] = "last"
    """The last policy, or the best one that an evaluation found to keep the limits."""
    trust: bool = False
    """A folder of an earlier version: run the code that it names, although it may be somebody else's."""

    def __call__(self) -> None:
        from spacerl.api import export

        difference = export(self.run, self.out, policy=self.policy, trust=self.trust)
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
    """Episodes to play with random actions, at least: so many that there are 2,000 steps, or a minute has passed."""
    max_steps: int = 5000
    """Steps after which an episode counts as one that never ends."""
    seed: int = 0
    """Seed of episodes and actions."""
    worker_timeout: float = 60.0
    """Seconds after which an environment that does not answer is taken to hang."""

    def __call__(self) -> None:
        from spacerl.api import check_env

        looking = {"episodes": self.episodes, "max_steps": self.max_steps, "seed": self.seed}
        findings = check_env(
            self.env, cost=self.cost, env_args=self.env_args, worker_timeout=self.worker_timeout, **looking
        )
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
                f"{task.settings['cost_limit']:g}" + tolerated(task.settings.get("cost_tolerance", 0.0)),
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

        if self.which not in TASKS and not Path(self.which).exists():
            raise unknown_name("task, policy file or run folder", self.which, TASKS)
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
    from rich.text import Text

    # As they are: names of folders and files may hold what would be markup.
    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    # A table's own title is wrapped at the table's width, and a path may be longer than that.
    console.print(Text(printable(title), style="table.title"), soft_wrap=True)
    console.print(table)
