"""The page that a person drives in: one HTTP and WebSocket server on this machine's loopback address.

Who may connect: a request must be addressed to this machine (Host), a WebSocket must come from the page itself
(Origin), and both must know a secret. The address that is printed holds a token, which is good for one visit and is
exchanged for a cookie. Everything else is answered with 403. A tunnel to the port works: neither check looks at the
port's number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import json
import re
import secrets
import struct
from collections.abc import Callable
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from spacerl.rollout.demos.recorder import Recorder
from spacerl.types import InputError

ADDRESS = "127.0.0.1"
LOCAL = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
REPLACED = 4001  # code of a WebSocket that another page of the same browser took over from
ON_THE_WAY = 6  # frames at most to a page that says what it has shown: enough for 50 a second over a line of 100 ms
BEHIND = 0.25  # seconds; who is further behind does not hurry to catch up


def require_websockets() -> None:
    try:
        import websockets  # noqa: F401
    except ImportError as error:
        raise InputError(
            "recording in a browser needs websockets, which is not installed: pip install 'spacerl[record]'"
        ) from error


class Access:
    """Who may see the page."""

    def __init__(self) -> None:
        self.port = 0
        self._cookie = secrets.token_urlsafe(24)
        self._token = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.port}/?token={self._token}"

    def renew(self) -> None:
        """The last visit is over: another browser may take its place, with a new token."""
        self._token = secrets.token_urlsafe(24)

    def spend(self, given: str) -> bool:
        """Whether a token is the right one, which it is once."""
        right = secrets.compare_digest(given.encode(), self._token.encode())
        if right:
            self.renew()
        return right

    def knows(self, cookies: str) -> bool:
        parts = (part.strip().partition("=") for part in cookies.split(";"))
        given = next((value for name, _, value in parts if name == self.name), "")
        return secrets.compare_digest(given.encode(), self._cookie.encode())

    @property
    def name(self) -> str:
        return f"spacerl-record-{self.port}"  # cookies do not know ports, and two recordings may be open

    @property
    def cookie(self) -> str:
        return f"{self.name}={self._cookie}; HttpOnly; SameSite=Lax; Path=/"


class RecordingServer:
    """Steps a recorder in time, sends what it shows to the page, and takes the keys from there."""

    def __init__(self, recorder: Recorder, say: Callable[[str], None], waits_for_keys: bool = False):
        require_websockets()
        self.recorder, self._say = recorder, say
        self.access = Access()
        self._waits_for_keys = waits_for_keys  # of a script, which answers every frame: as fast as it can be played
        self._client: Any = None
        self._pressed = asyncio.Event()
        self._drawn = asyncio.Event()
        self._sent = 0  # frames
        self._shown: int | None = None  # of them, where the page says so
        self._caught_up = asyncio.Event()
        self._page = resources.files("spacerl.rollout.demos").joinpath("page.html").read_text(encoding="utf-8")

    async def run(self, port: int, ready: Callable[[str], Any]) -> None:
        """Serve until the recording is finished. `ready` gets the address once it can be opened."""
        from websockets.asyncio.server import serve

        try:
            server = await serve(self._talk, ADDRESS, port, process_request=self._answer, max_size=4096)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                why = "in use" if error.errno == errno.EADDRINUSE else "not yours to use"
                raise InputError(f"port {port} is {why}: give another with --port, or 0 for any that is free") from None
            raise
        async with server:
            self.access.port = server.sockets[0].getsockname()[1]
            ready(self.access.address)
            sending = asyncio.create_task(self._send())
            try:
                await self._play()
                await self._show_once()
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sending

    # Requests ---------------------------------------------------------------------------------------------------------

    def _answer(self, connection: Any, request: Any) -> Any:
        """What a request gets; None lets a WebSocket be opened."""
        headers, url = request.headers, urlsplit(request.path)
        host = headers.get_all("Host")
        if len(host) != 1 or not LOCAL.fullmatch(host[0]) or getattr(request, "method", "GET") != "GET":
            return self._refused(connection, "this page is for the machine that it runs on")
        if headers.get("Upgrade", "").lower() == "websocket":
            if headers.get_all("Origin") != [f"http://{host[0]}"]:
                return self._refused(connection, "only the page itself may connect")
            if url.path != "/drive" or not self.access.knows(headers.get("Cookie", "")):
                return self._refused(connection, "open the address that was printed")
            return None
        token = parse_qs(url.query).get("token", [""])[0]
        if url.path == "/" and token and self.access.spend(token):
            answer = connection.respond(http.HTTPStatus.SEE_OTHER, "")
            answer.headers["Location"] = "/"  # so that the token is not in the address any more
            answer.headers["Set-Cookie"] = self.access.cookie
            return self._careful(answer)
        if url.path == "/" and self.access.knows(headers.get("Cookie", "")):
            return self._page_for(connection, host[0])
        return self._refused(connection, "open the address that was printed; its token is good for one visit")

    def _refused(self, connection: Any, why: str) -> Any:
        return self._careful(connection.respond(http.HTTPStatus.FORBIDDEN, f"403: {why}\n"))

    def _careful(self, answer: Any) -> Any:
        answer.headers["Cache-Control"] = "no-store"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["X-Frame-Options"] = "DENY"
        return answer

    def _page_for(self, connection: Any, host: str) -> Any:
        nonce = secrets.token_urlsafe(12)
        answer = self._careful(connection.respond(http.HTTPStatus.OK, self._page.replace("NONCE", nonce)))
        del answer.headers["Content-Type"]
        answer.headers["Content-Type"] = "text/html; charset=utf-8"
        answer.headers["Content-Security-Policy"] = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src ws://{host}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return answer

    # The page that drives ---------------------------------------------------------------------------------------------

    async def _talk(self, client: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        before, self._client = self._client, client
        self._sent, self._shown = 0, None
        self._caught_up.set()
        if before is not None:
            await before.close(REPLACED, "opened in another tab")
        try:
            await client.send(json.dumps({"keys": dict(self.recorder.keys.meaning), "task": self.recorder.task}))
            self._drawn.set()
            async for message in client:
                self._hear(message)
        except ConnectionClosed:
            pass
        finally:
            if self._client is client:
                self._client = None
                self._caught_up.set()
                self.recorder.pause()
                self._pressed.set()
                if self.recorder.phase != "finished":
                    self._say(
                        "the browser is gone: paused, nothing is lost; go on in the same browser, or open "
                        f"{self.access.address} ; Ctrl-C ends the recording and keeps what was driven"
                    )

    def _hear(self, message: Any) -> None:
        """Keys that are held, or a command; anything else is not for us."""
        try:
            content = json.loads(message)
        except (ValueError, RecursionError):
            return
        if not isinstance(content, dict):
            return
        if isinstance(shown := content.get("shown"), int):
            self._shown = shown
            self._caught_up.set()
        if isinstance(content.get("held"), list):
            self.recorder.press(content["held"])
            self._pressed.set()
        if isinstance(content.get("do"), str):
            self.recorder.do(content["do"])
            self._drawn.set()
            self._pressed.set()

    # Time -------------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        recorder, clock = self.recorder, asyncio.get_running_loop().time
        due = clock()
        while recorder.phase != "finished":
            if self._waits_for_keys:
                await self._pressed.wait()
                self._pressed.clear()
            else:
                due = max(due + 1.0 / recorder.fps, clock() - BEHIND)
                await asyncio.sleep(max(0.0, due - clock()))
            driving = recorder.phase == "driving"
            recorder.step()
            if recorder.ended:
                recorder.phase = "saving"
                await self._show_once()
                await asyncio.to_thread(recorder.keep)  # the page stays alive while a large file is written
                due = clock()
            if driving or recorder.ended or self._waits_for_keys:
                self._drawn.set()

    async def _send(self) -> None:
        """Newest state to the page. A slow line or a slow page misses frames: nobody drives by old ones, and the
        environment is not slowed down."""
        while True:
            await self._drawn.wait()
            while self._is_behind:
                self._caught_up.clear()
                await self._caught_up.wait()
            self._drawn.clear()
            await self._show_once()

    @property
    def _is_behind(self) -> bool:
        """Whether a page that says what it has shown has frames waiting, which a browser keeps without end."""
        return self._client is not None and self._shown is not None and self._sent - self._shown >= ON_THE_WAY

    async def _show_once(self) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._client is not None:
            self._sent += 1
            with contextlib.suppress(ConnectionClosed):
                await self._client.send(frame_message(self.recorder.status(), self.recorder.picture()))


def frame_message(status: dict[str, Any], picture: np.ndarray) -> bytes:
    """Length of the JSON, width and height as 32-bit numbers, the JSON, and the picture as RGB bytes."""
    text = json.dumps(status).encode()
    height, width = picture.shape[:2]
    return struct.pack("<III", len(text), width, height) + text + np.ascontiguousarray(picture).tobytes()


def read_frame(message: bytes) -> tuple[dict[str, Any], np.ndarray]:
    """Inverse of `frame_message`, for a client in Python."""
    length, width, height = struct.unpack_from("<III", message)
    picture = np.frombuffer(message, np.uint8, offset=12 + length).reshape(height, width, 3)
    return json.loads(message[12 : 12 + length]), picture
