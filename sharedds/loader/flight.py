"""How many batches may be on their way at once: what a memory budget shrinks first.

A batch is in flight from the moment when a worker is told to make it until ``next()`` hands it
out. The number never falls below one, or an epoch would seem to be over; a batch that a worker was
told to make cannot be called back, so a smaller number takes effect as batches are handed out.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Allowance", "Glance", "InFlight"]

#: A budget is filled up to here, since memory is looked at now and then only.
_FILL = 0.96
#: The most that was needed lately counts: over so many seconds, and so many looks at least.
_LOOK_BACK = 30.0
_LOOKS = 16


class InFlight:
    """The batches in flight of one iterator, shared with who watches its memory.

    It knows nothing of the iterator, which may go at any time; numbers are written by the thread
    that iterates, ``allowed`` and ``refuse`` by the one that watches.

    Args:
        most: Batches in flight without a budget: ``prefetch_factor`` for each worker.
        workers: How many make them.

    Attributes:
        allowed: How many may be in flight now, from 1 to ``most``.
        count: How many are.
        received: How many of them worker processes have sent already, ahead of their turn.
        tasks: The batches that threads make, each with ``done``; None with processes.
        handed: How many were handed out.
        batch_bytes: Bytes of the largest batch that was handed out; 0 while unknown.
        refuse: Raises the error to end with, if it is still called for; None: go on.
    """

    __slots__ = (
        "allowed",
        "batch_bytes",
        "count",
        "handed",
        "most",
        "received",
        "refuse",
        "tasks",
        "workers",
    )

    def __init__(self, most: int, workers: int) -> None:
        self.most = most
        self.workers = workers
        self.allowed = most
        self.count = 0
        self.received = 0
        # Weak: an account of a loop that was broken off keeps no batches alive.
        self.tasks: weakref.ref[collections.deque[Any]] | None = None
        self.handed = 0
        self.batch_bytes = 0
        self.refuse: Callable[[], None] | None = None

    @property
    def stored(self) -> int:
        """How many batches are made and held by this process."""
        if self.tasks is None:
            return self.received
        return sum(task.done for task in tuple(self.tasks() or ()))

    def begin(self) -> None:
        """Begin an epoch, without a budget unless somebody sets one."""
        self.allowed, self.refuse = self.most, None
        self.count = self.received = self.handed = 0

    def check(self) -> None:
        """Raise if the memory budget is exceeded and nothing helped."""
        if self.refuse is not None:
            self.refuse()


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What is known at one moment about the memory of a loader, in bytes where not a count.

    Attributes:
        moment: Seconds on the monotonic clock.
        used: What no kernel can take back: heaps and shared memory of all processes.
        in_flight: Batches in flight.
        ready: How many of them are made and wait for their turn.
        batch_bytes: What one takes; 0 while unknown.
    """

    moment: float
    used: int
    in_flight: int
    ready: int
    batch_bytes: int


class Allowance:
    """Decides how many batches may be in flight within a budget.

    It begins with one batch a worker. Once the size of a batch is known, as many are allowed as fit
    when all of them are ready at the same time, as they are whenever training makes a pause: on top
    of the most that all else was seen to need lately. Looks miss what lasts for milliseconds, so
    that is counted in any case: each worker holds the samples of a batch while it makes the batch,
    and training holds one batch while it takes the next.

    Args:
        budget: Bytes in all.
        most: Batches in flight without a budget.
        workers: How many make them.
    """

    def __init__(self, budget: int, *, most: int, workers: int) -> None:
        self._budget = budget
        self._most = max(1, most)
        self._workers = max(1, workers)
        #: When, what all but the batches in flight took, and the same with those being made.
        self._rest: collections.deque[tuple[float, int, int]] = collections.deque()
        self.allowed = min(self._most, self._workers)

    def decide(self, seen: Glance) -> int:
        """Return how many batches may be in flight from now on."""
        if not seen.batch_bytes:
            if seen.used > self._budget:
                self.allowed = 1
            return self.allowed
        self._note(seen)
        fitting = self._fitting(seen.batch_bytes)
        if seen.used > self._budget:
            above = seen.used - self._budget
            fitting = min(fitting, self.allowed - -(-above // seen.batch_bytes))
        # Twice as many at most: what a look has missed shows before much is asked for.
        self.allowed = max(1, min(fitting, self._most, 2 * self.allowed))
        return self.allowed

    def forget(self) -> None:
        """Forget what all else needed: it needs less now."""
        self._rest.clear()

    def _fitting(self, size: int) -> int:
        """How many fit by what was seen, and by what is known to happen unseen."""
        full = int(self._budget * _FILL)
        seen = (full - max(rest for _, rest, _ in self._rest)) // size
        quiet = min(idle for _, _, idle in self._rest)
        room = (full - quiet) // size - 1
        unseen = room - self._workers if room >= 2 * self._workers else room // 2
        return min(seen, unseen)

    def _note(self, seen: Glance) -> None:
        building = min(self._workers, max(0, seen.in_flight - seen.ready))
        idle = seen.used - seen.ready * seen.batch_bytes
        self._rest.append((seen.moment, idle - building * seen.batch_bytes, idle))
        while len(self._rest) > _LOOKS and self._rest[0][0] < seen.moment - _LOOK_BACK:
            self._rest.popleft()
