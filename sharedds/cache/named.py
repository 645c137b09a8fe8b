"""Caches with a name, in a folder: for all ranks of a machine, and for the next run."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from sharedds.cache.layout import HEAD, Layout, identity_of
from sharedds.cache.place import prepare
from sharedds.errors import OptionError, SharedDSError, SourceError, StoreBusyError
from sharedds.handles import WritableFile, lock_file, unlock_file
from sharedds.host.storage import storage_of
from sharedds.host.system import system_text

__all__ = ["open_named"]

_SECONDS = 60.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STEP = 10  # seconds: no machine starts twice in that time, and clocks are corrected by less


def open_named(layout: Layout, key: str, folder: str) -> WritableFile:
    """Join the cache for this key in a folder, or make it.

    Each key has a file of its own. The file is made anew, under the same name, if it is of another
    size or for another number of samples, or if the machine was started again since: what had been
    written by then may have reached the disk in part. Who has the old one goes on with it.

    Raises:
        OptionError: The folder is on a network: what one machine writes others would not see whole.
        StoreBusyError: Another process has been opening a cache there for a minute.
        StorageFullError: There is no room for its index, or a limit forbids files of that size.
        SourceError: The folder cannot be made or written to.
    """
    if storage_of(folder).kind == "network":
        raise OptionError(
            f"{folder}: a cache is shared by processes of one machine and cannot be on a network "
            "file system; choose a local disk, or /dev/shm",
            path=folder,
        )
    identity = identity_of(f"{key}\0{_boot()}")
    path = os.path.join(folder, f"sharedds-{identity_of(key).hex()}.cache")
    try:
        os.makedirs(folder, exist_ok=True)
        with _locked(folder):
            return _joined(path, layout, identity) or _made(path, layout, identity)
    except SharedDSError:
        raise
    except OSError as error:
        raise SourceError(
            f"{path}: the cache cannot be opened ({error.strerror}); choose a folder that this "
            "process can write to",
            path=path,
        ) from error


def _boot() -> str:
    """Return what is another one after each start of the machine.

    Where neither a number of the start nor its time is known, nothing is believed.
    """
    if text := system_text(_BOOT):
        return text
    try:
        return str(round(psutil.boot_time() / _STEP))
    except (psutil.Error, OSError, RuntimeError):
        return uuid.uuid4().hex


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not lock_file(descriptor, _SECONDS):
            raise StoreBusyError(
                f"{folder}: another process has had this folder of caches locked for a minute, or "
                "its file system knows no locks; choose another folder",
                path=folder,
            )
        yield
    finally:
        unlock_file(descriptor)
        os.close(descriptor)


def _joined(path: str, layout: Layout, identity: bytes) -> WritableFile | None:
    try:
        owner = os.lstat(path).st_uid
        if owner != os.geteuid():
            raise SourceError(
                f"{path}: this cache belongs to another user ({owner}); choose another folder",
                path=path,
            )
        file = WritableFile.at(path)
    except FileNotFoundError:
        return None
    is_same = file.size == layout.nbytes and layout.is_head(file.view[:HEAD], identity)
    return file if is_same else None


def _made(path: str, layout: Layout, identity: bytes) -> WritableFile:
    """Make the file under another name first: under its own it is always whole."""
    unfinished = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)  # of one that was killed here
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        prepare(descriptor, layout, identity, path)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    finally:
        os.close(descriptor)
    return WritableFile.at(path)
