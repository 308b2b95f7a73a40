"""A real, headless Chromium, driven over its DevTools socket: opens pages, presses keys, takes pictures."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Space": 32, "Enter": 13, "Delete": 46}


class Tab:
    """One page."""

    def __init__(self, socket: Any):
        self._socket, self._numbers = socket, itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=20))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def text(self, element: str) -> str:
        return self.evaluate(f"document.getElementById({element!r})?.textContent ?? ''")

    def key(self, code: str, down: bool) -> None:
        kind = {"type": "keyDown" if down else "keyUp", "code": code, "key": " " if code == "Space" else code}
        self.call("Input.dispatchKeyEvent", windowsVirtualKeyCode=CODES[code], **kind)

    def tap(self, code: str) -> None:
        self.key(code, True)
        self.key(code, False)

    def wait(self, expression: str, seconds: float = 20.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.02)
        page = self.evaluate("document.body?.innerText")
        raise AssertionError(f"{expression} is not true after {seconds} s; the page says: {page}")

    def wait_for_phase(self, phase: str) -> None:
        self.wait(f"document.getElementById('state')?.textContent === {phase!r}")

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A fresh browser with one empty page."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(NAMES)})")
    from websockets.sync.client import connect

    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--window-size=1100,800", "about:blank"]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file, end = folder / "DevToolsActivePort", time.monotonic() + 30
        while not (port_file.exists() and port_file.read_text().strip()):
            assert process.poll() is None, f"Chromium ended with code {process.returncode}"
            assert time.monotonic() < end, "Chromium did not start within 30 s"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Tab(socket)
    finally:
        process.kill()
        process.wait()
