"""A working folder: its mark, and its lock, which ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import IO, Any, Self

from sharedds.handles import MadeHere, absolute_path

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = [
    "LOCK",
    "MARK",
    "STATE",
    "FolderLock",
    "is_locked_here",
    "is_partial",
    "partial_path",
    "read_state",
    "sync_folder",
]

LOCK, STATE = "lock", "state.json"  # names of files
MARK = b'{"sharedds-partial":'  # how our state.json begins; others have files of this name too
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def partial_path(path: str) -> str:
    """Return the working folder that belongs to an output."""
    return f"{path}.partial"


def is_partial(folder: str | os.PathLike[str]) -> bool:
    """Whether this is the working folder of an unfinished store: its ``state.json`` says so."""
    return read_state(folder, len(MARK)) == MARK


def read_state(folder: str | os.PathLike[str], size: int = -1) -> bytes | None:
    """Return what stands in the ``state.json`` of a folder; None where it has none."""
    record = os.path.join(absolute_path(folder), STATE)
    with contextlib.suppress(OSError):
        if os.path.isfile(record):  # to open a pipe could wait for ever
            with open(record, "rb") as file:
                return file.read(size)
    return None


class FolderLock:
    """A locked folder. Make one with :meth:`take`."""

    def __init__(self, folder: str, file: IO[bytes]) -> None:
        self._folder = folder
        self._file = file
        self._home = MadeHere()

    @classmethod
    def take(cls, folder: str) -> Self | None:
        """Make the folder where needed and lock it; None when another writer has it.

        Raises:
            OSError: It cannot be made or written to.
        """
        while True:
            os.makedirs(folder, exist_ok=True)
            try:
                file = open(os.path.join(folder, LOCK), "a+b")  # noqa: SIM115
            except FileNotFoundError:  # its last holder has just removed the folder
                continue
            if not _lock(file):
                file.close()
                return None
            lock = cls(folder, file)
            if lock._is_current():
                _held.add(lock)
                return lock
            file.close()

    def _is_current(self) -> bool:
        """Whether the locked file is still there: its last holder may have removed it."""
        own = os.fstat(self._file.fileno())
        try:
            now = os.stat(os.path.join(self._folder, LOCK))
        except FileNotFoundError:
            return False
        return (own.st_dev, own.st_ino) == (now.st_dev, now.st_ino)

    def is_here(self, folder: str) -> bool:
        """Whether this process made it, for this folder, and still has it."""
        if not self._home or self._file.closed:
            return False
        with contextlib.suppress(OSError):
            return os.path.samefile(self._folder, folder)
        return False

    def release(self) -> None:
        """Let others have the folder."""
        self._file.close()

    def remove(self) -> None:
        """Remove the lock, and the folder where nothing else is in it."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, LOCK))
            self._file.close()
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)


def is_locked_here(folder: str) -> bool:
    """Whether a writer of this very process has the folder locked."""
    return any(lock.is_here(folder) for lock in list(_held))


def _lock(file: IO[bytes]) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
