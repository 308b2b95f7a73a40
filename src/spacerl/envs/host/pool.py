"""Worker processes as one BatchEnv. A worker that dies or hangs is reported and replaced, and its episodes go on.

Gymnasium's AsyncVectorEnv steps environments in processes too, but one that dies ends all of them, and it neither takes
the seed of each episode nor leaves a lane idle; whole episodes and exact resume need both.
"""

from __future__ import annotations

import collections
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

import spacerl
from spacerl.envs.cores import usable_cores
from spacerl.envs.host.channel import LONGEST_WAIT, Channel
from spacerl.envs.host.replay import Episodes
from spacerl.envs.host.shared import SharedTick, new_memory
from spacerl.envs.host.single import BadStep, Recipe
from spacerl.envs.host.worker import BAD_STEP, END, FAULT, INPUT, MAKING, PLAY, TICK
from spacerl.types import IDLE, RESET, STEP, BatchEnv, EnvSpec, Episode, InputError, Tick

FAULTS_IN_A_ROW = 3  # of one worker, without an episode completed in between, that a run survives
SECONDS_TO_START = 120.0  # of the interpreter and its imports, which are not the environment's doing
TRIES = 2  # of an episode whose worker fails; one that fails twice is lost
PATIENCE, LITTLE = 2.0, 0.5  # seconds in which workers that wait for work end by themselves, and those at work


class WorkersFailed(InputError):
    """Workers die faster than they can be replaced; the run cannot go on."""


class Fault(Exception):
    """One worker's death: what it left behind says why."""


class HangsInMaking(Fault):
    """An environment that is not made in time."""


class Worker:
    """One process and the lanes it holds."""

    def __init__(self, recipe: Recipe, lanes: slice, of: int, memory: int):
        self.lanes = lanes
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self.life, its_life = socket.socketpair()  # closed when this process ends, however it ends
        # Neither this package's folder nor the current one comes before Python's own: a random.py there would break it.
        root = str(Path(spacerl.__file__).parent.parent)
        ends = (theirs.fileno(), its_life.fileno(), memory)
        start = f"import sys; sys.path.append({root!r}); from spacerl.envs.host.worker import main; main{ends}"
        # One thread each: the workers are the parallelism, and libraries that take every core would fight over them.
        quiet = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", start],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stderr=self.log,
            env={**os.environ, **quiet},
        )
        theirs.close()
        its_life.close()
        self.connection = Channel(ours)
        self.owes_an_answer = True  # that it is ready
        self.send((os.getcwd(), sys.path))
        self.send((CloudpickleWrapper(recipe), lanes, of))  # type: ignore[arg-type]

    def send(self, message: Any, timeout: float = SECONDS_TO_START) -> None:
        self.owes_an_answer |= message != END
        with contextlib.suppress(OSError):  # dead, or it does not listen: waiting for its answer says so
            self.connection.send(message, timeout)

    def receive(self, timeout: float) -> Any:
        """What a worker says after a tick or an episode: why it left out episodes, and the one that it played. A Fault
        with what is known where it says nothing."""
        _, content = self._said(timeout, Fault)
        return content

    def ready(self, timeout: float) -> tuple[EnvSpec, Any]:
        """What a worker says once its environments are made, for each of which it has this time. The interpreter and
        its imports, which are not the environment's doing, have a time of their own."""
        kind, content = self._said(max(SECONDS_TO_START, timeout), Fault)
        while kind == MAKING:
            kind, content = self._said(timeout, HangsInMaking)
        return content

    def _said(self, timeout: float, hanging: type[Fault]) -> tuple[str, Any]:
        try:
            kind, content = self.connection.receive(timeout)
            self.owes_an_answer = False
        except TimeoutError:
            raise hanging(f"it did not answer within {timeout:g} seconds\n{self._where_it_hangs()}") from None
        except (EOFError, OSError):
            raise Fault(f"{self._death()}\n{self._last_words()}") from None
        if kind == INPUT:
            raise InputError(content)
        if kind == BAD_STEP:
            raise BadStep(content)
        if kind == FAULT:
            raise Fault(content)
        return kind, content

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

    def close(self, deadline: float) -> None:
        """It was told to end, and is killed where it did not by then."""
        self.connection.close()
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.life.close()
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
        self.at_once, self.players = at_once or workers, at_once or usable_cores()
        share = math.ceil(lanes / workers)
        parts = [slice(start, min(start + share, lanes)) for start in range(0, lanes, share)]
        self._restarts = self._lost = 0
        self.last_fault = ""  # in a line
        self._episodes = Episodes(lanes)
        _require_portable(recipe)
        self._memory = new_memory()
        self.workers = [Worker(recipe, each, lanes, self._memory) for each in parts]
        self._in_a_row = [0] * len(self.workers)
        try:
            for index in range(len(self.workers)):
                self._spec, self.observations = self._started(index, first=True)
            self._shared = SharedTick(self._memory, self._spec, lanes)
        except BaseException:
            self.close()
            raise

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def _started(self, index: int, first: bool = False) -> tuple[EnvSpec, Any]:
        """What a worker's environments are, and how their observations are translated. Where nothing was played yet,
        one that is not made in time is not waited for again."""
        while True:
            try:
                return self.workers[index].ready(self.timeout)
            except Fault as fault:
                if first and isinstance(fault, HangsInMaking):
                    raise InputError(
                        f"environment '{self.recipe.name}' was not made within {self.timeout:g} seconds "
                        f"({last_words(str(fault))}): let it return, or raise worker-timeout where it is only slow"
                    ) from fault
                self._replace(index, fault)

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        busy = command != IDLE
        asked = [index for index, worker in enumerate(self.workers) if busy[worker.lanes].any()]
        failed: list[int] = []
        self._shared.tell(command, action, last, seed)
        for index in asked[: self.at_once]:
            self.workers[index].send(TICK)
        for place, index in enumerate(asked):
            if place:  # the one before has answered, or is gone
                for following in asked[place + self.at_once - 1 : place + self.at_once]:
                    self.workers[following].send(TICK)
            try:
                self._answer(index)
            except Fault as fault:
                self._replace(index, fault)
                failed.append(index)
        out = self._shared.result()
        for index in failed:
            own = self.workers[index].lanes
            answer = self._again(index, command[own], action[own], last[own], seed[own])
            for array, value in zip(out, answer, strict=True):
                array[own] = value
        if out.lost.any() or not busy.all():  # nothing of an earlier tick is left in lanes that did not answer
            for array in out[:-1]:
                array[out.lost | ~busy] = 0
            out.lost[~busy] = False
        self._lost += int(out.lost.sum())
        self._episodes.note(command, action, seed, out)
        ended = out.terminated | out.truncated
        if ended.any():
            for index, worker in enumerate(self.workers):
                self._in_a_row[index] *= not ended[worker.lanes].any()
        return out

    def _answer(self, index: int) -> Episode | None:
        """What came of a tick is in shared memory, an episode in the answer."""
        notes, episode = self.workers[index].receive(self.timeout)
        for text in notes:
            self.report(text)
        return episode

    def play(self, act: Callable[[Any, Any], Any], seeds: Sequence[int], noises: Sequence[Any]) -> list[Episode | None]:
        """Every worker that may compute gets an episode, and the next one when it is done."""
        found: list[Episode | None] = [None] * len(seeds)
        waiting, tried = collections.deque(range(len(seeds))), [0] * len(seeds)
        playing: dict[int, int] = {}  # worker -> episode
        free = list(range(min(self.players, len(self.workers))))
        while waiting or playing:
            while free and waiting:
                index, number = free.pop(0), waiting.popleft()
                self.workers[index].send((PLAY, act, int(seeds[number]), noises[number]))
                playing[index], tried[number] = number, tried[number] + 1
            for index in self._answering(list(playing)):
                number = playing.pop(index)
                free.append(index)
                try:
                    found[number] = self._answer(index)
                    self._in_a_row[index] = 0
                except Fault as fault:
                    self._replace(index, fault)
                    self._started(index)
                    if tried[number] < TRIES:
                        waiting.appendleft(number)
        self._lost += sum(episode is None for episode in found)
        return found

    def _answering(self, busy: list[int]) -> list[int]:
        """Those of the busy workers that have said something; all of them where none does in time."""
        by_channel = {self.workers[index].connection: index for index in busy}
        ready, _, _ = select.select(list(by_channel), [], [], min(self.timeout, LONGEST_WAIT))
        return [by_channel[channel] for channel in ready] or busy

    def _again(self, index: int, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        """A tick in which a worker was lost, by the one in its place, which plays its episodes again up to there. Those
        that cannot be are lost: a fault that comes again, an environment that is another one each time."""
        own = self.workers[index].lanes

        def tick(*told: Any) -> Tick:
            for array, value in zip(self._shared.told, told, strict=True):
                array[own] = value
            self.workers[index].send(TICK)
            self._answer(index)
            return Tick(*(array[own] for array in self._shared.result()))

        try:
            self._started(index)
            ready = self._episodes.replay(own, command, tick) if np.any(command == STEP) else np.zeros_like(last)
            answer = tick(np.where((command == RESET) | ready, command, IDLE), action, last, seed)
            return answer._replace(lost=answer.lost | ((command == STEP) & ~ready))
        except Fault as fault:
            self._replace(index, fault)
            self._started(index)
            nothing = Tick(*(np.zeros_like(array[own]) for array in self._shared.came))
            return nothing._replace(lost=command != IDLE)

    def _replace(self, index: int, fault: Fault) -> None:
        self._in_a_row[index] += 1
        self._restarts += 1
        self.last_fault = _brief(str(fault))
        old = self.workers[index]
        old.process.kill()
        old.close(time.monotonic())
        if self._in_a_row[index] > FAULTS_IN_A_ROW:
            raise WorkersFailed(
                f"worker {index} of environment '{self.recipe.name}' failed {self._in_a_row[index]} times without "
                f"completing an episode; the last time: {self.last_fault}"
            )
        self.report(f"worker {index} of environment '{self.recipe.name}' is replaced: {fault}")
        self.workers[index] = Worker(self.recipe, old.lanes, self.lanes, self._memory)

    def as_given(self, obs: Any) -> Any:
        return self.observations.decode(obs)

    def report_faults_to(self, report: Callable[[str], None]) -> None:
        self.report = report

    def counts(self) -> dict[str, int]:
        counted = {"worker_restarts": self._restarts, "lost_episodes": self._lost}
        self._restarts = self._lost = 0
        return counted

    def close(self) -> None:
        # One that is at work when its run is stopped hears of it when it is done, which may be never.
        patience = LITTLE if any(worker.owes_an_answer for worker in self.workers) else PATIENCE
        deadline = time.monotonic() + patience
        for worker in self.workers:
            worker.send(END, patience)  # all are told before the first is waited for
        for worker in self.workers:
            worker.close(deadline)
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


def last_words(text: str) -> str:
    """The innermost lines of a stack that was dumped, which come first there; else the last lines that were written."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    dumped = [i for i, line in enumerate(lines) if "most recent call first" in line]
    return ", ".join(lines[dumped[-1] + 1 :][:2] if dumped else lines[-3:])


def _brief(text: str) -> str:
    """What says most in a line: what happened and where it hangs or crashed, or the last line of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "most recent call first" in text:
        return f"{lines[0]} ({last_words(text)})"
    return lines[-1] if lines else "no reason was left"
