"""Several environments of one recipe side by side in one process: what a worker holds, and what `workers=0` steps."""

from __future__ import annotations

import numpy as np

from spacerl.hosted.single import Recipe, Single
from spacerl.types import RESET, STEP, ActionSpace, Tick


class Shapes:
    """What the arrays of an environment look like; enough to allocate them without having one."""

    def __init__(self, single: Single):
        self.name = single.recipe.name
        self.obs_shape, self.obs_dtype = single.observations.shape, single.observations.dtype
        self.images = single.observations.images
        self.observations = single.observations
        self.action_space: ActionSpace = single.actions.space
        self.cost_names = single.cost_names
        self.horizon = single.horizon

    def empty_tick(self, count: int) -> Tick:
        flags = [np.zeros(count, bool) for _ in range(3)]
        obs = np.zeros((2, count, *self.obs_shape), self.obs_dtype)
        costs = np.zeros((count, len(self.cost_names)), np.float32)
        return Tick(obs[0], obs[1], np.zeros(count, np.float32), costs, *flags)


class Lanes:
    """Environments in this process, for workers, for debugging and for what cannot travel to another one."""

    def __init__(self, recipe: Recipe, count: int):
        self.singles = [Single(recipe) for _ in range(count)]
        self.shapes = Shapes(self.singles[0])

    def tick(self, command: np.ndarray, action: np.ndarray, last: np.ndarray, seed: np.ndarray) -> Tick:
        out = self.shapes.empty_tick(len(self.singles))
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

    def close(self) -> None:
        for single in self.singles:
            single.close()
