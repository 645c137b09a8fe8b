"""Whole files mapped read-only, one mapping for each real file of a process."""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections.abc import Iterable

from sharedds.errors import (
    SourceError,
    StoreChangedError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles.process import keep_inherited
from sharedds.handles.storage import absolute_path

__all__ = ["MappedFile", "Passing", "map_file"]

_AROUND = 2 << 20  # who touches one byte may be given so many of them: a huge page
_WINDOW = 4 << 20
_lock = threading.RLock()


class MappedFile:
    """A whole file mapped read-only.

    Attributes:
        path: The path it was opened by, absolute.
        size: Bytes.
        view: All bytes, read-only; a slice of it keeps the mapping alive.
        identity: (device, inode, size, mtime in ns).
    """

    def __init__(self, path: str, descriptor: int, info: os.stat_result) -> None:
        self.path = path
        self.size = info.st_size
        self.identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        self._map = mmap.mmap(descriptor, info.st_size, access=mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def require_whole(self) -> None:
        """Refuse a file that was cut short: the system kills who touches what is gone (SIGBUS).

        One fstat, a fraction of a microsecond.

        Raises:
            StoreChangedError: The file is shorter than it was.
        """
        size = self._map.size()
        if size < self.size:
            raise StoreChangedError(
                f"{self.path} was cut short while it was open: {size:,} bytes are left of "
                f"{self.size:,}; replace files by a rename, never in place, and open it anew",
                path=self.path,
            )

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ask the kernel to read these (offset, length) ranges now, without waiting for them."""
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        page = mmap.PAGESIZE
        for offset, length in ranges:
            start = offset - offset % page
            if length > 0 and offset + length <= self.size:
                self._map.madvise(mmap.MADV_WILLNEED, start, offset + length - start)

    def read(self, offset: int, length: int) -> bytes:
        """Copy bytes without mapping them: no page of the file counts as memory of the process.

        Raises:
            StoreChangedError: The file is shorter than it was.
            SourceError: It cannot be read.
        """
        self.require_whole()
        if not hasattr(os, "pread"):
            return bytes(self.view[offset : offset + length])
        try:
            data = os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise SourceError(
                f"{self.path}: cannot be read ({error.strerror})", path=self.path
            ) from error
        if len(data) < length:
            self.require_whole()  # it may have been cut just now
        return data

    def release(self, offset: int, length: int) -> None:
        """Let go of the pages of a range; the system keeps them, and they are back when touched.

        Views stay as they are. Pages that were touched count as memory of the process, though the
        system could take them at any time; with a range go those that came along at its edges.
        """
        if hasattr(mmap, "MADV_DONTNEED") and length > 0:
            start = max(0, offset) // _AROUND * _AROUND
            end = min(self.size, -(-(offset + length) // _AROUND) * _AROUND)
            if start < end:
                self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


class Passing:
    """Releases what a walk over a file has passed, so that it never holds the whole file.

    Args:
        file: Where the walk goes, from the front to the back for the most part.
    """

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._low, self._high = file.size, 0

    def passed(self, offset: int, length: int) -> None:
        """Say that this range was touched and is not needed any more."""
        self._low, self._high = min(self._low, offset), max(self._high, offset + length)
        if self._high - self._low >= _WINDOW:
            self._file.release(self._low, self._high - self._low)
            self._low, self._high = self._file.size, 0


_mapped: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile]
_mapped = weakref.WeakValueDictionary()


def map_file(path: str | os.PathLike[str]) -> MappedFile:
    """Map a file read-only; every caller in this process shares one mapping of it.

    Nothing is created. The mapping ends with its last user.

    Raises:
        StoreNotFoundError: Nothing is there.
        StoreFormatError: It is a folder, a pipe or a device, or it is empty.
        SourceError: It cannot be opened.
        OptionError: It is no path.
    """
    path = absolute_path(path)
    descriptor = _open(path)
    try:
        info = os.fstat(descriptor)
        identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        with _lock:
            mapped = _mapped.get(identity)
            if mapped is None:
                if info.st_size == 0:
                    raise StoreFormatError(f"{path}: the file is empty", path=path)
                mapped = _mapped[identity] = _map(path, descriptor, info)
            return mapped
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):  # asked before open(), which waits on a pipe
            return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"{path}: no such file; check the spelling", path=path) from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened ({error.strerror})", path=path) from error
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
    raise StoreFormatError(f"{path} is {what}; a file is expected", path=path)


def _map(path: str, descriptor: int, info: os.stat_result) -> MappedFile:
    try:
        return MappedFile(path, descriptor, info)
    except (OSError, ValueError) as error:  # ValueError: it was cut short a moment ago
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{path}: cannot be mapped ({reason})", path=path) from error


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold it, for ever here
    _lock = threading.RLock()
    keep_inherited(_mapped.values())
    _mapped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
