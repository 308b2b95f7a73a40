"""How many cores there are to step environments with."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
