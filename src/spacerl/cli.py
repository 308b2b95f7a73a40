"""The `spacerl` command: parsing, printing, exit codes. Whatever is heavy is imported by the command that needs it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro
from tyro.conf import Positional, arg, subcommand

from spacerl.config import ALGORITHM_SUMMARIES, ENV_PREFIX, NEEDS_BASELINE, TASKS, InputError, RunConfig

BAD_INPUT, STOPPED, INTERRUPTED = 2, 3, 130


def settings_of(command: RunConfig) -> dict[str, Any]:
    """The run's settings among a command's options."""
    return {field.name: getattr(command, field.name) for field in dataclasses.fields(RunConfig)}


def train_arguments(command: Any) -> dict[str, Any]:
    """Arguments of `spacerl.train` from those of the command."""
    settings = settings_of(command)
    task, given = settings.pop("task") or None, command.env
    if task is not None and given is not None:
        raise InputError(f"both a task ('{task}') and --env {given} were given: give one of them")
    if given is not None:
        task = ENV_PREFIX + given
    if task is None:
        raise InputError("neither a task nor --env was given: `spacerl tasks` lists the tasks")
    return {**settings, "task": task, "cost_limit": parse_limits(command.cost_limit)}


def parse_limits(texts: tuple[str, ...]) -> Any:
    """Limits as numbers in the order of the costs, or by name."""
    if not texts:
        return None
    named = [text.rpartition("=") for text in texts]
    try:
        values = [float(value) for _, _, value in named]
    except ValueError:
        wrong = next(text for text, (_, _, value) in zip(texts, named, strict=True) if not _is_float(value))
        raise InputError(f"cost-limit is '{wrong}': allowed is a number, or NAME=NUMBER for every cost") from None
    if any(name for name, _, _ in named):
        nameless = next((text for text, (name, _, _) in zip(texts, named, strict=True) if not name), None)
        if nameless is not None:
            raise InputError(f"cost-limit is '{nameless}' beside limits with names: name all of them or none")
        return {name: value for (name, _, _), value in zip(named, values, strict=True)}
    return values[0] if len(values) == 1 else tuple(values)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class Train(RunConfig):
    """Train a policy on a task, or in your own environment, and leave a run folder."""

    task: Positional[str] = ""  # type: ignore[misc]
    """Task to learn; `spacerl tasks` lists them. Or leave it out and give --env."""
    env: str | None = None
    """Your own environment: a Gymnasium id, module:factory or file.py:factory."""
    cost_limit: tuple[str, ...] = ()  # type: ignore[assignment]
    """Threshold h_C on the undiscounted episode cost: a number, one per cost, or NAME=NUMBER for each."""
    trust: bool = False
    """Load baselines from files that can run code when they are loaded (pickles inside)."""
    out: Path | None = None
    """Run folder to make; by default below runs/."""
    quiet: bool = False
    """No progress."""

    def __call__(self) -> None:
        from spacerl.training import train

        result = train(**train_arguments(self), trust=self.trust, out=self.out, progress=not self.quiet)
        print(f"run folder: {result.folder}")


@dataclasses.dataclass(frozen=True)
class Iterate(Train):
    """SPACE again and again: every round starts afresh with the policy of the round before as its baseline."""

    rounds: int = 3
    """Rounds in all; the same command continues one that was stopped."""

    def __call__(self) -> None:
        from spacerl.iterate import iterate

        folders = iterate(self.rounds, trust=self.trust, out=self.out, progress=not self.quiet, **train_arguments(self))
        print("\n".join(f"run folder: {folder}" for folder in folders))


@dataclasses.dataclass(frozen=True)
class Sweep(Train):
    """Train several seeds, and several baselines: one compiled program where there can be one, else run after run."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; --seed is not used."""
    baselines: tuple[str, ...] = ()
    """Baselines, each with every seed; by default the one of --baseline."""
    out: Path = Path("runs/sweep")  # type: ignore[assignment]
    """Folder that gets a run folder per seed and baseline; the same command continues a sweep that was stopped."""

    def __call__(self) -> None:
        from spacerl.sweep import sweep

        config = RunConfig(**train_arguments(self))
        baselines = self.baselines or config.baselines or (None,)
        folders = sweep(config, self.seeds, baselines, self.out, not self.quiet, self.trust)
        print(f"{len(folders)} run folders below {self.out}")


@dataclasses.dataclass(frozen=True)
class Resume:
    """Continue a run exactly where its newest checkpoint left it."""

    run: Positional[Path]
    """Run folder."""
    updates: int | None = None
    """New total number of updates; by default the run's own."""
    trust: bool = False
    """Load the run's baseline from a file that can run code when it is loaded."""
    quiet: bool = False
    """No progress."""

    def __call__(self) -> None:
        from spacerl.training import resume

        result = resume(self.run, updates=self.updates, trust=self.trust, progress=not self.quiet)
        print(f"run folder: {result.folder}")


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
        from spacerl.library import evaluate

        if self.video is not None:
            from spacerl.library import film

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
            ("policy", "quantity", "mean", "95 % interval", "deviation", ""),
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
        from spacerl.library import export

        difference = export(self.run, self.out)
        print(f"{self.out}: differs from the policy by at most {difference:.1e} on random observations")


@dataclasses.dataclass(frozen=True)
class CheckEnv:
    """Step an environment and say in plain words what a run would stumble over."""

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
        from spacerl.hosted.checking import check_environment

        findings = check_environment(self.env, self.cost, self.env_args, self.episodes, self.max_steps, self.seed)
        print(findings.text())
        if findings.broken:
            raise SystemExit(BAD_INPUT)


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
        from spacerl.reproduce import reproduce, summarise

        reproduce(self.experiment, self.out, self.updates, self.seeds, self.jobs, self.batch_size)
        for path in summarise(self.experiment, self.out):
            print(path)


@dataclasses.dataclass(frozen=True)
class Tasks:
    """List the tasks with their parameters."""

    def __call__(self) -> None:
        rows = [
            (
                name,
                preset.summary,
                f"{preset.cost_limit:g}",
                f"{preset.rollout_length}",
                f"{preset.batch_size:,}",
                f"{preset.updates:,}",
                "ready" if preset.available else "parameters only",
            )
            for name, preset in TASKS.items()
        ]
        print_table("tasks", ("task", "what it is", "h_C", "steps", "batch", "updates", "state"), rows)


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """List the algorithms."""

    def __call__(self) -> None:
        rows = [(name, "yes" if name in NEEDS_BASELINE else "", text) for name, text in ALGORITHM_SUMMARIES.items()]
        print_table("algorithms", ("algorithm", "needs pi_B", "what it does"), rows)


@dataclasses.dataclass(frozen=True)
class BaselineMake(RunConfig):
    """Train a baseline policy pi_B with PCPO at another threshold. All options of train are there; by default 150
    updates with delta 0.01."""

    task: Positional[str]  # type: ignore[misc]
    """Task."""
    kind: str = "near"
    """cost (J_C about 0), near (about h_C) or reward (above h_C)."""
    algorithm: str = ""
    """By default pcpo, or pretrain where --baseline gives a policy to be imitated first."""
    cost_limit: float | None = None  # type: ignore[assignment]
    """Threshold to train at; by default a tenth, one or three times the task's h_C."""
    out: Path | None = None
    """Policy file to write; by default TASK-KIND.safetensors here."""
    quiet: bool = False
    """No progress."""

    def __call__(self) -> None:
        from spacerl.baselines.making import make_baseline

        out = self.out or Path(f"{self.task}-{self.kind}.safetensors")
        usual = {field.name: field.default for field in dataclasses.fields(RunConfig)} | {"algorithm": ""}
        given = {name: value for name, value in settings_of(self).items() if value != usual[name]}
        for named in ("task", "cost_limit"):
            given.pop(named, None)
        facts = make_baseline(self.task, self.kind, out, self.cost_limit, not self.quiet, **given)
        print(f"{out}: J_R {facts['J_R']:.3f}, J_C {facts['J_C']:.3f} (the task's h_C is {facts['task_h_C']:g})")


@dataclasses.dataclass(frozen=True)
class BaselineShow:
    """Say what is known about baseline policies: those shipped for a task, or a policy file."""

    which: Positional[str]
    """Task, policy file or run folder."""

    def __call__(self) -> None:
        from spacerl.baselines import shipped
        from spacerl.library import load_policy

        files = shipped(self.which) if self.which in TASKS else {self.which: self.which}
        if not files:
            raise InputError(
                f"no baseline is shipped for task '{self.which}': make one with `spacerl baseline make {self.which}`"
            )
        for name, path in files.items():
            policy = load_policy(path)
            size = policy.family.parameters  # type: ignore[union-attr]
            facts = [("parameters", f"{size:,}"), *((key, str(value)) for key, value in policy.info.items())]
            print_table(str(name), ("fact", "value"), facts)


BaselineCommand = Annotated[BaselineMake, subcommand("make")] | Annotated[BaselineShow, subcommand("show")]


@dataclasses.dataclass(frozen=True)
class BaselineGroup:
    """Make or show baseline policies."""

    command: Annotated[BaselineCommand, arg(name="")]

    def __call__(self) -> None:
        self.command()


Command = (
    Annotated[Train, subcommand("train")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[Iterate, subcommand("iterate")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Export, subcommand("export")]
    | Annotated[CheckEnv, subcommand("check-env")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Tasks, subcommand("tasks")]
    | Annotated[Algorithms, subcommand("algorithms")]
    | Annotated[BaselineGroup, subcommand("baseline")]
)


def print_table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False).print(table)


def parse(arguments: list[str] | None) -> Any:
    """The command asked for. What cannot be parsed is said in one sentence, like any other bad input."""
    description = "Reinforcement learning from a policy you already have, under constraints."
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Command, prog="spacerl", description=description, args=arguments)  # type: ignore[arg-type]
    except SystemExit as stop:
        if not stop.code:
            raise
        fail(one_sentence(said.getvalue()), BAD_INPUT)


def one_sentence(text: str) -> str:
    """The parser's boxed explanation as one line, without its frame, rulers and the help it repeats."""
    told = re.split(r"Argument helptext|For full helptext", text)[0]
    words = " ".join(re.sub(r"[─│╭╮╰╯]+|-{5,}", " ", told).split())
    return re.sub(r"^(Value error|Invalid choice|Parsing error|Unrecognized options?|Required options?) ", "", words)


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0 done, 2 bad input, 3 stopped because numbers were not finite, 130 interrupted."""
    command = parse(arguments)
    _compile_once()
    try:
        command()
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        fail("interrupted; the last state is saved, continue with `spacerl resume RUN`", INTERRUPTED)
    except RuntimeError as error:
        if type(error).__name__ != "RunStopped":
            raise
        fail(str(error), STOPPED)


def fail(message: str, code: int) -> NoReturn:
    print(f"spacerl: {message}", file=sys.stderr)
    raise SystemExit(code)


def _compile_once() -> None:
    """Compiled programs are kept between commands; the variable is the user's to set differently."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spacerl" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")


if __name__ == "__main__":
    main()
