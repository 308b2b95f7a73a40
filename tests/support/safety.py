"""A stand-in for Safety-Gymnasium, whose Python and NumPy are too old to be installed beside ours.

A point robot on a plane is rewarded for coming nearer to a goal, and pays one for every step inside a hazard. What a
step returns has the form that Safety-Gymnasium 1.0 has: test_safety_gymnasium.py holds it against traces recorded from
the real one (safety_gymnasium_traces.json, written by record_safety_gymnasium.py).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

BINS = 16  # of each lidar: goal, hazards, vases
SENSORS = 12  # accelerometer, velocimeter, gyro, magnetometer
HAZARD_RADIUS = 0.2
GOAL_RADIUS = 0.3


class PointGoal(gymnasium.Env):
    """Like SafetyPointGoal1-v0, with kinematics in the place of a simulator."""

    metadata = {"render_modes": ["human", "rgb_array", "depth_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, name: str, render_mode: str | None = None, max_episode_steps: int = 1000) -> None:
        low = np.concatenate([np.full(SENSORS, -np.inf), np.zeros(3 * BINS)])
        high = np.concatenate([np.full(SENSORS, np.inf), np.ones(3 * BINS)])
        self.observation_space = spaces.Box(low, high, dtype=np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.render_mode = render_mode
        self.spec = EnvSpec(name, max_episode_steps=max_episode_steps)
        self._limit, self._done = max_episode_steps, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._place, self._heading, self._speed = self.np_random.uniform(-1.5, 1.5, 2), 0.0, 0.0
        self._hazards = self.np_random.uniform(-1.5, 1.5, (8, 2))
        self._goal = self.np_random.uniform(-1.5, 1.5, 2)
        near = np.linalg.norm(self._hazards - self._place, axis=1) < 2 * HAZARD_RADIUS
        self._hazards[near] += 4 * HAZARD_RADIUS  # no episode begins with a cost
        self._steps, self._done = 0, False
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, float, bool, bool, dict]:  # type: ignore[override]
        assert not self._done, "Environment must be reset before stepping."
        before = np.linalg.norm(self._goal - self._place)
        self._heading += 0.2 * float(action[1])
        self._speed = 0.8 * self._speed + 0.02 * float(action[0])
        self._place = self._place + self._speed * np.array([np.cos(self._heading), np.sin(self._heading)])
        after = np.linalg.norm(self._goal - self._place)
        reward = before - after
        inside = np.linalg.norm(self._hazards - self._place, axis=1) < HAZARD_RADIUS
        info: dict[str, Any] = {"cost_hazards": float(inside.sum()), "cost_sum": float(inside.sum())}
        if after < GOAL_RADIUS:
            reward, info["goal_met"] = reward + 1.0, True
            self._goal = self.np_random.uniform(-1.5, 1.5, 2)
        self._steps += 1
        self._done = self._steps >= self._limit
        return self._observe(), reward, info["cost_sum"], False, self._done, info

    def _observe(self) -> np.ndarray:
        sensors = np.zeros(SENSORS)
        sensors[3], sensors[8] = self._speed, self._heading
        sensors[9:11] = np.cos(self._heading), np.sin(self._heading)
        return np.concatenate([sensors, self._lidar(self._goal[None]), self._lidar(self._hazards), np.zeros(BINS)])

    def _lidar(self, points: np.ndarray) -> np.ndarray:
        seen = np.zeros(BINS)
        ahead = points - self._place
        angles = (np.arctan2(ahead[:, 1], ahead[:, 0]) - self._heading) % (2 * np.pi)
        bins = (angles / (2 * np.pi) * BINS).astype(int) % BINS
        np.maximum.at(seen, bins, np.maximum(0.0, 1.0 - np.linalg.norm(ahead, axis=1) / 3.0))
        return seen

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        if self.render_mode != "rgb_array":
            return None
        image = np.full((64, 64, 3), 235, np.uint8)
        for points, colour in (
            (self._hazards, (80, 80, 220)),
            (self._goal[None], (60, 180, 60)),
            (self._place[None], 20),
        ):
            for x, y in np.clip((points + 2.0) * 16, 1, 62).astype(int):
                image[y - 1 : y + 2, x - 1 : x + 2] = colour
        return image


def make(id: str = "SafetyPointGoal1-v0", render_mode: str | None = None, **arguments: Any) -> PointGoal:
    """As `safety_gymnasium.make` is called."""
    return PointGoal(id, render_mode, **arguments)
