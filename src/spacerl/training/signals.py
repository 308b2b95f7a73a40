"""Signals that stop a run: SIGTERM and SIGHUP like Ctrl-C, and a second one that leaves at once."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 128  # marks the number of a signal that is to be sent once more
APART = 0.3  # seconds between two: one may reach a process twice, by its terminal and by who started it


class Interrupt(KeyboardInterrupt):
    """A signal that asks for a stop."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def number_of(interrupt: KeyboardInterrupt) -> int:
    return getattr(interrupt, "number", signal.SIGINT)


_inside = threading.Lock()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Stopping signals raise an Interrupt in here. Handlers of whoever calls us, and signals that are ignored (nohup),
    are left alone; so is everything outside of the main thread, which gets no signals."""
    if threading.current_thread() is not threading.main_thread() or not _inside.acquire(blocking=False):
        yield
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {each: signal.getsignal(each) for each in STOPPING if signal.getsignal(each) in usual}
    try:
        for each in before:
            signal.signal(each, _raise)
        with _leaving_at_once():
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        _inside.release()


def _raise(number: int, frame: Any) -> None:
    raise Interrupt(number)


@contextlib.contextmanager
def _leaving_at_once() -> Iterator[None]:
    """The second signal ends the process, also within compiled code, where Python runs no handlers: a thread sees it.
    Every file is written whole or not at all, so nothing that was saved is lost."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    others = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if others != -1:  # somebody waits for signals already
        signal.set_wakeup_fd(others)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    usual = sys.unraisablehook
    sys.unraisablehook = functools.partial(_thrown_away, usual, writing)
    try:
        yield
    finally:
        sys.unraisablehook = usual
        if others == -1:
            signal.set_wakeup_fd(-1)
        os.close(writing)


def _thrown_away(usual: Callable[[Any], Any], writing: int, lost: Any) -> None:
    """Python throws away what is raised in a callback of the garbage collector (JAX has one) or in a __del__: an
    Interrupt among it is asked for again."""
    if isinstance(lost.exc_value, Interrupt):
        os.write(writing, bytes([lost.exc_value.number | AGAIN]))
    else:
        usual(lost)


def _watch(reading: int) -> None:
    asked, again = None, 0
    while numbers := os.read(reading, 64):
        now = time.monotonic()
        for number in numbers:
            if number & AGAIN:
                time.sleep(0.01)  # whatever threw it away has ended by then; if not, it comes here once more
                again += 1
                signal.pthread_kill(threading.main_thread().ident or 0, number & ~AGAIN)
            elif number in STOPPING and again:
                again -= 1
            elif number in STOPPING and asked is not None and now - asked > APART:
                shown = "\033[?25h" if sys.stderr.isatty() else ""  # a live display hides the cursor
                os.write(2, f"{shown}\nspacerl: interrupted again; left at once\n".encode())
                os._exit(128 + number)
            elif number in STOPPING and asked is None:
                asked = now
    os.close(reading)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A stopping signal waits until this is done: metrics and state stay together, and TensorBoard's writer, which an
    interrupt can leave with a lock held, closes afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {each: signal.getsignal(each) for each in STOPPING if callable(signal.getsignal(each))}
    for each in before:
        signal.signal(each, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    handler = before[signal.Signals(came[0])] if came else None
    if callable(handler):
        handler(came[0], None)
