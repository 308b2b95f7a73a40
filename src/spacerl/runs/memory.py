"""What there is of memory on this machine, against what is asked for: said before anything is made."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from spacerl.types import InputError

CGROUPS = (  # limits of containers: of all memory, and what is used of it
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def require_memory(needed: float, there: float, what: str) -> None:
    """`what` may be smaller."""
    if needed > there:
        raise InputError(
            f"this needs at least {gigabytes(needed)} GB of memory and there are {gigabytes(there)}: give a smaller "
            f"{what}"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f}" if count < 1e13 else f"{count / 1e9:.1e}"


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
