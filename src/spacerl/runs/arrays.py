"""Files of named arrays: policies and checkpoints. They hold numbers and text alone, and cannot run code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from spacerl.runs.memory import gigabytes, host_memory
from spacerl.types import InputError


def as_file(arrays: dict[str, np.ndarray], info: dict[str, str]) -> bytes:
    """A safetensors file whose metadata is in order: the library's order is random, and equal files should be equal."""
    from safetensors.numpy import save

    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps scalars scalars
    content = save(contiguous, metadata=info)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def read_arrays(path: Path, expected: str, kind: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a safetensors file of ours; such a file holds numbers only and cannot run code."""
    from safetensors import SafetensorError, safe_open

    try:
        _require_room(path, kind)
        with safe_open(path, framework="numpy") as file:
            info = file.metadata() or {}
            if info.get("format") != expected:
                raise InputError(
                    f"{kind} '{path}' is foreign: its format is {info.get('format', 'not given')!r}, not '{expected}'"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, info  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{kind} '{path}' cannot be read (corrupt, cut short or not a safetensors file): {error}"
        ) from error


def _require_room(path: Path, kind: str) -> None:
    """Its arrays are as large as the file, which may be one hole that takes no room on the disk that it came from."""
    size, there = path.stat().st_size, host_memory()
    if size > there:
        raise InputError(
            f"{kind} '{path}' is too large: it holds {gigabytes(size)} GB and there are {gigabytes(there)} of memory"
        )
