"""Several environments of one recipe side by side in one process: what a worker holds, and what `workers=0` steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from spacerl.envs.host.single import Recipe, SingleEnv
from spacerl.types import RESET, STEP, BatchEnv, EnvSpec, Tick


def empty_tick(spec: EnvSpec, lanes: int) -> Tick:
    """Arrays to be filled in."""
    flags = [np.zeros(lanes, bool) for _ in range(3)]
    obs = np.zeros((2, lanes, *spec.obs_shape), spec.obs_dtype)
    costs = np.zeros((lanes, len(spec.cost_names)), np.float32)
    return Tick(obs[0], obs[1], np.zeros(lanes, np.float32), costs, *flags)


class InProcessEnvs(BatchEnv):
    """Environments in this process, for workers, for debugging and for what cannot travel to another one."""

    def __init__(self, recipe: Recipe, lanes: int, render_mode: str | None = None):
        self.lanes = lanes
        self.singles = [SingleEnv(recipe, render_mode) for _ in range(lanes)]
        self.observations = self.singles[0].observations
        self._spec = self.singles[0].spec

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        out = empty_tick(self._spec, self.lanes)
        for lane, single in enumerate(self.singles):
            if command[lane] == RESET:
                out.obs[lane] = single.reset(int(seed[lane]))
            elif command[lane] == STEP:
                following, reward, cost, terminated, truncated = single.step(action[lane])
                truncated = not terminated and (truncated or bool(last[lane]))
                out.next_obs[lane], out.reward[lane], out.cost[lane] = following, reward, cost
                out.terminated[lane], out.truncated[lane] = terminated, truncated
                again = (terminated or truncated) and seed[lane] >= 0
                out.obs[lane] = single.reset(int(seed[lane])) if again else following
        return out

    def counts(self) -> dict[str, int]:
        return {"worker_restarts": 0}

    def as_given(self, obs: Any) -> Any:
        return self.observations.decode(obs)

    def render(self) -> Any:
        return self.singles[0].render()

    def close(self) -> None:
        for single in self.singles:
            single.close()
