"""Handles that live in one process: never pickled, never carried across a fork.

This is the only module that knows about fork, spawn and pickle. It offers four things:

* :class:`per_process` - an attribute computed once in each process that asks for it;
* :func:`map_file` - one read-only mapping for each real file of a process, however it is spelled;
* :class:`SharedFile` - bytes in a file without a name, which other processes reach in O(1);
* :func:`open_environment` - one LMDB environment for each real file of a process.

The two registries identify a file by device and inode, since two paths may lead to one file. In a
forked child they start empty: what was inherited is kept alive but never used or closed, because a
destructor that runs in the child may act on something that belongs to the parent.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Generic, TypeVar, overload

import psutil

from sharedds.errors import (
    OptionError,
    SourceError,
    StorageFullError,
    StoreBusyError,
    StoreFormatError,
    StoreNotFoundError,
)

__all__ = [
    "MappedFile",
    "SharedFile",
    "absolute_path",
    "anonymous_file",
    "map_file",
    "open_environment",
    "per_process",
    "storage_errors",
]

T = TypeVar("T")

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_lock = threading.RLock()
_inherited: list[object] = []


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return ``path`` with ``~`` expanded, absolute: it stays right when the process changes folder."""
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


@contextlib.contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn "no space left", quota and size-limit errors of a write into :class:`StorageFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFullError(
            f"{path}: no room to write ({error.strerror}); free some space or raise the limit, "
            "then run the same command again",
            path=path,
        ) from error


# --- attributes of one process -------------------------------------------------------------------


class _Slot:
    """Where one object keeps one value of :class:`per_process`; pickles as an empty slot."""

    __slots__ = ("lock", "owner", "pid", "ready", "value")

    def __init__(self, owner: object | None = None) -> None:
        self.owner = weakref.ref(owner) if owner is not None else None
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.ready = False
        self.value: Any = None

    def belongs_to(self, owner: object) -> bool:
        return self.owner is not None and self.owner() is owner and self.pid == os.getpid()

    def __reduce__(self) -> tuple[type[_Slot], tuple[()]]:
        return _Slot, ()


class per_process(Generic[T]):  # noqa: N801 - used as a decorator, like functools.cached_property
    """An attribute computed on first use in each process, and kept for that process only.

    The value is never pickled with its object and never used in a forked child: the child computes
    its own. A copy of the object computes its own too. Safe when threads ask at once.

    Example:
        >>> class Reader:
        ...     @per_process
        ...     def process(self) -> int:
        ...         return os.getpid()
        >>> Reader().process == os.getpid()
        True
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.key = f"per_process {function.__qualname__}"
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> per_process[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> per_process[T] | T:
        if instance is None:
            return self
        slot: _Slot | None = instance.__dict__.get(self.key)
        if slot is None or not slot.belongs_to(instance):
            slot = self._renew(instance)
        if not slot.ready:
            with slot.lock:
                if not slot.ready:
                    slot.value = self.function(instance)
                    slot.ready = True
        return slot.value  # type: ignore[no-any-return]

    def __set__(self, instance: object, value: object) -> None:
        name = self.function.__name__
        raise OptionError(f"{name} is opened by each process for itself and cannot be assigned")

    def _renew(self, instance: object) -> _Slot:
        with _lock:
            slot: _Slot | None = instance.__dict__.get(self.key)
            if slot is not None:
                if slot.belongs_to(instance):
                    return slot
                if slot.ready and slot.pid != os.getpid():
                    _inherited.append(slot)
            slot = instance.__dict__[self.key] = _Slot(instance)
            return slot


# --- mapped files --------------------------------------------------------------------------------


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

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ask the kernel to read these (offset, length) ranges now, without waiting for them."""
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        page = mmap.PAGESIZE
        for offset, length in ranges:
            start = offset - offset % page
            if length > 0 and offset + length <= self.size:
                self._map.madvise(mmap.MADV_WILLNEED, start, offset + length - start)


_mapped: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile]
_mapped = weakref.WeakValueDictionary()


def map_file(path: str | os.PathLike[str]) -> MappedFile:
    """Map a file read-only; every caller in this process shares one mapping of it.

    Raises:
        StoreNotFoundError: Nothing is there.
        StoreFormatError: It is a folder, a pipe or a device, or it is empty.
        SourceError: It cannot be opened.
    """
    path = absolute_path(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before open(), which may hang on a pipe
            raise StoreFormatError(f"{path}: a file is expected, this is not one", path=path)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"{path}: no such file", path=path) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{path}: cannot be opened ({reason})", path=path) from error
    try:
        info = os.fstat(descriptor)
        identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        with _lock:
            mapped = _mapped.get(identity)
            if mapped is None:
                if info.st_size == 0:
                    raise StoreFormatError(f"{path}: the file is empty", path=path)
                mapped = _mapped[identity] = MappedFile(path, descriptor, info)
            return mapped
    except OSError as error:
        raise SourceError(f"{path}: cannot be mapped ({error.strerror})", path=path) from error
    finally:
        os.close(descriptor)


# --- files without a name ------------------------------------------------------------------------


def anonymous_file() -> BinaryIO:
    """Open a new file for writing that vanishes with its last user, even after kill -9.

    On Linux it has no name at all. Elsewhere it has one until its creator ends; names left by
    creators that were killed are removed by the next call.
    """
    folder = tempfile.gettempdir()
    with storage_errors(folder):
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # file systems without O_TMPFILE: make one, unlink it
                return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "w+b")
            return tempfile.TemporaryFile("w+b")
        _sweep(folder)
        return tempfile.NamedTemporaryFile(
            "w+b", prefix=f"sharedds-{os.getpid()}-", dir=folder, delete=False
        ).file


def _sweep(folder: str) -> None:
    for entry in os.scandir(folder):
        parts = entry.name.split("-")
        if parts[0] == "sharedds" and len(parts) == 3 and parts[1].isdigit():
            if not psutil.pid_exists(int(parts[1])):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


class SharedFile:
    """The finished bytes of an :func:`anonymous_file`, mapped read-only.

    Pickling costs O(1): another process of the same user opens the same file through its creator,
    who must still be alive at that moment. Nothing is copied, and /dev/shm plays no part.

    Args:
        file: A file from :func:`anonymous_file`, written to its end. It is closed here.
    """

    def __init__(self, file: BinaryIO) -> None:
        with file:
            file.flush()
            name = file.name if isinstance(file.name, str) else None
            self._open(os.dup(file.fileno()), name if name and os.path.exists(name) else None)
        if self._name is not None:
            weakref.finalize(self, _remove, self._name, os.getpid())

    def _open(self, descriptor: int, name: str | None) -> None:
        self._descriptor = descriptor
        self._name = name
        info = os.fstat(descriptor)
        self.size = info.st_size
        self._identity = (info.st_dev, info.st_ino)
        weakref.finalize(self, os.close, descriptor)
        self.view = memoryview(b"")
        if self.size:
            self.view = memoryview(mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ))

    def __getstate__(self) -> tuple[str, int, int, tuple[int, int]]:
        path = self._name or f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return path, os.getpid(), self.size, self._identity

    def __setstate__(self, state: tuple[str, int, int, tuple[int, int]]) -> None:
        path, creator, size, identity = state
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise SourceError(
                f"an index made by process {creator} cannot be reached ({error.strerror}): such an "
                "index lives only as long as the process that made it, on the same machine; "
                "build the dataset anew instead of unpickling it"
            ) from error
        self._open(descriptor, None)
        if self._identity != identity or self.size != size:
            raise SourceError(
                f"an index made by process {creator} is gone, another file took its place; "
                "build the dataset anew instead of unpickling it"
            )
        self._name = path if not path.startswith("/proc/") else None


def _remove(name: str, creator: int) -> None:
    if os.getpid() == creator:
        with contextlib.suppress(OSError):
            os.unlink(name)


# --- LMDB environments ---------------------------------------------------------------------------


class _Environment:
    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.users = 0
        self.options: dict[str, Any] = {}


_environments: dict[tuple[int, int], _Environment] = {}


@contextlib.contextmanager
def open_environment(path: str | os.PathLike[str], **options: Any) -> Iterator[Any]:
    """Open the LMDB file at ``path``, or share the environment this process has open already.

    py-lmdb refuses to open one real file twice in a process, so all users share one environment,
    which is closed when the last one leaves. Options are those of ``lmdb.open``; sharing needs the
    same options.

    Raises:
        StoreBusyError: It is open in this process with other options.
        StoreFormatError: LMDB cannot read it.
        StorageFullError: LMDB could not write.
    """
    import lmdb  # noqa: PLC0415 - reading a store never needs it

    path = absolute_path(path)
    with _lock:
        if not options.get("readonly"):
            with contextlib.suppress(FileExistsError), storage_errors(path):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        info = os.stat(path)
        key = (info.st_dev, info.st_ino)
        shared = _environments.get(key)
        if shared is None:
            try:
                shared = _Environment(lmdb.open(path, subdir=False, **options))
            except lmdb.Error as error:
                raise StoreFormatError(f"{path}: LMDB cannot open it ({error})", path=path) from error
            shared.options = options
            _environments[key] = shared
        elif shared.options != options:
            raise StoreBusyError(
                f"{path} is open in this process in another way; close that use first", path=path
            )
        shared.users += 1
    pid = os.getpid()
    try:
        yield shared.environment
    finally:
        with _lock:
            if os.getpid() == pid:
                shared.users -= 1
                if shared.users == 0:
                    del _environments[key]
                    shared.environment.close()


def _forget_inherited() -> None:
    """In a forked child: keep what came from the parent alive, and use none of it."""
    global _lock  # noqa: PLW0603 - a lock held by another thread of the parent is never released here
    _lock = threading.RLock()
    _inherited.extend(_mapped.values())
    _mapped.clear()
    for shared in _environments.values():
        # py-lmdb keeps a table of open files which fork does not clear; close() in the child frees
        # the child's entry and touches neither the file nor its locks.
        shared.environment.close()
    _environments.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
