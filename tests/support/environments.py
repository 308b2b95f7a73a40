"""Small Gymnasium environments that worker processes can import, and oracles of theirs. No tests in here."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Line(gymnasium.Env):
    """A point on a line that drifts at random and is pushed. Ends far from the origin, or at a limit of its own.

    The observation says where it is, the number of the step, and a number of the episode's own, so that every row of a
    recording can be told from every other.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, edge: float = 3.0, own_limit: int = 0, jump: float = 0.3, render_mode: str | None = None):
        self.edge, self.own_limit, self.jump, self.render_mode = edge, own_limit, jump, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.steps, self.mark = float(self.np_random.normal()), 0, float(self.np_random.integers(1 << 20))
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([self.x, self.steps, self.mark], np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        push = float(action[0])
        self.x += 0.25 * push + self.jump * float(self.np_random.normal())
        self.steps += 1
        info = {"cost": float(abs(self.x) > 1.0), "push": abs(push), "x": self.x}
        return self.look(), -((self.x - 1.0) ** 2), self.ends(), self.cut(), info

    def ends(self) -> bool:
        return abs(self.x) > self.edge

    def cut(self) -> bool:
        return bool(self.own_limit) and self.steps >= self.own_limit

    def render(self):
        return np.full((32, 48, 3), min(self.steps, 255), np.uint8)


def line(**arguments: Any) -> Line:
    return Line(**arguments)


class Geometric(Line):
    """Every step is the last one with the same probability."""

    def __init__(self, chance: float = 0.1, render_mode: str | None = None):
        super().__init__()
        self.chance = chance

    def ends(self) -> bool:
        return bool(self.np_random.random() < self.chance)


class SixValues(Line):
    """Safety-Gymnasium's step: the cost after the reward."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, 2.0 * info.pop("cost"), terminated, truncated, info


class Reused(Line):
    """Hands out one array again and again, as simulators do."""

    def __init__(self, render_mode: str | None = None):
        super().__init__()
        self.buffer = np.zeros(3, np.float32)

    def look(self) -> np.ndarray:
        self.buffer[:] = super().look()
        return self.buffer


class Choosing(gymnasium.Env):
    """Two discrete actions a step: those that match what is seen pay, the last value of the second costs."""

    observation_space = spaces.MultiDiscrete([3, 4])
    action_space = spaces.MultiDiscrete([3, 4])

    def __init__(self, render_mode: str | None = None):
        pass

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.steps, self.seen = 0, self.draw()
        return self.seen, {}

    def draw(self) -> np.ndarray:
        return self.np_random.integers([3, 4])

    def step(self, action):
        assert self.action_space.contains(action), action
        reward, cost = float(np.sum(action == self.seen)), float(action[1] == 3)
        self.seen, self.steps = self.draw(), self.steps + 1
        return self.seen, reward, False, self.steps >= 8, {"cost": cost}


class Mixed(Choosing):
    """Looks at numbers, a discrete value and a small image; has one discrete action."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-5.0, 5.0, (2,), np.float64),
            "kind": spaces.Discrete(3, start=1),
            "view": spaces.Box(0, 255, (1, 8, 9), np.uint8),
        }
    )
    action_space = spaces.Discrete(3, start=-1)

    def draw(self):
        kind = int(self.np_random.integers(1, 4))
        view = np.full((1, 8, 9), 80 * kind, np.uint8)
        return {"place": self.np_random.normal(size=2), "kind": kind, "view": view}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float(action == self.seen["kind"] - 2)
        self.seen, self.steps = self.draw(), self.steps + 1
        return self.seen, reward, False, self.steps >= 8, {"cost": float(action == 1)}


class Numbers(Mixed):
    """The same without its image."""

    observation_space = spaces.Dict({key: space for key, space in Mixed.observation_space.items() if key != "view"})

    def draw(self):
        return {key: value for key, value in super().draw().items() if key != "view"}


class Image(Line):
    """The line seen from above: a bright column in 16 x 16 pixels."""

    observation_space = spaces.Box(0, 255, (16, 16, 1), np.uint8)

    def look(self) -> np.ndarray:
        view = np.zeros((16, 16, 1), np.uint8)
        view[:, int(np.clip(8 + 2 * self.x, 0, 15))] = 255
        return view


class Faulty(Line):
    """Fails at step `at` of an episode, `times` times in all, whatever the process; files in `folder` count. A file
    called "well" keeps it from failing."""

    def __init__(self, kind: str, folder: str, times: int = 1, at: int = 3, render_mode: str | None = None):
        super().__init__(edge=1e9, own_limit=6)
        self.kind, self.folder, self.times, self.at = kind, Path(folder), times, at
        (self.folder / f"process-{os.getpid()}").touch()

    def ends(self) -> bool:
        if self.steps >= self.at and not (self.folder / "well").exists() and self.may_fail():
            FAULTS[self.kind]()
        return False

    def may_fail(self) -> bool:
        for number in range(self.times):
            with contextlib.suppress(FileExistsError):
                (self.folder / f"fault-{number}").touch(exist_ok=False)
                return True
        return False


class Odd(Line):
    """Gives what is not a number at step `at` of every episode, or from the `after`-th step of its life on."""

    def __init__(self, what: str, at: int = 3, after: int = 0, value: Any = "nan", render_mode: str | None = None):
        super().__init__(edge=1e9, own_limit=6)
        self.what, self.at, self.after, self.life = what, at, after, 0
        self.value = float("nan") if isinstance(value, str) and value == "nan" else value

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.life += 1
        if self.life > self.after and self.steps >= self.at:
            if self.what == "obs":
                obs = obs * self.value
            elif self.what == "reward":
                reward = self.value
            elif self.what == "cost":
                info["cost"] = self.value
            elif self.what == "nothing":
                return obs, reward, terminated
            else:
                del info["cost"]
        return obs, reward, terminated, truncated, info


class RarelyOdd(Line):
    """Every so many steps of its life a reward is no number."""

    def __init__(self, every: int, render_mode: str | None = None):
        super().__init__(edge=1e9, own_limit=6)
        self.every, self.life = every, 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.life += 1
        return obs, float("nan") if self.life % self.every == 0 else reward, terminated, truncated, info


class SlowToMake(Line):
    """Takes its time, as long as there is no file called "well"."""

    def __init__(self, seconds: float, well: str = "", render_mode: str | None = None):
        if not (well and Path(well).exists()):
            time.sleep(seconds)
        super().__init__()


class Unseeded(Line):
    """Another episode for the same seed in every process."""

    def reset(self, *, seed: int = 0, options: Any = None):
        return super().reset(seed=seed + os.getpid())


def raise_an_error():
    raise ZeroDivisionError("the wheel came off")


def hang():
    time.sleep(600)


FAULTS = {
    "exception": raise_an_error,
    "exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": faulthandler._sigsegv,
    "hang": hang,
}


def broken_factory():
    raise FileNotFoundError("no map called 'nowhere'")


def not_an_environment():
    return {"step": 1}


def without_jax(render_mode: str | None = None) -> Line:
    """A worker holds the environment and nothing else."""
    if "jax" in sys.modules:
        raise ImportError("jax was imported into a worker")
    return Line()


def push_cost(obs, action, next_obs, info):
    """What it is given, as one number that shows which was which."""
    assert isinstance(info, dict)
    return float(np.sum(obs) + 1000.0 * np.sum(action) + 1e6 * (np.sum(next_obs[:2]) - np.sum(obs[:2])))


def steps_gone(obs, action, next_obs, info):
    return next_obs[1] - obs[1]


def effort(obs, action, next_obs, info):
    return action[0] ** 2


def brake(obs):
    """A baseline for Pendulum-v1, in its units."""
    return -obs[:, 2:] / 4.0, np.full((len(obs), 1), 1.2, np.float32)


def accelerate(obs):
    return obs[:, 2:] / 4.0 + 5.0, np.full((len(obs), 1), 0.6, np.float32)


def full_power(obs):
    """Actions alone."""
    return np.full((len(obs), 1), 2.0)


a_number = 3.0
