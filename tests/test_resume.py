"""A run killed at any instant and resumed ends like one never interrupted, bit for bit.

Two kinds of proof: real processes killed by SIGKILL at random moments, and one run whose folder is copied before every
file operation, so that each state the disk ever had is resumed from. Wall-clock columns are measurements and are left
out of every comparison.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.runs.folder import RunFolder
from spacerl.training import sweep as sweeping
from spacerl.training import train as training
from spacerl.types import InputError
from support.learners import Toy
from support.runs import assert_same, newest, outcome, rows_written

pytestmark = pytest.mark.usefixtures("quick_compilation")


# ---------------------------------------------------------------- real processes, really killed

UPDATES = 150
SPACE = (
    f"train point-circle --algorithm space --baseline reward --batch-size 100 --hidden 4 --updates {UPDATES} "
    "--checkpoint-every 3 --keep-checkpoints 2 --quiet"
)


def start(arguments: str, environment) -> subprocess.Popen:
    command = [sys.executable, "-m", "spacerl", *arguments.split()]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def kill_when(process: subprocess.Popen, ready, delay: float) -> bool:
    """SIGKILL `delay` seconds after `ready()`; whether the process was still at work."""
    while process.poll() is None and not ready():
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def test_killed_at_random_moments_ends_like_never_interrupted(tmp_path, quick_environment):
    chance = random.Random(20)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(f"{SPACE} --out {whole}", quick_environment))
    assert rows_written(whole) == UPDATES

    process = start(f"{SPACE} --out {broken}", quick_environment)
    kills = [kill_when(process, (broken / "policy.safetensors").exists, 0.0)]  # before the first update
    for rows in sorted(chance.sample(range(2, UPDATES - 40), 2)):
        process = start(f"resume {broken} --quiet", quick_environment)
        kills.append(kill_when(process, lambda rows=rows: rows_written(broken) >= rows, chance.uniform(0.0, 0.03)))
        assert rows_written(broken) >= rows
    assert sum(kills) >= 2, "the processes ended before they could be killed: make the run longer"
    finish(start(f"resume {broken} --quiet", quick_environment))

    assert_same(broken, whole)
    for name in ("baseline.json", "trajectories.json"):
        assert (broken / name).read_text() == (whole / name).read_text()
    radii = {row["h_D"] for row in outcome(whole)["metrics"]}
    assert len(radii) > 2, "h_D must move, or its part of the state is not tested"


# ---------------------------------------------------------------- a sweep is one loop as well

SWEEP = (
    "sweep point-circle --algorithm space --baselines reward near --seeds 3 --batch-size 100 --hidden 4 --updates 60 "
    "--checkpoint-every 3 --keep-checkpoints 2 --quiet"
)


def test_a_sweep_that_is_killed_goes_on_as_one_program_to_the_bit(tmp_path, quick_environment):
    chance = random.Random(21)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(f"{SWEEP} --out {whole}", quick_environment))
    names = [f"point-circle-space-{baseline}-seed3" for baseline in ("reward", "near")]
    assert json.loads((whole / "sweep.json").read_text()) == {"programs": [names]}

    kills = []
    for rows in (0, 20):  # while its folders are made, then between checkpoints
        process = start(f"{SWEEP} --out {broken}", quick_environment)
        first, last = broken / names[0], broken / names[-1]
        ready = (lambda: rows_written(last) >= rows) if rows else first.exists  # noqa: B023  called before it changes
        kills.append(kill_when(process, ready, chance.uniform(0.0, 0.02)))
        assert json.loads((broken / "sweep.json").read_text()) == {"programs": [names]}
    assert all(kills), "the processes ended before they could be killed: make the sweep longer"
    finish(start(f"{SWEEP} --out {broken}", quick_environment))

    assert json.loads((broken / "sweep.json").read_text()) == {"programs": [names]}
    assert sorted(path.name for path in whole.iterdir()) == sorted([*names, "sweep.json"])
    for name in names:
        assert rows_written(whole / name) == 60
        assert_same(broken / name, whole / name)
        for kept in ("baseline.json", "trajectories.json"):
            assert (broken / name / kept).read_text() == (whole / name / kept).read_text()


# ---------------------------------------------------------------- every state the disk ever had


class Drift(Toy):
    """A point pushed along a line; far from the origin it costs, very far it ends the episode. Nothing draws it."""

    name = "drift"
    obs_shape = (2,)
    horizon = 6
    cost_names = ("far",)

    def reset(self, key):
        return jax.random.normal(key, ())

    def observe(self, x):
        return jnp.stack([x, jnp.ones(())])

    def step(self, x, action):
        x = x + action[0]
        return x, -((x - 1.0) ** 2), (jnp.abs(x) > 1.0)[None].astype(jnp.float32), jnp.abs(x) > 4.0


DRIFT = {
    "env": Drift(),
    "batch_size": 120,
    "hidden": (4,),
    "cost_limit": 3.0,
    "delta": 0.001,
    "fisher_subsample": 1.0,
    "progress": False,
    "algorithm": "pcpo",
}


def toward_one(obs: np.ndarray):
    """A baseline as a plain function: push toward 1."""
    return 0.5 * (1.0 - obs[:, :1]), np.full((len(obs), 1), 0.7)


class Watch:
    """Calls `look` before every file operation of this process while it is switched on."""

    look = None

    @classmethod
    def hook(cls, event: str, arguments: tuple) -> None:
        if cls.look is not None and event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            look, cls.look = cls.look, None  # copying the folder opens files as well
            look()
            cls.look = look


@pytest.fixture(scope="module")
def watch():
    sys.addaudithook(Watch.hook)  # cannot be removed, only silenced
    yield Watch
    Watch.look = None


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def disk_states(watch, tmp_path_factory):
    """An uninterrupted run, and its folder as it was before every file operation, one of each kind."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    states: list[dict[str, bytes]] = []

    def look():
        if folder.exists():
            files = {name: data for name, data in files_of(folder).items() if not name.startswith("events")}
            if files not in states:
                states.append(files)

    watch.look = look
    try:
        spacerl.train(out=folder, updates=4, checkpoint_every=2, keep_checkpoints=1, **DRIFT)
    finally:
        watch.look = None
    return folder, states


def put(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_the_watched_run_went_through_many_states(disk_states):
    _, states = disk_states
    assert len(states) > 15
    assert any(name.endswith(".tmp") for files in states for name in files), "writes must go through another file"
    assert any("metrics.csv" in files and files["metrics.csv"].count(b"\n") == 4 for files in states)


def test_a_kill_before_any_file_operation_loses_nothing(disk_states, tmp_path):
    folder, states = disk_states
    failures = []
    for number, files in enumerate(states):
        copy = put(files, tmp_path / str(number))
        if not files:
            continue  # an empty folder is no run yet
        try:
            spacerl.resume(copy, env=Drift(), progress=False)
            assert_same(copy, folder)
        except (InputError, AssertionError, OSError) as error:
            failures.append(f"state {number} of {len(states)} ({', '.join(sorted(files))}): {error}")
    assert not failures, "\n".join(failures)


def test_a_kill_within_a_write_loses_nothing(disk_states, tmp_path):
    """Half of the last row, half of a temporary file: what a write leaves that is cut."""
    folder, states = disk_states
    cut_rows = 0
    for number, files in enumerate(states):
        resumable = any(name.startswith("checkpoints/update-") for name in files) and "config.json" in files
        rows = files.get("metrics.csv", b"")
        if not resumable or len(rows.splitlines()) != 4:  # header and three rows, one more than the checkpoint of 2
            continue
        copy = put(files, tmp_path / str(number))
        (copy / "metrics.csv").write_bytes(rows[:-20])
        (copy / "checkpoints" / ".update-000004.safetensors.abcd.tmp").write_bytes(b"half of a checkp")
        (copy / ".metrics.csv.efgh.tmp").write_bytes(b"update,env_st")
        spacerl.resume(copy, env=Drift(), progress=False)
        assert_same(copy, folder)
        cut_rows += 1
    assert cut_rows > 0


def test_resuming_a_finished_run_changes_nothing(disk_states, tmp_path):
    copy = shutil.copytree(disk_states[0], tmp_path / "copy")
    before = {name: data for name, data in files_of(copy).items() if name.endswith((".csv", ".json"))}
    result = spacerl.resume(copy, env=Drift(), progress=False)
    after = files_of(copy)
    assert {name: after[name] for name in before} == before
    assert_same(copy, disk_states[0])
    assert len(result.metrics) == 4


# ---------------------------------------------------------------- other ways of stopping and going on

STATEFUL = {
    "space": {"algorithm": "space", "baseline": toward_one, "divergence_threshold": 0.05, "projection_kl_bound": 0.01},
    "d-pcpo": {"algorithm": "d-pcpo", "baseline": toward_one, "weight_schedule": "decay", "critic": "linear"},
    "pretrain": {"algorithm": "pretrain", "baseline": toward_one, "pretrain_updates": 2},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "space" else [pytest.mark.slow]) for name in STATEFUL]
)
def test_an_extended_run_equals_one_that_was_long_from_the_start(name, tmp_path):
    """With a baseline that is a Python function, which both ways of calling must be given."""
    settings = {**DRIFT, **STATEFUL[name], "checkpoint_every": 2}
    long = spacerl.train(out=tmp_path / "long", updates=5, **settings).folder
    grown = spacerl.train(out=tmp_path / "grown", updates=3, **settings).folder
    spacerl.resume(grown, updates=5, env=Drift(), baseline=toward_one, progress=False)
    assert_same(grown, long)
    column = "h_D" if name == "space" else "divergence_weight"
    assert len({row[column] for row in outcome(long)["metrics"]}) > 1, "the state must move, or it is not tested"


@pytest.mark.slow
def test_the_papers_batch_resumes_to_the_bit_as_well(tmp_path):
    """Large enough that the machine's cores share the work, whose sums must not depend on how they share it."""
    settings = {"algorithm": "space", "baseline": "reward", "projection_kl_bound": 0.005, "progress": False}
    whole = spacerl.train("point-circle", out=tmp_path / "whole", updates=6, **settings).folder
    grown = spacerl.train("point-circle", out=tmp_path / "grown", updates=3, **settings).folder
    spacerl.resume(grown, updates=6, progress=False)
    assert_same(grown, whole)


def interrupting(make_program, after: int):
    """In the place of what makes a program: the user presses Ctrl-C after so many updates."""

    def make(parts):
        program, calls = make_program(parts), iter(range(100))

        def step(state):
            if next(calls) == after:
                raise KeyboardInterrupt
            return program.step(state)

        return program._replace(step=step)

    return make


def test_an_interrupted_run_saves_its_state_and_goes_on(tmp_path, monkeypatch, disk_states):
    made = training.single_program

    settings = {**DRIFT, "out": tmp_path / "run", "updates": 4, "checkpoint_every": 2, "keep_checkpoints": 1}
    monkeypatch.setattr(training, "single_program", interrupting(made, after=3))
    with pytest.raises(KeyboardInterrupt, match=rf"the state after update 3 is saved, .*spacerl resume {tmp_path}/run"):
        spacerl.train(**settings)
    assert newest(tmp_path / "run").name == "update-000003.safetensors"
    assert rows_written(tmp_path / "run") == 3

    monkeypatch.setattr(training, "single_program", made)
    spacerl.resume(tmp_path / "run", env=Drift(), progress=False)
    assert_same(tmp_path / "run", disk_states[0])


def test_two_runs_of_one_seed_are_identical_and_another_seed_differs(tmp_path, disk_states):
    settings = {**DRIFT, "updates": 4, "checkpoint_every": 2, "keep_checkpoints": 1}
    again = spacerl.train(out=tmp_path / "again", **settings).folder
    assert_same(again, disk_states[0])
    other = spacerl.train(out=tmp_path / "other", seed=1, **settings).folder
    assert outcome(other)["metrics"][0] != outcome(again)["metrics"][0]
    assert outcome(other)["policy"] != outcome(again)["policy"]


def test_a_run_that_needs_python_objects_again_says_so(tmp_path, disk_states):
    with pytest.raises(InputError, match="use it in Python"):
        spacerl.resume(disk_states[0], progress=False)
    settings = {**DRIFT, **STATEFUL["space"], "updates": 1}
    folder = spacerl.train(out=tmp_path / "run", **settings).folder
    with pytest.raises(InputError, match=r"toward_one.*goes on in Python"):
        spacerl.resume(folder, updates=2, env=Drift(), progress=False)


def test_fewer_updates_than_done_are_refused_and_nothing_changes(tmp_path, disk_states):
    copy = shutil.copytree(disk_states[0], tmp_path / "copy")
    before = files_of(copy)
    with pytest.raises(InputError, match="updates is 2 and the run already has 4"):
        spacerl.resume(copy, updates=2, env=Drift(), progress=False)
    assert files_of(copy) == before


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_metrics_that_lost_rows_are_refused_and_nothing_changes(damage, tmp_path, disk_states):
    copy = shutil.copytree(disk_states[0], tmp_path / "copy")
    if damage == "cut":
        lines = (copy / "metrics.csv").read_text().splitlines(keepends=True)
        (copy / "metrics.csv").write_text("".join(lines[:3]))
    else:
        (copy / "metrics.csv").unlink()
    before = files_of(copy)
    with pytest.raises(InputError, match=r"metrics\.csv"):
        spacerl.resume(copy, updates=6, env=Drift(), progress=False)
    assert files_of(copy) == before


# ---------------------------------------------------------------- sweeps, in this process

DRIFT_SWEEP = {"updates": 4, "checkpoint_every": 2, "keep_checkpoints": 1, "seeds": (0, 1)}


@pytest.fixture(scope="module")
def drift_sweep(tmp_path_factory):
    """A sweep of two seeds that nothing stopped."""
    return spacerl.sweep(out=tmp_path_factory.mktemp("swept") / "sweep", **DRIFT, **DRIFT_SWEEP)


def test_an_interrupted_sweep_saves_the_state_of_every_run_and_says_so(tmp_path, monkeypatch, drift_sweep):
    made = sweeping.joint_program
    monkeypatch.setattr(sweeping, "joint_program", interrupting(made, after=3))
    told = "the state after update 3 is saved, continue with the same sweep command"
    with pytest.raises(KeyboardInterrupt, match=told):
        spacerl.sweep(out=tmp_path, **DRIFT, **DRIFT_SWEEP)
    for folder in drift_sweep:
        assert newest(tmp_path / folder.name).name == "update-000003.safetensors"
        assert rows_written(tmp_path / folder.name) == 3

    monkeypatch.setattr(sweeping, "joint_program", made)
    again = spacerl.sweep(out=tmp_path, **DRIFT, **DRIFT_SWEEP)
    assert [folder.name for folder in again] == [folder.name for folder in drift_sweep]
    for mine, other in zip(again, drift_sweep, strict=True):
        assert_same(mine, other)


def test_a_finished_sweep_called_again_changes_nothing(tmp_path, drift_sweep):
    copy = shutil.copytree(drift_sweep[0].parent, tmp_path / "copy")
    before = files_of(copy)
    spacerl.sweep(out=copy, **DRIFT, **DRIFT_SWEEP)
    assert files_of(copy) == before


# ---------------------------------------------------------------- told about every update


class Diary(spacerl.Sink):
    """Writes down what it is told, and asks for a stop after an update."""

    def __init__(self, stop_after: int = -1):
        self.stop_after, self.told = stop_after, []

    def start(self, run, done):
        self.told.append(("start", run.folder.name, done))

    def update(self, run, row):
        self.told.append(("update", run.folder.name, row["update"]))
        return row["update"] == self.stop_after

    def finish(self, run):
        self.told.append(("finish", run.folder.name))


SHORT = {"updates": 4, "checkpoint_every": 2, "keep_checkpoints": 1}


def test_a_function_gets_the_metrics_of_every_update(tmp_path, disk_states):
    told = []
    result = spacerl.train(out=tmp_path / "run", on_update=told.append, **DRIFT, **SHORT)
    assert_same(result.folder, disk_states[0])
    assert [(row.pop("run"), row.pop("seed")) for row in told] == [("run", 0)] * 4
    assert repr([{name: float(value) for name, value in row.items()} for row in told]) == repr(result.metrics)


def test_a_function_that_returns_true_stops_the_run_which_can_be_resumed(tmp_path, disk_states):
    told = []

    def enough(row):
        told.append(row["update"])
        return row["update"] == 2

    result = spacerl.train(out=tmp_path / "run", on_update=enough, **DRIFT, **SHORT)
    assert told == [0, 1, 2]
    assert len(result.metrics) == rows_written(tmp_path / "run") == 3
    assert newest(tmp_path / "run").name == "update-000003.safetensors"
    assert not RunFolder(tmp_path / "run").is_finished()
    spacerl.resume(tmp_path / "run", env=Drift(), on_update=enough, progress=False)
    assert told == [0, 1, 2, 3]
    assert_same(tmp_path / "run", disk_states[0])


def test_a_function_that_raises_leaves_the_state_saved(tmp_path, disk_states):
    def broken(row):
        if row["update"] == 2:
            raise ZeroDivisionError("the plot broke")

    with pytest.raises(ZeroDivisionError, match="the plot broke"):
        spacerl.train(out=tmp_path / "run", on_update=broken, **DRIFT, **SHORT)
    assert newest(tmp_path / "run").name == "update-000003.safetensors"
    assert rows_written(tmp_path / "run") == 3
    spacerl.resume(tmp_path / "run", env=Drift(), progress=False)
    assert_same(tmp_path / "run", disk_states[0])


def test_a_sink_is_told_of_start_updates_and_end(tmp_path, disk_states):
    diary, rest = Diary(stop_after=1), Diary()
    spacerl.train(out=tmp_path / "run", on_update=diary, **DRIFT, **SHORT)
    assert diary.told == [("start", "run", 0), ("update", "run", 0), ("update", "run", 1), ("finish", "run")]
    spacerl.resume(tmp_path / "run", env=Drift(), on_update=[rest], progress=False)
    assert rest.told == [("start", "run", 2), ("update", "run", 2), ("update", "run", 3), ("finish", "run")]
    assert_same(tmp_path / "run", disk_states[0])


def test_a_sink_is_told_of_every_run_of_a_sweep(tmp_path, drift_sweep):
    diary, rows = Diary(stop_after=2), []
    spacerl.sweep(out=tmp_path, on_update=[diary, rows.append], **DRIFT, **DRIFT_SWEEP)
    names = [folder.name for folder in drift_sweep]
    assert diary.told[:2] == [("start", name, 0) for name in names]
    assert diary.told[2:-2] == [("update", name, update) for update in range(3) for name in names]
    assert sorted(diary.told[-2:]) == [("finish", name) for name in names]
    assert [(row["run"], row["seed"], row["update"]) for row in rows] == [
        (name, seed, update) for update in range(3) for seed, name in enumerate(names)
    ]
    for name in names:
        assert newest(tmp_path / name).name == "update-000003.safetensors"
    spacerl.sweep(out=tmp_path, **DRIFT, **DRIFT_SWEEP)
    for folder in drift_sweep:
        assert_same(tmp_path / folder.name, folder)


def test_what_is_neither_function_nor_sink_is_refused(tmp_path):
    with pytest.raises(InputError, match="on_update is int: allowed is a function of a row, a Sink, or several"):
        spacerl.train(out=tmp_path / "run", on_update=[print, 3], **DRIFT)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- an algorithm of one's own


class Memory(NamedTuple):
    length: jnp.ndarray  # () of the next step


def timid(name: str = "timid", start: float = 0.01) -> spacerl.Algorithm:
    """Steps of plain gradient ascent, a little shorter every time."""

    def step(inputs: spacerl.StepInputs, state: Memory) -> spacerl.Proposal:
        return spacerl.Proposal(state.length * inputs.g / jnp.linalg.norm(inputs.g), info={"length": state.length})

    return spacerl.Algorithm(
        spacerl.Needs(cost=False, baseline=False),
        step,
        init=lambda costs, baseline: Memory(jnp.array(start)),
        control=lambda state, measured: Memory(0.9 * state.length),
        name=name,
    )


def test_an_algorithm_passed_as_a_value_trains_and_resumes_to_the_bit(tmp_path):
    settings = {**DRIFT, **SHORT, "algorithm": timid()}
    whole = spacerl.train(out=tmp_path / "whole", **settings)
    assert json.loads((whole.folder / "config.json").read_text())["algorithm"] == "own:timid"
    assert [row["length"] for row in whole.metrics] == pytest.approx([0.01 * 0.9**k for k in range(4)], rel=1e-5)

    folder = spacerl.train(out=tmp_path / "run", on_update=lambda row: row["update"] == 1, **settings).folder
    before = files_of(folder)
    with pytest.raises(InputError, match=r"algorithm 'own:timid' was passed as an object: this run goes on in Python"):
        spacerl.resume(folder, env=Drift(), progress=False)
    assert files_of(folder) == before
    spacerl.resume(folder, env=Drift(), algorithm=timid(), progress=False)
    assert_same(folder, whole.folder)
    report = spacerl.evaluate(folder, episodes=3, env=Drift())  # playing needs no algorithm
    assert report["episodes"] == 3


def test_an_algorithm_passed_as_a_value_has_no_options_by_name(tmp_path):
    with pytest.raises(InputError, match="pull-kl is not a setting of algorithm 'own:timid': it belongs to space"):
        spacerl.train(out=tmp_path / "run", **{**DRIFT, "algorithm": timid(), "pull_kl": 0.1})
    with pytest.raises(InputError, match=r"algorithm is int: allowed is a name or a spacerl\.Algorithm"):
        spacerl.train(out=tmp_path / "run", **{**DRIFT, "algorithm": 3})
    assert not (tmp_path / "run").exists()


def test_a_run_of_guarded_space_from_before_its_promises_changed_units_goes_on(tmp_path):
    small = {"algorithm": "space", "baseline": "near", "batch_size": 200, "hidden": (4,), "progress": False, "log": ()}
    folder = RunFolder(spacerl.train("point-circle", updates=2, out=tmp_path / "run", **small).folder)
    arrays, *_ = folder.checkpoint(2)
    young = ("algorithm.promise", "algorithm.shortfall", "algorithm.trust", "algorithm.cost.")
    young += ("algorithm.baseline_J_R",)
    old = {name: array for name, array in arrays.items() if not name.startswith(young)}
    old["algorithm.previous_J_D"] = old.pop("algorithm.nearest_J_D")
    one, costs = np.float32(1.0).reshape(()), np.ones(1, np.float32)
    old |= {f"algorithm.{name}": one for name in ("gained", "promised", "promised_gain", "due_gain")}
    old |= {"algorithm.promised_J_C": costs, "algorithm.due_J_C": costs, "algorithm.J_C_error": costs}
    old |= {"algorithm.goal": old.pop("algorithm.target_J_R"), "algorithm.faith": old.pop("algorithm.seek_kl")}
    folder.save_checkpoint(old, 2)
    result = spacerl.resume(folder.path, updates=4, progress=False)
    assert len(result.metrics) == 4
    # As it was: nothing is known of the last promise.
    assert result.metrics[2]["pull_kl_bound"] == pytest.approx(float(arrays["algorithm.seek_kl"]))


def test_a_lagrangian_run_whose_multipliers_had_units_is_refused_in_a_sentence(tmp_path):
    small = {"algorithm": "trpo-lagrangian", "batch_size": 200, "hidden": (4,), "progress": False, "log": ()}
    folder = RunFolder(spacerl.train("point-circle", updates=1, out=tmp_path / "run", **small).folder)
    arrays, *_ = folder.checkpoint(1)
    gone = ("algorithm.integral", "algorithm.error", "algorithm.weights")
    folder.save_checkpoint({name: array for name, array in arrays.items() if name not in gone}, 1)
    with pytest.raises(InputError, match="multipliers in reward per unit of cost"):
        spacerl.resume(folder.path, updates=2, progress=False)
