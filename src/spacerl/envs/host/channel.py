"""Messages between a run and one of its workers, and what ends a worker whose run is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import threading
import time
from multiprocessing.reduction import ForkingPickler  # as connections between processes do; never files
from typing import Any

LONGEST_MESSAGE = 2**36  # bytes: what says that it is longer is no message
LONGEST_WAIT = 1e6  # seconds: more than the system can count to is for ever


class Channel:
    """Pickles with their length over one end of a socket pair. A message is there within its time, or not at all: one
    whose sender stopped halfway does not hold up whoever waits for it."""

    def __init__(self, end: socket.socket):
        self._end = end

    def send(self, message: Any, timeout: float | None = None) -> None:
        content = ForkingPickler.dumps(message)
        self._end.settimeout(_limited(timeout))
        self._end.sendall(struct.pack("!Q", len(content)) + bytes(content))

    def receive(self, timeout: float | None = None) -> Any:
        """The next message; EOFError where the other end is closed, TimeoutError where it takes longer."""
        limit = _limited(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        (length,) = struct.unpack("!Q", self._bytes(8, deadline))
        if length > LONGEST_MESSAGE:
            raise EOFError("what came is no message")
        return ForkingPickler.loads(self._bytes(length, deadline))  # type: ignore[attr-defined]

    def _bytes(self, count: int, deadline: float | None) -> bytearray:
        content = bytearray(count)
        view, there = memoryview(content), 0
        while there < count:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._end.settimeout(left)
            got = self._end.recv_into(view[there:])
            if not got:
                raise EOFError
            there += got
        return content

    def fileno(self) -> int:
        """For those who wait for several at once."""
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()


def _limited(timeout: float | None) -> float | None:
    return None if timeout is None else min(timeout, LONGEST_WAIT)


def die_with(life: socket.socket) -> None:
    """End this process when the other end of `life`, on which nothing is ever sent, is closed.

    The system sends SIGIO, which ends a process on Linux whatever it is at, also in the midst of a library that never
    comes back. A thread does the same elsewhere.
    """
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        # Not a read: while a thread waits in one, the system sends no signal.
        waiting = select.poll()
        waiting.register(life, select.POLLIN)
        waiting.poll()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
