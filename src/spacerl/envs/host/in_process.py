"""Several environments of one recipe side by side in one process: what a worker holds, and what `workers=0` steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spacerl.envs.host.single import NotFinite, Recipe, SingleEnv
from spacerl.types import IDLE, RESET, BatchEnv, EnvSpec, Episode, Tick


def empty_tick(spec: EnvSpec, lanes: int) -> Tick:
    """Arrays to be filled in."""
    flags = [np.zeros(lanes, bool) for _ in range(3)]
    obs = np.zeros((2, lanes, *spec.obs_shape), spec.obs_dtype)
    costs = np.zeros((lanes, len(spec.cost_names)), np.float32)
    return Tick(obs[0], obs[1], np.zeros(lanes, np.float32), costs, *flags)


def play(single: SingleEnv, act: Callable[[Any, Any], Any], seed: int, noise: np.ndarray) -> Episode:
    """One episode of at most as many steps as there are rows of noise, by the environment itself where it can."""
    if hasattr(single.env, "play_episode"):
        return single.looked_at(single.env.play_episode(act, seed, noise))
    spec, length = single.spec, len(noise)
    observed = np.zeros((length + 1, *spec.obs_shape), spec.obs_dtype)
    actions = np.zeros((length, *spec.action.shape), spec.action.dtype)
    rewards, costs = np.zeros(length, np.float32), np.zeros((length, len(spec.cost_names)), np.float32)
    observed[0] = single.reset(seed)
    steps, terminated, truncated = 0, False, False
    while steps < length and not (terminated or truncated):
        actions[steps] = action = act(observed[steps : steps + 1], noise[steps : steps + 1])[0]
        observed[steps + 1], rewards[steps], costs[steps], terminated, truncated = single.step(action)
        steps += 1
    return Episode(observed[:steps], actions[:steps], rewards[:steps], costs[:steps], observed[steps], terminated)


FEW, SHARE = (
    3,
    0.1,
)  # episodes with a number that is not finite that are left out: so many, and of those that were whole


class InProcessEnvs(BatchEnv):
    """Environments in this process, for workers, for debugging and for what cannot travel to another one.

    One that `tolerates` it leaves out a few episodes in which a number is not finite; more of them end the run. `watch`
    is called before each environment is made.
    """

    def __init__(
        self,
        recipe: Recipe,
        lanes: int,
        render_mode: str | None = None,
        tolerates: bool = False,
        watch: Callable[[], None] = lambda: None,
    ):
        self.lanes, self.tolerates = lanes, tolerates
        self.notes: list[str] = []  # why episodes were left out, since somebody looked
        self.report: Callable[[str], None] | None = None
        self._whole = self._left_out = self._lost = 0
        self.singles: list[SingleEnv] = []
        for _ in range(lanes):
            watch()
            self.singles.append(SingleEnv(recipe, render_mode))
        self.observations = self.singles[0].observations
        self._spec = self.singles[0].spec

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        out = empty_tick(self._spec, self.lanes)
        for lane in map(int, np.flatnonzero(command != IDLE)):
            try:
                self._advance(out, lane, command[lane], action[lane], bool(last[lane]), int(seed[lane]))
            except NotFinite as fault:
                self._leave_out(fault)
                out.obs[lane] = out.next_obs[lane] = 0
                out.lost[lane] = True
        return out

    def _advance(self, out: Tick, lane: int, command: int, action: Any, last: bool, seed: int) -> None:
        single = self.singles[lane]
        if command == RESET:
            out.obs[lane] = single.reset(seed)
            return
        following, reward, cost, terminated, truncated = single.step(action)
        truncated = not terminated and (truncated or last)
        ended = terminated or truncated
        self._whole += ended
        out.next_obs[lane], out.reward[lane], out.cost[lane] = following, reward, cost
        out.terminated[lane], out.truncated[lane] = terminated, truncated
        out.obs[lane] = single.reset(seed) if ended and seed >= 0 else following

    def play(self, act: Callable[[Any, Any], Any], seeds: Sequence[int], noises: Sequence[Any]) -> list[Episode | None]:
        return [self._play(act, int(seed), noise) for seed, noise in zip(seeds, noises, strict=True)]

    def _play(self, act: Callable[[Any, Any], Any], seed: int, noise: np.ndarray) -> Episode | None:
        try:
            episode = play(self.singles[0], act, seed, noise)
        except NotFinite as fault:
            self._leave_out(fault)
            return None
        self._whole += 1
        return episode

    def _leave_out(self, fault: NotFinite) -> None:
        self._left_out += 1
        self._lost += 1
        if not self.tolerates or self._left_out > FEW + SHARE * self._whole:
            raise fault
        text = f"{fault}: its episode is left out"
        self.notes.append(text)
        if self.report is not None:
            self.report(text)

    def report_faults_to(self, report: Callable[[str], None]) -> None:
        self.report = report

    def counts(self) -> dict[str, int]:
        lost, self._lost = self._lost, 0
        return {"worker_restarts": 0, "lost_episodes": lost}

    def as_given(self, obs: Any) -> Any:
        return self.observations.decode(obs)

    def render(self) -> Any:
        return self.singles[0].render()

    def close(self) -> None:
        for single in self.singles:
            single.close()
