"""A folder beside an output for what has to be unpacked, locked while it is in use."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sharedds.errors import StoreBusyError, StoreExistsError
from sharedds.store.lock import LOCK, FolderLock
from sharedds.text import printable

__all__ = ["scratch_folder"]

_MARK = "sharedds-scratch"


@contextlib.contextmanager
def scratch_folder(path: str) -> Iterator[Path]:
    """Give a folder beside an output for what has to be unpacked; it goes at the end.

    It has the same name each time, so that what a killed run left goes with the next.

    Raises:
        StoreBusyError: Another run has it.
        StoreExistsError: There is a folder of that name that is not ours.
    """
    folder = f"{path}.scratch"
    try:
        names = set(os.listdir(folder))
    except OSError:
        names = set()
    if names - {LOCK} and _MARK not in names:
        raise StoreExistsError(
            f"{printable(folder)} is in the way: it holds {printable(min(names))}; move it, or "
            "choose another output",
            path=folder,
        )
    lock = FolderLock.take(folder)
    if lock is None:
        raise StoreBusyError(
            f"{printable(path)} is being written by another process; end it or wait for it",
            path=path,
        )
    try:
        Path(folder, _MARK).touch()
        _empty(folder)
        yield Path(folder)
    finally:
        _empty(folder)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, _MARK))
        lock.remove()


def _empty(folder: str) -> None:
    """Remove all that is in it, but what makes it ours."""
    for entry in list(os.scandir(folder)):
        if entry.name in (LOCK, _MARK):
            continue
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
