"""One writer per folder: a lock that the system gives back when its process ends, however that ends."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import glob
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spacerl.types import InputError

LOCK, CONFIG = ".lock", "config.json"
UNFINISHED = ".tmp"  # how names end of what was not finished when its process was killed
HELD: dict[Path, list[int]] = {}  # open lock files of this process by the folders they were made in, oldest first
UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # file systems without locks


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Nobody else writes to a folder, which is made where it is not there; InputError that names who does."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_own_files(folder)
        handle = _locked(path)
    except OSError as error:
        raise cannot_write(folder, error) from error
    known_as = folder.absolute()
    HELD.setdefault(known_as, []).append(handle)
    try:
        remove_unfinished(folder)
        yield
    finally:
        # While it is held: whoever waits for this file finds that it is gone, and takes a new one. One that lies there
        # since our folder was moved is another's.
        with contextlib.suppress(OSError):
            if _is_the_file(path, handle):
                path.unlink()
        HELD[known_as].remove(handle)
        os.close(handle)
        for each in missing:  # folders that nothing was put into
            with contextlib.suppress(OSError):
                each.rmdir()


def require_own_files(folder: Path) -> None:
    """Nothing is written through a link, which in a folder that somebody sent may lead to any file of the user's; and
    nothing is read from a pipe. Folders in a folder of runs may lie elsewhere."""
    is_run = (folder / CONFIG).exists()
    for path in folder.iterdir():
        if path.is_fifo():
            raise InputError(f"'{path}' is a pipe and no file: remove it")
        if path.is_symlink() and (is_run or not path.is_dir()):
            raise InputError(
                f"'{path}' is a link to '{os.readlink(path)}', and nothing is written through links: put what it leads "
                "to in its place"
            )


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = _is_the_file(path, handle)
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            raise InputError(
                f"'{path.parent}' is being written by {holder}: wait for it or stop it, nothing was changed"
            ) from None
        except OSError as error:
            if error.errno in UNSUPPORTED:
                print(f"'{path.parent}' is on a file system without locks: start one process on it", file=sys.stderr)
                return handle
            os.close(handle)
            raise
        if there:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": now}).encode())
            return handle
        os.close(handle)  # its last owner removed it in the meantime


def _is_the_file(path: Path, handle: int) -> bool:
    return os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(handle))


def is_still_ours(folder: Path) -> bool:
    """Whether a folder that this process is the writer of is still where it was; true of those it never locked."""
    handles = HELD.get(folder.absolute())
    return not handles or _is_the_file(folder / LOCK, handles[0])


def _holder(handle: int) -> str:
    try:
        said = json.loads(os.pread(handle, 1000, 0))
        return f"process {said['process']} on {said['host']}, since {said['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def is_locked(folder: Path) -> bool:
    """Whether somebody writes to a folder now."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    else:
        return False
    finally:
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """What killed writes left in a folder that nobody else writes to."""
    for where in (folder, folder / "checkpoints"):
        for path in where.glob(f".*{UNFINISHED}") if where.is_dir() else ():
            if not (path.is_dir() and is_locked(path)):
                _remove(path)


def remove_unfinished_of(path: Path) -> None:
    """What killed processes left beside `path` when they were to make it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        if not is_locked(left):
            _remove(left)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def holds_nothing(folder: Path) -> bool:
    """Whether a folder has nothing in it but locks and what killed writes left."""
    return all(each.name == LOCK or (each.name[0] == "." and each.suffix == UNFINISHED) for each in folder.iterdir())


def require_new_file(path: Path) -> None:
    """A file that is not there yet and can be made: said before the work that would be lost. Nothing is overwritten."""
    if path.exists() or path.is_symlink():
        raise InputError(f"'{path}' exists: give a new file, nothing is overwritten")
    missing = [each for each in path.parents if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        for each in missing:
            with contextlib.suppress(OSError):
                each.rmdir()


def cannot_write(folder: Path, error: OSError) -> InputError:
    return InputError(f"'{folder}' cannot be written: {error.strerror or error}")
