"""Train on Safety-Gymnasium, which lives in an old Python of its own.

Safety-Gymnasium 1.0 is pinned to Gymnasium 0.28 and MuJoCo 2.3.3, and cannot be imported by Python 3.11. It stays in an
environment where it works; every copy of it is a process there, and this file is the wire between the two:

    python3.10 -m venv safety && safety/bin/pip install safety-gymnasium
    spacerl train --env examples/safety_bridge.py:make --env-args id=SafetyPointGoal1-v0 python=safety/bin/python \
        --algorithm pcpo --cost-limit 25

The step keeps its six values, so that the cost is found without being named. Only plain Python objects and bytes
travel: arrays pickled by one NumPy cannot be read by the other. Box spaces, and Dict spaces of them, are known.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

# Both sides: what travels --------------------------------------------------------------------------------------------


def packed(value: Any) -> Any:
    """Arrays as dtype, shape and bytes; NumPy's numbers as Python's."""
    if isinstance(value, dict):
        return {str(key): packed(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    return value.item() if isinstance(value, np.generic) else value


def unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unpacked(each) for key, each in value.items()}
    if isinstance(value, tuple) and value[:1] == ("array",):
        _, dtype, shape, data = value
        return np.frombuffer(data, dtype).reshape(shape).copy()
    return value


def described(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: described(inner) for key, inner in space.spaces.items()}
    if not isinstance(space, spaces.Box):
        raise TypeError(f"the bridge carries Box and Dict spaces, not {type(space).__name__}")
    return ("box", packed(space.low), packed(space.high), np.dtype(space.dtype).str)


def rebuilt(description: Any) -> Any:
    if isinstance(description, dict):
        return spaces.Dict({key: rebuilt(inner) for key, inner in description.items()})
    _, low, high, dtype = description
    return spaces.Box(unpacked(low), unpacked(high), dtype=np.dtype(dtype).type)


# Here ----------------------------------------------------------------------------------------------------------------


class Bridge(gymnasium.Env):
    """A Safety-Gymnasium environment in another process: its six-tuple steps, its spaces, its images."""

    def __init__(self, id: str, python: str, render_mode: str | None = None, **arguments: Any) -> None:
        ours, theirs = socket.socketpair()
        command = [python, os.path.abspath(__file__), str(theirs.fileno())]
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=variables)
        theirs.close()
        self._connection = Connection(ours.detach())
        made = self._ask("make", id, {**arguments, **({"render_mode": render_mode} if render_mode else {})})
        self.observation_space, self.action_space = rebuilt(made["observation"]), rebuilt(made["action"])
        self.render_mode, self.metadata = render_mode, made["metadata"]
        self.spec = gymnasium.envs.registration.EnvSpec(id, max_episode_steps=made["steps"])

    def _ask(self, *question: Any) -> Any:
        self._connection.send(question)
        try:
            kind, answer = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"the process of Safety-Gymnasium ended with code {self._process.wait(5)}") from None
        if kind == "error":
            raise RuntimeError(f"in the process of Safety-Gymnasium:\n{answer}")
        return answer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        obs, info = self._ask("reset", seed)
        return unpacked(obs), unpacked(info)

    def step(self, action: Any) -> Any:  # six values: this is what Safety-Gymnasium adds to Gymnasium
        obs, reward, cost, terminated, truncated, info = self._ask("step", packed(np.asarray(action)))
        return unpacked(obs), reward, cost, terminated, truncated, unpacked(info)

    def render(self) -> Any:
        return unpacked(self._ask("render"))

    def close(self) -> None:
        self._connection.close()  # the other side ends with its wire
        self._process.wait(10)


def make(id: str = "SafetyPointGoal1-v0", python: str = "python3.10", **arguments: Any) -> Bridge:
    return Bridge(id, python, **arguments)


# There ---------------------------------------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    import safety_gymnasium  # type: ignore[import-not-found]

    env: Any = None
    while True:
        try:
            name, *given = connection.recv()
        except EOFError:
            return
        try:
            if name == "make":
                env = safety_gymnasium.make(given[0], **given[1])
                answer: Any = {
                    "observation": described(env.observation_space),
                    "action": described(env.action_space),
                    "metadata": dict(env.metadata),
                    "steps": env.spec.max_episode_steps,
                }
            elif name == "reset":
                answer = tuple(map(packed, env.reset(seed=given[0])))
            elif name == "step":
                answer = tuple(map(packed, env.step(unpacked(given[0]))))
            else:
                answer = packed(env.render())
            connection.send(("answer", answer))
        except Exception:
            connection.send(("error", traceback.format_exc()))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
