"""Worker processes as one BatchEnv. A worker that dies or hangs is reported, replaced, and its episodes are lost alone.

Gymnasium's AsyncVectorEnv steps environments in processes too, but one that dies ends all of them, and it neither takes
the seed of each episode nor leaves a lane idle; whole episodes and exact resume need both.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

import spacerl
from spacerl.envs.host.shared import SharedTick, new_memory
from spacerl.envs.host.single import BadStep, Recipe
from spacerl.envs.host.worker import BAD_STEP, END, INPUT, READY, TICK
from spacerl.types import IDLE, BatchEnv, EnvSpec, InputError, Tick

FAULTS_IN_A_ROW = 3  # of one worker, without an episode completed in between, that a run survives
SECONDS_TO_START = 120.0


class WorkersFailed(InputError):
    """Workers die faster than they can be replaced; the run cannot go on."""


class Fault(Exception):
    """One worker's death: what it left behind says why."""


class Worker:
    """One process and the lanes it holds."""

    def __init__(self, recipe: Recipe, lanes: slice, of: int, memory: int):
        self.lanes = lanes
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        ours, theirs = socket.socketpair()
        root = str(Path(spacerl.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # One thread each: the workers are the parallelism, and libraries that take every core would fight over them.
        quiet = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spacerl.envs.host.worker", str(theirs.fileno()), str(memory)],
            pass_fds=[theirs.fileno(), memory],
            stdin=subprocess.DEVNULL,
            stderr=self.log,
            env={**os.environ, **quiet, "PYTHONPATH": paths},
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self._answered = select.poll()  # the connection's own poll makes a selector anew for every call
        self._answered.register(self.connection.fileno(), select.POLLIN)
        with contextlib.suppress(OSError):  # dead already: waiting for its answer says so
            self.connection.send((os.getcwd(), sys.path))
            self.connection.send((CloudpickleWrapper(recipe), lanes, of))  # type: ignore[arg-type]

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self.connection.send_bytes(message)

    def receive(self, timeout: float) -> Any:
        """What a worker says once it is ready; nothing after a tick. A Fault with everything known where it says
        nothing."""
        try:
            if not self._answered.poll(1000.0 * timeout):
                raise Fault(f"it did not answer within {timeout:g} seconds\n{self._where_it_hangs()}")
            if self.connection.recv_bytes() == TICK:
                return None
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            raise Fault(f"{self._death()}\n{self._last_words()}") from None
        if kind == READY:
            return content
        if kind == INPUT:
            raise InputError(content)
        if kind == BAD_STEP:
            raise BadStep(content)
        raise Fault(content)

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        if code is None:
            return "it closed its connection"
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"

    def _where_it_hangs(self) -> str:
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
        return self._last_words()

    def _last_words(self, characters: int = 4000) -> str:
        self.log.seek(0)
        return self.log.read()[-characters:].strip()

    def close(self, patience: float = 2.0) -> None:
        self.send(END)
        self.connection.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class WorkerPool(BatchEnv):
    """`lanes` environments spread over worker processes, of which at most `at_once` compute at the same time."""

    def __init__(
        self,
        recipe: Recipe,
        lanes: int,
        workers: int,
        timeout: float,
        report: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
        at_once: int | None = None,
    ):
        self.recipe, self.lanes, self.timeout, self.report = recipe, lanes, timeout, report
        self.at_once = at_once or workers
        share = math.ceil(lanes / workers)
        parts = [slice(start, min(start + share, lanes)) for start in range(0, lanes, share)]
        self._restarts = 0
        _require_portable(recipe)
        self._memory = new_memory()
        self.workers = [Worker(recipe, each, lanes, self._memory) for each in parts]
        self._in_a_row = [0] * len(self.workers)
        try:
            for index in range(len(self.workers)):
                self._spec, self.observations = self._started(index)
            self._shared = SharedTick(self._memory, self._spec, lanes)
        except BaseException:
            self.close()
            raise

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def _started(self, index: int) -> tuple[EnvSpec, Any]:
        """What a worker's environments are, and how their observations are translated."""
        while True:
            try:
                return self.workers[index].receive(max(SECONDS_TO_START, self.timeout))
            except Fault as fault:
                self._replace(index, fault)

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        busy = command != IDLE
        asked = [index for index, worker in enumerate(self.workers) if busy[worker.lanes].any()]
        lost = np.zeros(self.lanes, bool)
        self._shared.tell(command, action, last, seed)
        for index in asked[: self.at_once]:
            self.workers[index].send(TICK)
        for place, index in enumerate(asked):
            if place:  # the one before has answered, or is gone
                for following in asked[place + self.at_once - 1 : place + self.at_once]:
                    self.workers[following].send(TICK)
            try:
                self.workers[index].receive(self.timeout)
            except Fault as fault:
                self._replace(index, fault)
                self._started(index)
                lost[self.workers[index].lanes] = busy[self.workers[index].lanes]
        out = self._shared.result()
        if lost.any() or not busy.all():  # nothing of an earlier tick is left in lanes that did not answer
            for array in out:
                array[lost | ~busy] = 0
        out.lost[lost] = True
        ended = out.terminated | out.truncated
        if ended.any():
            for index, worker in enumerate(self.workers):
                self._in_a_row[index] *= not ended[worker.lanes].any()
        return out

    def _replace(self, index: int, fault: Fault) -> None:
        self._in_a_row[index] += 1
        self._restarts += 1
        old = self.workers[index]
        old.process.kill()
        old.close()
        if self._in_a_row[index] > FAULTS_IN_A_ROW:
            raise WorkersFailed(
                f"worker {index} of environment '{self.recipe.name}' failed {self._in_a_row[index]} times without "
                f"completing an episode; the last time: {_brief(str(fault))}"
            )
        self.report(f"worker {index} of environment '{self.recipe.name}' is replaced: {fault}")
        self.workers[index] = Worker(self.recipe, old.lanes, self.lanes, self._memory)

    def as_given(self, obs: Any) -> Any:
        return self.observations.decode(obs)

    def report_faults_to(self, report: Callable[[str], None]) -> None:
        self.report = report

    def counts(self) -> dict[str, int]:
        restarts, self._restarts = self._restarts, 0
        return {"worker_restarts": restarts}

    def close(self) -> None:
        for worker in self.workers:
            worker.send(END)  # all are told before the first is waited for
        for worker in self.workers:
            worker.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def _require_portable(recipe: Recipe) -> None:
    try:
        CloudpickleWrapper(recipe).__getstate__()  # type: ignore[arg-type]
    except Exception as error:
        raise InputError(
            f"environment '{recipe.name}' cannot be sent to worker processes ({type(error).__name__}: {error}): give a "
            "function that makes it, or take workers 0"
        ) from error


def _brief(text: str) -> str:
    """The line of a traceback that says most: its last."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason was left"
