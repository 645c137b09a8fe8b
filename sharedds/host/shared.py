"""How much room there is where batches travel between processes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sharedds.host.system import megabytes

__all__ = ["SHARED_MEMORY", "SharedMemoryRoom", "shared_memory_room"]

#: Where the system keeps what processes share.
SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True)
class SharedMemoryRoom:
    """Bytes free and in all where batches travel (``/dev/shm``)."""

    free: int
    total: int

    def __str__(self) -> str:
        return f"{megabytes(self.free)} free of {megabytes(self.total)}"


def shared_memory_room(path: str = SHARED_MEMORY) -> SharedMemoryRoom | None:
    """Return how much room there is for batches.

    Args:
        path: The folder.

    Returns:
        The room; None where there is no such place, or none that has a size.
    """
    try:
        info = os.statvfs(path)
    except (AttributeError, OSError, ValueError):
        return None
    if not info.f_blocks:  # mounted with size=0: no limit of its own
        return None
    return SharedMemoryRoom(info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize)
