"""The lock of a working folder: it ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
from typing import IO, Any, Self

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["FolderLock", "sync_folder"]


class FolderLock:
    """A locked folder. Make one with :meth:`take`."""

    def __init__(self, folder: str, file: IO[bytes]) -> None:
        self._folder = folder
        self._file = file

    @classmethod
    def take(cls, folder: str) -> Self | None:
        """Make the folder where needed and lock it; None when another process has it.

        Raises:
            OSError: It cannot be made or written to.
        """
        while True:
            os.makedirs(folder, exist_ok=True)
            try:
                file = open(os.path.join(folder, "lock"), "a+b")  # noqa: SIM115
            except FileNotFoundError:  # its last holder has just removed the folder
                continue
            if not _lock(file):
                file.close()
                return None
            lock = cls(folder, file)
            if lock._is_current():
                return lock
            file.close()

    def _is_current(self) -> bool:
        """Whether the locked file is still there: its last holder may have removed it."""
        own = os.fstat(self._file.fileno())
        try:
            now = os.stat(os.path.join(self._folder, "lock"))
        except FileNotFoundError:
            return False
        return (own.st_dev, own.st_ino) == (now.st_dev, now.st_ino)

    def release(self) -> None:
        """Let others have the folder."""
        self._file.close()

    def remove(self) -> None:
        """Remove the lock, and the folder where nothing else is in it."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, "lock"))
            self._file.close()
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)


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
