"""Paths, free room, and what it means when a write fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator

import lmdb

from sharedds.errors import OptionError, SourceError, StorageFullError, StoreError

__all__ = ["absolute_path", "free_bytes", "storage_errors"]

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
# LMDB reports a write that was cut short, as on a full disk, as an input/output error.
_FULL_TEXTS = ("No space left", "too large", "quota", "Input/output")


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return ``path`` with ``~`` expanded, absolute: it stays right when the process moves.

    Raises:
        OptionError: It is no path: of another type, or with a zero byte in it.
        SourceError: It is relative, and the current folder was deleted.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        name = type(path).__name__
        raise OptionError(f"a path must be a str or a path, not {name}: {path!r}") from None
    if "\0" in text:
        raise OptionError(f"{text!r} is no path: it holds a zero byte", path=text)
    try:
        return os.path.abspath(os.path.expanduser(text))
    except FileNotFoundError as error:
        raise SourceError(
            f"{text}: the current folder was deleted; give an absolute path, or change to a folder "
            "that exists",
            path=text,
        ) from error


def free_bytes(path: str) -> int:
    """Return how many bytes are free where ``path`` is, or would be made."""
    path = absolute_path(path)
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


@contextlib.contextmanager
def storage_errors(
    path: str, *, needed: Callable[[], int] = int, advice: str = ""
) -> Iterator[None]:
    """Turn "no space left", quota and size-limit errors of a write into one error of ours.

    Args:
        path: What is being written, named in the error.
        needed: Asked for the bytes that did not fit, when something fails; 0 when not known.
        advice: Added to the text.

    Raises:
        StorageFullError: The disk, a quota or a limit is exhausted.
        StoreError: LMDB failed for another reason.
    """
    try:
        yield
    except lmdb.Error as error:
        text = str(error)
        if not isinstance(error, lmdb.DiskError) and not any(t in text for t in _FULL_TEXTS):
            raise StoreError(f"{path}: LMDB failed ({text})", path=path) from error
        raise _full(path, text, needed(), advice) from error
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(path, error.strerror or str(error), needed(), advice) from error


def _full(path: str, reason: str, needed: int, advice: str) -> StorageFullError:
    more = f"at least {needed:,} more bytes are needed and " if needed else ""
    return StorageFullError(
        f"{path}: no room to write ({reason}); {more}{free_bytes(path):,} bytes are free on this "
        f"disk. {advice}Make room or raise the limit, then run the same command again",
        path=path,
    )
