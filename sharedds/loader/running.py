"""One loop over a loader while it runs: what is handed out, what is counted, how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from sharedds.datasets.offers import tell_end
from sharedds.errors import StateError, WorkerError
from sharedds.loader.accounts import Counters
from sharedds.loader.ahead import Stage
from sharedds.loader.flight import InFlight
from sharedds.loader.guard import MemoryGuard
from sharedds.loader.ledger import FailureLedger
from sharedds.loader.samples import SampleReader
from sharedds.loader.stream import EpochPass

__all__ = ["LoaderPass", "Running"]


class Running:
    """What is counted of a loop; it may be looked at after the loop is gone.

    Args:
        inner: torch's iterator, or one of ours; it is not kept.
        begun: Where the loop is in the stream.
        counters: What was handed out, and when.
        flight: The batches in flight.

    Attributes:
        workers: The number of each worker process, by its process id.
        threads: The system's numbers of the threads that make batches.
    """

    __slots__ = ("begun", "counters", "flight", "threads", "workers")

    def __init__(self, inner: Any, begun: EpochPass, counters: Counters, flight: InFlight) -> None:
        self.begun = begun
        self.counters = counters
        self.flight = flight
        self.workers: dict[int, int] = getattr(inner, "worker_pids", {})
        self.threads: tuple[int, ...] = getattr(inner, "thread_ids", ())


class LoaderPass(Iterator[Any]):
    """The batches of one pass over a loader.

    Args:
        inner: The iterator that makes them.
        running: What is counted.
        ledger: Accounts for samples that could not be loaded.
        guard: Watches the memory, if there is a budget.
        stage: What batches go through before they are handed out, such as to a device.
        dataset: Told when the epoch is over; None for nobody.

    Attributes:
        is_over: Whether the last batch was handed out.
        is_broken: Whether nothing more comes, since the workers have ended before the last batch.
        on_first: Called once, with the bytes of a sample of the first batch and the batches in
            flight.
    """

    def __init__(
        self,
        inner: _BaseDataLoaderIter,
        running: Running,
        ledger: FailureLedger,
        guard: MemoryGuard | None = None,
        stage: Stage | None = None,
        *,
        dataset: Any = None,
    ) -> None:
        self._inner = inner
        self._begun = running.begun
        self._counters = running.counters
        self._flight = running.flight
        self._ledger = ledger
        self._guard = guard
        self._stage = stage
        self._dataset = dataset
        self._in_process = not running.flight.workers
        reader: Any = inner._dataset
        self._reader: SampleReader | None = reader if self._in_process and reader.seeding else None
        self._is_ended = False
        self._is_superseded = False
        self.is_broken = False
        self.on_first: Callable[[int, InFlight], None] | None = None
        self.on_end: Callable[[], None] | None = None
        if guard is not None:
            guard.begin(self, running.workers)

    @property
    def is_over(self) -> bool:
        """Whether the last batch was handed out."""
        return self._is_ended or self._begun.is_over

    def supersede(self) -> None:
        """Give nothing more: the workers serve another pass now."""
        self._is_superseded = True
        self._end_guard()

    def __len__(self) -> int:
        """Return how many batches this pass has in all."""
        return len(self._begun)

    def __next__(self) -> Any:
        asked = time.perf_counter()
        if self._is_ended:
            raise StopIteration
        if self.is_broken:
            raise WorkerError(
                "the workers of this loop ended with the error before; begin a new loop, after "
                "loader.load_state_dict(loader.state_dict()) to go on from here"
            )
        if self._is_superseded:
            raise StateError(
                "another loop over this loader has begun, and its workers, which stay "
                "(persistent_workers=True), serve one loop at a time; for loops at the same time "
                "build the loader with persistent_workers=False, or one loader for each"
            )
        is_batch = False
        while not is_batch:
            try:
                data, loaded = self._take()
                batch, is_batch = self._ledger.take(data)
            except StopIteration:
                self._is_ended = True
                self._end_guard()
                self._begun.end()
                self._ledger.finish()
                tell_end(self._dataset, self._begun.epoch)
                if self.on_end is not None:
                    self.on_end()
                raise
            except Exception:
                self._begun.failed()
                if getattr(self._inner, "_shutdown", False):
                    self._break()
                raise
            except BaseException:  # Ctrl-C: a batch may be lost between the workers and here
                if not self._in_process:
                    self._break()
                raise
            # Also one of which all samples were left out.
            self._begun.handed(self._ledger.count_of(self._begun.epoch))
        self._counters.note(batch if self._stage is None else loaded, asked)
        if self.on_first is not None:
            left_out = sum(failed.replacement is None for failed in self._ledger.failures)
            samples = max(1, self._begun.samples - left_out)
            self.on_first(self._counters.largest // samples, self._flight)
            self.on_first = None
        if self._guard is not None:
            self._flight.handed += 1
            self._flight.batch_bytes = max(self._flight.batch_bytes, self._counters.largest)
        return batch

    def _take(self) -> tuple[Any, Any]:
        """What is next, and the batch in it as it was loaded, if that may be another."""
        if self._stage is None:
            return self._next(), None
        return self._stage.take(self._next)

    def _next(self) -> Any:
        if not self._in_process:
            return next(self._inner)
        self._flight.check()
        held = self._stage.held if self._stage is not None else 0
        self._begun.forget_sent(but=held)  # of a batch that Ctrl-C interrupted
        if self._reader is None:
            return next(self._inner)
        with self._reader.kept():
            return next(self._inner)

    def _break(self) -> None:
        self.is_broken = True
        self._end_guard()
        if (end := getattr(self._inner, "end_early", None)) is not None:
            end()

    def _end_guard(self) -> None:
        if self._guard is not None:
            self._guard.end()
