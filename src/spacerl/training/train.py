"""One run: trained, resumed, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spacerl.policies.policy import FunctionPolicy
from spacerl.rollout.acting import ActingPolicy
from spacerl.runs.config import require_new_folder
from spacerl.runs.folder import RunFolder
from spacerl.runs.lock import sole_writer
from spacerl.training.assemble import Given, Parts, assemble, reassemble
from spacerl.training.checkpoint import go_on_from, newest_states
from spacerl.training.loop import Loop, Run, create_folder, run_loop, trained_policy
from spacerl.training.origin import code_named_by, require_consent
from spacerl.training.programs import single_program
from spacerl.training.progress import ProgressSink
from spacerl.training.settings import Draft, default_folder, read_config
from spacerl.training.sinks import USUAL_LOGS, CsvSink, Sink, named_sinks
from spacerl.training.start import begin
from spacerl.types import InputError, TrainState


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run: where it is and what it learned."""

    folder: Path
    metrics: list[dict[str, float]]
    policy: ActingPolicy

    def __repr__(self) -> str:
        last = self.metrics[-1] if self.metrics else {}
        values = ", ".join(f"{name} {last[name]:.4g}" for name in ("J_R", "J_C", "h_C") if name in last)
        return f"Result({str(self.folder)!r}, {len(self.metrics)} updates{', ' if values else ''}{values})"


@dataclasses.dataclass(frozen=True)
class Watching:
    """Who is told about a run while it goes on."""

    progress: bool = True
    log: Sequence[str] | str | None = USUAL_LOGS
    sinks: Sequence[Sink] = ()

    def __post_init__(self) -> None:
        named_sinks(self.log)  # complains about an unknown name or a missing package before anything is made

    def sinks_beside_the_table(self, title: str) -> list[Sink]:
        shown: list[Sink] = [ProgressSink(title)] if self.progress else []
        return [*named_sinks(self.log), *shown, *self.sinks]


def train_run(draft: Draft, given: Given, out: Path | None, watching: Watching) -> Result:
    """A new run in a new folder."""
    parts = assemble(draft, given)
    try:
        out = out if out is not None else default_folder(draft)
        require_new_folder(out)
        if watching.progress:
            say_what_was_added(parts)
        state, summary = begin(parts, say=watching.progress)
        create_folder(parts, out, state, summary)
        with sole_writer(out):
            return continue_run(parts, RunFolder(out), state, watching)
    finally:
        parts.close()


def resume_run(
    path: str | Path,
    given: Given,
    watching: Watching,
    updates: int | None = None,
    asked: bool = False,
    accept_metrics: bool = False,
) -> Result:
    """A run from its newest checkpoint on, exactly as if it had never stopped. `asked` says that the command itself
    named everything that the config names, so that no code is run but the user's."""
    folder = RunFolder.open(path)
    with sole_writer(folder.path):
        config, algorithm = read_config(folder, given.algorithm)
        code = code_named_by(config, given.env, given.cost, given.baseline)
        require_consent(folder, code, given.trust or asked)
        done = folder.newest_update()
        if updates is not None:
            if updates < done:
                raise InputError(f"updates is {updates} and the run already has {done}: allowed is that or more")
            config = dataclasses.replace(config, updates=updates)
        parts = reassemble(config, algorithm, given)
        try:
            found = newest_states([(folder, parts.learner)], accept_metrics=accept_metrics)
            go_on_from(found, [folder])  # refuses metrics that lost rows before the config is changed
            if updates is not None:
                folder.write_config(config)
            return continue_run(parts, folder, found.states[0], watching)
        finally:
            parts.close()


def continue_run(parts: Parts, folder: RunFolder, state: TrainState, watching: Watching) -> Result:
    sinks = watching.sinks_beside_the_table(title_of(parts))
    go_on = f"continue with `spacerl resume {folder.path}`"
    state = run_loop(Loop([Run(parts, folder)], single_program(parts), CsvSink(), sinks, go_on), state)
    metrics = folder.metrics()
    say_what_failed(metrics)
    return Result(folder.path, metrics, trained_policy(parts, state))


def say_what_failed(metrics: Sequence[Mapping[str, float]]) -> None:
    """Faults of environments over the whole run, which single rows hide."""
    restarts, lost = (
        sum(row[name] for row in metrics if row.get(name, 0.0) > 0.0) for name in ("worker_restarts", "lost_episodes")
    )
    if not restarts and not lost:
        return
    again = "all of their episodes went on" if not lost else f"{lost:.0f} episodes were lost"
    bias = ", and faults end long episodes sooner than short ones: their means may be biased" if lost else ""
    print(f"workers were replaced {restarts:.0f} times and {again}{bias}; faults.log says why", file=sys.stderr)


def title_of(parts: Parts) -> str:
    config = parts.config
    source = " or ".join(config.baseline)
    return f"{config.algorithm} on {config.task}" + (f" from {source}" if source else "") + f", seed {config.seed}"


def say_what_was_added(parts: Parts) -> None:
    for each in parts.baselines:
        spread = each.stated_spread() if isinstance(each, FunctionPolicy) else None
        if spread is not None:
            print(f"baseline '{each.name}' states actions only: it gets a {spread}", file=sys.stderr)
