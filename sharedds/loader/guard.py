"""Keeps a memory budget while a loop runs: first with fewer batches in flight, then with an error.

Memory is looked at by a thread of its own. Between exact measurements, which cost milliseconds for
each process, it reads what the system tells at once, so that growth is seen within a fraction of a
second at one or two hundredths of one CPU.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Protocol

from sharedds.errors import MemoryBudgetError
from sharedds.handles import MadeHere
from sharedds.host.system import megabytes
from sharedds.loader.accounts import LoaderMemory, ProcessUse
from sharedds.loader.flight import Allowance, Glance, InFlight
from sharedds.loader.tree import Quick

__all__ = ["Measuring", "MemoryGuard", "advice"]

#: The share of the time that looks may take, glances and measurements each; and that measurements
#: may while above the budget.
_SHARE, _SHARE_ABOVE = 0.01, 0.1
_SHORTEST, _LONGEST = 0.03, 1.0  # seconds between looks
#: Seconds above the budget, when fewer batches in flight cannot help (any more), until it ends.
_GRACE = 1.0
#: Above the budget by this factor, workers that go on making batches are not waited for.
_FAR = 1.25
#: A worker is to blame if it has grown by this part of its share of what is too much, and by more
#: than it may take to make so many batches.
_BLAMED, _BATCHES = 0.5, 4


class Measuring(Protocol):
    """What the guard asks of :class:`~sharedds.loader.tree.ProcessTree`."""

    def watched(self) -> tuple[ProcessUse, ...]:
        """Measure all processes."""
        ...

    def quick(self) -> Quick | None:
        """Glance at them."""
        ...

    def add_workers(self, workers: Mapping[int, int]) -> None:
        """Learn the numbers of the workers, by process id."""
        ...

    def trim(self) -> bool:
        """Give back what this process has freed and still holds; whether it needs less now."""
        ...

    def begin_again(self) -> None:
        """Forget what workers held when they were first seen."""
        ...


class MemoryGuard:
    """Watches the memory of one loop; holds neither the loop nor its loader.

    Args:
        budget: Bytes that this process and all below it may hold for good.
        flight: The batches in flight of the loop.
        tree: The processes.
        batch_size: Samples in a batch, for the advice at the end.
    """

    def __init__(
        self, budget: int, *, flight: InFlight, tree: Measuring, batch_size: int | None
    ) -> None:
        self.budget = budget
        self._batch_size = batch_size
        self._flight = flight
        self._tree = tree
        self._home = MadeHere()
        self._lock = threading.Lock()  # of the measurements
        self._ended = threading.Event()
        self._allowance = Allowance(budget, most=flight.most, workers=flight.workers)
        self._above_since: float | None = None
        self._uses: tuple[ProcessUse, ...] = ()
        self._used = 0
        self._quick: Quick | None = None  # when it was measured last
        self._waiting = 0
        self._exact_at = float("-inf")
        self._exact_cost = 0.0
        self._trimmed_at = float("-inf")
        self._is_settled = False
        self._pause = _SHORTEST
        self._thread: threading.Thread | None = None
        if flight.most:
            flight.allowed = self._allowance.allowed
        flight.refuse = None

    def begin(self, loop: object, workers: Mapping[int, int]) -> None:
        """Start to watch; ends with :meth:`end`, or when ``loop`` is gone.

        Args:
            loop: What is watched; it is not kept alive.
            workers: The number of each worker, by its process id.
        """
        if self._ended.is_set():
            return
        self._tree.add_workers(workers)
        weakref.finalize(loop, self._ended_with_loop).atexit = False
        self._thread = threading.Thread(
            target=self._watch, name="sharedds-memory-guard", daemon=True
        )
        self._thread.start()

    def check_trainer(self) -> None:
        """Look at this process before any worker starts: if it holds too much, ``next()`` says so.

        What the loader has in flight cannot be the cause, so nothing is gained by waiting.
        """
        uses = self._measured()
        if not any(use.irrevocable is not None for use in uses):
            self._ended.set()
            warnings.warn(
                "max_memory is planned for, but not watched: this system does not tell what a "
                "process holds (no smaps_rollup)",
                stacklevel=2,
            )
        elif (uses[0].irrevocable or 0) > self.budget:
            self._flight.refuse = self._refuse

    def end(self) -> None:
        """Stop watching."""
        if not self._home:  # forked: the thread is not here, and the event may be half set
            return
        self._ended.set()
        self._flight.refuse = None
        if self._thread is not None:
            self._thread.join(0.2)

    def _ended_with_loop(self) -> None:
        if self._home:
            self._ended.set()

    # --- in the thread

    def _watch(self) -> None:
        while not self._ended.wait(self._pause):
            try:
                self.look(time.monotonic())
            except Exception as error:
                warnings.warn(f"max_memory is not watched any more: {error!r}", stacklevel=2)
                return

    def look(self, now: float) -> None:
        """Look once: set how many batches may be in flight, and whether the loop must end."""
        used, is_exact = self._glance(now)
        flight = self._flight
        # Of batches that hold none of what is counted, only the effect is known.
        size = max(1, flight.batch_bytes) if flight.handed else 0
        count = flight.count
        ready = min(count, flight.stored + self._waiting // max(1, size))
        if flight.most:
            seen = Glance(moment=now, used=used, in_flight=count, ready=ready, batch_bytes=size)
            flight.allowed = self._allowance.decide(seen)
        if used <= self.budget:
            self._above_since = None
            flight.refuse = None
            return
        if now - self._trimmed_at >= _GRACE / 2:
            self._trimmed_at = now
            if self._tree.trim():
                self._allowance.forget()
        is_running_away = ready < count and used > _FAR * self.budget
        is_shrinking = count > 1 and self._could_fit(used, count, ready)
        if flight.most and is_shrinking and not is_running_away:
            self._above_since = None  # fewer take effect as batches are handed out
        elif self._above_since is None:
            self._above_since = now
        elif is_exact and now - self._above_since >= _GRACE:
            flight.refuse = self._refuse

    def _could_fit(self, used: int, count: int, ready: int) -> bool:
        """Whether fewer batches in flight could be enough; not if it is training that keeps more.

        While workers make batches, all that they hold may be what they need for that.
        """
        size = self._flight.batch_bytes
        if not size:
            return True
        making = ready < count
        held = sum((use.irrevocable or 0) - use.waiting for use in self._uses if _is_worker(use))
        return used - count * size - held * making <= self.budget

    def _glance(self, now: float) -> tuple[int, bool]:
        """What is used, and whether that was measured or follows from what has changed since."""
        with self._lock:
            begin = time.thread_time()
            quick = self._tree.quick() if self._quick is not None else None
            spent = time.thread_time() - begin
            self._pause = min(_LONGEST, max(_SHORTEST, spent / _SHARE))
            estimate = self._used
            if quick is not None and self._quick is not None:
                estimate += quick.total - self._quick.total
                self._waiting = quick.waiting
            share = _SHARE_ABOVE if estimate > self.budget or quick is None else _SHARE
            if now - self._exact_at < self._exact_cost / share:
                return estimate, False
            begin = time.thread_time()
            self._measure(now)
            self._exact_cost = time.thread_time() - begin
            return self._used, True

    def _measure(self, now: float) -> None:
        if not self._is_settled and self._flight.handed >= max(1, self._flight.workers):
            self._is_settled = True  # all have loaded what they need: it grows from here
            self._tree.begin_again()
        self._uses = self._tree.watched()
        self._used = sum(use.irrevocable or 0 for use in self._uses)
        self._quick = self._tree.quick()
        self._waiting = self._quick.waiting if self._quick is not None else 0
        self._exact_at = now

    def _measured(self) -> tuple[ProcessUse, ...]:
        with self._lock:
            self._measure(time.monotonic())
            return self._uses

    # --- in next()

    def _refuse(self) -> None:
        """Raise if the budget is still exceeded now."""
        if not self._home:
            return
        uses = self._measured()
        used = sum(use.irrevocable or 0 for use in uses)
        if used <= self.budget:
            self._flight.refuse = None
            return
        flight = self._flight
        size = flight.batch_bytes
        memory = LoaderMemory(
            processes=uses,
            batches_in_flight=flight.count,
            in_flight=size * flight.count if size else None,
            budget=self.budget,
        )
        shrunk = ", with one batch in flight" if flight.most and flight.count <= 1 else ""
        raise MemoryBudgetError(
            f"max_memory={megabytes(self.budget)} is exceeded{shrunk}:\n{memory}\n"
            f"  what to do: {advice(memory, flight, self._batch_size)}"
        )


def _is_worker(use: ProcessUse) -> bool:
    return use.role.startswith("worker")


def advice(memory: LoaderMemory, flight: InFlight, batch_size: int | None) -> str:
    """Say how to stay within the budget: the nearest plan that would, by what was measured.

    Args:
        memory: Who holds what; its budget is exceeded.
        flight: What the loader has in flight.
        batch_size: Samples in a batch.
    """
    batch_bytes = flight.batch_bytes
    budget, used = memory.budget or 0, memory.irrevocable or 0
    workers = [use for use in memory.processes if _is_worker(use)]
    held = [(use.irrevocable or 0) - use.waiting for use in workers]
    others = used - sum(held) - sum(use.waiting for use in workers)
    enough = f"max_memory of at least {megabytes(int(used * 1.1))} is needed for it to go on as is"
    grown = memory.processes[0].grown or 0
    if grown > max(_BLAMED * (used - budget), _BATCHES * batch_bytes):
        loads = "training" if workers else "the dataset, which loads here, or training"
        return (
            f"this process has grown by {megabytes(grown)} since the loop began: {loads} keeps "
            "more and more (batches, losses with their graphs, a cache); a higher max_memory only "
            "postpones this, unless all that is kept fits"
        )
    if others > budget:
        return (
            f"{megabytes(others)} are held outside the workers, in this process above all: no plan "
            f"of the loader helps; keep less in this process, or raise max_memory; {enough}"
        )
    if not workers:
        return f"keep less in this process, or use a smaller batch_size; {enough}"
    blamed = max(workers, key=lambda use: use.grown or 0)
    grown = blamed.grown or 0
    if grown > max(_BLAMED * (used - budget) / len(workers), _BATCHES * batch_bytes):
        return (
            f"{blamed.role} has grown by {megabytes(grown)} since its first look: the "
            "dataset or a transform keeps what it loads (a cache, a list); `sharedds doctor` finds "
            "which attribute it is. Let it keep less, or use fewer workers; a higher max_memory "
            "only postpones this, unless all that is kept fits"
        )
    each = max(held)
    for number in range(len(workers), 0, -1):
        if others + number * each + 2 * number * batch_bytes <= budget:
            prefetch = ", prefetch_factor=1" if flight.most > flight.workers else ""
            return f"num_workers={number}{prefetch} would fit by what was measured; {enough}"
    smaller = ""
    if (batch_size or 1) > 1:
        smaller = f" and a batch_size below {batch_size}"
    return f"even one worker takes more: use num_workers=0 or engine='thread'{smaller}; {enough}"
