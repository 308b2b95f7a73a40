"""HDF5 files that are safe to read: numbers in the file itself, about as many as it has room for, and heaps that end.

HDF5 can lead to other files, in circles, to numbers without end that were never written, and its library never comes
back from some damages, out of reach of any signal.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from spacerl.runs.memory import host_memory, require_memory
from spacerl.types import InputError

LARGE, PACKED = 10**8, 2000  # bytes of an episode, and how much larger than its file it may then be
DEEPEST = 8  # groups within groups
HEAP, HEAP_HEAD, OBJECT_HEAD = b"GCOL\x01", 16, 16  # bytes a heap of texts begins with; lengths of heads


def require_plain(path: Path, group: str, where: str) -> None:
    """One group of a file, and what is below it."""
    import h5py

    if not path.is_file():
        return  # of Minari's other formats
    with h5py.File(path, "r") as file:
        unpacked = _bytes_below(file[group], where)
    if unpacked > LARGE and unpacked > PACKED * path.stat().st_size:
        raise InputError(f"{where} unpacks to {unpacked / 1e9:.1f} GB: it is not read")
    require_memory(unpacked, host_memory(), f"dataset than '{path}'")


def _bytes_below(group: Any, where: str, depth: int = 0) -> int:
    import h5py

    count = 0
    for name in group:
        each = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
        elsewhere = isinstance(each, h5py.Dataset) and (each.is_virtual or each.external)
        if each is None or elsewhere or depth > DEEPEST:
            raise InputError(f"{where} leads elsewhere at '{name[:40]}': numbers are read that are in the file itself")
        below = (
            _bytes_below(each, where, depth + 1) if isinstance(each, h5py.Group) else each.size * each.dtype.itemsize
        )
        count += below
    return count


def require_heaps_that_end(path: Path, where: str) -> None:
    """Texts are kept in heaps, object after object, each with its length before it. The library steps over free space
    by the length that stands there: where that is nothing, it steps for ever."""
    import h5py

    if not path.is_file() or not path.stat().st_size:
        return
    try:
        with h5py.File(path, "r") as file:
            _, length_bytes = file.id.get_create_plist().get_sizes()
    except OSError:
        return  # said where it is read
    if length_bytes != 8:
        raise InputError(f"{where} has lengths of {length_bytes} bytes: allowed are 8, which is what HDF5 writes")
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        steps, at = 0, data.find(HEAP)
        while at >= 0:
            steps += _steps_through(data, at, where)
            if steps > len(data):  # every byte belongs to one heap at most; some of what looks like one is none
                raise InputError(f"{where} has heaps within heaps: the file is damaged")
            at = data.find(HEAP, at + len(HEAP))


def _steps_through(data: mmap.mmap, at: int, where: str) -> int:
    if at + HEAP_HEAD > len(data):
        return 0
    (size,) = struct.unpack_from("<Q", data, at + 8)
    place, end, steps = at + HEAP_HEAD, min(at + size, len(data)), 0
    while place + OBJECT_HEAD <= end:
        (number,) = struct.unpack_from("<H", data, place)
        (length,) = struct.unpack_from("<Q", data, place + 8)
        is_free = number == 0  # its length is that of its head, too
        if is_free and length < OBJECT_HEAD:
            raise InputError(f"{where} has a heap of texts that does not end: the file is damaged")
        place += length if is_free else OBJECT_HEAD + -(-length // 8) * 8
        steps += 1
    return steps
