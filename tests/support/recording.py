"""`spacerl record` as a process and as an object, for tests of recordings and of what is learned from them."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spacerl.cli import main
from spacerl.rollout.demos.keys import keys_of
from spacerl.rollout.demos.recorder import Recorder, open_recording, task_env

SPACERL = [sys.executable, "-m", "spacerl"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path("src").absolute()), *sys.path]))}


class Recording:
    """`spacerl record` as a process of its own."""

    def __init__(self, *arguments: str):
        command = [*SPACERL, "record", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.address = self._line(r"open (http://127\.0\.0\.1:\d+/\?token=\S+)")
        self.port = int(re.search(r":(\d+)/", self.address)[1])  # type: ignore[index]

    def _line(self, pattern: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"it ended with {self.process.wait()}")

    def stop(self) -> None:
        """Whatever it is doing: a test that is skipped or fails leaves no process behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def end(self, how: int | None = None) -> tuple[int, str]:
        if how is not None:
            self.process.send_signal(how)
        said, errors = self.process.communicate(timeout=60)
        return self.process.returncode, said + errors

    def get(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()


def make_recorder(folder: Path, task: str = "point-circle", **options) -> Recorder:
    env, keys = task_env(task), keys_of(task)
    recording = open_recording(folder, task, env, keys, 6.0, append=True)
    return Recorder(task, env, keys, recording, fps=6.0, **options)


def drive(recorder: Recorder, steps: int, *held: str) -> None:
    recorder.press(held)
    for _ in range(steps):
        recorder.step()


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    return said
