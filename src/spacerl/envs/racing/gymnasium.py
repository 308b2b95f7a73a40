"""Car racing as an ordinary Gymnasium environment: `spacerl/CarRacing-v0`.

Dynamics, tracks and rewards are Gymnasium's CarRacing-v3, whose class this is a subclass of. What is drawn is drawn by
`view.View`. What the paper leaves open:

- *Twelve actions from three numbers.* The paper's policy is a Gaussian in three dimensions, its actions are
  {-1, 0, 1} x {0, 1} x {0, 0.2}. Here the wheel is turned left below -1/3 and right above 1/3, and each pedal is down
  above 0: three equal parts of [-1, 1] for the wheel, two for each pedal. `discrete` takes one of the twelve instead.
- *-0.1 per frame*, as in every version of Gymnasium; the paper's text says -1, which does not fit its own rewards.
- *The number of brakes* is the number of frames with the brake down; `cost` "presses" counts its going down alone.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from spacerl.envs.asked import action_of_shape, can_render, known_render_mode, require_reset

MISSING = "car racing needs Box2D and pygame: pip install 'spacerl[car-racing]'"
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the code that binds Box2D to Python
        import Box2D
        from gymnasium.envs.box2d import car_racing as original

        from spacerl.envs.racing.view import View
except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
    raise ImportError(MISSING) from error

STEER, GAS, BRAKE = (-1.0, 0.0, 1.0), (0.0, 1.0), (0.0, 0.2)
STEERS_FROM = 1 / 3  # of the first number; pedals go down above zero
COSTS = ("frames", "presses")


def driven(action: np.ndarray) -> tuple[float, float, float]:
    """Wheel, gas and brake that three numbers stand for."""
    wheel = float(action[0] > STEERS_FROM) - float(action[0] < -STEERS_FROM)
    return wheel, GAS[int(action[1] > 0)], BRAKE[int(action[2] > 0)]


def one_of_twelve(index: int) -> tuple[float, float, float]:
    """Wheel, gas and brake of a discrete action; the brake changes quickest."""
    return STEER[index // 4], GAS[index // 2 % 2], BRAKE[index % 2]


class CarRacingEnv(original.CarRacing):
    """The race track. The cost of every step is `info["cost"]`; Gymnasium's TimeLimit truncates."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": original.FPS}  # noqa: RUF012  as Gymnasium declares it

    def __init__(
        self,
        render_mode: str | None = None,
        discrete: bool = False,
        cost: Literal["frames", "presses"] = "frames",
        frame_penalty: float = 0.1,
        lap_complete_percent: float = 0.95,
    ) -> None:
        known_render_mode(render_mode, self.metadata["render_modes"])
        if cost not in COSTS:
            raise ValueError(f"cost is {cost!r}: allowed are 'frames' and 'presses'")
        if not (np.isfinite(frame_penalty) and 0 < lap_complete_percent <= 1):
            raise ValueError("frame_penalty must be a finite number, and lap_complete_percent above 0 and up to 1")
        super().__init__(render_mode=render_mode, lap_complete_percent=lap_complete_percent)
        EzPickle.__init__(self, render_mode, discrete, cost, frame_penalty, lap_complete_percent)
        self.discrete, self.cost, self.frame_penalty = discrete, cost, frame_penalty
        self.action_space = spaces.Discrete(12) if discrete else spaces.Box(-1.0, 1.0, (3,), np.float32)
        self._view = View()
        self._started = self._begins = self._braking = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.world = Box2D.b2World((0, 0))  # nothing is left of the episode before
        self.road = None
        self._started = self._begins = True
        self._braking = False
        obs, _ = super().reset(seed=seed, options=options)
        return np.asarray(obs), {"cost": 0.0, "lap": 0.0}

    def step(self, action: Any) -> tuple[Any, float, bool, Any, dict[str, Any]]:
        gymnasiums: Any = super()
        if action is None:  # its reset takes a step without an action
            return gymnasiums.step(None)
        require_reset(self._started, "the first step()")
        chosen = self._chosen(action)
        obs, reward, terminated, truncated, info = gymnasiums.step(np.array(chosen))
        self.reward -= self.frame_penalty - 0.1
        self.prev_reward = self.reward
        left = bool(terminated) and not info["lap_finished"]
        reward = float(reward) - (0.0 if left else self.frame_penalty - 0.1)
        braking = chosen[2] > 0
        cost = float(braking and not (self.cost == "presses" and self._braking))
        self._braking = braking
        lap = self.tile_visited_count / len(self.track)
        return obs, reward, bool(terminated), truncated, {**info, "cost": cost, "lap": lap}

    def _chosen(self, action: Any) -> tuple[float, float, float]:
        if self.discrete:
            if not self.action_space.contains(action):
                raise gymnasium.error.InvalidAction(f"action {action!r} is unknown: allowed are 0 to 11")
            return one_of_twelve(int(action))
        return driven(action_of_shape(action, (3,), np.float64))

    def render(self) -> np.ndarray | None:
        """The larger image that Gymnasium draws, (400, 600, 3) bytes."""
        if not can_render(self.render_mode, self._started):
            return None
        return self._render("rgb_array")

    def _render(self, mode: str) -> Any:
        if mode != "state_pixels":
            return super()._render(mode)
        if self._begins:
            self._view.begin(self)
            self._begins = False
        return self._view.observe(self)
