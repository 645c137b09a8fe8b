"""Pieces of shared memory without a name, lent as memory of tensors.

What is lent lies over an array of its own. When the last tensor, view or array over that is gone,
wherever it was kept, the array goes too, which a weak reference tells.

torch may give a storage other memory in place: ``share_memory_`` does, and so does sending a tensor
through a queue, in the queue's thread. Arrays that were made before, and whoever computes at that
moment, go on looking at the old memory. All of them hold the storage, so the storage holds the
array twice: as its memory, and as an attribute that stays when the memory is exchanged.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from sharedds.errors import SharedDSError
from sharedds.handles import anonymous_file
from sharedds.host.shared import SHARED_MEMORY

__all__ = ["Bytes", "Segment", "address_of", "new_segment", "storage_over"]

Bytes = npt.NDArray[np.uint8]


class Segment:
    """A piece of shared memory that this process has mapped; it stays while anything lies over it.

    Args:
        descriptor: The file; the caller closes it.
        nbytes: Its size.

    Attributes:
        nbytes: The same.
        address: Where it is mapped.
    """

    __slots__ = ("_bytes", "_map", "address", "nbytes")

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._map = mmap.mmap(descriptor, nbytes)
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        self.nbytes = nbytes
        self.address: int = self._bytes.__array_interface__["data"][0]

    def lent(self, nbytes: int) -> Bytes:
        """Return a new array over the first bytes, to be watched by a weak reference."""
        return self._bytes[:nbytes]

    def clear(self) -> None:
        """Give the memory back to the system though others map it too; nobody may look at it."""
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_REMOVE)


def new_segment(nbytes: int) -> tuple[Segment, BinaryIO] | None:
    """Make a piece of shared memory, for which room is reserved; None where there is none.

    Returns:
        The piece, and its file, which can be sent to others and must be closed.
    """
    try:
        file = anonymous_file(SHARED_MEMORY)
    except (OSError, SharedDSError):
        return None
    try:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return Segment(file.fileno(), nbytes), file
    except OSError:
        file.close()
        return None


def storage_over(lent: Bytes) -> torch.UntypedStorage:
    """Return the array as memory of tensors, which keeps it, whatever memory they get later."""
    storage = torch.from_numpy(lent).untyped_storage()
    # torch keeps the Python object, and what it holds, as long as any tensor uses the storage.
    storage._lent = lent  # type: ignore[attr-defined]
    return storage


def address_of(tensor: Any) -> int:
    """Return where the memory of a tensor begins."""
    return int(tensor.untyped_storage().data_ptr())
