"""The user's environment as a types.HostEnv, whoever steps it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from spacerl.hosted.lanes import Lanes
from spacerl.hosted.pool import WorkerPool
from spacerl.hosted.single import Recipe
from spacerl.types import RESET, STEP, Tick

USUAL_HORIZON = 1000  # steps, where neither the environment nor the user says


class HostedEnv:
    """Environments of one recipe, in worker processes or (`workers` = 0) in this one. Close it when done."""

    def __init__(
        self,
        recipe: Recipe,
        lanes: int = 1,
        workers: int | None = 0,
        timeout: float = 60.0,
        report: Callable[[str], None] | None = None,
    ):
        self.recipe = recipe
        report = report or (lambda text: print(text, file=sys.stderr))
        workers = min(lanes, os.cpu_count() or 1) if workers is None else min(lanes, workers)
        self._env = WorkerPool(recipe, lanes, workers, timeout, report) if workers else Lanes(recipe, lanes)
        shapes = self._env.shapes
        self.name, self.lanes = recipe.name, lanes
        self.obs_shape, self.obs_dtype, self.images = shapes.obs_shape, shapes.obs_dtype, shapes.images
        self.action_space, self.cost_names = shapes.action_space, shapes.cost_names
        self.horizon = shapes.horizon or USUAL_HORIZON
        self.raw = shapes.observations.decode
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    def _probe(self) -> None:
        """One step of one lane: an environment without its cost says so before anything is made."""
        first = np.arange(self.lanes) == 0
        last, seed = np.zeros(self.lanes, bool), np.where(first, 0, -1)
        action = self.idle_actions()
        self.tick(np.where(first, RESET, 0), action, last, seed)
        self.tick(np.where(first, STEP, 0), action, last, np.full(self.lanes, -1))
        self.counts()

    def idle_actions(self) -> np.ndarray:
        return np.zeros((self.lanes, *self.action_space.shape), self.action_space.dtype)

    def set_report(self, report: Callable[[str], None]) -> None:
        if isinstance(self._env, WorkerPool):
            self._env.report = report

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        return self._env.tick(command, action, last, seed)

    def counts(self) -> dict[str, int]:
        return self._env.counts()

    def close(self) -> None:
        self._env.close()

    def __enter__(self) -> HostedEnv:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
