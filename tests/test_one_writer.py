"""One process writes to a run; what others left half done is removed; damaged files are named and never built upon."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spacerl
from spacerl.cli.main import main
from spacerl.runs.config import require_new_folder
from spacerl.runs.folder import RunFolder
from spacerl.runs.lock import LOCK, is_locked, sole_writer
from spacerl.runs.records import read_run
from spacerl.training.reproduce import reproduce
from spacerl.training.sinks import Sink
from spacerl.types import InputError, RunInterrupted, RunStopped
from support.runs import assert_same, contents, outcome, rows_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = {"algorithm": "pcpo", "batch_size": 100, "hidden": (4,), "progress": False, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of eight updates with checkpoints of 4, 6 and 8."""
    return spacerl.train("point-circle", updates=8, out=tmp_path_factory.mktemp("whole") / "run", **SMALL).folder


@pytest.fixture
def run(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole, Path("run"))


# ---------------------------------------------------------------- one writer


def test_a_second_writer_is_told_who_writes_and_changes_nothing(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with sole_writer(run):
        with pytest.raises(InputError, match=f"'run' is being written by process {os.getpid()} on .*, since 20"):
            spacerl.resume(run, updates=9, progress=False)
        with pytest.raises(InputError, match="is being written by process"):
            spacerl.sweep("point-circle", seeds=[0], updates=1, out=run, **SMALL)
    settings = SMALL | {"algorithm": "space"}
    with sole_writer(Path("rounds")), pytest.raises(InputError, match="is being written by process"):
        spacerl.iterate(1, "point-circle", baseline="near", updates=1, out="rounds", **settings)
    with sole_writer(Path("all/point-circle")), pytest.raises(InputError, match="is being written by process"):
        reproduce("point-circle", Path("all"), 1, (0,), 1)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_lock_is_released_by_death(run):
    script = (
        "import sys, time; from pathlib import Path; from spacerl.runs.lock import sole_writer\n"
        "with sole_writer(Path('run')): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_locked(run)
        with pytest.raises(InputError, match=f"process {process.pid} on"), sole_writer(run):
            pass
    finally:
        process.kill()
        process.communicate()
    assert not is_locked(run)
    with sole_writer(run):
        assert (run / LOCK).exists()
    assert not (run / LOCK).exists()


def test_a_lock_makes_its_folder_and_takes_it_away_when_nothing_was_put_there(tmp_path):
    with sole_writer(tmp_path / "a" / "b"):
        assert is_locked(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    with sole_writer(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert (tmp_path / "a" / "b" / "kept").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_one_sentence(run):
    run.chmod(0o500)
    try:
        with pytest.raises(InputError, match="'run' cannot be written: Permission denied"):
            spacerl.resume(run, updates=9, progress=False)
    finally:
        run.chmod(0o700)


def test_what_killed_writes_left_is_removed_by_the_next_start(run):
    for left in (".metrics.csv.abc.tmp", "checkpoints/.update-000009.safetensors.x.tmp"):
        (run / left).write_text("half")
    spacerl.resume(run, updates=9, progress=False)
    assert not list(run.rglob("*.tmp"))
    Path(".new.xyz.tmp").mkdir()
    Path(".new.xyz.tmp/config.json").write_text("half")
    with sole_writer(Path(".new.held.tmp")):  # of somebody who is still at it
        spacerl.train("point-circle", updates=1, out="new", **SMALL)
        assert Path(".new.held.tmp").exists()
    assert not Path(".new.xyz.tmp").exists()


def test_a_folder_with_nothing_but_leftovers_is_a_new_one(tmp_path):
    for left in (LOCK, ".round-1.abc.tmp"):
        (tmp_path / left).touch()
    require_new_folder(tmp_path)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match="exists and is not empty"):
        require_new_folder(tmp_path)


# ---------------------------------------------------------------- checkpoints


def flipped(path: Path) -> None:
    """One bit of a number, in a file that is whole otherwise."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(bytes(content))


def test_a_flipped_bit_is_named_and_the_checkpoint_before_it_used(run, whole, capsys):
    flipped(run / "checkpoints" / "update-000008.safetensors")
    spacerl.resume(run, progress=False)
    told = capsys.readouterr().err
    assert "update-000008.safetensors' is damaged: its content is not what was written" in told
    assert "goes on from update 6" in told
    assert_same(run, whole)
    assert (run / "checkpoints" / "update-000008.safetensors.unused").exists()


def test_where_every_checkpoint_is_damaged_nothing_is_changed(run):
    for path in (run / "checkpoints").iterdir():
        flipped(path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"update-000008.safetensors' is damaged"):
        spacerl.resume(run, updates=9, progress=False)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("setting", "value"), [("delta", 0.5), ("seed", 7), ("projection", "l2")])
def test_a_checkpoint_of_other_settings_is_foreign(setting, value, run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {setting: value}))
    with pytest.raises(InputError, match=f"is of a run with {setting} .*, and config.json says {value!r}"):
        spacerl.resume(run, progress=False)


def test_how_a_run_is_kept_may_be_changed(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"keep_checkpoints": 1, "updates": 9}))
    assert len(spacerl.resume(run, progress=False).metrics) == 9


def test_a_checkpoint_of_an_earlier_version_has_no_hash_and_goes_on(run, whole):
    path = run / "checkpoints" / "update-000006.safetensors"
    save_file(load_file(path), path, {"format": "spacerl-checkpoint-1", "update": "6"})
    (run / "checkpoints" / "update-000008.safetensors").unlink()
    (run / "environment.json").unlink()
    spacerl.resume(run, progress=False)
    assert_same(run, whole)


def test_the_newest_of_a_million_checkpoints_is_kept(tmp_path):
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    for update in (999_998, 999_999, 1_000_000, 1_000_001):
        folder.save_checkpoint({"x": np.zeros(1)}, update)
    folder.remove_old_checkpoints(2)
    assert folder.checkpoint_updates() == [1_000_000, 1_000_001]


# ---------------------------------------------------------------- metrics


def damaged(run: Path, change) -> None:
    path = run / "metrics.csv"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(change(lines)))


def other_number(line: bytes) -> bytes:
    """J_R of a row of metrics is one more."""
    cells = line.split(b",")
    cells[2] = repr(float(cells[2]) + 1.0).encode()
    return b",".join(cells)


DAMAGES = {  # what is done to the lines, of which the first is the header; and from which update the run can go on
    "the last rows are lost": (lambda lines: [*lines[:7], b""], 6),
    "a row is cut": (lambda lines: [*lines[:7], lines[7][:20], lines[8], b""], 6),
    "a row is there twice": (lambda lines: [*lines[:7], lines[6], *lines[7:]], 6),
    "rows have changed places": (lambda lines: [*lines[:6], lines[7], lines[6], *lines[8:]], 4),
    "a row is no text": (lambda lines: [*lines[:7], b"\xff\xfe" + lines[7], *lines[8:]], 6),
    "a number is none": (lambda lines: [*lines[:8], lines[8].replace(b"0.", b"o.", 1), b""], 6),
    "a number is another one": (lambda lines: [*lines[:7], other_number(lines[7]), *lines[8:]], 6),
    "nothing is lost but the last line break": (lambda lines: lines[:9], 6),
    "an early row is lost": (lambda lines: [lines[0], *lines[2:]], None),
    "the header is lost": (lambda lines: lines[1:], None),
    "it is empty": (lambda lines: [b""], None),
    "it holds zeros": (lambda lines: [b"\0" * 500], None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_never_goes_on_after_a_broken_history(damage, run, whole, capsys):
    change, go_on = DAMAGES[damage]
    damaged(run, change)
    if go_on is None:
        with pytest.raises(InputError, match=r"'run/metrics.csv' has fewer whole rows \(0\) than its checkpoint"):
            spacerl.resume(run, progress=False)
        return
    spacerl.resume(run, progress=False)
    assert f"goes on from update {go_on}" in capsys.readouterr().err
    assert_same(run, whole)


CHANGES = {
    "a number of an early row": lambda lines: [lines[0], other_number(lines[1]), *lines[2:]],
    "a number became none": lambda lines: [lines[0], lines[1].replace(lines[1].split(b",")[2], b"nan", 1), *lines[2:]],
    "the name of a column": lambda lines: [lines[0].replace(b"J_D", b"-1", 1), *lines[1:]],
    "the name of a column of measured seconds": lambda lines: [lines[0].replace(b"_collect", b"_colxect"), *lines[1:]],
    "columns changed places": lambda lines: [lines[0].replace(b"J_R,J_C", b"J_C,J_R", 1), *lines[1:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_number_is_noticed_and_may_be_accepted(change, run, capsys):
    damaged(run, CHANGES[change])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main_of(["resume", str(run), "--updates", "9", "--quiet"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "'run/metrics.csv' is not the table that was written: a number or the name of a column was changed" in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert "spacerl resume run --accept-metrics" in told
    assert main_of(["resume", str(run), "--updates", "9", "--quiet", "--accept-metrics"]) == 0
    changed = (run / "metrics.csv").read_bytes().split(b"\n")
    assert changed[1].startswith(before[run / "metrics.csv"].split(b"\n")[1]), "rows stay as they were accepted"
    spacerl.resume(run, updates=10, progress=False)  # what was accepted is what is expected from then on
    assert len(RunFolder(run).metrics()) == 10


def test_other_spellings_and_measured_seconds_are_no_changes(run):
    path = run / "metrics.csv"
    with open(path, newline="") as file:
        header, *rows = list(csv.reader(file))
    for row in rows:
        row[header.index("seconds_update")] = "0.5"
        row[header.index("J_R")] = f"{float(row[header.index('J_R')]):.20e}"
    path.write_text("".join(",".join(row) + "\n" for row in [header, *rows]))
    assert len(spacerl.resume(run, updates=9, progress=False).metrics) == 9


# ---------------------------------------------------------------- evaluations


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run of six updates that was evaluated after 2, 4 and 6 and has checkpoints of the same."""
    settings = SMALL | {"evaluate_every": 2, "evaluation_episodes": 2, "log": ()}
    return spacerl.train("point-circle", updates=6, out=tmp_path_factory.mktemp("evaluated") / "run", **settings).folder


def evaluations_of(run: Path) -> str:
    return (run / "evaluations.csv").read_text()


BROKEN_EVALUATIONS = {
    "a row is lost": lambda lines: [lines[0], *lines[2:]],
    "a number is another one": lambda lines: [lines[0], other_number(lines[1]), *lines[2:]],
    "a number is none": lambda lines: [lines[0], lines[1].replace(b".", b"o"), *lines[2:]],
    "the name of a column": lambda lines: [lines[0].replace(b"J_R,J_C", b"J_C,J_R"), *lines[1:]],
    "the header is lost": lambda lines: lines[1:],
    "it is empty": lambda lines: [b""],
    "it is no text": lambda lines: [b"\xff\xfe\0" * 100],
}


@pytest.mark.parametrize("damage", BROKEN_EVALUATIONS)
def test_a_run_never_goes_on_after_broken_evaluations(damage, evaluated, tmp_path, capsys):
    """The best policy is the best of them: where one is lost, a worse policy would take its place."""
    run = shutil.copytree(evaluated, tmp_path / "run")
    path = run / "evaluations.csv"
    path.write_bytes(b"\n".join(BROKEN_EVALUATIONS[damage](path.read_bytes().split(b"\n"))))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main_of(["resume", str(run), "--updates", "8", "--quiet"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"'{path}' is not the table that was written: up to update 6 a row is missing" in told
    assert "--accept-metrics" in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_evaluations_that_were_lost_are_refused_or_accepted(evaluated, tmp_path):
    run = shutil.copytree(evaluated, tmp_path / "run")
    (run / "evaluations.csv").unlink()
    with pytest.raises(InputError, match=r"evaluations\.csv' is not the table that was written"):
        spacerl.resume(run, updates=8, progress=False)
    spacerl.resume(run, updates=8, progress=False, accept_metrics=True)
    assert [row["update"] for row in RunFolder(run).evaluations()] == [6, 8]
    spacerl.resume(run, updates=10, progress=False)  # what was accepted is what is expected from then on
    assert [row["update"] for row in RunFolder(run).evaluations()] == [6, 8, 10]


@pytest.mark.parametrize(
    "damage", ["the last row is lost", "it is cut", "a row is there twice", "rows have changed places"]
)
def test_evaluations_that_can_be_made_again_are(damage, evaluated, tmp_path):
    run, whole = (shutil.copytree(evaluated, tmp_path / name) for name in ("run", "whole"))
    *lines, _ = evaluations_of(run).splitlines(keepends=True)
    changed = {
        "it is cut": [*lines, "6,60"],
        "a row is there twice": [*lines, lines[2]],
        "rows have changed places": [lines[0], lines[2], lines[1]],
    }
    (run / "evaluations.csv").write_text("".join(changed.get(damage, lines)))
    for each in (run, whole):
        spacerl.resume(each, updates=8, progress=False, log=())
    assert_same(run, whole)
    assert evaluations_of(run) == evaluations_of(whole)
    assert contents(run / "best.safetensors") == contents(whole / "best.safetensors")


def test_an_evaluation_that_came_after_its_checkpoint_is_no_change(evaluated, tmp_path):
    """A run that is stopped while it is evaluated is evaluated when it goes on, and may then be killed at once."""
    run = shutil.copytree(evaluated, tmp_path / "run")
    path, table = run / "evaluations.csv", evaluations_of(run)
    path.write_text("".join(table.splitlines(keepends=True)[:-1]))
    folder = RunFolder(run)
    kept = folder.checkpoint(6)
    folder.save_checkpoint(kept.arrays, 6, kept.settings, kept.rows_hash)
    path.write_text(table)
    spacerl.resume(run, updates=8, progress=False)
    assert [row["update"] for row in folder.evaluations()] == [2, 4, 6, 8]


def main_of(arguments: list[str]) -> int:
    """The exit code of a command."""
    try:
        main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_rows_that_another_sink_failed_at_are_written_again(run, whole):
    """The table has a row more than the state that is then saved."""

    class Failing(Sink):
        durable = True

        def update(self, run, row):
            if row["update"] == 8:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spacerl.resume(run, updates=9, progress=False, on_update=Failing())
    assert len(rows_of(run)) == 9
    grown = shutil.copytree(whole, Path("grown"))
    spacerl.resume(run, progress=False)
    spacerl.resume(grown, updates=9, progress=False)
    assert_same(run, grown)


def test_a_run_of_an_earlier_version_gets_the_columns_of_this_one(run):
    for update in (4, 6, 8):  # its checkpoints know of no table
        folder = RunFolder(run)
        kept = folder.checkpoint(update)
        folder.save_checkpoint(kept.arrays, update, kept.settings)
    path = run / "metrics.csv"
    lines = [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    spacerl.resume(run, updates=9, progress=False)
    rows = RunFolder(run).metrics()
    last = list(rows[0])[-1]
    assert len(rows) == 9
    assert np.isnan(rows[7][last])
    assert np.isfinite(rows[8][last])


FILES = ("config.json", "versions.json", "baseline.json", "trajectories.json", "metrics.csv", "environment.json")
BYTES = {
    "no text": b"\xff\xfe\x00\x01" * 30,
    "half a character": b'{"name": "\\ud800", "task": "\\udfff", "policies": [], "arena": {}}',
    "a huge number": b'{"J_R": 1' + b"0" * 400 + b', "name": "x"}',
    "a number of thousands of digits": b'{"J_R": 1' + b"0" * 5000 + b"}",
    "endless brackets": b"[" * 100_000,
    "a list": b"[1, 2]",
    "nothing": b"",
    "zeros": b"\0" * 100,
    "a quote that never ends": b'update,J_R\n"' + b"0," * 100_000,
}


@pytest.mark.parametrize("content", BYTES)
@pytest.mark.parametrize("name", FILES)
def test_every_file_has_one_reader_with_one_sentence(name, content, run, tmp_path):
    (run / name).write_bytes(BYTES[content])
    uses = [lambda: read_run(run), RunFolder(run).config, RunFolder(run).history, RunFolder(run).environment]
    if content in ("half a character", "a huge number"):  # a page takes its time, and reads no other way
        uses.append(lambda: spacerl.report([run], out=tmp_path / "page.html"))
    for use in uses:
        with contextlib.suppress(InputError):
            use()


# ---------------------------------------------------------------- disks


def test_a_folder_that_is_removed_while_the_run_goes_on_is_one_sentence(run):
    def remove(row):
        shutil.rmtree(run)

    with pytest.raises(RunStopped, match="run folder 'run' is gone: it was removed or moved") as stop:
        spacerl.resume(run, updates=12, progress=False, log=(), on_update=remove)
    assert "\n" not in str(stop.value)


def test_what_lies_where_a_run_was_moved_from_is_left_alone(run):
    """Somebody moves the folder, and another process begins a run of the same name."""
    others = sole_writer(run)

    def replace(row):
        run.rename("moved")
        shutil.copytree("moved", run, ignore=shutil.ignore_patterns(LOCK))
        others.__enter__()

    with pytest.raises(RunStopped, match="run folder 'run' is gone: it was removed or moved"):
        spacerl.resume(run, updates=12, progress=False, log=(), on_update=replace)
    assert is_locked(run)
    with pytest.raises(InputError, match="is being written by process"):
        spacerl.resume(run, updates=12, progress=False, log=())
    others.__exit__(None, None, None)
    assert RunFolder(run).checkpoint_updates()[-1] == 8
    assert len(rows_of(run)) == len(rows_of(Path("moved"))) == 9  # the row of the update in which it was moved


def test_evaluations_that_cannot_be_written_are_one_sentence(run):
    settings = SMALL | {"evaluate_every": 2, "evaluation_episodes": 2}

    def spoil(row):
        Path("other/evaluations.csv").mkdir(exist_ok=True)

    with pytest.raises(
        RunStopped, match=r"evaluations.csv' cannot be written: Is a directory; the state after"
    ) as stop:
        spacerl.train("point-circle", updates=4, out="other", log=(), on_update=spoil, **settings)
    assert "spacerl resume other" in str(stop.value)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(run, whole, monkeypatch):
    """The disk fills up in the midst of a checkpoint: the one before it is whole, and half of one is none."""
    (run / "checkpoints" / "update-000008.safetensors").unlink()
    real = os.fsync

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fills(row):
        monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(RunStopped, match="No space left on device; the state after update 6 is saved") as stop:
        spacerl.resume(run, progress=False, log=(), on_update=fills)
    assert "spacerl resume run" in str(stop.value)
    monkeypatch.setattr(os, "fsync", real)
    assert not list(run.rglob("*.tmp"))
    spacerl.resume(run, progress=False)
    assert_same(run, whole)


# ---------------------------------------------------------------- signals


def test_signals_that_stop_a_container_save_and_stop(tmp_path, quick_environment):
    options = "--algorithm pcpo --batch-size 100 --hidden 4 --updates 100000 --quiet"
    command, out = f"train point-circle {options} --out {tmp_path / 'run'}", tmp_path / "run" / "metrics.csv"
    for number in (signal.SIGTERM, signal.SIGHUP):
        process = subprocess.Popen(
            [sys.executable, "-m", "spacerl", *command.split()],
            env=quick_environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        rows = len(rows_of(out.parent)) if out.exists() else 0
        while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < rows + 4):
            time.sleep(0.01)
        process.send_signal(number)
        try:
            told = process.communicate(timeout=60)[1]
        finally:
            process.kill()
        done = RunFolder(out.parent).newest_update()
        assert process.returncode == 128 + number, told
        assert f"interrupted; the state after update {done} is saved, continue with" in told
        assert len(rows_of(out.parent)) == done > rows
        command = f"resume {tmp_path / 'run'} --quiet"


def test_an_interrupt_before_the_first_update_says_that_nothing_is_learned(run, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("spacerl.training.loop.one_update", interrupted)
    with pytest.raises(RunInterrupted, match="nothing is learned before the first update, continue with"):
        spacerl.train("point-circle", updates=1, out="new", **SMALL)
    with pytest.raises(RunInterrupted, match="the state after update 8 is saved"):
        spacerl.resume(run, updates=9, progress=False)


def test_the_second_interrupt_leaves_at_once_also_where_the_first_must_wait():
    script = (
        "import time; from spacerl.training.signals import stoppable, undisturbed\n"
        "with stoppable(), undisturbed():\n    print('in', flush=True)\n    time.sleep(30)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.6)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert "left at once" in process.communicate(timeout=10)[1]
    assert process.returncode == 130


@pytest.mark.parametrize("thrown_away_by", ["a callback of the garbage collector", "__del__", "both"])
def test_an_interrupt_that_python_throws_away_is_raised_again(thrown_away_by):
    script = (
        "import gc, signal, time; from spacerl.training.signals import stoppable\n"
        "class Late:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)\n"
        "def collected(phase, info):\n    gc.callbacks.clear()\n    signal.raise_signal(signal.SIGINT)\n"
        "try:\n    with stoppable():\n"
    )
    script += "        gc.callbacks.append(collected); gc.collect()\n" if thrown_away_by != "__del__" else ""
    script += "        late = Late(); del late\n" if thrown_away_by[0] != "a" else ""
    script += "        time.sleep(20); print('went on')\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)
    assert time.monotonic() - before < 15


def test_signals_that_are_ignored_stay_ignored(monkeypatch):
    from spacerl.training.signals import stoppable

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sweep_goes_on_from_an_update_that_all_of_its_runs_have_whole(tmp_path, capsys):
    def sweep(out):
        return spacerl.sweep("point-circle", seeds=[0, 1], updates=6, out=out, **SMALL)

    expected = sweep(tmp_path / "whole")
    folders = sweep(tmp_path / "broken")
    flipped(folders[0] / "checkpoints" / "update-000006.safetensors")
    damaged(folders[1], lambda lines: [*lines[:4], b""])
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        assert config["updates"] == 6
    (folders[1] / "checkpoints" / "update-000006.safetensors").unlink()
    sweep(tmp_path / "broken")
    assert "goes on from update 2" in capsys.readouterr().err
    for mine, other in zip(folders, expected, strict=True):
        assert outcome(mine) == outcome(other)


# ---------------------------------------------------------------- links and pipes


@pytest.mark.parametrize("name", [LOCK, "metrics.csv", "evaluations.csv", "faults.log", "checkpoints", "events"])
def test_nothing_is_written_through_a_link_of_a_strangers_folder(name, run, tmp_path):
    """A lock is emptied, rows are appended, checkpoints are removed: none of it where a link leads."""
    theirs, mine = run / name, tmp_path / "mine"
    if theirs.is_dir():
        mine = Path(shutil.move(theirs, mine))
    else:
        mine.write_text("precious")
        theirs.unlink(missing_ok=True)
    theirs.symlink_to(mine)
    before = {path: path.read_bytes() for path in [mine, *mine.rglob("*")] if path.is_file()}
    with pytest.raises(InputError, match=f"run/{name}' is a link to .*mine', and nothing is written through links"):
        spacerl.resume(run, updates=9, progress=False)
    assert {path: path.read_bytes() for path in [mine, *mine.rglob("*")] if path.is_file()} == before


def test_runs_of_a_sweep_may_lie_elsewhere(tmp_path):
    (folder,) = spacerl.sweep("point-circle", seeds=[0], updates=2, out=tmp_path / "sweep", **SMALL)
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert spacerl.sweep("point-circle", seeds=[0], updates=2, out=tmp_path / "sweep", **SMALL) == [folder]


@pytest.mark.parametrize("name", ["metrics.csv", "evaluations.csv", "checkpoints/update-000008.safetensors"])
def test_a_pipe_in_a_strangers_folder_holds_nobody_up(name, run):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for use in (lambda: read_run(run), lambda: spacerl.resume(run, progress=False), RunFolder(run).evaluations):
        with contextlib.suppress(InputError):
            use()


@pytest.mark.parametrize("content", ['{"programs": [[[0.5]]]}', '{"programs": [3]}', '{"programs": 3}', "[]", "{}"])
def test_a_record_of_a_sweep_that_is_damaged_is_one_sentence(content, tmp_path):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(InputError, match=r"does not hold lists of runs|must hold a JSON object"):
        spacerl.sweep("point-circle", seeds=[0], updates=1, out=tmp_path, **SMALL)


def test_costs_of_a_baseline_that_are_no_costs_are_left_out(run):
    (run / "baseline.json").write_text('{"name": "x", "J_R": 1.0, "costs": {"walls": "x", "bombs": {"J_C": 2.0}}}')
    summary = read_run(run).baseline
    assert summary is not None
    assert summary.costs == {"bombs": 2.0}
