"""Many runs of one setting, as one compiled program: seeds and baselines are an axis, the update is vmapped over it.

On an accelerator five seeds cost little more than one. The run folders are those of `spacerl train`; only bits differ,
because a batched product rounds differently from a single one. What no program can step is trained run after run.

`sweep.json` beside the run folders says which runs one program steps, so that a sweep that was stopped goes on as the
same program, exactly.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spacerl.runs.config import require_new_folder
from spacerl.runs.folder import RunFolder, is_run, read_json, write_json
from spacerl.runs.lock import sole_writer
from spacerl.training.assemble import Given, assemble
from spacerl.training.checkpoint import go_on_from, newest_states
from spacerl.training.loop import Loop, Run, create_folder, run_loop
from spacerl.training.memory import require_room
from spacerl.training.programs import joint_program, require_one_architecture, stack_states
from spacerl.training.settings import Draft, default_folder, require_same_run, resolve
from spacerl.training.sinks import CsvSink
from spacerl.training.start import begin
from spacerl.training.train import Watching, resume_run, train_run
from spacerl.types import InputError, TrainState

RECORD = "sweep.json"


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a sweep, there already or not."""

    draft: Draft
    folder: Path


def sweep_runs(
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    baselines: Sequence[str | None],
    out: Path,
    given: Given,
    watching: Watching,
) -> list[Path]:
    """Train every seed with every baseline; one run folder each below `out`. Returns the folders.

    All of them at once in one program, unless something is stepped outside of it: your own environment, MuJoCo's
    threads, a Python function as baseline. The same call again goes on where it was: runs that one program stepped are
    continued by one program.
    """
    if not seeds:
        raise InputError("no seed was given: pass at least one")
    members = _members(settings, seeds, baselines, out, given)
    with sole_writer(out):
        programs = _programs(members, out, given)
        together = {member.folder for program in programs for member in program}
        for program in programs:
            _train_together(program, given, watching)
        for member in members:
            if member.folder not in together:
                _train_alone(member, given, watching)
    return [member.folder for member in members]


def _members(
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    baselines: Sequence[str | None],
    out: Path,
    given: Given,
) -> list[Member]:
    """Where each run goes: a new folder, or that of the same run."""
    members = []
    for baseline in baselines:
        named = {} if baseline is None else {"baseline": baseline}
        for seed in seeds:
            draft = resolve({**settings, **named, "seed": seed}, given.algorithm)
            members.append(Member(draft, out / default_folder(draft).name))
    names = [member.folder.name for member in members]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"run folder '{twice[0]}' would be made twice: give every seed and every baseline once")
    for member in members:
        if is_run(member.folder):
            require_same_run(member.folder, member.draft)
        else:
            require_new_folder(member.folder)
    return members


def _programs(members: Sequence[Member], out: Path, given: Given) -> list[list[Member]]:
    """Which runs one program steps: those that one did before, and all that are new, where a program can."""
    by_name = {member.folder.name: member for member in members}
    recorded = _recorded(out)
    programs = [[by_name[name] for name in names] for names in recorded if set(names) <= by_name.keys()]
    known = {name for names in recorded for name in names}
    new = [member for member in members if member.folder.name not in known and not is_run(member.folder)]
    if new and _fit_one_program(new, given):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / RECORD, {"programs": [*recorded, [member.folder.name for member in new]]})
        programs.append(new)
    return programs


def _recorded(out: Path) -> list[list[str]]:
    path = out / RECORD
    programs: Any = read_json(path).get("programs") if path.is_file() else []
    lists = programs if isinstance(programs, list) else [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        raise InputError(f"'{path}' does not hold lists of runs: remove it, and every run goes on by itself")
    return programs


def _fit_one_program(members: Sequence[Member], given: Given) -> bool:
    """Whether every baseline among them, and the environment, compile; baselines of one program are of one kind."""
    different = {member.draft.baseline: member for member in members}.values()
    fitting = []
    for member in different:
        parts = assemble(member.draft, given)
        parts.close()
        if not parts.fits_one_program:
            return False
        fitting.append(parts)
    require_one_architecture(fitting)
    learner = fitting[0].learner
    require_room(learner.config, fitting[0].env.spec, learner.family.parameters, len(members))
    return True


def _train_alone(member: Member, given: Given, watching: Watching) -> None:
    if not is_run(member.folder):
        train_run(member.draft, given, member.folder, watching)
    elif not RunFolder(member.folder).is_finished():
        resume_run(member.folder, given, watching, asked=True)


def _train_together(members: Sequence[Member], given: Given, watching: Watching) -> None:
    folders = [RunFolder(member.folder) for member in members]
    there = [folder for folder in folders if is_run(folder.path)]
    if len(there) == len(folders) and all(folder.is_finished() for folder in there):
        return
    with contextlib.ExitStack() as kept:
        for folder in there:
            kept.enter_context(sole_writer(folder.path))
        shared = set.intersection(*(set(folder.checkpoint_updates()) for folder in there)) if there else {0}
        if len(there) < len(folders):
            shared &= {0}  # a run that was never made can only begin
        parts = [assemble(member.draft, given) for member in members] if shared else []
        if parts and all(part.fits_one_program for part in parts):
            runs = [Run(part, folder) for part, folder in zip(parts, folders, strict=True)]
            _step_together(runs, _states(runs, kept), watching)
            return
    # One of them went on by itself, or an accelerator's simulator was left for that of the host.
    for part in parts:
        part.close()
    for member in members:
        _train_alone(member, given, watching)


def _step_together(runs: Sequence[Run], states: Sequence[TrainState], watching: Watching) -> None:
    parts = [run.parts for run in runs]
    config = parts[0].config
    sinks = watching.sinks_beside_the_table(f"{config.algorithm} on {config.task}: {len(parts)} runs at once")
    loop = Loop(runs, joint_program(parts), CsvSink(), sinks, "continue with the same sweep command")
    run_loop(loop, stack_states(states))


def _states(runs: Sequence[Run], kept: contextlib.ExitStack) -> list[TrainState]:
    """The states of runs after the newest update that all of them have; of those that are not there yet, the first."""
    there = [run for run in runs if is_run(run.folder.path)]
    states: dict[Path, TrainState] = {}
    if there:
        complete = len(there) == len(runs)
        found = newest_states([(run.folder, run.parts.learner) for run in there], None if complete else 0)
        go_on_from(found, [run.folder for run in there])
        states = {run.folder.path: state for run, state in zip(there, found.states, strict=True)}
    for run in runs:
        if run.folder.path not in states:
            state, summary = begin(run.parts)
            create_folder(run.parts, run.folder.path, state, summary)
            kept.enter_context(sole_writer(run.folder.path))
            states[run.folder.path] = state
    return [states[run.folder.path] for run in runs]
