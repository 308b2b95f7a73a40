"""The loop: updates of one run, or of several that one program steps, with their checkpoints, signals and sinks.

Whatever touches clocks or files while training is here or in what this calls.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacerl.envs.devices import current_device
from spacerl.envs.host.description import spaces_of_spec
from spacerl.policies.files import save_policy
from spacerl.policies.policy import NetworkPolicy
from spacerl.rollout.acting import ActingPolicy, acting
from spacerl.runs.folder import RunFolder
from spacerl.runs.lock import is_still_ours
from spacerl.runs.versions import versions
from spacerl.training import evaluation
from spacerl.training.assemble import Parts
from spacerl.training.checkpoint import settings_text, to_arrays
from spacerl.training.measure import write_trajectories
from spacerl.training.origin import sign
from spacerl.training.programs import Program
from spacerl.training.signals import number_of, stoppable, undisturbed
from spacerl.training.sinks import CsvSink, RunInfo, Sink
from spacerl.training.update import raw_theta
from spacerl.types import BatchEnv, InputError, Row, RunInterrupted, RunStopped, TrainState


class Run(NamedTuple):
    """One run of a loop: what it is made of, and where it is kept."""

    parts: Parts
    folder: RunFolder

    @property
    def info(self) -> RunInfo:
        return RunInfo(self.folder.path, self.parts.config)


class Loop(NamedTuple):
    """What is trained together. All runs have the same number of updates and the same checkpoints."""

    runs: Sequence[Run]
    program: Program
    table: CsvSink  # written before any other sink knows of a row
    others: Sequence[Sink]
    go_on: str  # the command that continues it

    @property
    def sinks(self) -> Sequence[Sink]:
        return [self.table, *self.others]

    @property
    def updates(self) -> int:
        return self.runs[0].parts.config.updates

    def is_due(self, done: int) -> bool:
        return done % self.runs[0].parts.config.checkpoint_every == 0 or done == self.updates


def run_loop(loop: Loop, state: TrainState) -> TrainState:
    """All updates that are left, unless a sink asks for a stop. The last state is on disk however this ends."""
    done = int(loop.program.split(state)[0].update)
    with stoppable(), started(loop, done):
        try:
            evaluate(loop, state, done)  # where the run was stopped before it could be
            while done < loop.updates:
                following, rows = one_update(loop, state, done)
                with undisturbed(), written(loop):
                    tell(loop, rows, durable=True)
                    state, done = following, done + 1
                evaluate(loop, state, done)
                with undisturbed(), written(loop):
                    if loop.is_due(done):
                        save(loop, state)
                if tell(loop, rows, durable=False) and done < loop.updates:
                    with undisturbed(), written(loop):
                        save(loop, state)
                    break
        except NotWritten:
            raise
        except KeyboardInterrupt as interrupt:
            with undisturbed(), written(loop):
                save(loop, state)
            kept = f"the state after update {done} is saved" if done else "nothing is learned before the first update"
            raise RunInterrupted(f"interrupted; {kept}, {loop.go_on}", number_of(interrupt)) from interrupt
        except BaseException:  # whatever a user's own function or environment raises
            with undisturbed(), written(loop):
                save(loop, state)
            raise
    return state


class NotWritten(RunStopped):
    """What a run learned could not be written: its disk is full, or its folder is gone or may not be written to."""


@contextlib.contextmanager
def written(loop: Loop) -> Iterator[None]:
    """Files of the runs are written in here; one that cannot be is a sentence that says what is left. What lies where a
    run folder was, after somebody moved that, is another's."""
    require_there(loop)
    try:
        yield
    except OSError as error:
        require_there(loop)
        whole = min((run.folder.checkpoint_updates() or [0])[-1] for run in loop.runs)
        where = str(error.filename or loop.runs[0].folder.path)
        raise NotWritten(
            f"'{where}' cannot be written: {error.strerror or error}; the state after update {whole} is saved: make "
            f"room, or allow writing there, and {loop.go_on}"
        ) from error


def require_there(loop: Loop) -> None:
    for run in loop.runs:
        if not (run.folder.config_path.exists() and is_still_ours(run.folder.path)):
            raise NotWritten(
                f"run folder '{run.folder.path}' is gone: it was removed or moved while the run went on, and nothing "
                "more of it can be saved"
            )


def one_update(loop: Loop, state: TrainState, done: int) -> tuple[TrainState, list[Row]]:
    """The next state and a row of metrics for every run; RunStopped where there is none to go on with."""
    try:
        stepped = loop.program.step(state)
    except InputError as error:
        raise RunStopped(f"{error}; the state before update {done + 1} is saved: fix it and {loop.go_on}") from error
    states = zip(loop.runs, stepped.metrics, loop.program.split(stepped.state), strict=True)
    rows = []
    for run, metrics, own in states:
        if not metrics["finite"]:
            raise RunStopped(
                f"numbers stopped being finite in update {done + 1} of seed {run.parts.config.seed}; the state before "
                f"it is saved in '{run.folder.path}': try a smaller delta or a projection-kl-bound, or look at the "
                "rewards"
            )
        rows.append(metrics_row(done, int(own.env_steps), metrics, stepped.collecting, stepped.updating))
    return stepped.state, rows


def metrics_row(done: int, env_steps: int, metrics: dict[str, Any], collecting: float, updating: float) -> Row:
    leading = ("J_R", "J_C", "J_D", "h_C", "h_D", "cumulative_violation", "kl", "entropy")
    row: Row = {"update": done, "env_steps": env_steps}
    row |= {name: float(metrics[name]) for name in leading}
    row |= {"seconds_collect": collecting, "seconds_update": updating}
    # In the order of their names: a run that goes on elsewhere writes the same columns.
    return row | {name: float(metrics[name]) for name in sorted(metrics) if name not in row and name != "finite"}


def evaluate(loop: Loop, state: TrainState, done: int) -> None:
    """Play the deterministic policy of every run where that is due and was not done yet."""
    if not evaluation.is_due(loop.runs[0].parts.config, done):
        return
    states = zip(loop.runs, loop.program.split(state), strict=True)
    with written(loop):
        left = [each for each in states if all(row["update"] != done for row in each[0].folder.evaluations())]
    played = []
    for run, own in left:
        policy = trained_policy(run.parts, own)
        played.append((run, policy, evaluation.evaluated(run.parts, policy, done, int(own.env_steps))))
    with written(loop):
        for run, policy, row in played:
            evaluation.keep_evaluation(run.folder, run.parts.config, policy, row)


# Sinks and signals ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(loop: Loop, done: int) -> Iterator[None]:
    """Sinks that know of every run, and faults of environments that are kept with it."""
    for run in loop.runs:
        if isinstance(run.parts.env, BatchEnv):
            run.parts.env.report_faults_to(fault_log(run.folder))
    with contextlib.ExitStack() as finishing:
        with written(loop):
            for sink in loop.sinks:
                for run in loop.runs:
                    finishing.callback(_finish, sink, run.info)
                    sink.start(run.info, done)
        yield


def _finish(sink: Sink, run: RunInfo) -> None:
    """What a sink still holds goes where there is room for it: a full disk is said by what stopped the run."""
    with contextlib.suppress(OSError):
        sink.finish(run)


def tell(loop: Loop, rows: Sequence[Row], durable: bool) -> bool:
    """Hand the rows of an update to the sinks; whether one of them asks for a stop."""
    asked = [
        sink.update(run.info, row)
        for sink in loop.sinks
        if sink.durable == durable
        for run, row in zip(loop.runs, rows, strict=True)
    ]
    return any(answer is True for answer in asked)


def fault_log(folder: RunFolder) -> Callable[[str], None]:
    """A worker's traceback, on the screen and kept with the run."""

    def report(text: str) -> None:
        print(text, file=sys.stderr)
        with contextlib.suppress(OSError), open(folder.path / "faults.log", "a") as file:
            file.write(text + "\n\n")

    return report


# Files ----------------------------------------------------------------------------------------------------------------


def create_folder(parts: Parts, out: Path, state: TrainState, baseline: dict[str, Any] | None) -> None:
    with RunFolder.created(out, parts.config, versions(device_name())) as folder:
        sign(folder, parts.config)
        folder.write_environment(parts.env.spec)
        if baseline is not None:
            folder.write_baseline(baseline)
        save_run(Run(parts, folder), state, rows_hash="")


def save(loop: Loop, state: TrainState) -> None:
    """Checkpoints of all runs. Old ones go when every run has the new one: a process killed in between leaves one that
    all of them have."""
    for run, own in zip(loop.runs, loop.program.split(state), strict=True):
        save_run(run, own, loop.table.rows_hash(run.folder.path, int(own.update)))
    for run in loop.runs:
        run.folder.remove_old_checkpoints(run.parts.config.keep_checkpoints)


def save_run(run: Run, state: TrainState, rows_hash: str) -> None:
    """A checkpoint comes last: it says that everything up to its update is on disk."""
    config, update = run.parts.config, int(state.update)
    policy = trained_policy(run.parts, state)
    info = {"task": config.task, "algorithm": config.algorithm, "update": update}
    path = run.folder.path / "policy.safetensors"
    save_policy(path, policy.family, policy.theta, info, state.normaliser or None, policy.spaces)
    if update == config.updates:
        write_trajectories(run.parts, policy, run.folder)
    run.folder.save_checkpoint(to_arrays(state), update, settings_text(config), rows_hash)


def trained_policy(parts: Parts, state: TrainState) -> ActingPolicy:
    name = f"{parts.config.algorithm}-{parts.config.task}"
    policy = NetworkPolicy(parts.learner.family, raw_theta(parts.learner, state), name)
    return acting(policy, spaces_of_spec(parts.env.spec))


def device_name() -> str:
    device = current_device()
    return f"{device.platform} ({device.device_kind})"
