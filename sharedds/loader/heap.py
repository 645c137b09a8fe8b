"""What malloc does with freed memory: under a budget it is given back, not kept for the next time.

The C library learns from each large block that is freed to take the next one of that size from its
heap, where freed memory stays: several batches in each process. These calls do nothing where there
is another C library than glibc.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable

__all__ = ["LeanStart", "give_back", "is_tight", "keep_no_large_blocks"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
#: Blocks from this size on come from the system and go back to it; smaller ones would cost time.
_LARGE = 4 << 20
#: What is kept at the end of the heap at most.
_KEPT = 16 << 20
#: What malloc may keep by itself in each process: twice its largest threshold, and as much again.
_KEPT_ELSE = 128 << 20


def is_tight(budget: int, planned: int | None, workers: int) -> bool:
    """Whether what malloc keeps may not fit; blocks that are given back cost time instead.

    Args:
        budget: Bytes in all.
        planned: Bytes that all will take by the plan; None if that is not known.
        workers: How many processes load.
    """
    return planned is None or budget - planned < workers * _KEPT_ELSE


def keep_no_large_blocks() -> None:
    """Let this process give large blocks back as soon as they are freed, from now on."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Give back what this process has freed and malloc still holds."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class LeanStart:
    """A ``worker_init_fn`` for worker processes under a memory budget.

    Args:
        function: What to call after it, if anything.
    """

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function

    def __call__(self, worker_id: int) -> None:
        """Begin the work of a worker."""
        keep_no_large_blocks()
        if self.function is not None:
            self.function(worker_id)
