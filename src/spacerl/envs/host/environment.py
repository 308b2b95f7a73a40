"""Anyone's Gymnasium environment as a BatchEnv, whoever steps it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from spacerl.envs.cores import usable_cores
from spacerl.envs.host.in_process import InProcessEnvs
from spacerl.envs.host.pool import WorkerPool
from spacerl.envs.host.single import Recipe
from spacerl.envs.memory import require_room_for_workers
from spacerl.types import IDLE, RESET, STEP, BatchEnv, EnvSpec, Episode, InputError, Tick


class HostedEnv(BatchEnv):
    """Environments of one recipe, in worker processes or (`workers` = 0) in this one. Close it when done."""

    def __init__(
        self,
        recipe: Recipe,
        lanes: int = 1,
        workers: int | Literal["auto"] = 0,
        timeout: float = 60.0,
        report: Callable[[str], None] | None = None,
        at_once: int | None = None,
    ):
        self.recipe, self.lanes = recipe, lanes
        report = report or (lambda text: print(text, file=sys.stderr))
        count = min(lanes, usable_cores() if workers == "auto" else workers)
        require_room_for_workers(count)
        self._env: WorkerPool | InProcessEnvs
        if count:
            self._env = WorkerPool(recipe, lanes, count, timeout, report, at_once)
        else:
            self._env = InProcessEnvs(recipe, lanes, tolerates=True)
            self._env.report_faults_to(report)
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    def _probe(self) -> None:
        """One step of one lane: an environment without its cost says so before anything is made."""
        first = np.arange(self.lanes) == 0
        last, seed = np.zeros(self.lanes, bool), np.where(first, 0, -1)
        action = np.zeros((self.lanes, *self.spec.action.shape), self.spec.action.dtype)
        begun = self.tick(np.where(first, RESET, IDLE), action, last, seed)
        if begun.lost[0] and isinstance(self._env, WorkerPool) and self._env.last_fault:
            raise InputError(f"environment '{self.recipe.name}' does not reset: {self._env.last_fault}")
        self.tick(np.where(first, STEP, IDLE), action, last, np.full(self.lanes, -1))
        self.counts()

    def report_faults_to(self, report: Callable[[str], None]) -> None:
        self._env.report_faults_to(report)

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        return self._env.tick(command, action, last, seed)

    def play(self, act: Callable[[Any, Any], Any], seeds: Sequence[int], noises: Sequence[Any]) -> list[Episode | None]:
        return self._env.play(act, seeds, noises)

    def counts(self) -> dict[str, int]:
        return self._env.counts()

    def as_given(self, obs: Any) -> Any:
        return self._env.as_given(obs)

    def processes(self) -> list[int]:
        """Ids of the worker processes."""
        return [worker.process.pid for worker in self._env.workers] if isinstance(self._env, WorkerPool) else []

    def close(self) -> None:
        self._env.close()

    def __enter__(self) -> HostedEnv:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
