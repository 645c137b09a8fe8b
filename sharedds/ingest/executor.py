"""Runs one function over many items, results in order, with a bounded amount of work in flight.

Threads serve here: reading, decoding, encoding and checksums all release the interpreter lock,
there is nothing to pickle and one copy of everything. ``docs/decisions/`` has the figures.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["MemoryBudget", "run_in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_IN_FLIGHT_EACH = 8
_IN_FLIGHT_BYTES = 128 << 20


class MemoryBudget:
    """Lets threads hold so many bytes of decoded pixels at a time; one picture always may.

    Files of a few megabytes can hold gigabytes of pixels, so the size of files bounds nothing.

    Args:
        limit: Bytes, all threads together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._change = threading.Condition()

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Wait until there is room for ``size`` bytes, and hold them."""
        with self._change:
            self._change.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            with self._change:
                self._used -= size
                self._change.notify_all()


def run_in_order(
    function: Callable[[Item], Result], items: Iterable[tuple[Item, int]], *, workers: int
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for each (item, cost in bytes), in order.

    At most 8 items for each worker, and 128 MiB of cost, are in flight (one item always is), so the
    memory does not depend on the number of items. Close the iterator to stop early: work that has
    not begun is dropped, work that has is waited for.
    """
    waiting: deque[tuple[Future[Result], int]] = deque()
    cost_in_flight = 0
    pool = ThreadPoolExecutor(workers, thread_name_prefix="sharedds-pack")
    try:
        for item, cost in items:
            while waiting and (
                len(waiting) >= _IN_FLIGHT_EACH * workers
                or cost_in_flight + cost > _IN_FLIGHT_BYTES
            ):
                future, done = waiting.popleft()
                cost_in_flight -= done
                yield future.result()
            waiting.append((pool.submit(function, item), cost))
            cost_in_flight += cost
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
