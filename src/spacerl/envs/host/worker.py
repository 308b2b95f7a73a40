"""A worker process: `python -m spacerl.envs.host.worker FD`. It holds environments and answers ticks.

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
from typing import Any

READY, TICK, INPUT, BAD_STEP, FAULT = "ready", "tick", "input", "bad step", "fault"


def serve(connection: Connection) -> None:
    from spacerl.envs.host.in_process import InProcessEnvs
    from spacerl.envs.host.single import BadStep
    from spacerl.types import InputError

    folder, paths = connection.recv()
    os.chdir(folder)
    sys.path.extend(path for path in paths if path not in sys.path)  # before the recipe, which may name modules there
    envs: Any = None
    while True:
        try:
            if envs is None:
                recipe, count = connection.recv()
                envs = InProcessEnvs(recipe.fn, count)
                connection.send((READY, (envs.spec, envs.observations)))
            message = connection.recv()
            if message is None:
                envs.close()
                return
            connection.send((TICK, envs.tick(*message)))
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


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle; it stops its workers
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # a worker that hangs is asked where it is
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
