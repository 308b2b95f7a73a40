"""What a task needs to be an ordinary Gymnasium environment, whatever simulates it.

The constraint cost of every step is `info["cost"]`, a float. Time limits are Gymnasium's `TimeLimit` wrapper, which
`gymnasium.make` adds; the environments themselves never truncate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from spacerl.envs.asked import action_of_shape, can_render, known_render_mode, require_reset
from spacerl.envs.tasks import task_named
from spacerl.types import DrawableEnv


class Step(NamedTuple):
    """What one step brought."""

    obs: np.ndarray
    reward: float
    cost: float
    terminated: bool
    diverged: bool = False  # the simulation, which ended the episode


class TaskGymEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One robot of a task with one cost, stepped from Python. Whoever simulates it fills in the methods at the end."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  as Gymnasium declares it

    def __init__(self, task: DrawableEnv, render_mode: str | None = None) -> None:
        if len(task.spec.cost_names) != 1:
            raise ValueError(f"info['cost'] is one number, but {task.spec.name} has the costs {task.spec.cost_names}")
        self.task = task
        self.render_mode = known_render_mode(render_mode, self.metadata["render_modes"])
        low, high = (np.array(bound, np.float32) for bound in (task.spec.action.low, task.spec.action.high))
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, task.spec.obs_shape, np.float32)
        self._started = False
        self._trail: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._costs: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        obs = self._begin()
        self._started = True
        self._rewards, self._costs = [], []
        self._trail = [self._position()]
        return obs, {"cost": 0.0}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        require_reset(self._started, "the first step()")
        action = action_of_shape(action, self.action_space.shape, np.float32)
        step = self._advance(action)
        self._rewards.append(step.reward)
        self._costs.append(step.cost)
        if self.render_mode is not None:
            self._trail.append(self._position())
        info = {"cost": step.cost} | ({"diverged": True} if step.diverged else {})
        return step.obs, step.reward, step.terminated, False, info

    def render(self) -> np.ndarray | None:
        """The episode so far, uint8: the robot, where it has been, and the sums of reward and cost."""
        if not can_render(self.render_mode, self._started):
            return None
        try:
            from spacerl.envs.drawing import Scene
        except ImportError as error:
            raise gymnasium.error.DependencyNotInstalled("images need Pillow: pip install pillow") from error
        frame = task_named(self.task.spec.name).draw_frame()
        return frame(
            Scene(
                arena=self.task.arena(),
                trail=np.stack(self._trail),
                costs=np.array(self._costs),
                heading=self._heading(),
                title=self.task.spec.name,
                reward=sum(self._rewards),
                pose=self._pose(),
                **self._objects_to_draw(),
            )
        )

    def _objects_to_draw(self) -> dict[str, Any]:
        objects = self._objects()
        if objects is None:
            return {}
        placed, alive = objects
        return {"objects": placed, "alive": alive, "n_apples": self.task.apples, "sensor": self.task.sensor}

    # the simulator's part

    def _begin(self) -> np.ndarray:
        """Start an episode that `np_random` decides; the observation."""
        raise NotImplementedError

    def _advance(self, action: np.ndarray) -> Step:
        raise NotImplementedError

    def _position(self) -> np.ndarray:
        """(2,) m."""
        raise NotImplementedError

    def _heading(self) -> float:
        """rad."""
        raise NotImplementedError

    def _objects(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Where apples and bombs were placed, (objects, 2) m, and which are still there; None in a task without."""
        return None

    def _pose(self) -> np.ndarray | None:
        """Joints, for a drawing that shows them."""
        return None
