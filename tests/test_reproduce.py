"""Named experiments: their commands parse, and their tables say what the runs say."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import spacerl
from spacerl.cli.main import parse
from spacerl.cli.training import Sweep
from spacerl.runs.folder import RunFolder
from spacerl.training.reproduce import (
    EXPERIMENTS,
    Setting,
    best_of,
    collected,
    commands,
    markdown_table,
    reproduce,
    summarise,
)
from spacerl.training.settings import resolve
from spacerl.types import InputError


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_command_is_one_the_command_line_takes(experiment, tmp_path):
    lines = commands(experiment, tmp_path, 7, (3, 4), batch_size=600)
    settings = [parse(line) for line in lines]
    for setting in settings:
        assert isinstance(setting, Sweep)
        assert setting.seeds == (3, 4)
        arguments = setting.arguments()
        assert (arguments["updates"], arguments["batch_size"]) == (7, 600)
        how = ("env", "out", "trust", "log", "progress")
        settings_given = {name: value for name, value in arguments.items() if name not in how}
        for baseline in setting.baselines or (None,):
            draft = resolve(settings_given | {"baseline": baseline})
            assert draft.config(spacerl.make_env(draft.task).spec).settings()["updates"] == 7
    assert len({setting.out for setting in settings}) == len(lines)


def test_an_unknown_experiment_is_named(tmp_path):
    with pytest.raises(InputError, match=r"'point-circel'.*did you mean 'point-circle'"):
        commands("point-circel", tmp_path, 1, (0,))


def fake_run(folder, seed: int, offset: float) -> None:
    draft = resolve({"task": "point-circle", "algorithm": "pcpo", "seed": seed, "updates": 12})
    config = draft.config(spacerl.make_env("point-circle").spec)
    with RunFolder.created(folder, config, {}) as made:
        for k in range(12):
            row = {"update": k, "J_R": k + offset, "J_C": 5.0, "h_C": 5.0, "cumulative_violation": 0.5 * k}
            made.append_metrics({name: float(value) for name, value in row.items()})


def test_a_table_has_means_and_intervals_over_seeds(tmp_path):
    for seed, offset in ((0, 0.0), (1, 2.0)):
        fake_run(tmp_path / "point-circle" / "pcpo" / f"seed{seed}", seed, offset)
    curves = collected(tmp_path / "point-circle")
    assert curves["pcpo", "none"].shape == (2, 12, 6)
    row = markdown_table(curves).splitlines()[-1]
    # J_R at update 10 is 10 and 12; the last ten updates average 6.5 and 8.5, half the interval is 12.7.
    assert [cell.strip() for cell in row.split("|")[1:5]] == ["pcpo", "none", "2", "11.00"]
    assert "7.50 ± 13" in row
    table, picture = summarise("point-circle", tmp_path)
    assert table.read_text().endswith(row + "\n")
    assert picture.read_bytes()[1:4] == b"PNG"
    assert np.all(curves["pcpo", "none"][:, -1, 2] == 5.5)


def test_what_is_finished_is_left_alone(tmp_path, monkeypatch):
    settings = [Setting("done", ("--algorithm", "pcpo")), Setting("begun", ("--algorithm", "trpo"))]
    monkeypatch.setitem(EXPERIMENTS, "two", ("point-circle", lambda: settings))
    for setting, saved in (("done", 12), ("begun", 10)):
        for seed in (0, 1):
            folder = tmp_path / "point-circle" / setting / f"seed{seed}"
            fake_run(folder, seed, 0.0)
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "checkpoints" / f"update-{saved:06d}.safetensors").touch()
    asked = []
    monkeypatch.setattr(subprocess, "Popen", lambda line: asked.append(line) or SimpleNamespace(wait=lambda: 0))
    assert reproduce("two", tmp_path, 12, (0, 1), jobs=1) == [tmp_path / "point-circle" / "begun"]
    assert [line[line.index("--algorithm") + 1] for line in asked] == ["trpo"]
    asked.clear()
    # Other numbers of updates or of seeds are other experiments: the sweep says what is wrong, or adds what is missing.
    assert len(reproduce("two", tmp_path, 13, (0, 1), jobs=2)) == len(reproduce("two", tmp_path, 12, (0, 1, 2), 1)) == 2


def test_a_setting_is_shown_at_the_trust_region_that_is_best_for_it():
    """The most reward of those that keep the limit of 5, as far as two seeds can tell."""

    def curve(J_R, J_C):
        return np.full((2, 12, 6), (J_R, J_C, 0.0, 0.0, 0.0, 0.0)) + np.array([-0.1, 0.1])[:, None, None]

    curves = {
        ("pcpo@0.0001", "none"): curve(1.0, 4.0),
        ("pcpo@0.001", "none"): curve(2.0, 4.9),
        ("pcpo@0.01", "none"): curve(3.0, 9.0),
        ("pcpo-l2@0.01", "none"): curve(8.0, 4.0),
        ("cpo@0.001", "none"): curve(2.0, 8.0),
        ("cpo@0.01", "none"): curve(3.0, 9.0),
    }
    assert best_of(curves, "pcpo", "none", 5.0) == "pcpo@0.001"
    assert best_of(curves, "cpo", "none", 5.0) == "cpo@0.001"
    assert best_of(curves, "cpo", "near", 5.0) is None


WAITING = r"""
import subprocess, sys
from spacerl.training.reproduce import run_side_by_side
from spacerl.training.signals import stoppable

CHILD = r'''
import os, signal, time
def saved(number, frame):
    os.write(1, b"saved after SIGTERM\n")
    raise SystemExit(3)
signal.signal(signal.SIGTERM, saved)
os.write(1, b"at work\n")
time.sleep(60)
os.write(1, b"done\n")
'''

with stoppable():
    run_side_by_side([[], [], []], 2, lambda line: subprocess.Popen([sys.executable, "-c", CHILD]))
"""


def test_a_signal_reaches_the_commands_that_run_and_no_other_begins():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=50)  # and not the minute that they would take
    assert said == ["at work\n"] * 2
    assert rest == "saved after SIGTERM\n" * 2
    assert "Interrupt: SIGTERM" in errors
