"""The traffic tasks in worker processes: one simulation each, which is all that libsumo holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.single import Recipe
from spacerl.envs.tasks import task_named
from spacerl.envs.traffic.gymnasium import BottleneckEnv, GridEnv, TrafficEnv
from spacerl.envs.traffic.scenario import read_settings
from spacerl.envs.traffic.simulation import require_sumo
from spacerl.types import EnvSpec


class TrafficHost(HostedEnv):
    """`lanes` simulations, each in a process of its own; at most `workers` of them compute at the same time.

    Which numbers come out is decided by the lanes alone, whatever the number of workers; in training not even by them,
    since a policy that NumPy can evaluate is sent to the processes and plays whole episodes there.
    """

    plays_episodes = True

    def __init__(
        self,
        kind: type[TrafficEnv],
        lanes: int,
        workers: int | None = None,
        timeout: float = 60.0,
        settings: Mapping[str, Any] | None = None,
    ):
        require_sumo()
        name, settings = kind.scenario_type.name, dict(settings or {})
        checked = read_settings(kind.scenario_type.settings_type, settings)
        kind.scenario_type(checked).prepare()  # once, before every process finds the same fault or builds the same road
        horizon = task_named(name).settings["rollout_length"]
        self._task_spec: EnvSpec | None = None
        recipe = Recipe(kind, (("cost", "info"),), tuple(settings.items()))
        super().__init__(recipe, lanes, workers=lanes, timeout=timeout, at_once=workers)
        self._task_spec = dataclasses.replace(super().spec, name=name, horizon=horizon)

    @property
    def spec(self) -> EnvSpec:
        return self._task_spec or super().spec


def grid(lanes: int, workers: int | None = None, **options: Any) -> TrafficHost:
    return TrafficHost(GridEnv, lanes, workers, **options)


def bottleneck(lanes: int, workers: int | None = None, **options: Any) -> TrafficHost:
    return TrafficHost(BottleneckEnv, lanes, workers, **options)
