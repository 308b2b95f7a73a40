"""Experiment trackers as sinks: Weights & Biases and MLflow, optional packages that are imported when asked for.

Every run is a run of the tracker's own, also in a sweep. Its id is kept in the run folder (wandb.json, mlflow.json), so
that a resumed run continues it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from spacerl.runs.config import RunConfig
from spacerl.runs.folder import read_json, write_json
from spacerl.training.sinks import RunInfo, Sink
from spacerl.types import InputError, Row, RunStopped

PROJECT = "spacerl"  # of Weights & Biases, and MLflow's experiment, unless the user's environment names another


class TrackedRun(Protocol):
    """One open run of a tracker."""

    next_step: int  # the first step that the tracker does not have yet

    def log(self, values: dict[str, float], step: int) -> None:
        """The metrics of one update."""

    def close(self, complete: bool) -> None:
        """The run ends; `complete` says whether all its updates are done."""


class TrackerSink(Sink):
    """What the trackers share: which metrics are logged, and what is said where a tracker fails."""

    durable = True  # every row of the checkpoint is with the tracker, so that a resumed run leaves no gap
    title = ""
    record = ""  # file of the run folder that keeps the tracker's run id

    def __init__(self) -> None:
        self._open: dict[Path, TrackedRun] = {}
        self._done: dict[Path, int] = {}

    def open(self, run: RunInfo, known: dict[str, Any]) -> TrackedRun:
        """A new run of the tracker, or the one that is `known` from the run folder."""
        raise NotImplementedError

    def start(self, run: RunInfo, done: int) -> None:
        path = run.folder / self.record
        known = read_json(path) if path.is_file() else {}
        hint = f"; its run there is the one of '{path}': without that file a new one begins" if known else ""
        with self._stopping(f"open a run for '{run.folder}'", f"{hint}; the run can be resumed"):
            self._open[run.folder] = self.open(run, known)
        self._done[run.folder] = done

    def update(self, run: RunInfo, row: Row) -> None:
        step, tracked = int(row["update"]), self._open[run.folder]
        values = {name: value for name, value in row.items() if name != "update" and math.isfinite(value)}
        if step >= tracked.next_step:
            ending = "; the state before it is saved, and the run can be resumed"
            with self._stopping(f"take the metrics of update {step + 1} of '{run.folder}'", ending):
                tracked.log(values, step)
        self._done[run.folder] = step + 1

    def finish(self, run: RunInfo) -> None:
        tracked = self._open.pop(run.folder, None)
        if tracked is None:
            return
        try:
            tracked.close(self._done.pop(run.folder) == run.config.updates)
        except Exception as error:  # the run itself is done, or has a reason of its own to stop
            print(f"{self.title} did not take the end of '{run.folder}': {_one_line(error)}", file=sys.stderr)

    @contextlib.contextmanager
    def _stopping(self, what: str, ending: str) -> Iterator[None]:
        """Whatever a tracker raises stops the run with one sentence."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise RunStopped(f"{self.title} did not {what}: {_one_line(error)}{ending}") from error


# Weights & Biases -----------------------------------------------------------------------------------------------------


class WandbSink(TrackerSink):
    """Weights & Biases. WANDB_MODE=offline writes below the run folder only; WANDB_PROJECT names another project."""

    title = "Weights & Biases"
    record = "wandb.json"

    def __init__(self) -> None:
        super().__init__()
        self._wandb = _imported("wandb", "init")

    def open(self, run: RunInfo, known: dict[str, Any]) -> TrackedRun:
        project = known.get("project") or os.environ.get("WANDB_PROJECT") or PROJECT
        run_id = known.get("id") or secrets.token_hex(4)
        opened = self._wandb.init(
            project=project,
            id=run_id,
            name=run.folder.name,
            dir=str(run.folder.resolve()),
            config=_json_settings(run.config),
            allow_val_change=True,  # a resumed run may have more updates
            resume="allow" if known else None,
            reinit="create_new",  # the runs of a sweep are open at once
            settings={"console": "off"},  # what is printed belongs to all of them
        )
        write_json(run.folder / self.record, {"id": run_id, "project": project})
        return _WandbRun(opened)


class _WandbRun:
    def __init__(self, run: Any) -> None:
        self._run = run
        self.next_step = int(run.step)

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step, commit=True)

    def close(self, complete: bool) -> None:
        """A run that was stopped is not a failed one: it can go on."""
        self._run.finish(exit_code=0)


def _json_settings(config: RunConfig) -> dict[str, Any]:
    """Settings as JSON can hold them: lists, and an infinite number as text."""
    settings = json.loads(config.to_json())
    return {name: settings[name] for name in config.settings()}


# MLflow ---------------------------------------------------------------------------------------------------------------


class MlflowSink(TrackerSink):
    """MLflow, at MLFLOW_TRACKING_URI or where it keeps runs by default."""

    title = "MLflow"
    record = "mlflow.json"

    def __init__(self) -> None:
        super().__init__()
        self._mlflow = _imported("mlflow", "MlflowClient")
        self._entities = importlib.import_module("mlflow.entities")

    def open(self, run: RunInfo, known: dict[str, Any]) -> TrackedRun:
        client = self._mlflow.MlflowClient()
        if known:
            run_id = known["run_id"]
            client.update_run(run_id, status="RUNNING")
        else:
            run_id = client.create_run(_experiment(client), run_name=run.folder.name).info.run_id
            params = [self._entities.Param(name, _text(value)) for name, value in run.config.settings().items()]
            client.log_batch(run_id, params=params)
            write_json(run.folder / self.record, {"run_id": run_id})
        client.set_tag(run_id, "updates", str(run.config.updates))  # a parameter cannot change, a resumed run can
        return _MlflowRun(client, self._entities.Metric, run_id)


class _MlflowRun:
    def __init__(self, client: Any, metric: Any, run_id: str) -> None:
        self._client, self._metric, self._id = client, metric, run_id
        steps = (each.step for each in client.get_metric_history(run_id, "env_steps"))
        self.next_step = max(steps, default=-1) + 1

    def log(self, values: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")


def _experiment(client: Any) -> str:
    """Id of the experiment that the user's environment names, or of our own."""
    chosen = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if chosen:
        return chosen
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    try:
        return client.create_experiment(name)
    except Exception:  # another process may have made it just now
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return found.experiment_id


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


# Packages -------------------------------------------------------------------------------------------------------------


def _imported(package: str, needed: str) -> Any:
    """The package, or one sentence that says how to install it."""
    try:
        module = importlib.import_module(package)
        getattr(module, needed)  # a folder of that name, such as wandb's own ./wandb, imports as an empty package
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"log '{package}' needs the package {package}, which cannot be imported: "
            f"install it with pip install 'spacerl[{package}]'"
        ) from error
    return module


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
