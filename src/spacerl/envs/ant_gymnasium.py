"""The ant tasks as ordinary Gymnasium environments: one lane of `AntHost`, so that the numbers are the same.

The constraint cost of every step is `info["cost"]`, a float. Time limits are Gymnasium's `TimeLimit` wrapper, which
`gymnasium.make` adds; the environments themselves never truncate.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from spacerl.envs.ant import AntCircle, AntGather, facing
from spacerl.types import RESET, STEP, Tick


class AntGymEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One ant, stepped from Python."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(self, task: AntCircle | AntGather, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r} is unknown; use 'rgb_array', or None to draw nothing")
        self.native = task
        self.render_mode = render_mode
        low, high = (np.array(bound, np.float32) for bound in (task.action_space.low, task.action_space.high))
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, task.obs_shape, np.float32)
        self._host = task.host(lanes=1, threads=1)
        self._started = False
        self._trail: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._costs: list[float] = []

    def _tick(self, command: int, action: Any = 0.0, seed: int = -1) -> Tick:
        actions = np.broadcast_to(action, (1, self.native.action_space.size))
        return self._host.tick(np.array([command]), actions, np.zeros(1, bool), np.array([seed], np.int64))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        tick = self._tick(RESET, seed=int(self.np_random.integers(2**62)))
        self._started = True
        self._rewards, self._costs = [], []
        self._trail = [self._host.body(0).com[:2]]
        return tick.obs[0], {"cost": 0.0}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        action = np.asarray(action, np.float32)
        if action.shape != self.action_space.shape:
            raise ValueError(f"an action has the shape {self.action_space.shape}, this one has {action.shape}")
        tick = self._tick(STEP, action)
        self._rewards.append(float(tick.reward[0]))
        self._costs.append(float(tick.cost[0, 0]))
        if self.render_mode is not None:
            self._trail.append(self._host.body(0).com[:2])
        info = {"cost": self._costs[-1]}
        if self._host.counts()["diverged"]:
            info["diverged"] = True
        return tick.next_obs[0], self._rewards[-1], bool(tick.terminated[0]), False, info

    def render(self) -> np.ndarray | None:
        """The episode so far, (400, 560, 3) uint8: the ant, where it has been, and the sums of reward and cost."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs a render mode; pass render_mode='rgb_array' to gymnasium.make")
            return None
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() before render()")
        try:
            from spacerl.envs.ant_drawing import draw
            from spacerl.envs.drawing import Scene
        except ImportError as error:
            raise gymnasium.error.DependencyNotInstalled("pictures need Pillow: pip install pillow") from error
        body = self._host.body(0)
        scene = Scene(
            arena=self.native.arena(),
            trail=np.stack(self._trail),
            costs=np.array(self._costs),
            heading=float(np.arctan2(*facing(body.qpos)[::-1])),
            title=self.native.name,
            reward=sum(self._rewards),
            **self._objects_to_draw(),
        )
        return draw(scene, body.qpos)

    def _objects_to_draw(self) -> dict[str, Any]:
        objects = self._host.objects(0)
        if objects is None or not isinstance(self.native, AntGather):
            return {}
        return {
            "objects": objects.placed,
            "alive": objects.alive,
            "n_apples": self.native.n_apples,
            "sensor": (self.native.sensor_range, self.native.sensor_span),
        }

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
