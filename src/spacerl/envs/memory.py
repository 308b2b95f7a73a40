"""What environments and devices need, against what there is: said before anything is made."""

from __future__ import annotations

import contextlib
import math
import resource

from spacerl.runs.memory import host_memory, require_memory
from spacerl.types import InputError

BYTES_PER_ENVIRONMENT = 20_000  # of a small one on the host
BYTES_PER_WORKER = 50_000_000  # Python with NumPy and Gymnasium, and nothing of the user's
FILES_PER_WORKER, FILES_OF_OURS = 4, 100  # open at once: a worker's sockets and its log; everything else


def require_room_for_environments(count: int) -> None:
    require_memory(count * BYTES_PER_ENVIRONMENT, host_memory(), "--environments")


def require_room_for_workers(count: int, option: str = "--workers or --environments") -> None:
    """Processes, each with a Python of its own."""
    require_memory(count * BYTES_PER_WORKER, host_memory(), option)
    most = (_most_files() - FILES_OF_OURS) // FILES_PER_WORKER
    if count > most:
        raise InputError(
            f"{count:,} worker processes need more open files than this system allows one process (`ulimit -n`): give "
            f"a smaller {option}, at most {most:.0f}"
        )


def _most_files() -> float:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if most == resource.RLIM_INFINITY else most


def device_memory() -> float:
    """Bytes where the update is computed."""
    from spacerl.envs.devices import current_device  # jax, which not everyone who asks for memory needs

    device = current_device()
    if device.platform == "cpu":
        return host_memory()
    with contextlib.suppress(Exception):  # not every platform tells
        return float(device.memory_stats()["bytes_limit"])
    return math.inf
