"""Texts: of files that people write or are sent, and numbers as words of a line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spacerl.types import InputError

LARGE = 1e5
LARGEST_SETTINGS, LARGEST_JSON = 10**6, 2 * 10**8  # bytes
LARGEST_TABLE = 2 * 10**9  # of a run of millions of updates


def text_of(path: Path, largest: int) -> str:
    return content_of(path, largest).decode("utf-8")


def content_of(path: Path, largest: int) -> bytes:
    """The content of a file, of which no more is read than `largest` bytes: a link to /dev/zero has no end, and a file
    with holes takes no room on the disk that it came from."""
    with open(path, "rb") as file:
        there = os.fstat(file.fileno())
        if stat.S_ISREG(there.st_mode):
            content = file.read() if there.st_size <= largest else b""
        else:
            content = file.read(largest + 1)
    if max(there.st_size, len(content)) > largest:
        raise InputError(f"'{path}' is too large: more than {largest:,} bytes are not read")
    return content


def number_text(value: float, decimals: int) -> str:
    """With so many decimals, but for what these would hide or drown: what is too small for them keeps its digits, and
    what is large has none."""
    size = abs(value)
    if size >= LARGE:
        return f"{value:,.0f}" if size < 1e12 else f"{value:.4g}"
    return f"{value:.{decimals}f}" if value == 0 or size >= 10.0 ** (1 - decimals) else f"{value:.{decimals}g}"
