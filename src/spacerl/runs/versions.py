"""What made a result: versions, the commit, the machine."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import spacerl


def versions(device: str) -> dict[str, Any]:
    """What a reader needs to judge or repeat a result."""
    packages = ("spacerl", "jax", "jaxlib", "equinox", "numpy", "gymnasium")
    found = {name: _version(name) for name in packages}
    return {
        **found,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": _commit(),
        "device": device,
        "hardware": f"{_processor()}, {os.cpu_count()} cores; computing on {device}",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache  # a sweep asks once per run
def _commit() -> str:
    """Commit of a source checkout, with "+" where files differ from it; "release" where there is none."""
    here = Path(spacerl.__file__).parent
    try:
        options = {"capture_output": True, "text": True, "timeout": 5, "cwd": here, "check": True}
        top = Path(subprocess.run(["git", "rev-parse", "--show-toplevel"], **options).stdout.strip())
        if here.parent.parent != top:
            return "release"  # installed below somebody else's repository
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **options).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "src"], **{**options, "cwd": top}
        ).stdout.strip()
        return commit + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "release"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
