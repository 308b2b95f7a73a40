"""Run folders as they are read: whole, half-written, damaged, resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from spacerl.reporting import write_report
from spacerl.runs.folder import RunFolder, is_reportable, is_run, write_arrays
from spacerl.runs.records import read_run, read_runs
from support.run_folders import circle_trajectories, groups_in, two_algorithms, write_run


def test_what_is_not_a_run_is_named_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: expected a directory with config\.json and metrics"):
        read_run(tmp_path)
    for nothing in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="neither a run folder nor a folder of runs") as told:
            read_runs([nothing])
        assert str(nothing) in str(told.value)
        assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="no readable run"):
        read_runs([])


@pytest.mark.parametrize("tail", ["39.0,1.0", "39.0,200000.0,1.", "39.0,x,"])
def test_half_written_last_row_is_left_out(tmp_path, tail):
    folder = write_run(tmp_path / "run", updates=39)
    whole = read_run(folder)
    with (folder / "metrics.csv").open("a") as file:
        file.write(tail)
    cut = read_run(folder)
    assert np.array_equal(cut.column("J_R"), whole.column("J_R"))
    assert not whole.remarks
    assert "half-written" in cut.remarks[0]


def test_last_number_without_line_break_is_not_trusted(tmp_path):
    folder = write_run(tmp_path / "run", updates=12)
    text = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(text[:-2])  # all columns there, the last number one digit short
    assert len(read_run(folder).updates) == 11


def test_damage_in_the_middle_is_refused(tmp_path):
    folder = write_run(tmp_path / "run", updates=12)
    lines = (folder / "metrics.csv").read_text().splitlines()
    lines[5] = lines[5][:9]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="row 5"):
        read_run(folder)


def test_empty_metrics_are_refused_alone_and_left_out_of_a_folder(tmp_path):
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "just-begun")
    (bad / "metrics.csv").write_text("update,J_R\n0.0,")
    with pytest.raises(ValueError, match="no whole row yet"):
        read_runs(bad)
    reading = read_runs(tmp_path)
    assert [run.folder.name for run in reading.runs] == ["good"]
    assert "just-begun" in reading.skipped[0]
    assert "just-begun" in write_report(tmp_path, tmp_path / "out.html").read_text()


def test_rows_written_again_after_a_resume_replace_the_first(tmp_path):
    folder = write_run(tmp_path / "run", updates=5)
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    again = rows[3].split(",")
    again[header.split(",").index("J_R")] = "77.0"
    (folder / "metrics.csv").write_text("\n".join([header, *rows, ",".join(again)]) + "\n")
    assert read_run(folder).column("J_R")[3] == 77.0


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.json", "{", "is not JSON"),
        ("config.json", "[1]", "must hold a JSON object"),
        ("config.json", '{"task": "t", "seed": 0}', "must name 'algorithm'"),
        ("config.json", '{"task": "t", "algorithm": "space", "seed": "x"}', "whole number as 'seed'"),
        ("metrics.csv", "update,J_C\n0.0,1.0\n", "lacks the columns J_R"),
        ("metrics.csv", "update,J_R\nnan,1.0\n", "must grow"),
        ("metrics.csv", b"update,J_R\n\xff,1.0\n", "is not a table of metrics"),
        ("baseline.json", "7", "must hold a JSON object"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, file, content, complaint):
    folder = write_run(tmp_path / "run")
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=complaint):
        read_run(folder)


def test_rows_and_columns_of_metrics_are_read_alike(tmp_path):
    folder = write_run(tmp_path / "run", updates=6)
    with (folder / "metrics.csv").open("a") as file:
        file.write("6.0,1.")
    rows, run = RunFolder(folder).metrics(), read_run(folder)
    assert [row["J_R"] for row in rows] == run.column("J_R").tolist()
    assert list(rows[0]) == list(run.metrics)
    assert all(type(value) is float for row in rows for value in row.values())
    assert RunFolder(tmp_path / "absent").metrics() == []


def test_a_run_can_be_reported_once_it_has_metrics(tmp_path):
    folder = write_run(tmp_path / "run")
    assert is_run(folder)
    assert is_reportable(folder)
    (folder / "metrics.csv").unlink()
    assert is_run(folder)
    assert not is_reportable(folder)
    assert not is_run(tmp_path)


def test_what_the_folder_writes_is_what_is_read(tmp_path):
    folder = RunFolder(write_run(tmp_path / "run"))
    folder.write_baseline({"name": "runs/far-0/checkpoints/last.safetensors", "J_R": 2.0, "J_C": 1, "h_C": None})
    folder.write_trajectories(circle_trajectories(steps=5, episodes=1))
    run = read_run(folder.path)
    assert (run.baseline.J_R, run.baseline.J_C) == (2.0, 1.0)
    assert math.isnan(run.baseline.h_C)
    assert [policy.name for policy in run.trajectories.policies] == ["baseline", "learned"]


def test_folders_of_runs_are_expanded_and_read_once(tmp_path):
    two_algorithms(tmp_path / "a" / "b", seeds=2)
    reading = read_runs([tmp_path, tmp_path / "a", tmp_path / "a" / "b" / "space-0"])
    assert len(reading.runs) == 4


def test_missing_columns_are_derived_or_nan(tmp_path):
    folder = write_run(tmp_path / "run", limit=3.0)
    (folder / "metrics.csv").write_text("update,J_R,J_C\n0.0,1.0,5.0\n1.0,2.0,2.0\n2.0,2.5,4.0\n")
    run = read_run(folder)
    assert run.column("h_C").tolist() == [3.0, 3.0, 3.0]
    assert run.column("cumulative_violation").tolist() == [2.0, 2.0, 3.0]
    assert np.isnan(run.column("J_D")).all()
    assert "<svg" in write_report(folder, tmp_path / "out.html").read_text()


def written_before_formats(folder: Path, combine: str) -> None:
    """As the first version wrote config.json: no format, one name for all forms of SPACE, null for no baseline."""
    config = json.loads((folder / "config.json").read_text())
    del config["format"]
    config["combine"] = combine
    config["baseline"] = config["baseline"][0] if config["baseline"] else None
    config["algorithm"] = config["algorithm"].partition("-")[0]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("algorithm", "combine"), [("space", "guarded"), ("space-joint", "joint"), ("pcpo", "guarded"), ("cpo", "guarded")]
)
def test_runs_of_earlier_versions_are_seeds_of_the_same_setting(tmp_path, algorithm, combine):
    """Options that an algorithm never had stood in every config."""
    baseline = "near" if algorithm.startswith("space") else None
    own = {"projection": "kl"} if algorithm != "cpo" else {}
    for seed in range(2):
        folder = write_run(tmp_path / str(seed), algorithm=algorithm, baseline=baseline, seed=seed)
        config = json.loads((folder / "config.json").read_text())
        kept = {name: value for name, value in config.items() if name not in ("projection", "divergence_threshold")}
        kept |= own | ({"divergence_threshold": 5.0} if baseline else {})
        (folder / "config.json").write_text(json.dumps(kept))
    old = write_run(tmp_path / "2", algorithm=algorithm, baseline=baseline, seed=2)
    written_before_formats(old, combine)
    (group,) = groups_in(tmp_path)
    assert group.seeds == (0, 1, 2)
    assert group.differing == {}
    assert "format" not in write_report(tmp_path, tmp_path / "out.html").read_text().split("</style>")[1]


def test_equal_arrays_and_facts_are_equal_files(tmp_path):
    """The safetensors library writes metadata in another order each time."""
    facts = {f"fact {i}": str(i) for i in range(12)}
    contents = set()
    for order in (1, -1) * 3:
        path = tmp_path / "some.safetensors"
        write_arrays(path, {"a": np.arange(3.0), "b": np.float32(2.0)}, dict(list(facts.items())[::order]))
        contents.add(path.read_bytes())
    assert len(contents) == 1
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == facts
        np.testing.assert_array_equal(file.get_tensor("a"), np.arange(3.0))
        assert file.get_tensor("b") == 2.0
