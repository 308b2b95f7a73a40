"""A worker process: `python -m spacerl.envs.host.worker FD MEMORY`. It holds environments and answers ticks.

It is started as a fresh interpreter rather than forked: JAX's threads do not survive a fork, and a spawned copy of the
user's own script would run that script again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

READY, INPUT, BAD_STEP, FAULT = "ready", "input", "bad step", "fault"
TICK, END = b"t", b"e"  # the whole of a message: the numbers of a tick are in shared memory
WORDS = b"w"  # what follows is one of the kinds above, with its content


def serve(connection: Connection, memory: int) -> None:
    from spacerl.envs.host.in_process import InProcessEnvs
    from spacerl.envs.host.shared import SharedTick
    from spacerl.envs.host.single import BadStep
    from spacerl.types import InputError

    def say(message: tuple[str, object]) -> None:
        connection.send_bytes(WORDS)
        connection.send(message)

    folder, paths = connection.recv()
    os.chdir(folder)
    sys.path.extend(path for path in paths if path not in sys.path)  # before the recipe, which may name modules there
    envs, shared, own = None, None, slice(0)
    while True:
        try:
            if envs is None:
                recipe, own, lanes = connection.recv()
                envs = InProcessEnvs(recipe.fn, own.stop - own.start)
                shared = SharedTick(memory, envs.spec, lanes)
                say((READY, (envs.spec, envs.observations)))
            if connection.recv_bytes() == END:
                envs.close()
                return
            assert shared is not None
            shared.answer(own, envs.tick(*shared.told_to(own)))
            connection.send_bytes(TICK)
        except EOFError:  # the run is gone
            return
        except BadStep as error:
            say((BAD_STEP, str(error)))
            return
        except InputError as error:
            say((INPUT, str(error)))
            return
        except Exception:
            say((FAULT, traceback.format_exc()))
            return


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle; it stops its workers
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # a worker that hangs is asked where it is
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
