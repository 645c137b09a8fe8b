"""Memory that is used again: fresh pages for each picture would cost more than filling them."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch"]

_LIMIT = 8 << 20


class Scratch(threading.local):
    """One piece of memory for each thread, lent to one array after the other.

    Args:
        limit: Bytes; a larger array gets memory of its own, so that one huge picture among small
            ones leaves nothing behind.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._kept = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """Return an array of anything; it is good until this thread asks for the next one."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > self._limit:
            return np.empty(shape, dtype)
        if size > len(self._kept):
            self._kept = np.empty(min(self._limit, 1 << (size - 1).bit_length()), np.uint8)
        return self._kept[:size].view(dtype).reshape(shape)
