"""Private memory for batches, used again as soon as nobody holds the batch any more.

Memory that was just taken from the system costs a fault for each page, and each page is cleared
first: for large batches that takes longer than to fill them. A tensor here lies over a NumPy array.
When the last tensor, view or array over that is gone, wherever it was kept, the array goes; a weak
reference tells, and its memory is spare.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import weakref
from collections.abc import Callable

import torch

__all__ = ["SpareMemory"]

#: Smaller tensors come from malloc, which has their pages already.
_LEAST = 1 << 20
#: Memory is used again where at least this share of it is wanted.
_SHARE = 0.5


def _of_two_batches() -> int:
    """Without workers two batches exist at once; two tensors of each are large."""
    return 4


class SpareMemory:
    """Hands out memory for tensors, and takes it back when nobody can see it any more.

    May be used by several threads at once. No lock is taken where memory comes back: that happens
    in whatever thread lets go of the last view, at any moment.

    Args:
        most: Tells how many pieces of memory there may be; of more, none is kept that comes back.
            By default those of a loader without workers.
    """

    def __init__(self, most: Callable[[], int] = _of_two_batches) -> None:
        self._most = most
        self._numbers = itertools.count()
        self._lent: set[int] = set()
        self._spare: collections.deque[torch.Tensor] = collections.deque()

    def __len__(self) -> int:
        """Return how many pieces are spare now."""
        return len(self._spare)

    def empty(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
    ) -> torch.Tensor:
        """Return a tensor whose values are whatever was there before.

        Args:
            shape: Its shape; (N, C, H, W) for ``channels_last``.
            dtype: Its dtype.
            channels_last: Whether the channels of a pixel lie next to each other in memory.
        """
        size = math.prod(shape) * dtype.itemsize
        if size < _LEAST:
            layout = torch.channels_last if channels_last else torch.contiguous_format
            return torch.empty(shape, dtype=dtype, memory_format=layout)
        memory = self._take(size)
        seen = memory.numpy()[:size]
        number = next(self._numbers)
        self._lent.add(number)
        weakref.finalize(seen, _give_back, weakref.ref(self), number, memory).atexit = False
        flat = torch.from_numpy(seen).view(dtype)
        if not channels_last:
            return flat.view(shape)
        count, channels, height, width = shape
        return flat.view(count, height, width, channels).permute(0, 3, 1, 2)

    def _take(self, size: int) -> torch.Tensor:
        """Return the smallest spare memory that is large enough and not much larger, else new one.

        The smallest: a batch of images must not take what its labels, twice as large, need next.
        """
        found: torch.Tensor | None = None
        for _ in range(len(self._spare)):
            try:
                memory = self._spare.popleft()
            except IndexError:  # other threads were faster
                break
            fits = _SHARE * memory.nbytes <= size <= memory.nbytes
            if not fits or (found is not None and memory.nbytes >= found.nbytes):
                self._spare.append(memory)
                continue
            if found is not None:
                self._spare.append(found)
            found = memory
        return torch.empty(size, dtype=torch.uint8) if found is None else found

    def _back(self, number: int, memory: torch.Tensor) -> None:
        self._lent.discard(number)
        self._spare.append(memory)
        with contextlib.suppress(IndexError):  # other threads were faster
            while len(self._lent) + len(self._spare) > self._most():
                self._spare.popleft()


def _give_back(home: weakref.ref[SpareMemory], number: int, memory: torch.Tensor) -> None:
    if (owner := home()) is not None:
        owner._back(number, memory)
