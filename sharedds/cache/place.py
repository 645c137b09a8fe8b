"""Where a cache takes its room: in memory if that has plenty, else in a temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref

from sharedds.cache.layout import Layout
from sharedds.handles import WritableFile, anonymous_file, storage_errors
from sharedds.host.memory import machine_memory
from sharedds.host.ranks import local_ranks
from sharedds.host.shared import SHARED_MEMORY, shared_memory_room
from sharedds.host.storage import storage_of

__all__ = ["is_in_memory", "memory_folder", "new_file", "prepare", "promise"]

#: Of what is free in memory a cache takes at most so much: batches and workers need the rest.
_SHARE = 0.75
_ZEROS = bytes(1 << 20)
#: Caches of this process in memory: what they have yet to take is free only for now.
_promised: list[weakref.ref[WritableFile]] = []


def memory_folder(nbytes: int) -> str | None:
    """Return the folder whose files are in memory; None where so many bytes are too much for it.

    Files there are memory that the system cannot take back. Each rank of this machine that asks
    gets its part. What caches of this process have been promised and not taken yet is not free,
    and each other rank has promised as much.
    """
    room, left = shared_memory_room(), machine_memory().available
    if room is None or not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return None
    free = room.free if left is None else min(room.free, left)
    ranks = local_ranks().count
    files = [file for reference in tuple(_promised) if (file := reference()) is not None]
    free -= ranks * sum(file.room_to_come for file in files)
    return SHARED_MEMORY if nbytes <= _SHARE * free / ranks else None


def promise(file: WritableFile) -> None:
    """Count all that a file in memory may take, as long as this process has it."""
    _promised.append(weakref.ref(file, _promised.remove))


def is_in_memory(folder: str) -> bool:
    """Whether files in a folder are memory that the system cannot take back."""
    return storage_of(folder).kind == "memory"


def new_file(layout: Layout, identity: bytes, folder: str | None) -> WritableFile:
    """Make a file without a name for an empty cache.

    Args:
        layout: Where everything goes in it.
        identity: What it is for.
        folder: Where it takes its room; None for the temporary folder.

    Raises:
        StorageFullError: There is no room for its index, or a limit forbids files of that size.
        SourceError: There is no temporary folder to write to.
    """
    file = anonymous_file(folder)
    with file:
        prepare(file.fileno(), layout, identity, folder or tempfile.gettempdir())
        return WritableFile(file)


def prepare(descriptor: int, layout: Layout, identity: bytes, path: str) -> None:
    """Make an empty file an empty cache.

    The index is given its room at once: to read a mapped page that a full memory file system cannot
    provide would end the process. Records take theirs as they are written.

    Raises:
        StorageFullError: There is no room for the index, or a limit forbids files of that size.
    """
    with storage_errors(path, needed=lambda: layout.begin):
        os.ftruncate(descriptor, layout.nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, layout.begin)
        else:
            for offset in range(0, layout.begin, len(_ZEROS)):
                os.pwrite(descriptor, _ZEROS[: layout.begin - offset], offset)
        os.pwrite(descriptor, layout.head(identity), 0)
