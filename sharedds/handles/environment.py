"""LMDB environments, one for each real file of a process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

import lmdb

from sharedds.errors import (
    OptionError,
    SourceError,
    StorageFullError,
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles.storage import absolute_path, storage_errors

__all__ = ["open_environment", "require_lmdb_path"]

_lock = threading.RLock()


class _Shared:
    """An open environment and how many use it."""

    def __init__(self, environment: lmdb.Environment, options: dict[str, Any]) -> None:
        self.environment = environment
        self.options = options
        self.users = 0
        self.threads: list[int] = []  # of users that keep no fork out


_environments: dict[tuple[int, int], _Shared] = {}


def require_lmdb_path(path: str) -> None:
    """Refuse a path that LMDB cannot be told: it takes UTF-8 only.

    Raises:
        OptionError: The path holds bytes that are not UTF-8.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{path!r}: LMDB takes only paths in UTF-8; choose another name for it or its folder",
            path=path,
        ) from error


@contextlib.contextmanager
def open_environment(
    path: str | os.PathLike[str], *, gated: bool = False, **options: Any
) -> Iterator[lmdb.Environment]:
    """Open the LMDB file at ``path``, or share the environment this process has open already.

    py-lmdb refuses to open one real file twice in a process, so all users share one environment,
    which is closed when the last one leaves. Options are those of ``lmdb.open``; sharing needs the
    same options. Only an environment for writing is created where nothing is.

    A forked child gives back what its parent has open, so that it can open it itself. Where another
    thread may be inside LMDB at that moment, that would wait for this thread for ever: there, the
    child keeps it and cannot open that file by LMDB. Who uses it within a
    :class:`~sharedds.handles.ForkGate`, and ends each transaction there, says so (``gated``).

    Raises:
        StoreNotFoundError: Nothing is there, and it is opened for reading.
        StoreBusyError: It is open in this process with other options.
        StoreFormatError: LMDB cannot read it.
        StorageFullError: LMDB could not write.
        SourceError: It cannot be opened.
        OptionError: The path is not UTF-8.
    """
    path = absolute_path(path)
    require_lmdb_path(path)
    with _lock:
        key = _identify(path, create=not options.get("readonly"))
        shared = _environments.get(key)
        if shared is None:
            shared = _environments[key] = _Shared(_open(path, options), options)
        elif shared.options != options:
            raise StoreBusyError(
                f"{path} is open in this process in another way; close that use first", path=path
            )
        shared.users += 1
        thread = threading.get_ident()
        if not gated:
            shared.threads.append(thread)
    pid = os.getpid()
    try:
        yield shared.environment
    finally:
        with _lock:
            if os.getpid() == pid:  # a forked child may end here too; the file is not its own
                shared.users -= 1
                if not gated:
                    shared.threads.remove(thread)
                if shared.users == 0:
                    del _environments[key]
                    shared.environment.close()


def _identify(path: str, *, create: bool) -> tuple[int, int]:
    try:
        if create:
            with contextlib.suppress(FileExistsError), storage_errors(path):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        info = os.stat(path)
    except StorageFullError:
        raise
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"{path}: no such file; check the spelling", path=path) from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened ({error.strerror})", path=path) from error
    return info.st_dev, info.st_ino


def _open(path: str, options: dict[str, Any]) -> lmdb.Environment:
    try:
        with storage_errors(path):
            return lmdb.open(path, subdir=False, **options)
    except StorageFullError:
        raise
    except StoreError as error:
        raise StoreFormatError(
            f"{path}: LMDB cannot open it ({error.__cause__})", path=path
        ) from error


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold it, for ever here
    _lock = threading.RLock()
    here = threading.get_ident()
    for shared in _environments.values():
        if all(thread == here for thread in shared.threads):
            # py-lmdb keeps a table of open files which fork does not clear; close() in the child
            # frees the child's entry and touches neither the file nor its locks.
            shared.environment.close()
        else:  # it would wait for what another thread is at, and so would its destructor at exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared.environment))
    _environments.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
