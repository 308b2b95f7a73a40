"""Car racing in worker processes, as many environments in each as there are lanes for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from spacerl.envs.cores import usable_cores
from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.single import Recipe
from spacerl.envs.racing.gymnasium import CarRacingEnv
from spacerl.envs.tasks import task_named
from spacerl.types import EnvSpec


class CarRacingHost(HostedEnv):
    """`lanes` tracks side by side. The numbers are the same whatever the number of workers."""

    def __init__(
        self,
        lanes: int,
        workers: int | None = None,
        timeout: float = 60.0,
        settings: Mapping[str, Any] | None = None,
    ):
        self._task_spec: EnvSpec | None = None
        recipe = Recipe(CarRacingEnv, (("cost", "info"),), tuple((settings or {}).items()))
        super().__init__(recipe, lanes, workers=usable_cores() if workers is None else workers, timeout=timeout)
        row = task_named("car-racing")
        self._task_spec = dataclasses.replace(super().spec, name=row.name, horizon=row.settings["rollout_length"])

    @property
    def spec(self) -> EnvSpec:
        return self._task_spec or super().spec


def car_racing(lanes: int, workers: int | None = None, **options: Any) -> CarRacingHost:
    return CarRacingHost(lanes, workers, **options)
