"""A run killed at any instant and resumed ends like one never interrupted, bit for bit.

Two kinds of proof: real processes killed by SIGKILL at random moments, and one run whose folder is copied before every
file operation, so that each state the disk ever had is resumed from. Wall-clock columns are measurements and are left
out of every comparison.
"""

from __future__ import annotations

import csv
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
from safetensors import safe_open

import spacerl
from spacerl import training
from spacerl.config import InputError
from spacerl.types import ActionSpace
from test_training import quick_compilation, quick_environment  # noqa: F401

MEASURED = ("seconds_collect", "seconds_update")


# ---------------------------------------------------------------- what must be equal


def contents(path: Path) -> dict[str, bytes]:
    """A safetensors file as bytes by name. (The order of its metadata varies from one write to the next.)"""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = {name: f"{a.dtype}{a.shape}".encode() + a.tobytes() for name, a in arrays.items()}
        return described | {f"metadata {key}": value.encode() for key, value in file.metadata().items()}


def newest(folder: Path) -> Path:
    return max(folder.glob("checkpoints/update-*.safetensors"))


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run leaves that is not a measurement or a date; texts as written, so equality is bit for bit."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{key: text for key, text in row.items() if key not in MEASURED} for row in csv.DictReader(file)]
    return {
        "metrics": rows,
        "last checkpoint": newest(folder).name,
        "checkpoint": contents(newest(folder)),
        "policy": contents(folder / "policy.safetensors"),
        "config": json.loads((folder / "config.json").read_text()),
    }


def assert_same(resumed: Path, uninterrupted: Path) -> None:
    mine, other = outcome(resumed), outcome(uninterrupted)
    for part in mine:
        assert mine[part] == other[part], f"{part} differs"


# ---------------------------------------------------------------- real processes, really killed

UPDATES = 150
SPACE = (
    f"train point-circle --algorithm space --baseline reward --batch-size 100 --hidden 4 --updates {UPDATES} "
    "--checkpoint-every 3 --keep-checkpoints 2 --quiet"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return quick_environment(tmp_path_factory.getbasetemp() / "programs")


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


def rows_written(folder: Path) -> int:
    path = folder / "metrics.csv"
    return max(0, len(path.read_bytes().splitlines()) - 1) if path.exists() else 0


def test_killed_at_random_moments_ends_like_never_interrupted(tmp_path, environment):
    chance = random.Random(20)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(f"{SPACE} --out {whole}", environment))
    assert rows_written(whole) == UPDATES

    process = start(f"{SPACE} --out {broken}", environment)
    kills = [kill_when(process, (broken / "policy.safetensors").exists, 0.0)]  # before the first update
    for rows in sorted(chance.sample(range(2, UPDATES - 40), 3)):
        process = start(f"resume {broken} --quiet", environment)
        kills.append(kill_when(process, lambda rows=rows: rows_written(broken) >= rows, chance.uniform(0.0, 0.03)))
        assert rows_written(broken) >= rows
    assert sum(kills) >= 3, "the processes ended before they could be killed: make the run longer"
    finish(start(f"resume {broken} --quiet", environment))

    assert_same(broken, whole)
    for name in ("baseline.json", "trajectories.json"):
        assert (broken / name).read_text() == (whole / name).read_text()
    radii = {row["h_D"] for row in outcome(whole)["metrics"]}
    assert len(radii) > 2, "h_D must move, or its part of the state is not tested"


# ---------------------------------------------------------------- every state the disk ever had


class Drift(NamedTuple):
    """A point pushed along a line; far from the origin it costs, very far it ends the episode. No picture of it."""

    name: str = "drift"
    obs_shape: tuple[int, ...] = (2,)
    action_space: ActionSpace = ActionSpace("box", 1)
    horizon: int = 6
    cost_names: tuple[str, ...] = ("far",)

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


def test_an_interrupted_run_saves_its_state_and_goes_on(tmp_path, monkeypatch, disk_states):
    made = training.make_stepper

    def interrupted(parts):
        step, calls = made(parts), iter(range(100))

        def stepper(state):
            if next(calls) == 3:
                raise KeyboardInterrupt
            return step(state)

        return stepper

    settings = {**DRIFT, "out": tmp_path / "run", "updates": 4, "checkpoint_every": 2, "keep_checkpoints": 1}
    monkeypatch.setattr(training, "make_stepper", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spacerl.train(**settings)
    assert newest(tmp_path / "run").name == "update-000003.safetensors"
    assert rows_written(tmp_path / "run") == 3

    monkeypatch.setattr(training, "make_stepper", made)
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
    with pytest.raises(InputError, match="pass it as env="):
        spacerl.resume(disk_states[0], progress=False)
    settings = {**DRIFT, **STATEFUL["space"], "updates": 1}
    folder = spacerl.train(out=tmp_path / "run", **settings).folder
    with pytest.raises(InputError, match=r"toward_one.*pass it as baseline="):
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
