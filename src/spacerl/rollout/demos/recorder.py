"""What happens while a person drives: keys become actions, steps become episodes, episodes go to the dataset.

Nothing here knows whether the keys come from a browser, a window or a script, or how time passes between steps.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from spacerl.envs.host.costs import MissingCost, cost_function
from spacerl.envs.tasks import TASKS, task_named
from spacerl.rollout.demos.dataset import JOURNAL, Recording, facts_of
from spacerl.rollout.demos.episode import Episode, Journal
from spacerl.rollout.demos.keys import KeyMap
from spacerl.runs.lock import holds_nothing
from spacerl.types import InputError

Phase = Literal["ready", "driving", "paused", "saving", "finished"]
COMMANDS = ("pause", "discard", "save", "finish")


def task_env(task: str) -> gymnasium.Env:
    """The task as Gymnasium knows it, which draws itself; time limit included."""
    row = task_named(task, only=True)
    if row.gymnasium_id is None:
        raise InputError(f"task '{task}' is not an environment of Gymnasium's kind: it cannot be driven step by step")
    import spacerl.envs  # noqa: F401  registers the ids

    try:
        return gymnasium.make(
            row.gymnasium_id,
            max_episode_steps=int(row.settings["rollout_length"]),
            disable_env_checker=True,
            render_mode="rgb_array",
        )
    except (ImportError, gymnasium.error.Error) as error:
        raise InputError(f"task '{task}' cannot be simulated: {' '.join(str(error).split())}") from error


def open_recording(folder: Path, task: str, env: gymnasium.Env, keys: KeyMap, fps: float, append: bool) -> Recording:
    """A new recording, or one to be continued where that was asked for. Nothing is ever overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file: give the name of a folder")
    if folder.exists() and not holds_nothing(folder):
        is_recording = (folder / "data").is_dir() or (folder / JOURNAL).exists()
        if not is_recording:
            raise InputError(f"'{folder}' exists and is no recording: give a new --out")
        if not append:
            raise InputError(f"'{folder}' is a recording already: --append adds to it, or give a new --out")
    facts = facts_of(task, env, fps, {name: list(numbers) for name, numbers in keys.keys.items()})
    return Recording(folder, env.observation_space, env.action_space, facts)


class Recorder:
    """One environment, driven by whoever holds the keys."""

    def __init__(
        self,
        task: str,
        env: gymnasium.Env,
        keys: KeyMap,
        recording: Recording,
        *,
        fps: float,
        driver: str = "person",
        seed: int | None = None,
        episodes: int | None = None,
    ):
        assert isinstance(env.observation_space, spaces.Box)
        self.task, self.env, self.keys, self.recording = task, env, keys, recording
        self.fps, self.driver, self.wanted = fps, driver, episodes
        self.phase: Phase = "ready"
        self.held: list[str] = []
        self.saved = recording.episodes
        self.newly_saved = 0
        self.message = ""
        self.limit = float(TASKS[task].settings["cost_limit"])
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._cost = cost_function("cost", "automatic")
        self._ticks: deque[float] = deque(maxlen=101)
        self._journal: Journal | None = None
        self._shown: np.ndarray | None = None
        self._begin()

    # One episode ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.seed, self._seed = self._seed, (self._seed + 1) % 2**31
        first, info = self.env.reset(seed=self.seed)
        self._observations: list[np.ndarray] = [np.array(first)]
        self._actions: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._costs: list[float] = []
        self._info = dict(info)
        self._terminated = self._ended = False
        self._drop_journal()
        self._ticks.clear()

    @property
    def steps(self) -> int:
        return len(self._rewards)

    @property
    def ended(self) -> bool:
        """Whether the environment ended the episode: it waits to be saved."""
        return self._ended

    def press(self, held: Iterable[str]) -> None:
        """The keys that are held now, in the order they were pressed. The first one starts the clock."""
        self.held = [key for key in held if isinstance(key, str)][:16]
        if self.phase == "ready" and self.held:
            self.phase = "driving"

    def do(self, command: str) -> None:
        """A command of the person's. What it saves is saved by `keep`, which the caller runs where it may take time."""
        if command not in COMMANDS or self.phase == "saving":
            return
        if command == "pause" and self.phase in ("driving", "paused"):
            self.phase = "paused" if self.phase == "driving" else "driving"
            self._ticks.clear()
        elif command == "discard":
            self.message = f"discarded {self.steps} steps" if self.steps else ""
            self._begin()
            self.phase = "ready"
        elif command == "save" and self.steps:
            self._ended = True
        elif command == "finish":
            self.phase = "finished"

    def pause(self) -> None:
        """Nobody is at the keys."""
        self.held = []
        if self.phase == "driving":
            self.phase = "paused"

    def step(self) -> None:
        """One step of the environment with the keys that are held, if anybody drives."""
        if self.phase != "driving" or self._ended:
            return
        action = self.keys.action(self.held, self.env.action_space)
        observation, reward, terminated, truncated, info = self.env.step(action)
        try:
            cost = float(self._cost(None, action, observation, info, None))
        except MissingCost:
            cost = 0.0
        observation, reward = np.array(observation), float(reward)
        if self._journal is None:
            start = (self._observations[0], action, self.seed, self.driver)
            self.recording.folder.mkdir(parents=True, exist_ok=True)
            self._journal = Journal(self.recording.journal, *start)
        self._journal.step(observation, action, reward, cost, bool(terminated))
        self._observations.append(observation)
        self._actions.append(action)
        self._costs.append(cost)
        self._rewards.append(reward)
        self._info, self._terminated, self._ended = dict(info), bool(terminated), bool(terminated or truncated)
        self._ticks.append(time.monotonic())

    def episode(self) -> Episode | None:
        """What there is of the episode; None before its first step."""
        count = self.steps
        if not count:
            return None
        return Episode(
            observations=np.stack(self._observations[: count + 1]),
            actions=np.stack(self._actions[:count]),
            rewards=np.array(self._rewards),
            costs=np.array(self._costs[:count]),
            terminated=self._terminated,
            seed=self.seed,
            driver=self.driver,
        )

    def keep(self) -> None:
        """Write the episode to the dataset and begin the next one."""
        episode = self.episode()
        self.phase = "saving"
        if episode is not None:
            self.recording.add(episode)
            self.saved += 1
            self.newly_saved += 1
            total = f"{sum(self._rewards):.1f}"
            self.message = f"episode {self.saved} saved: {episode.steps} steps, reward {total}"
        self._begin()
        enough = self.wanted is not None and self.newly_saved >= self.wanted
        self.phase = "finished" if enough else "ready"

    def close(self) -> None:
        """Keep what there is of an episode that nobody will finish, as one that was cut."""
        try:
            if self.steps:
                self.keep()
            self._drop_journal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave, with an unfinished episode as it is on disk: the next process picks it up."""
        if self._journal is not None:
            self._journal.close()
        self.env.close()

    def _drop_journal(self) -> None:
        if self._journal is not None:
            self._journal.remove()
            self._journal = None

    # What is shown ----------------------------------------------------------------------------------------------------

    def picture(self) -> np.ndarray:
        """(height, width, 3) bytes: what the environment observes, where that is an image, else its drawing."""
        if self.phase == "saving" and self._shown is not None:
            return self._shown  # another thread has the environment
        self._shown = self._draw()
        return self._shown

    def _draw(self) -> np.ndarray:
        newest = self._observations[-1]
        if newest.ndim == 3 and newest.dtype == np.uint8 and newest.shape[-1] == 3:
            return newest
        drawn: Any = self.env.render()
        return np.asarray(drawn, np.uint8)

    @property
    def rate(self) -> float:
        """Steps a second, over the newest hundred."""
        if len(self._ticks) < 2:
            return 0.0
        return (len(self._ticks) - 1) / max(self._ticks[-1] - self._ticks[0], 1e-9)

    def status(self) -> dict[str, Any]:
        lap = self._info.get("lap")
        return {
            "phase": self.phase,
            "task": self.task,
            "driver": self.driver,
            "episode": self.saved + 1,
            "saved": self.saved,
            "wanted": self.wanted,
            "step": self.steps,
            "seconds": self.steps / self.fps,
            "reward": sum(self._rewards),
            "cost": sum(self._costs),
            "limit": self.limit,
            "lap": float(lap) if isinstance(lap, int | float) else None,
            "rate": self.rate,
            "fps": self.fps,
            "held": self.held,
            "message": self.message,
        }
