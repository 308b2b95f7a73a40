"""A scenario that is simulated in another process, for those who want more than one: `python -m ... FD` serves it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import spacerl
from spacerl.envs.to_gymnasium import Step
from spacerl.envs.traffic.scenario import Moment, Player, Scenario
from spacerl.types import Episode, InputError


class RemoteScenario:
    """The same calls as a scenario, answered by a process of its own."""

    def __init__(self, kind: type[Scenario], settings: Any):
        ours, theirs = socket.socketpair()
        root = str(Path(spacerl.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "spacerl.envs.traffic.remote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._name = kind.name
        try:
            self._ask((kind, settings))
        except BaseException:
            self.close()
            raise

    def _ask(self, message: Any) -> Any:
        try:
            self._connection.send(message)
            answer = self._connection.recv()
        except (EOFError, OSError):
            code = self._process.wait(5)
            raise RuntimeError(f"SUMO's process of task '{self._name}' ended with code {code}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def begin(self, seed: int) -> np.ndarray:
        return self._ask(("begin", seed))

    def advance(self, action: np.ndarray) -> Step:
        return self._ask(("advance", action))

    def play(self, policy: Player, seed: int, noise: np.ndarray) -> Episode:
        return self._ask(("play", policy, seed, noise))

    def moment(self) -> Moment:
        return self._ask(("moment",))

    def roads(self) -> tuple[tuple[np.ndarray, float], ...]:
        return self._ask(("roads",))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._connection.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(connection: Connection) -> None:
    kind, settings = connection.recv()
    scenario: Scenario = kind(settings)
    try:
        scenario.open()
        connection.send(None)
        while (message := connection.recv()) is not None:
            name, *arguments = message
            connection.send(getattr(scenario, name)(*arguments))
    except (EOFError, KeyboardInterrupt):  # whoever asked is gone
        return
    except InputError as error:
        connection.send(error)
    finally:
        scenario.close()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
