"""One demonstrated episode, and the file that holds one while it is being driven."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spacerl.types import InputError

FORMAT = "spacerl-unfinished-episode-1"


class Episode(NamedTuple):
    """T steps as they were played; nothing of the environment's units is changed."""

    observations: np.ndarray  # (T + 1, ...)
    actions: np.ndarray  # (T, ...)
    rewards: np.ndarray  # (T,)
    costs: np.ndarray  # (T,)
    terminated: bool
    seed: int | None = None
    driver: str = "person"

    @property
    def steps(self) -> int:
        return len(self.rewards)


class Journal:
    """An episode on its way to disk, step by step: whatever ends the process, what was driven can be read again.

    A line of JSON says what follows it: the first observation, then records of one size, so that a record which was
    cut short is seen as such.
    """

    def __init__(self, path: Path, first: np.ndarray, action: np.ndarray, seed: int, driver: str):
        self.path = path
        described = {"observation": [first.dtype.str, first.shape], "action": [action.dtype.str, action.shape]}
        header = {"format": FORMAT, "seed": seed, "driver": driver, **described}
        self._record = _record_of(header)
        self._file = path.open("wb", buffering=0)  # what is written stays when this process is killed
        self._file.write(json.dumps(header).encode() + b"\n" + np.ascontiguousarray(first).tobytes())

    def step(self, observation: np.ndarray, action: np.ndarray, reward: float, cost: float, terminated: bool) -> None:
        record = np.zeros((), self._record)
        record["observation"], record["action"] = observation, action
        record["reward"], record["cost"], record["terminated"] = reward, cost, terminated
        self._file.write(record.tobytes())

    def remove(self) -> None:
        """Its episode is kept elsewhere, or not wanted."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        self._file.close()


def _record_of(header: dict[str, Any]) -> np.dtype:
    (obs_type, obs_shape), (action_type, action_shape) = header["observation"], header["action"]
    fields = [("observation", obs_type, tuple(obs_shape)), ("action", action_type, tuple(action_shape))]
    record = np.dtype([*fields, ("reward", "<f8"), ("cost", "<f8"), ("terminated", "?")])
    if record.hasobject:
        raise ValueError("objects are not numbers")
    return record


def read_journal(path: Path) -> Episode | None:
    """The whole steps of an unfinished episode; None where there is not even one."""
    content = path.read_bytes()
    line, _, rest = content.partition(b"\n")
    try:
        header = json.loads(line)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        record = _record_of(header)
        obs = record["observation"]
        first, rest = rest[: obs.itemsize], rest[obs.itemsize :]
        whole = len(rest) // record.itemsize
        if not whole:
            return None
        steps = np.frombuffer(rest[: whole * record.itemsize], record)
        start = np.frombuffer(first, obs.base).reshape(1, *obs.shape)
        seed, driver = int(header["seed"]), str(header["driver"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if not rest:
            return None  # killed while the first line was written
        raise InputError(
            f"'{path}' is not an unfinished episode of a recording ({error}): move it away to go on"
        ) from error
    return Episode(
        observations=np.concatenate([start, steps["observation"]]),
        actions=np.array(steps["action"]),
        rewards=np.array(steps["reward"]),
        costs=np.array(steps["cost"]),
        terminated=bool(steps["terminated"][-1]),
        seed=seed,
        driver=driver,
    )
