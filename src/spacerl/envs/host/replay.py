"""What the running episodes of a pool were told so far, so that a new worker can be brought to where the old one was.

A fault is likelier to fall into a long episode than into a short one. Were the episodes that it ends left out, those
that are left would be too short. They are played again, from the same seed with the same actions, and go on from there:
nothing is lost where an environment gives the same episode for the same seed and actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spacerl.types import IDLE, RESET, STEP, Tick

KEPT = 256  # ticks after which those that no episode needs any more are dropped


class Episodes:
    """The episode of every lane: its seed, the ticks since it began, and what the last of them gave."""

    def __init__(self, lanes: int):
        self.actions: list[np.ndarray] = []  # of every tick since the oldest episode began
        self.seed = np.full(lanes, -1, np.int64)  # negative where none runs
        self.first = np.zeros(lanes, int)  # tick of the first step, counted as `actions` is
        self.reward = np.zeros(lanes)  # summed
        self.obs: Any = None  # newest

    def note(self, command: np.ndarray, action: np.ndarray, seed: np.ndarray, result: Tick) -> None:
        """One tick of all lanes."""
        self.actions.append(np.array(action))
        ended = (command == STEP) & (result.terminated | result.truncated)
        begun = ((command == RESET) | (ended & (seed >= 0))) & ~result.lost
        over = (ended & (seed < 0)) | result.lost
        self.seed = np.where(begun, seed, np.where(over, -1, self.seed))
        self.first = np.where(begun, len(self.actions), self.first)
        self.reward = np.where(begun, 0.0, self.reward + np.where(command == STEP, result.reward, 0.0))
        self.obs = result.obs
        if len(self.actions) % KEPT == 0:
            self._forget()

    def _forget(self) -> None:
        running = self.seed >= 0
        oldest = int(self.first[running].min()) if running.any() else len(self.actions)
        self.actions = self.actions[oldest:]
        self.first = np.maximum(self.first - oldest, 0)

    def replay(self, own: slice, command: np.ndarray, tick: Callable[..., Tick]) -> np.ndarray:
        """Bring the lanes `own` of a new worker, which `tick` steps, to where they were; which of those that are to
        step are there. An environment that is not the same again is not."""
        stepping = (command == STEP) & (self.seed[own] >= 0)
        steps = np.where(stepping, len(self.actions) - self.first[own], 0)
        never, nobody = np.zeros(len(command), bool), np.full(len(command), -1)
        blank = np.zeros_like(self.actions[-1][own])
        result = tick(np.where(stepping, RESET, IDLE), blank, never, np.where(stepping, self.seed[own], -1))
        same, reward = stepping & ~result.lost, np.zeros(len(command))
        obs = np.array(result.obs)
        for i in range(int(steps.max(initial=0))):
            now = same & (i < steps)
            rows = np.array([self.actions[min(first + i, len(self.actions) - 1)][own][lane]
                             for lane, first in enumerate(self.first[own])])  # fmt: skip
            result = tick(np.where(now, STEP, IDLE), rows.astype(blank.dtype), never, nobody)
            same &= ~(now & (result.terminated | result.truncated | result.lost))
            reward += np.where(now, result.reward, 0.0)
            obs[now] = result.obs[now]
        flat = (obs == self.obs[own]).reshape(len(command), -1).all(-1)
        return same & flat & (reward == self.reward[own])
