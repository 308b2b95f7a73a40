"""Weights & Biases and MLflow as sinks: with small fakes of both packages, and with the real ones where installed."""

from __future__ import annotations

import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import spacerl
from spacerl.runs.config import RunConfig
from spacerl.training.sinks import RunInfo, named_sinks
from spacerl.training.trackers import MlflowSink, WandbSink
from spacerl.types import InputError, RunStopped

pytestmark = pytest.mark.usefixtures("quick_compilation")

QUICK = {"algorithm": "pcpo", "batch_size": 500, "hidden": (4,), "progress": False}


# Fakes: they keep what they are told, by run id -----------------------------------------------------------------------


class FakeWandbRun:
    def __init__(self, first_step: int):
        self.step, self.rows, self.exit_codes = first_step, {}, []

    def log(self, data: dict[str, float], step: int, commit: bool) -> None:
        assert commit
        assert step >= self.step, "steps must increase"
        assert not self.exit_codes, "log after finish"
        self.rows[step], self.step = data, step + 1

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


class FakeWandb(types.ModuleType):
    """The server knows the steps of a run id; only `resume` continues them."""

    def __init__(self):
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.runs: list[FakeWandbRun] = []
        self.problem: Exception | None = None

    def init(self, **given: Any) -> FakeWandbRun:
        if self.problem is not None:
            raise self.problem
        before = [run for run, init in zip(self.runs, self.inits, strict=True) if init["id"] == given["id"]]
        self.inits.append(given)
        self.runs.append(FakeWandbRun(before[-1].step if before and given["resume"] == "allow" else 0))
        return self.runs[-1]


class FakeMlflow(types.ModuleType):
    """Both the package and its client. Parameters cannot change, as with the real one."""

    def __init__(self):
        super().__init__("mlflow")
        self.entities = types.ModuleType("mlflow.entities")
        self.entities.Param = lambda key, value: types.SimpleNamespace(key=key, value=value)
        self.entities.Metric = lambda key, value, timestamp, step: types.SimpleNamespace(**locals())
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, types.SimpleNamespace] = {}
        self.problem: Exception | None = None

    def MlflowClient(self) -> FakeMlflow:
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return found and types.SimpleNamespace(experiment_id=found)

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, f"experiment {name}")

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        run_id = f"id{len(self.runs)}"
        info = types.SimpleNamespace(run_id=run_id, name=run_name, experiment=experiment_id)
        run = types.SimpleNamespace(info=info, statuses=["RUNNING"], params={}, tags={}, metrics=[])
        self.runs[run_id] = run
        return run

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        if self.problem is not None:
            raise self.problem
        run = self.runs[run_id]
        for param in params:
            assert isinstance(param.value, str)
            assert run.params.setdefault(param.key, param.value) == param.value
        run.metrics.extend(metrics)

    def get_metric_history(self, run_id: str, name: str) -> list[Any]:
        return [metric for metric in self.runs[run_id].metrics if metric.key == name]

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.runs[run_id].tags[name] = value

    def update_run(self, run_id: str, status: str) -> None:
        if run_id not in self.runs:
            raise ValueError(f"Run with id={run_id}\nnot found")
        self.runs[run_id].statuses.append(status)

    def set_terminated(self, run_id: str, status: str) -> None:
        if self.problem is not None:
            raise self.problem
        self.runs[run_id].statuses.append(status)

    def values(self, run_id: str, name: str) -> dict[int, float]:
        history = self.get_metric_history(run_id, name)
        assert len({metric.step for metric in history}) == len(history), "a step was logged twice"
        return {metric.step: metric.value for metric in history}


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


@pytest.fixture
def mlflow(monkeypatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return fake


def a_run(folder: Path, updates: int = 2) -> RunInfo:
    folder.mkdir(exist_ok=True)
    options = {"projection": "kl", "projection_kl_bound": math.inf}
    config = RunConfig(
        task="point-circle", algorithm="pcpo", cost_limit=(5.0,), updates=updates, hidden=(8, 4), options=options
    )
    return RunInfo(folder, config)


def a_row(update: int, **more: float) -> dict[str, float | int]:
    return {"update": update, "env_steps": 500 * (update + 1), "J_R": 1.5 * update, "J_D": math.nan, **more}


# Weights & Biases -----------------------------------------------------------------------------------------------------


def test_wandb_gets_settings_name_and_finite_metrics(wandb, tmp_path):
    run, sink = a_run(tmp_path / "mine"), WandbSink()
    sink.start(run, 0)
    sink.update(run, a_row(0, kl=math.inf))
    sink.update(run, a_row(1))
    sink.finish(run)
    (given,), (told,) = wandb.inits, wandb.runs
    assert given["name"] == "mine"
    assert given["project"] == "spacerl"
    assert given["dir"] == str(tmp_path / "mine")
    assert given["reinit"] == "create_new"
    assert given["resume"] is None
    assert given["config"].keys() == run.config.settings().keys()
    assert given["config"]["hidden"] == [8, 4]
    assert given["config"]["projection_kl_bound"] == "inf"
    assert told.rows == {0: {"env_steps": 500, "J_R": 0.0}, 1: {"env_steps": 1000, "J_R": 1.5}}
    assert told.exit_codes == [0]


def test_wandb_continues_the_same_run(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    first = a_run(tmp_path / "mine")
    for run, done, updates in ((first, 0, (0, 1)), (a_run(tmp_path / "mine", 4), 1, (1, 2, 3))):
        sink = WandbSink()
        sink.start(run, done)
        for update in updates:  # update 1 comes again: its checkpoint was not written
            sink.update(run, a_row(update))
        sink.finish(run)
        monkeypatch.setenv("WANDB_PROJECT", "another")
    before, after = wandb.inits
    assert after["id"] == before["id"] == json.loads((tmp_path / "mine/wandb.json").read_text())["id"]
    assert before["project"] == after["project"] == "theirs"
    assert after["resume"] == "allow"
    assert after["allow_val_change"]
    assert after["config"]["updates"] == 4
    assert list(wandb.runs[1].rows) == [2, 3]


def test_wandb_that_cannot_start_is_one_sentence(wandb, tmp_path):
    wandb.problem = RuntimeError("No API key configured.\nUse `wandb login`")
    run, sink = a_run(tmp_path / "mine"), WandbSink()
    with pytest.raises(RunStopped, match=r"not open a run for '.*mine': No API key configured\. Use `wandb") as stopped:
        sink.start(run, 0)
    assert "\n" not in str(stopped.value)
    sink.finish(run)  # the loop finishes a run whose start failed


# MLflow ---------------------------------------------------------------------------------------------------------------


def test_mlflow_gets_settings_as_text_name_and_finite_metrics(mlflow, tmp_path):
    run, sink = a_run(tmp_path / "mine"), MlflowSink()
    sink.start(run, 0)
    sink.update(run, a_row(0))
    sink.update(run, a_row(1, kl=math.inf))
    sink.finish(run)
    (told,) = mlflow.runs.values()
    assert told.info.name == "mine"
    assert told.info.experiment == "experiment spacerl"
    assert told.params.keys() == run.config.settings().keys()
    assert told.params["projection_kl_bound"] == "inf"
    assert told.params["hidden"] == "8, 4"
    assert told.params["baseline"] == ""
    assert {metric.key for metric in told.metrics} == {"env_steps", "J_R"}
    assert mlflow.values("id0", "J_R") == {0: 0.0, 1: 1.5}
    assert told.statuses == ["RUNNING", "FINISHED"]


def test_mlflow_continues_the_same_run(mlflow, tmp_path):
    first, longer = a_run(tmp_path / "mine", 3), a_run(tmp_path / "mine", 4)
    sink = MlflowSink()
    sink.start(first, 0)
    sink.update(first, a_row(0))
    sink.update(first, a_row(1))
    sink.finish(first)
    sink = MlflowSink()
    sink.start(longer, 1)
    for update in (1, 2, 3):
        sink.update(longer, a_row(update))
    sink.finish(longer)
    assert list(mlflow.runs) == ["id0"]
    assert mlflow.runs["id0"].statuses == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert mlflow.runs["id0"].params["updates"] == "3"
    assert mlflow.runs["id0"].tags["updates"] == "4"
    assert list(mlflow.values("id0", "J_R")) == [0, 1, 2, 3]


def test_mlflow_experiment_of_the_user(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    MlflowSink().start(a_run(tmp_path / "a"), 0)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "17")
    MlflowSink().start(a_run(tmp_path / "b"), 0)
    assert [run.info.experiment for run in mlflow.runs.values()] == ["experiment theirs", "17"]


def test_an_mlflow_run_that_is_not_there_is_one_sentence(mlflow, tmp_path):
    run = a_run(tmp_path / "mine")
    (run.folder / "mlflow.json").write_text('{"run_id": "elsewhere"}')
    with pytest.raises(RunStopped, match=r"id=elsewhere not found; its run there is the one of '.*mlflow\.json'"):
        MlflowSink().start(run, 1)


def test_a_tracker_that_fails_stops_the_run_and_its_end_is_only_said(mlflow, tmp_path, capsys):
    run, sink = a_run(tmp_path / "mine"), MlflowSink()
    sink.start(run, 0)
    mlflow.problem = OSError("no route to host")
    with pytest.raises(RunStopped, match=r"MLflow did not take the metrics of update 1 of .*: no route to host; the"):
        sink.update(run, a_row(0))
    sink.finish(run)
    assert "MLflow did not take the end of" in capsys.readouterr().err


# Through the library --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_says_how_to_install_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs the package {package}.*pip install 'spacerl\[{package}\]'$"):
        named_sinks(("tensorboard", package))


def test_a_folder_of_that_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    with pytest.raises(InputError, match=r"spacerl\[wandb\]"):
        WandbSink()


def test_trackers_are_not_imported_unless_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    named_sinks(("tensorboard",))


def test_a_stopped_run_goes_on(wandb, mlflow, tmp_path):
    out, log = tmp_path / "run", ("wandb", "mlflow")
    spacerl.train("point-circle", updates=3, out=out, log=log, on_update=lambda row: row["update"] == 0, **QUICK)
    assert mlflow.runs["id0"].statuses == ["RUNNING", "KILLED"]
    result = spacerl.resume(out, log=log, progress=False)
    assert mlflow.runs["id0"].statuses == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    rewards = {update: row["J_R"] for update, row in enumerate(result.metrics)}
    assert mlflow.values("id0", "J_R") == rewards
    assert {step: row["J_R"] for run in wandb.runs for step, row in run.rows.items()} == rewards


def test_every_run_of_a_sweep_is_a_run_of_the_tracker(wandb, mlflow, tmp_path):
    log = ("wandb", "mlflow")
    folders = spacerl.sweep("point-circle", seeds=(3, 4), updates=1, out=tmp_path / "sweep", log=log, **QUICK)
    names = [folder.name for folder in folders]
    assert [run.info.name for run in mlflow.runs.values()] == names
    assert [run.params["seed"] for run in mlflow.runs.values()] == ["3", "4"]
    assert [given["name"] for given in wandb.inits] == names
    assert len({given["id"] for given in wandb.inits}) == 2


# With the real packages -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_mlflow_itself(tmp_path, monkeypatch):
    package = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    out = tmp_path / "run"
    spacerl.train("point-circle", updates=2, out=out, log=("mlflow",), **QUICK)
    result = spacerl.resume(out, updates=3, log=("mlflow",), progress=False)
    spacerl.sweep("point-circle", seeds=(0, 1), updates=1, out=tmp_path / "sweep", log=("mlflow",), **QUICK)
    client = package.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("spacerl").experiment_id])
    assert len(runs) == 3
    assert {run.info.status for run in runs} == {"FINISHED"}
    (mine,) = (run for run in runs if run.info.run_name == "run")
    assert mine.data.params["projection_kl_bound"] == "inf"
    history = {metric.step: metric.value for metric in client.get_metric_history(mine.info.run_id, "J_R")}
    assert history == {update: row["J_R"] for update, row in enumerate(result.metrics)}


@pytest.mark.filterwarnings("default")
def test_wandb_itself(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tmp_path / "run"
    spacerl.train("point-circle", updates=2, out=out, log=("wandb",), **QUICK)
    spacerl.resume(out, updates=3, log=("wandb",), progress=False)
    run_id = json.loads((out / "wandb.json").read_text())["id"]
    assert len(list(out.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))) == 2
    folders = spacerl.sweep("point-circle", seeds=(0, 1), updates=1, out=tmp_path / "sweep", log=("wandb",), **QUICK)
    assert [len(list(folder.glob("wandb/offline-run-*/run-*.wandb"))) for folder in folders] == [1, 1]
