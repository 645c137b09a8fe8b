"""Files that processes of one machine write to together, and counters that they share."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

import psutil

from sharedds.errors import SourceError
from sharedds.handles.process import ForkGate, per_process
from sharedds.handles.shared import SharedFile, anonymous_file
from sharedds.handles.storage import storage_errors

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["Remade", "SharedCounts", "WritableFile", "lock_file", "unlock_file"]

F = TypeVar("F", bound=SharedFile)

_PAUSE = 0.0005
_CLAIM_SECONDS = 0.2
_ROWS = 512
_WORD = 8
_BLOCK = 512  # what ``st_blocks`` counts, whatever the file system has


def lock_file(descriptor: int, seconds: float) -> bool:
    """Lock an open file or folder for whoever opened it; say whether that worked in time.

    The lock ends when it is unlocked, or when the descriptor is closed in this process and in all
    that were forked meanwhile, however these end.

    Args:
        descriptor: Opened by the caller for this lock alone: what opens it once shares the lock.
        seconds: How long to try while another holds it.
    """
    if fcntl is None:
        return False
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            return False
        else:
            return True


def unlock_file(descriptor: int) -> None:
    """End a lock of :func:`lock_file`, also for children that were forked meanwhile."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


class WritableFile(SharedFile):
    """A file of a fixed size that many processes read mapped and write to through the system.

    Nobody writes through the map: on a full disk that is the end of the process (SIGBUS), where a
    write is an error that can be told. What was written is seen in all maps at once.

    Pickles as a :class:`SharedFile` does.

    Args:
        file: Open for reading and writing, of its final size. It is closed here.
    """

    _flags = os.O_RDWR
    _what = "a cache"

    @classmethod
    def at(cls, path: str) -> Self:
        """Map the file that has this name, and leave it there.

        Raises:
            OSError: It cannot be opened or mapped.
        """
        flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        opened = cls.__new__(cls)
        opened._open(os.open(path, flags), path)
        return opened

    @per_process
    def _gate(self) -> ForkGate:
        return ForkGate()

    @property
    def is_whole(self) -> bool:
        """Whether nobody has cut it short; to touch what is gone would end the process."""
        return os.fstat(self._descriptor).st_size >= self.size

    @property
    def room_to_come(self) -> int:
        """Bytes that it has no room for yet, and takes when they are written."""
        info = os.fstat(self._descriptor)
        return max(0, info.st_size - info.st_blocks * _BLOCK)

    def write(self, offset: int, data: Any) -> bool:
        """Write bytes; say whether there was room for all of them."""
        rest = memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._descriptor, rest, offset)
                if not count:
                    return False
                rest, offset = rest[count:], offset + count
        except OSError:
            return False
        return True

    def advise(self, offset: int, length: int) -> None:
        """Ask the disk for bytes that are read next, without waiting."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    @contextlib.contextmanager
    def locked(self, seconds: float) -> Iterator[bool]:
        """Keep all other threads and processes that ask for the lock out of a block of code.

        A fork of this process waits meanwhile: its child would hold the lock as well.

        Args:
            seconds: How long to try.

        Yields:
            Whether this has the lock. It may fail: another process may have been stopped in there.
        """
        with self._gate:
            try:
                descriptor = self._opened_again()
            except OSError:  # too many files are open
                yield False
                return
            try:
                yield lock_file(descriptor, seconds)
            finally:
                unlock_file(descriptor)
                os.close(descriptor)

    def _opened_again(self) -> int:
        """Open the same file once more: locks belong to what was opened, which forks share."""
        path = f"/proc/self/fd/{self._descriptor}"
        if self._name is not None and not os.path.exists(path):
            path = self._name
        return os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))


class SharedCounts(WritableFile):
    """Some counters that processes and threads add to without a lock, and that any of them reads.

    Each process has a row of its own, which another one takes over once it has ended; there are so
    many rows that who finds none goes uncounted. Threads of one process that add at the same moment
    may show a number that is behind by one until the next is added.

    Args:
        columns: How many counters.
        folder: Where they take their room; the temporary folder by default.

    Raises:
        StorageFullError, SourceError: There is no room for a few kilobytes.
    """

    _access = mmap.ACCESS_WRITE
    _what = "a counter"

    def __init__(self, columns: int, folder: str | None = None) -> None:
        self._columns = columns
        nbytes = _ROWS * (columns + 1) * _WORD
        with anonymous_file(folder) as file:
            with storage_errors(folder or tempfile.gettempdir(), needed=lambda: nbytes):
                rest = memoryview(bytes(nbytes))
                while rest:  # past the buffer of the file, which would fail once more on its end
                    rest = rest[os.write(file.fileno(), rest) :]
            super().__init__(file)

    def __getstate__(self) -> Any:
        return self._columns, super().__getstate__()

    def __setstate__(self, state: Any) -> None:
        self._columns, inner = state
        super().__setstate__(inner)

    @per_process
    def _words(self) -> memoryview:
        return self.view.cast("Q")

    @per_process
    def _own(self) -> tuple[int, list[itertools.count[int]]] | None:
        """Where the counters of this process are, and what each says next."""
        words, width = self._words, self._columns + 1
        with self.locked(_CLAIM_SECONDS) as is_locked:
            if not is_locked:
                return None
            for begin in range(0, _ROWS * width, width):
                owner = words[begin]
                if not owner or not psutil.pid_exists(owner):
                    words[begin] = os.getpid()
                    weakref.finalize(self, _release, words, begin, os.getpid())
                    counts = words[begin + 1 : begin + width].tolist()
                    return begin + 1, [itertools.count(count + 1) for count in counts]
        return None

    def add(self, column: int) -> None:
        """Add one to a counter."""
        own = self._own
        if own is not None:
            begin, following = own
            self._words[begin + column] = next(following[column])

    def totals(self) -> list[int]:
        """Return what all processes have counted so far."""
        words, width = self._words, self._columns + 1
        return [
            sum(words[begin + 1 + column] for begin in range(0, _ROWS * width, width))
            for column in range(self._columns)
        ]


def _release(words: memoryview, begin: int, owner: int) -> None:
    if os.getpid() == owner:
        words[begin] = 0


class Remade(Generic[F]):
    """A shared file that is made anew where it cannot be reached any more.

    So a pickle that was kept opens after the process has ended that made the file. What was in the
    file went with that process.

    Args:
        make: Makes the file; it is pickled along.

    Attributes:
        file: The file.
    """

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self.file = make()

    def __getstate__(self) -> Any:
        return self._make, type(self.file), self.file.__getstate__()

    def __setstate__(self, state: Any) -> None:
        self._make, kind, inner = state
        self.file = kind.__new__(kind)
        try:
            self.file.__setstate__(inner)
        except SourceError:
            self.file = self._make()
