"""One episode written down for the report: vehicles along a road, queues, how long lights have been red."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spacerl.envs.traffic.bottleneck import Bottleneck
from spacerl.envs.traffic.grid import Grid
from spacerl.envs.traffic.remote import RemoteScenario
from spacerl.envs.traffic.scenario import Moment, Scenario, read_settings

SECONDS_APART = 2.0  # of what is written down
SCENARIOS: Mapping[str, type[Scenario]] = {"grid": Grid, "bottleneck": Bottleneck}


def trace(
    task: str,
    given: Mapping[str, Any],
    act: Callable[[np.ndarray, int], np.ndarray],
    length: int,
    seed: int,
) -> dict[str, Any]:
    """An episode as plain lists. `act` takes an observation and a step and gives actions in [-1, 1]. SUMO runs in a
    process of its own: whatever happens to it, the run is not lost."""
    kind = SCENARIOS[task]
    settings = read_settings(kind.settings_type, given)
    plain = kind(settings)
    remote = RemoteScenario(kind, settings)
    vehicles: dict[str, list[list[float]]] = {}
    moments: list[Moment] = []
    rewards, costs = [], []
    every = max(1, round(SECONDS_APART / kind.step_length))
    try:
        obs = remote.begin(seed)
        for k in range(length):
            unit = 0.5 * (np.clip(act(obs, k), -1.0, 1.0) + 1.0)
            step = remote.advance(plain.action_low + unit * (plain.action_high - plain.action_low))
            obs = step.obs
            rewards.append(step.reward)
            costs.append(step.cost)
            if k % every == 0:
                moments.append(remote.moment())
                _note(vehicles, moments[-1])
            if step.terminated:
                break
    finally:
        remote.close()
    return {
        "rewards": rewards,
        "cost": costs,
        "vehicles": list(vehicles.values()),
        "time": [moment.time for moment in moments],
        "queues": [moment.queues.astype(int).tolist() for moment in moments],
        "red": [moment.red_time.tolist() for moment in moments],
    }


def _note(vehicles: dict[str, list[list[float]]], moment: Moment) -> None:
    """Time, place and speed of those that are on the road which is drawn, and whether they are autonomous."""
    rows = zip(moment.names, moment.along, moment.speed, moment.autonomous, strict=True)
    for name, along, speed, autonomous in rows:
        if math.isfinite(along):
            point = [round(moment.time, 1), round(float(along), 1), round(float(speed), 1), int(autonomous)]
            vehicles.setdefault(name, []).append(point)


def arena(task: str, given: Mapping[str, Any]) -> dict[str, str | float]:
    """What a drawing needs to know."""
    settings = read_settings(SCENARIOS[task].settings_type, given)
    limit = {"red_limit": settings.red_limit} if task == "grid" else {}
    return {"kind": "traffic", "slow": SCENARIOS[task].slow, **limit}
