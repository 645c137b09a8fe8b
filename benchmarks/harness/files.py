"""The page cache: fill it, empty it, look into it, and wait until the disk has everything."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

__all__ = ["evict", "read_all", "resident_share", "sync"]

_BLOCK = 4 << 20


def read_all(folder: Path) -> list[Path]:
    """Read every file below a folder once, so that the page cache holds it; return them sorted.

    A file may stand in the place of the folder.
    """
    below = [folder] if folder.is_file() else folder.rglob("*")
    files = sorted(path for path in below if path.is_file())
    room = bytearray(_BLOCK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass
    return files


def sync(path: Path) -> None:
    """Wait until the file system that holds ``path`` has written everything."""
    try:
        subprocess.run(["sync", "-f", str(path)], check=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):  # not GNU
        os.sync()


def resident_share(path: Path) -> float:
    """Return the share of a file that is in the page cache (0 to 1), by mincore(2)."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        pages = -(-size // mmap.PAGESIZE)
        answer = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            address = ctypes.c_void_p(ctypes.addressof(start))
            if libc.mincore(address, ctypes.c_size_t(size), answer):
                raise OSError(ctypes.get_errno(), "mincore failed")
        finally:
            del start
        return (pages - bytes(answer).count(0)) / pages


def evict(path: Path, *, most: float = 0.01) -> float:
    """Drop a file from the page cache while nobody maps it; return the share that is left.

    Raises:
        OSError: More than ``most`` of it stays.
    """
    share = 1.0
    for _ in range(5):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        share = resident_share(path)
        if share <= most:
            return share
    raise OSError(f"{path}: {share:.0%} stays in the page cache; somebody uses it")
