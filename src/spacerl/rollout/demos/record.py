"""`spacerl record`: a task, somebody at the keys, and a dataset."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import NamedTuple

from spacerl.rollout.demos.dataset import require_minari
from spacerl.rollout.demos.driver import NAME as SCRIPTED
from spacerl.rollout.demos.driver import drive
from spacerl.rollout.demos.keys import keys_of
from spacerl.rollout.demos.recorder import Recorder, open_recording, task_env
from spacerl.rollout.demos.server import RecordingServer, require_websockets
from spacerl.rollout.demos.window import record_in_window
from spacerl.runs.lock import sole_writer
from spacerl.types import InputError, unknown_name

DRIVERS = ("person", "scripted")
DRIVEN_BY_SCRIPT = ("car-racing",)


class Recorded(NamedTuple):
    """How a recording ended."""

    folder: Path
    episodes: int  # in the dataset
    newly: int  # of them from this time
    interrupted: BaseException | None


class HowToRecord(NamedTuple):
    """What `record` may be asked for besides task and folder."""

    append: bool = False
    episodes: int | None = None
    fps: float | None = None
    seed: int | None = None
    port: int = 0
    window: bool = False
    driver: str = "person"


def record(task: str, folder: Path, how: HowToRecord = HowToRecord()) -> Recorded:  # noqa: B008  a record
    """Record episodes until the person has had enough. Ctrl-C ends it as well, and keeps what was driven."""
    keys = keys_of(task)
    _require_possible(task, how)
    fps = how.fps or keys.steps_per_second
    env = task_env(task)
    try:
        recording = open_recording(folder, task, env, keys, fps, how.append)
        with sole_writer(folder):
            kept = recording.recover()
            if kept is not None:
                say(f"picked up {kept.steps} steps of an episode that was not finished last time")
            driver = SCRIPTED if how.driver == "scripted" else "person"
            begin = {"fps": fps, "driver": driver, "seed": how.seed, "episodes": how.episodes}
            recorder = Recorder(task, env, keys, recording, **begin)
            stopped: BaseException | None = None
            try:
                _run(recorder, how)
            except KeyboardInterrupt as interrupt:
                stopped = interrupt
            finally:
                recorder.close()
            return Recorded(folder, recorder.saved, recorder.newly_saved, stopped)
    finally:
        env.close()


def _require_possible(task: str, how: HowToRecord) -> None:
    require_minari()
    if not how.window:
        require_websockets()
    if how.driver not in DRIVERS:
        raise unknown_name("driver", how.driver, DRIVERS)
    if how.driver == "scripted" and task not in DRIVEN_BY_SCRIPT:
        raise InputError(f"driver is 'scripted' and task '{task}' has no script: {', '.join(DRIVEN_BY_SCRIPT)} has one")
    if how.driver == "scripted" and how.window:
        raise InputError("driver is 'scripted' and --window was given: the script drives through the page's own socket")
    if how.driver == "scripted" and how.episodes is None:
        raise InputError("driver is 'scripted' and --episodes was not given: a script never has enough")
    for name, value, least in (("episodes", how.episodes, 1), ("seed", how.seed, 0), ("port", how.port, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} is {value}: allowed is a whole number from {least}")
    if how.port > 65535:
        raise InputError(f"port is {how.port}: allowed is a whole number from 0 to 65535")
    if how.fps is not None and not 0 < how.fps <= 1000:
        raise InputError(f"fps is {how.fps:g}: allowed is a number above 0 and up to 1000")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(recorder: Recorder, how: HowToRecord) -> None:
    if how.window:
        record_in_window(recorder)
        return
    scripted = how.driver == "scripted"
    asyncio.run(_serve(recorder, how.port, scripted, how.seed or 0))


async def _serve(recorder: Recorder, port: int, scripted: bool, seed: int) -> None:
    server = RecordingServer(recorder, say, waits_for_keys=scripted)
    driving: list[asyncio.Task] = []

    def ready(address: str) -> None:
        if scripted:
            driving.append(asyncio.create_task(drive(address, seed)))
            return
        say(f"open {address}")
        say(
            f"(from another machine: ssh -L {server.access.port}:127.0.0.1:{server.access.port} THIS-MACHINE, then the "
            "same address there)"
        )

    serving = asyncio.create_task(server.run(port, ready))
    try:
        while not serving.done():  # a script that fails must not leave a page that waits for it
            await asyncio.wait([serving, *driving], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for script in driving:
                if script.done() and script.exception() is not None:
                    raise RuntimeError("the scripted driver failed") from script.exception()
        await serving
    finally:
        for each in (serving, *driving):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
