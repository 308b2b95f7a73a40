"""The ant tasks as ordinary Gymnasium environments: one lane of `AntHost`, so that the numbers are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from spacerl.envs.ant.host import AntHost
from spacerl.envs.ant.robot import AntCircle, AntGather, AntTask, facing
from spacerl.envs.to_gymnasium import Step, TaskGymEnv
from spacerl.types import RESET, STEP, Tick


class AntGymEnv(TaskGymEnv):
    """One ant, simulated by MuJoCo."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012  as Gymnasium declares it

    def __init__(self, task: AntTask, render_mode: str | None = None) -> None:
        super().__init__(task, render_mode)
        self._host = AntHost(task, lanes=1, threads=1)

    def _tick(self, command: int, action: Any = 0.0, seed: int = -1) -> Tick:
        actions = np.broadcast_to(action, (1, self.task.spec.action.size))
        return self._host.tick(np.array([command]), actions, np.zeros(1, bool), np.array([seed], np.int64))

    def _begin(self) -> np.ndarray:
        return self._tick(RESET, seed=int(self.np_random.integers(2**62))).obs[0]

    def _advance(self, action: np.ndarray) -> Step:
        tick = self._tick(STEP, action)
        reward, cost, diverged = float(tick.reward[0]), float(tick.cost[0, 0]), self._host.counts()["diverged"]
        return Step(tick.next_obs[0], reward, cost, bool(tick.terminated[0]), bool(diverged))

    def _position(self) -> np.ndarray:
        return self._host.body(0).com[:2]

    def _heading(self) -> float:
        x, y = facing(self._host.body(0).qpos)
        return float(np.arctan2(y, x))

    def _objects(self) -> tuple[np.ndarray, np.ndarray] | None:
        objects = self._host.objects(0)
        return None if objects is None else (objects.placed, objects.alive)

    def _pose(self) -> np.ndarray:
        return self._host.body(0).qpos

    def close(self) -> None:
        self._host.close()


class AntCircleEnv(AntGymEnv):
    """`spacerl/AntCircle-v0`; `settings` replace defaults of `AntCircle`."""

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        super().__init__(AntCircle(**settings), render_mode)


class AntGatherEnv(AntGymEnv):
    """`spacerl/AntGather-v0`; `settings` replace defaults of `AntGather`."""

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        super().__init__(AntGather(**settings), render_mode)
