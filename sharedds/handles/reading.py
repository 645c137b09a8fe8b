"""Bytes of an open file from any place, by several threads at once."""

from __future__ import annotations

import os
import threading

__all__ = ["read_at"]

_LOCK = threading.Lock()  # where a file has one place for all, as on Windows


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Return up to ``length`` bytes from a place; the place of the descriptor does not matter.

    Raises:
        OSError: The file cannot be read.
    """
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    with _LOCK:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)
