"""The check in a process of its own, so that an environment that exits, crashes or hangs is reported like any fault.

The process says what it is about to do before it does it. One that says nothing for too long hangs there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import spacerl
from spacerl.envs.host.check.findings import PROBLEM, Finding, Findings
from spacerl.envs.host.pool import SECONDS_TO_START, last_words
from spacerl.types import InputError

STARTING, USUAL_TIMEOUT = "start", 60.0


def check_in_worker(arguments: dict[str, Any], timeout: float = USUAL_TIMEOUT) -> Findings:
    """`check_environment` with these arguments, all of them texts and numbers, in another process."""
    if not timeout > 0:
        raise InputError(f"worker-timeout is {timeout}: allowed is a finite number above 0")
    reading, writing = os.pipe()
    paths = os.pathsep.join(filter(None, [str(Path(spacerl.__file__).parent.parent), *sys.path]))
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(writing)],
            pass_fds=[writing],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "PYTHONPATH": paths},
        )
        os.close(writing)
        try:
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(json.dumps(arguments).encode())
                worker.stdin.close()
            return _outcome(worker, reading, timeout, log, arguments["env"])
        finally:
            os.close(reading)
            worker.kill()
            worker.wait()


def _has_file(stream: Any) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, AttributeError, ValueError):
        return False


def _outcome(worker: subprocess.Popen, reading: int, timeout: float, log: Any, env: str) -> Findings:
    """What the process found, or what became of it."""
    doing, text = STARTING, b""
    while True:
        patience = max(SECONDS_TO_START, timeout) if doing == STARTING else timeout
        if not select.select([reading], [], [], patience)[0]:
            worker.send_signal(signal.SIGUSR1)  # it says where it hangs
            time.sleep(0.3)
            said = f"{doing} did not return within {patience:g} seconds"
            return _lost(env, "hang", said, "let it return, or raise --worker-timeout where it is only slow", log)
        piece = os.read(reading, 65536)
        if not piece:
            worker.wait()
            code = worker.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            return _lost(env, "exit", f"{doing}: the process {how}", "an environment raises, it does not exit", log)
        *lines, text = (text + piece).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "input" in message:
                raise InputError(message["input"])
            if "findings" in message:
                return _findings(message["findings"])
            doing = message["doing"]


def _lost(env: str, kind: str, said: str, fix: str, log: Any) -> Findings:
    log.seek(0)
    where = last_words(log.read())
    return Findings(env, (), (Finding(PROBLEM, kind, f"{said} ({where})" if where else said, fix),))


def _findings(content: dict[str, Any]) -> Findings:
    understood = tuple((name, value) for name, value in content["understood"])
    return Findings(content["env"], understood, tuple(Finding(**each) for each in content["found"]), content["command"])


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    answers = int(sys.argv[1])

    def say(**message: Any) -> None:
        os.write(answers, json.dumps(message).encode() + b"\n")

    from spacerl.envs.host.check import check_environment

    try:
        findings = check_environment(**json.loads(sys.stdin.read()), watch=lambda doing: say(doing=doing))
    except InputError as error:
        say(input=str(error))
    else:
        say(findings=dataclasses.asdict(findings))


if __name__ == "__main__":
    main()
