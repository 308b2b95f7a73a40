"""A worker process: it holds environments and answers ticks. `main` is given two ends of sockets and shared memory.

It is started as a fresh interpreter rather than forked: JAX's threads do not survive a fork, and a spawned copy of the
user's own script would run that script again.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import socket
import sys
import traceback

from spacerl.envs.host.channel import Channel, die_with

MAKING, READY, TICK, PLAY = "making", "ready", "tick", "play"
END, INPUT, BAD_STEP, FAULT = "end", "input", "bad step", "fault"


def serve(connection: Channel, memory: int) -> None:
    from spacerl.envs.host.in_process import InProcessEnvs
    from spacerl.envs.host.shared import SharedTick
    from spacerl.envs.host.single import BadStep
    from spacerl.types import InputError

    folder, paths = connection.receive()
    os.chdir(folder)
    sys.path.extend(path for path in paths if path not in sys.path)  # before the recipe, which may name modules there
    envs, shared, own = None, None, slice(0)
    while True:
        try:
            if envs is None:
                recipe, own, lanes = connection.receive()
                making = functools.partial(connection.send, (MAKING, None))
                envs = InProcessEnvs(recipe.fn, own.stop - own.start, tolerates=True, watch=making)
                shared = SharedTick(memory, envs.spec, lanes)
                connection.send((READY, (envs.spec, envs.observations)))
            message = connection.receive()
            if message == END:
                envs.close()
                return
            assert shared is not None
            played = None
            if message == TICK:
                shared.answer(own, envs.tick(*shared.told_to(own)))  # its numbers are in shared memory
            else:
                _, act, seed, noise = message
                (played,) = envs.play(act, [seed], [noise])
            notes, envs.notes = envs.notes, []
            connection.send((TICK, (notes, played)))
        except EOFError:  # the run is gone
            return
        except BadStep as error:
            connection.send((BAD_STEP, str(error)))
            return
        except InputError as error:
            connection.send((INPUT, str(error)))
            return
        except Exception:
            connection.send((FAULT, traceback.format_exc()))
            return


def main(messages: int, life: int, memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle; it stops its workers
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # a worker that hangs is asked where it is
    die_with(socket.socket(fileno=life))
    serve(Channel(socket.socket(fileno=messages)), memory)
