"""Files without a name that other processes reach through their creator."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from multiprocessing.context import get_spawning_popen
from typing import Any, BinaryIO

import psutil

from sharedds.errors import SourceError
from sharedds.handles.storage import storage_errors

__all__ = ["SharedFile", "anonymous_file"]

_PREFIX = "sharedds-"
_MAX_SENT = 64  # descriptors sent to one process; a fork server takes 256 in all

# What is sent to each process being spawned: a descriptor must not be sent twice.
_sent: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()


def anonymous_file(folder: str | None = None) -> BinaryIO:
    """Open a new file for writing that vanishes with its last user, even after kill -9.

    On Linux it has no name at all. Elsewhere it has one until its creator ends; names left by
    creators that were killed are removed by the next call.

    Args:
        folder: Where it takes its room; the temporary folder by default.

    Raises:
        StorageFullError: The temporary folder is full.
        SourceError: There is no temporary folder to write to.
    """
    try:
        folder = folder or tempfile.gettempdir()
        with storage_errors(folder):
            return _create(folder)
    except FileNotFoundError as error:  # gettempdir() tried every place it knows
        raise SourceError(f"no temporary folder can be written to; set TMPDIR ({error})") from error
    except PermissionError as error:
        raise SourceError(
            f"{folder}: the temporary folder cannot be written to; set TMPDIR to one that can",
            path=folder,
        ) from error


def _create(folder: str) -> BinaryIO:
    if os.path.isdir("/proc/self/fd"):
        return tempfile.TemporaryFile("w+b", dir=folder)  # never has a name on Linux
    _sweep(folder)
    descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=folder)
    os.close(descriptor)
    return open(path, "w+b")


def _sweep(folder: str) -> None:
    """Remove what killed processes left behind, where files need a name."""
    with os.scandir(folder) as entries:
        for entry in entries:
            pid = entry.name.removeprefix(_PREFIX).partition("-")[0]
            if (
                entry.name.startswith(_PREFIX)
                and pid.isdecimal()
                and not psutil.pid_exists(int(pid))
            ):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


_State = tuple[str, int, int, tuple[int, int], Any]


class SharedFile:
    """The finished bytes of an :func:`anonymous_file`, mapped read-only.

    Pickling costs O(1): a process being spawned is given the open file; any other opens it through
    its creator, who must be of the same user and still alive at that moment. Nothing is copied, and
    /dev/shm plays no part.

    Args:
        file: A file from :func:`anonymous_file`, written to its end. It is closed here.

    Attributes:
        size: Bytes.
        view: All bytes, read-only.

    Raises:
        StorageFullError: The temporary folder is full.
    """

    _access, _flags = mmap.ACCESS_READ, os.O_RDONLY
    _what = "an index"

    def __init__(self, file: BinaryIO) -> None:
        name = file.name if isinstance(file.name, str) else None
        with storage_errors(tempfile.gettempdir()), file:
            file.flush()
            self._open(os.dup(file.fileno()), name)
        if name is not None:
            weakref.finalize(self, _remove, name, os.getpid())

    def _open(self, descriptor: int, name: str | None) -> None:
        self._descriptor = descriptor
        self._name = name
        weakref.finalize(self, os.close, descriptor)
        info = os.fstat(descriptor)
        self.size = info.st_size
        self._identity = (info.st_dev, info.st_ino)
        self.view = memoryview(b"")
        if self.size:
            self.view = memoryview(mmap.mmap(descriptor, self.size, access=self._access))

    def __getstate__(self) -> _State:
        path = self._name or f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return path, os.getpid(), self.size, self._identity, _sent_along(self._descriptor)

    def __setstate__(self, state: _State) -> None:
        path, creator, size, identity, sent = state
        name = None if path.startswith("/proc/") else path
        if sent is not None:
            with contextlib.suppress(OSError, LookupError):
                descriptor: int = sent.detach()
                info = os.fstat(descriptor)
                if (info.st_dev, info.st_ino) == identity and info.st_size == size:
                    self._open(os.dup(descriptor), name)  # it may come more than once
                    return
        gone = (
            f"{self._what} made by process {creator} cannot be reached ({{}}): either that process "
            "has ended, with which it goes, or this one may not look into it (another user or "
            "machine, /proc mounted with hidepid, a process that changed its user); build the "
            "dataset anew instead of unpickling it"
        )
        try:
            info = os.stat(path)  # asked before open(), which waits on a pipe of another process
            if (info.st_dev, info.st_ino) != identity or info.st_size != size:
                raise SourceError(gone.format("another file took its place"))
            descriptor = os.open(path, self._flags | getattr(os, "O_BINARY", 0))
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(gone.format(error.strerror)) from error
        self._open(descriptor, name)


def _sent_along(descriptor: int) -> Any:
    """Hand a descriptor to the process being spawned; None where there is none."""
    popen = get_spawning_popen()
    if popen is None or not hasattr(popen, "DupFd"):
        return None
    sent = _sent.setdefault(popen, {})
    if descriptor not in sent and len(sent) < _MAX_SENT:
        sent[descriptor] = popen.DupFd(popen.duplicate_for_child(descriptor))
    return sent.get(descriptor)


def _remove(name: str, creator: int) -> None:
    if os.getpid() == creator:
        with contextlib.suppress(OSError):
            os.unlink(name)
