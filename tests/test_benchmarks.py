"""Every script in benchmarks/ at its smallest size: one that no longer runs is a result that nobody can check."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
    tested = {"speed", "safe_and_fast", "ant"}
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == tested


def test_speed(capsys):
    script("speed").main(["--repeats", "1", "--seeds", "2", "--batch-size", "500", "--only", "space"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("bare rollout", "space (guarded)", "2 seeds, one program", "GiB"))


def test_safe_and_fast(tmp_path, capsys, monkeypatch):
    benchmark = script("safe_and_fast")
    monkeypatch.setattr(benchmark, "TASKS", ("point-circle",))
    monkeypatch.setattr(benchmark, "METHODS", {"space guarded": "space"})
    size = ["--out", str(tmp_path), "--seeds", "3", "4", "--updates", "2"]
    benchmark.main(["run", *size, "--batch-size", "200"])
    benchmark.main(["table", *size])
    printed = capsys.readouterr().out
    for baseline in ("near", "reward", "cost", "rule", "adversarial", "random", "constant"):
        assert f"| {baseline} |" in printed


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
