"""Runs one function over many items, results in order, with a bounded amount of work in flight.

Threads serve here: reading, decoding, encoding and checksums all release the interpreter lock,
there is nothing to pickle and one copy of everything. ``docs/decisions/`` has the figures.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["MemoryBudget", "run_in_order", "usable_cpus"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_IN_FLIGHT_EACH = 8
_IN_FLIGHT_BYTES = 128 << 20
_GROUP_BYTES = 1 << 20


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


def usable_cpus() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_order(
    function: Callable[[Item], Result],
    items: Iterable[tuple[Item, int]],
    *,
    workers: int,
    group: int = 1,
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for each (item, cost in bytes), in order.

    At most 8 items, or two groups, for each worker, and 128 MiB of cost, are in flight (one task
    always is), so the
    memory does not depend on the number of items. Close the iterator to stop early: work that has
    not begun is dropped, work that has is waited for.

    Args:
        function: Called by several threads at once.
        items: What to call it with, each with its cost.
        workers: Threads.
        group: Items in one task. Handing a task over costs about as much as reading a small file,
            so work as short as that is done several at a time.
    """
    waiting: deque[tuple[Future[list[Result]], int]] = deque()
    cost_in_flight = 0
    most = max(2, _IN_FLIGHT_EACH // group) * workers  # few: memory touched first is slow

    def run(some: list[Item]) -> list[Result]:
        return [function(item) for item in some]

    pool = ThreadPoolExecutor(workers, thread_name_prefix="sharedds-pack")
    try:
        for some, cost in _grouped(items, group):
            while waiting and (len(waiting) >= most or cost_in_flight + cost > _IN_FLIGHT_BYTES):
                future, done = waiting.popleft()
                cost_in_flight -= done
                yield from future.result()
            waiting.append((pool.submit(run, some), cost))
            cost_in_flight += cost
        while waiting:
            yield from waiting.popleft()[0].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _grouped(items: Iterable[tuple[Item, int]], size: int) -> Iterator[tuple[list[Item], int]]:
    """Yield up to ``size`` items and their cost; fewer where they are large."""
    some: list[Item] = []
    total = 0
    for item, cost in items:
        some.append(item)
        total += cost
        if len(some) == size or total >= _GROUP_BYTES:
            yield some, total
            some, total = [], 0
    if some:
        yield some, total
