"""Every script in benchmarks/ at its smallest size: one that no longer runs is a result that nobody can check."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.usefixtures("quick_compilation")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_script_has_a_test():
    tested = {"speed", "safe_and_fast", "any_environment", "ant", "theorem", "traffic", "racing", "attack", "images"}
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == tested


def test_attack(capsys):
    size = {"kills": "8", "files": "180", "resumes": "2", "commands": "12", "traffic": "200"}
    words = [word for name, count in size.items() for word in (f"--{name}", count)]
    assert script("attack").main([*words, "--no-processes"]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "kills at file operations: 8 tried" in printed
    assert "damaged files: 180 tried" in printed
    assert "damaged runs that are resumed: 2 tried" in printed
    assert "command lines: 12 tried" in printed
    assert "ran to the end" in printed
    assert "settings of traffic tasks: 200 tried" in printed


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again_change_nothing(tmp_path):
    """`attack.py --minutes 10` does it every ten seconds for ten minutes."""
    outcome = script("attack").killed_workers(1.0, tmp_path, every=5.0)
    assert outcome.tried > 3
    assert not outcome.failures
    assert " 0 episodes lost" in outcome.note


def test_speed(capsys):
    script("speed").main(["--repeats", "1", "--seeds", "2", "--batch-size", "500", "--only", "space"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("bare rollout", "space (guarded)", "2 seeds, one program", "GiB"))


def test_safe_and_fast(tmp_path, capsys):
    benchmark = script("safe_and_fast")
    size = ["--out", str(tmp_path), "--tasks", "point-circle", "--seeds", "3", "4", "--updates", "2"]
    benchmark.main(["run", *size, "--batch-size", "200", "--settings", "space", "pcpo", "--deltas", "1e-4", "1e-2"])
    benchmark.main(["table", *size])
    printed = capsys.readouterr().out
    for baseline in ("near", "reward", "cost", "rule", "adversarial", "random", "constant", "none"):
        assert f"| {baseline} | 0.0001" in printed
    assert printed.count("(best)") == 8
    benchmark.main(["figure", *size, "--figures", str(tmp_path)])
    assert (tmp_path / "point-circle.png").stat().st_size > 10_000
    benchmark.main(["pack", *size, "--data", str(tmp_path / "curves.npz")])
    with np.load(tmp_path / "curves.npz") as curves:
        assert len(curves.files) == 2 * 8
        near = [curves[f"point-circle|space|near|{delta}"] for delta in ("0.0001", "0.01")]
    assert near[0].shape == (2, 2, 4)
    assert np.array_equal(near[0][:, 0, 0], near[1][:, 0, 0])  # one seed, one first batch
    assert np.all(near[0][:, 0, 3] != near[1][:, 0, 3])  # and another trust region


def test_any_environment(tmp_path, capsys):
    """Every kind of baseline on one environment; the table's means by hand."""
    benchmark = script("any_environment")
    assert {case.half for case in benchmark.CASES.values()} == {"search", "judge"}
    assert len(benchmark.CASES) >= 8
    size = ["--out", str(tmp_path), "--cases", "cart", "--batch-size", "300", "--seeds", "3"]
    benchmark.main(["baselines", *size, "--baseline-updates", "1"])
    benchmark.main(["run", *size, "--updates", "3", "--algorithms", "pcpo", "space", "--settings", "critic_steps=2"])
    capsys.readouterr()
    benchmark.main(["table", *size, "--algorithms", "pcpo", "space"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [tuple(row[1:3]) for row in rows] == [("pcpo", "none"), *(("space", k) for k in benchmark.BASELINES)]
    with np.load(tmp_path / "cart.pcpo.none.3.npz") as columns:
        assert columns["J_R"].shape == (3,)
        assert float(rows[0][5]) == pytest.approx(columns["J_C"][-1] / 20.0, abs=0.0051)


def test_traffic(tmp_path, capsys):
    pytest.importorskip("libsumo")
    benchmark = script("traffic")
    small = ["--out", str(tmp_path), "--tasks", "grid", "--seeds", "0", "--only", "space from rule", "--updates", "2"]
    small += ["--batch-sizes", "12", "--rollout-length", "6"]
    benchmark.main(["run", *small, "--updates", "1"])
    benchmark.main(["run", *small])  # goes on
    benchmark.main(["run", *small])  # has nothing to do
    assert capsys.readouterr().out.count("grid.space.rule.0: ") == 2
    benchmark.main(["table", *small])
    assert "| space from rule | 1 | " in capsys.readouterr().out
    benchmark.main(["figure", *small, "--figures", str(tmp_path)])
    assert (tmp_path / "traffic-grid.png").stat().st_size > 10_000
    benchmark.main(["pack", *small, "--data", str(tmp_path / "curves.npz")])
    with np.load(tmp_path / "curves.npz") as curves:
        assert curves["grid|space from rule"].shape == (1, 2, 4)
    benchmark.main(["speed", *small, "--repeats", "1", "--lanes", "2", "--small"])
    assert "| grid | " in capsys.readouterr().out


def test_racing(tmp_path, capsys):
    pytest.importorskip("Box2D")
    benchmark = script("racing")
    benchmark.main(["speed", "--steps", "20", "--lanes", "2", "--workers", "1"])
    benchmark.main(["images", "--tracks", "1", "--steps", "5"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("| Gymnasium |", "2 lanes, 1 workers", "| first 50 |", "| 0 | 0."))
    small = ["--out", str(tmp_path), "--seeds", "0", "--only", "pcpo", "--workers", "0", "--batch-size", "8"]
    small += ["--rollout-length", "4"]
    benchmark.main(["run", *small, "--updates", "1"])
    benchmark.main(["run", *small, "--updates", "2"])  # goes on
    benchmark.main(["run", *small, "--updates", "2"])  # has nothing to do
    assert capsys.readouterr().out.count("car-racing.pcpo.none.0: ") == 2
    benchmark.main(["table", *small, "--updates", "2"])
    assert "| pcpo | 1 | " in capsys.readouterr().out
    benchmark.main(["figure", *small, "--updates", "2", "--figures", str(tmp_path)])
    assert (tmp_path / "car-racing.png").stat().st_size > 10_000
    benchmark.main(["pack", *small, "--updates", "2", "--data", str(tmp_path / "curves.npz")])
    with np.load(tmp_path / "curves.npz") as found:
        assert found["pcpo"].shape == (1, 2, 6)


def test_images(capsys, monkeypatch):
    benchmark = script("images")
    monkeypatch.setattr(benchmark, "SIDE", 20)
    monkeypatch.setattr(benchmark.Square, "observation_space", gymnasium.spaces.Box(0, 255, (20, 20, 3), np.uint8))
    small = ["--algorithm", "pcpo", "--batch-size", "12", "--length", "6", "--settings", "cg_iterations=2"]
    benchmark.main([*small, "--updates", "1", "--workers", "0"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("update 1: collection", "F^-1 v", "critics' fit", "GiB"))
    benchmark.main([*small, "--device"])
    assert "cpu: an update" in capsys.readouterr().out


def test_theorem(tmp_path, capsys, monkeypatch):
    benchmark = script("theorem")
    monkeypatch.setattr(benchmark, "FORMS", {"space-joint": 0})
    size = ["--problems", "3", "--size", "4", "--deltas", "1e-2", "--iterations", "300"]
    benchmark.main([*size, "--figure", str(tmp_path / "theorem.png")])
    printed = capsys.readouterr().out
    assert "| space-joint | KL | 0.01 |" in printed
    assert "space (guarded), 2-norm" in printed
    assert (tmp_path / "theorem.png").stat().st_size > 0


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="needs the extra mujoco")
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its cores")
def test_ant(capsys, monkeypatch):
    benchmark = script("ant")
    monkeypatch.setattr(benchmark, "TASKS", {"ant-gather": benchmark.TASKS["ant-gather"]})
    monkeypatch.setattr(benchmark, "BEGINNINGS", {"standing": {}})
    small = ["--lanes", "4", "--steps", "5", "--repeats", "1", "--vector-lanes", "2", "--batch-size", "600"]
    benchmark.main(["--parts", "bare", "host", "train", "gymnasium", "envpool", "device", *small])
    printed = capsys.readouterr().out
    assert "bare simulator" in printed
    assert "ant-gather, host ticks" in printed
    assert "ant-gather, whole updates of space, standing ants" in printed
