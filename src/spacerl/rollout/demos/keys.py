"""Which action keys stand for, task by task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces

from spacerl.envs.tasks import task_named
from spacerl.types import InputError

Numbers = tuple[float, ...]
# The letters lie under a left hand as the arrows lie under a right one.
SAME_AS = {"KeyW": "ArrowUp", "KeyA": "ArrowLeft", "KeyS": "ArrowDown", "KeyD": "ArrowRight"}


@dataclasses.dataclass(frozen=True)
class KeyMap:
    """`idle` is the action without any key; each key that is held adds its numbers, and the sum is kept in bounds.

    Of discrete actions, one key stands for one action: the key pressed last decides.
    """

    idle: Numbers
    keys: Mapping[str, Numbers]  # names as browsers give them (KeyboardEvent.code)
    meaning: Mapping[str, str]  # what a person is told about each
    steps_per_second: float

    def action(self, held: Sequence[str], space: spaces.Space) -> np.ndarray:
        """The action of the keys that are held, in the order they were pressed."""
        known = list(dict.fromkeys(SAME_AS.get(key, key) for key in held))
        known = [key for key in known if key in self.keys]
        if isinstance(space, spaces.Discrete):
            return np.asarray(int(self.keys[known[-1]][0] if known else self.idle[0]), np.int64)
        assert isinstance(space, spaces.Box)
        total = np.array(self.idle, np.float32) + sum((np.array(self.keys[key], np.float32) for key in known), 0)
        return np.clip(total, space.low, space.high).astype(np.float32)


POINT = KeyMap(
    idle=(0.0, 0.0),
    keys={"ArrowUp": (1.0, 0.0), "ArrowDown": (-1.0, 0.0), "ArrowLeft": (0.0, 0.25), "ArrowRight": (0.0, -0.25)},
    meaning={"ArrowUp": "forwards", "ArrowDown": "backwards", "ArrowLeft": "turn left", "ArrowRight": "turn right"},
    steps_per_second=6.0,
)
CAR = KeyMap(  # numbers from -1 to 1 that the task cuts to its twelve actions: pedals are up at -1
    idle=(0.0, -1.0, -1.0),
    keys={
        "ArrowUp": (0.0, 2.0, 0.0),
        "ArrowDown": (0.0, 0.0, 2.0),
        "ArrowLeft": (-1.0, 0.0, 0.0),
        "ArrowRight": (1.0, 0.0, 0.0),
    },
    meaning={"ArrowUp": "gas", "ArrowDown": "brake", "ArrowLeft": "steer left", "ArrowRight": "steer right"},
    steps_per_second=50.0,
)
KEY_MAPS: Mapping[str, KeyMap] = {"car-racing": CAR, "point-circle": POINT, "point-gather": POINT}


def keys_of(task: str) -> KeyMap:
    """The keys of a task that can be driven by hand."""
    task_named(task, only=True)
    if task not in KEY_MAPS:
        raise InputError(f"task '{task}' cannot be driven with keys: allowed are {', '.join(KEY_MAPS)}")
    return KEY_MAPS[task]
