"""What a run needs at the least, against what the machine has: said before anything is made."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import jax
import numpy as np

from spacerl.rollout.device import environments_per_batch
from spacerl.runs.config import RunConfig
from spacerl.types import EnvSpec, InputError

NUMBER = 4  # bytes
BYTES_PER_ENVIRONMENT = 20_000  # of a small one on the host
CGROUPS = (  # limits of containers: of all memory, and what is used of it
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def require_room_for_environments(count: int) -> None:
    _require(count * BYTES_PER_ENVIRONMENT, host_memory(), "--environments")


def require_room(config: RunConfig, spec: EnvSpec, parameters: int) -> None:
    """A policy of so many parameters, its critics, and a batch of what they see."""
    costs = len(spec.cost_names)
    # A policy has itself, the gradients of every signal and the vectors of conjugate gradient; a critic fewer.
    vectors = parameters * (8 + costs) + parameters * (2 + costs) * 4
    steps = environments_per_batch(config.batch_size, config.rollout_length) * config.rollout_length
    # The layers of a pass forward and back, a row of numbers about each step, and what was observed.
    step = NUMBER * (2 * sum(config.hidden) + 3 * spec.action.size + 8) + observation_bytes(config, spec)
    needed = NUMBER * vectors + steps * step
    _require(needed, device_memory(), "--hidden, --batch-size or --rollout-length")


def observation_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """Of one step of a batch. Images of bytes stay what they are: once as they were collected, once as they are learned
    from, and again only where something is to follow a truncation; their activations are held for a few at a time."""
    size = math.prod(spec.obs_shape)
    if spec.images and np.dtype(spec.obs_dtype) == np.uint8:
        return size * (2 + 2 * config.bootstrap_truncation)
    return 2 * NUMBER * size


def _require(needed: int, there: float, options: str) -> None:
    if needed > there:
        raise InputError(
            f"this needs at least {_gigabytes(needed)} GB of memory and there are {_gigabytes(there)}: give a smaller "
            f"{options}"
        )


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f}" if count < 1e13 else f"{count / 1e9:.1e}"


def device_memory() -> float:
    """Bytes where the update is computed."""
    device = jax.devices()[0]
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
