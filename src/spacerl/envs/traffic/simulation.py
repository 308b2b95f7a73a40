"""The one simulation that libsumo holds in a process: started once, loaded anew for every episode."""

from __future__ import annotations

import importlib
import importlib.util
import os
import weakref
from typing import Any, ClassVar

from spacerl.envs.traffic.networks import INSTALL, sumo_program
from spacerl.types import InputError

MISSING = f"the traffic tasks need SUMO (libsumo): {INSTALL}"


def require_sumo() -> None:
    if importlib.util.find_spec("libsumo") is None:
        raise ImportError(MISSING)


class Simulation:
    """Episodes of one scenario, each with a seed of its own.

    libsumo holds one simulation per process, and a second start silently replaces the first; so there is one owner at
    a time, until it is closed. With `window` the same calls go through a socket to sumo-gui.
    """

    _owner: ClassVar[weakref.ref[Simulation] | None] = None

    @staticmethod
    def is_taken() -> bool:
        """Whether somebody holds this process's simulation and has not closed it, nor forgotten it."""
        return Simulation._owner is not None and Simulation._owner() is not None

    def __init__(self, arguments: list[str], window: bool = False):
        self._arguments, self._window = arguments, window
        self._started = False
        if window:
            require_screen()
        elif Simulation.is_taken():
            raise RuntimeError("this process holds a SUMO simulation already")
        try:
            self.api: Any = importlib.import_module("traci" if window else "libsumo")
        except ImportError as error:
            raise ImportError(MISSING) from error
        if not window:
            Simulation._owner = weakref.ref(self)

    def begin(self, seed: int) -> None:
        """A new episode."""
        # A window does not wait for its button, in its first episode nor in a later one, and is gone after the last.
        how = ["--start", "--quit-on-end"] if self._window else []
        arguments = [*how, *self._arguments, "--seed", str(seed)]
        try:
            if self._started:
                self.api.load(arguments)
            else:
                program = sumo_program("sumo-gui", "a window was asked for") if self._window else "sumo"
                self.api.start([program, *arguments])
                self._started = True
        except self.api.TraCIException as error:
            reason = " ".join(str(error).split())
            raise InputError(f"SUMO cannot load the simulation: {reason}") from error

    def step(self) -> None:
        self.api.simulationStep()

    def close(self) -> None:
        if self._started:
            self._started = False
            self.api.close()
        if Simulation._owner is not None and Simulation._owner() is self:
            Simulation._owner = None


def require_screen() -> None:
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise InputError("sumo-gui needs a screen and there is none: take render_mode 'rgb_array', which needs none")
