"""What there is of memory on this machine, against what is asked for: said before anything is made."""

from __future__ import annotations

import contextlib
import math
import resource
from pathlib import Path

from spacerl.types import InputError

BYTES_PER_ENVIRONMENT = 20_000  # of a small one on the host
BYTES_PER_WORKER = 50_000_000  # Python with NumPy and Gymnasium, and nothing of the user's
FILES_PER_WORKER, FILES_OF_OURS = 4, 100  # open at once: a worker's sockets and its log; everything else
CGROUPS = (  # limits of containers: of all memory, and what is used of it
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def require_memory(needed: float, there: float, what: str) -> None:
    """`what` may be smaller."""
    if needed > there:
        raise InputError(
            f"this needs at least {_gigabytes(needed)} GB of memory and there are {_gigabytes(there)}: give a smaller "
            f"{what}"
        )


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f}" if count < 1e13 else f"{count / 1e9:.1e}"


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


def host_memory() -> float:
    """Bytes that are free on this machine, or in this container; infinite where nothing is known."""
    free = [_container(*files) for files in CGROUPS]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(free)


def _container(limit: str, used: str) -> float:
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        return float(int(Path(limit).read_text())) - int(Path(used).read_text())
    return math.inf
