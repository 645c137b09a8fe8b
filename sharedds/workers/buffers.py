"""In a worker: where memory for batches comes from, for torch and for datasets that make batches.

It is memory of a buffer that the trainer keeps mapped, else new shared memory for which room is
reserved; without room it is private, which who sends the batch notices.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import get_sharing_strategy

from sharedds.host.shared import shared_memory_room
from sharedds.workers.lending import Buffers, has_room
from sharedds.workers.loans import Loans

__all__ = [
    "SMALL",
    "SharedMemory",
    "by_descriptor",
    "empty_shared",
    "guard_shared_memory",
    "keep_buffers",
    "shared_memory_of_worker",
]

#: Storages of at most so many bytes travel by value; beyond that, pipes are slower.
SMALL = 1 << 15


class SharedMemory:
    """Stands for ``torch.UntypedStorage._new_shared`` in a worker.

    Where there is no room the memory is private, which who sends the batch notices; so is what will
    travel by value.

    Args:
        original: What torch has there.

    Attributes:
        buffers: Where memory comes from while there is some; None without.
    """

    def __init__(self, original: Callable[..., torch.UntypedStorage]) -> None:
        self._original = original
        self.buffers: Buffers | None = None

    def __call__(self, size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
        """Return memory for a batch, as torch asks for it."""
        if torch.device(device).type != "cpu" or size == 0 or not by_descriptor():
            return self._original(size, device=device)
        if size <= SMALL:
            return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        return self.of_buffers(size)

    def of_buffers(self, size: int) -> torch.UntypedStorage:
        """Return memory of a buffer; else :meth:`reserved`."""
        if self.buffers is not None and size > SMALL:
            storage = self.buffers.take(size)
            if storage is not None:
                return storage
        return self.reserved(size)

    def reserved(self, size: int) -> torch.UntypedStorage:
        """Return shared memory that goes with its last user; private memory without room."""
        if has_room(shared_memory_room(), size):
            # Newer versions of torch reserve it as well, and raise a RuntimeError.
            with contextlib.suppress(OSError, RuntimeError):
                storage = self._original(size)
                descriptor, _ = storage._share_fd_cpu_()
                os.posix_fallocate(descriptor, 0, size)
                return storage
        return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]


def by_descriptor() -> bool:
    """Whether torch sends memory as descriptors: what all of this is for."""
    if sys.platform != "linux":
        return False
    return bool(get_sharing_strategy() == "file_descriptor")  # type: ignore[no-untyped-call]


def guard_shared_memory() -> None:
    """In a worker: reserve room in shared memory before it is written to."""
    if sys.platform == "linux":
        original = torch.UntypedStorage._new_shared
        torch.UntypedStorage._new_shared = SharedMemory(original)  # type: ignore[method-assign]


def keep_buffers(loans: Loans, worker: int) -> None:
    """In a worker: keep buffers for batches from now on.

    Args:
        loans: The table that it shares with the trainer.
        worker: Its number.
    """
    if (memory := shared_memory_of_worker()) is not None:
        memory.buffers = Buffers(loans, worker)
        threading.Thread(
            target=memory.buffers.rest_when_idle, name="sharedds-buffers", daemon=True
        ).start()


def shared_memory_of_worker() -> SharedMemory | None:
    """Return where memory for batches comes from in this worker; None elsewhere."""
    memory: Any = torch.UntypedStorage._new_shared
    return memory if isinstance(memory, SharedMemory) else None


def empty_shared(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    """Return a tensor for a batch, whose values are whatever was there before.

    In a worker it lies where it can be sent from without a copy; elsewhere in private memory.

    Args:
        shape: Its shape; (N, C, H, W) for ``channels_last``.
        dtype: Its dtype.
        channels_last: Whether the channels of a pixel lie next to each other in memory.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = shared_memory_of_worker()
    if memory is None or size <= SMALL:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, memory_format=layout)
    flat = torch.empty(0, dtype=dtype).set_(memory(size))
    if not channels_last:
        return flat.view(shape)
    count, channels, height, width = shape
    return flat.view(count, height, width, channels).permute(0, 3, 1, 2)
