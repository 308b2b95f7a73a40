"""The traffic tasks as ordinary Gymnasium environments.

libsumo holds one simulation per process. The first environment of a process takes it; every other one simulates in a
process of its own, so that there may be as many as anyone likes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from spacerl.envs.asked import action_of_shape, can_render, known_render_mode, require_reset
from spacerl.envs.traffic.bottleneck import Bottleneck
from spacerl.envs.traffic.grid import Grid
from spacerl.envs.traffic.remote import RemoteScenario
from spacerl.envs.traffic.scenario import Moment, Player, Scenario, read_settings
from spacerl.envs.traffic.simulation import Simulation, require_sumo
from spacerl.types import Episode


class TrafficEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One traffic task. The cost of every step is `info["cost"]`; Gymnasium's TimeLimit truncates.

    `render_mode` "rgb_array" draws the roads from above and needs no screen. `window` opens sumo-gui, which shows every
    step at the speed that is set there. `settings` replace defaults of the task.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  as Gymnasium declares it
    scenario_type: ClassVar[type[Scenario]]

    def __init__(self, render_mode: str | None = None, window: bool = False, **settings: Any) -> None:
        require_sumo()
        checked = read_settings(self.scenario_type.settings_type, settings)
        self.render_mode = known_render_mode(render_mode, self.metadata["render_modes"])
        self.scenario: Scenario | RemoteScenario = self.scenario_type(checked)
        size = self.scenario.action_size
        low, high = self.scenario.action_low, self.scenario.action_high
        self.action_space = spaces.Box(low, high, (size,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.scenario.obs_size,), np.float32)
        if window or not Simulation.is_taken():
            self.scenario.open(window)
        else:
            self.scenario = RemoteScenario(self.scenario_type, checked)
        self._started = False
        self._steps, self._reward, self._cost = 0, 0.0, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._started = True
        self._steps, self._reward, self._cost = 0, 0.0, 0.0
        return self.scenario.begin(int(self.np_random.integers(2**31 - 1))), {"cost": 0.0}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        require_reset(self._started, "the first step()")
        action = action_of_shape(action, self.action_space.shape, np.float64)
        step = self.scenario.advance(action)
        self._steps += 1
        self._reward += step.reward
        self._cost += step.cost
        return step.obs, step.reward, step.terminated, False, {"cost": step.cost}

    def play_episode(self, policy: Player, seed: int, noise: np.ndarray) -> Episode:
        """As `reset` and `step` would play it, in fewer words between this class and SUMO."""
        super().reset(seed=seed)
        return self.scenario.play(policy, int(self.np_random.integers(2**31 - 1)), noise)

    def moment(self) -> Moment:
        """What can be drawn of now."""
        return self.scenario.moment()

    def render(self) -> np.ndarray | None:
        """The roads from above with vehicles and lights, and the sums of reward and cost, uint8."""
        if not can_render(self.render_mode, self._started):
            return None
        from spacerl.envs.traffic.drawing import Scene, traffic_frame

        roads, moment = self.scenario.roads(), self.scenario.moment()
        title = self.scenario_type.name
        return traffic_frame(Scene(title, roads, moment, self._steps, self._reward, self._cost))

    def close(self) -> None:
        self.scenario.close()


class GridEnv(TrafficEnv):
    """`spacerl/Grid-v0`; `settings` replace defaults of `GridSettings`."""

    scenario_type = Grid


class BottleneckEnv(TrafficEnv):
    """`spacerl/Bottleneck-v0`; `settings` replace defaults of `BottleneckSettings`."""

    scenario_type = Bottleneck
