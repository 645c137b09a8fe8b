"""The batches of worker processes: none waits for ever, and no worker ends without an answer.

torch's own iterator does the work; this one watches. It remembers which batch is in hand at which
worker, so that the error for a worker that died or got stuck says which samples it was at. Such
errors come out of ``next()`` only: torch would raise them from a signal handler, anywhere in the
training step.
"""

from __future__ import annotations

import dataclasses
import multiprocessing.connection
import multiprocessing.util
import queue
import time
import warnings
import weakref
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from sharedds.errors import MemoryBudgetError, WorkerError
from sharedds.handles import MadeHere
from sharedds.host.descriptors import raise_open_files_limit
from sharedds.loader.endings import GRACE, SHORT_GRACE, end_workers, stop_pinning
from sharedds.loader.failures import Delivery
from sharedds.loader.flight import InFlight
from sharedds.loader.messages import (
    InHand,
    death_of,
    descriptors_error,
    is_out_of_descriptors,
    numbers_of,
    slowness_of,
    stall_of,
)
from sharedds.workers.delivery import DescriptorKeeper, InlineBatch
from sharedds.workers.loans import Loans
from sharedds.workers.mapped import MappedBuffers
from sharedds.workers.watch import WorkerWatch

__all__ = ["ProcessIterator"]

_SLICE = 0.5  # seconds after which a death is noticed at the latest
_WARN_AFTER = 60.0  # seconds without a batch until a warning says which worker has which samples


class ProcessIterator(_MultiProcessingDataLoaderIter):
    """Iterates over the batches that worker processes make.

    Data may come as a :class:`~sharedds.loader.failures.Delivery`, to be taken by a
    :class:`~sharedds.loader.ledger.FailureLedger`; all else is the batch itself.

    Args:
        loader: What torch's iterator wants to know, as attributes, ``in_flight``, and ``loans``,
            which its workers have as well: the table of their buffers, or None.

    Attributes:
        handed_out: The index, or batch of indices, of what was returned last.
        in_flight: How many batches may be made ahead, and how many are.
    """

    _dataset: Any
    _workers: list[Any]
    _workers_status: list[bool]
    _task_info: dict[int, tuple[Any, ...]]
    _tasks_outstanding: int
    _prefetch_factor: int

    def __init__(self, loader: Any) -> None:
        self._home = MadeHere()
        self.handed_out: Any = None
        self.in_flight: InFlight = loader.in_flight
        self._loans: Loans | None = loader.loans
        self._buffers = MappedBuffers(self._loans) if self._loans is not None else None
        self._keep_as_allowed()
        self._asked: Any = None
        self._in_hand = InHand(loader.dataset)
        self._working: set[int] = set()  # workers that have delivered a batch
        self._is_inline_told = False
        raise_open_files_limit()
        self._descriptors = DescriptorKeeper()
        self._watch = WorkerWatch()
        # Held from outside: when this iterator ends as a part of a reference cycle (an exception
        # holds frames), queues in the cycle are closed before __del__ can tell the workers.
        self._kept: list[Any] = []
        self._finalizer = multiprocessing.util.Finalize(
            None, _end_at_exit, args=(weakref.ref(self), self._kept), exitpriority=100
        )
        try:
            super().__init__(loader)
        except BaseException as error:
            self._end_workers(SHORT_GRACE)
            if is_out_of_descriptors(error):
                raise descriptors_error("to start workers") from error
            raise

    @property
    def is_ended(self) -> bool:
        """Whether the workers have ended, so that nothing more comes."""
        return bool(self._shutdown)

    @property
    def worker_pids(self) -> dict[int, int]:
        """The number of each worker, by its process id."""
        return {worker.pid: number for number, worker in enumerate(self._workers)}

    # --- what is in hand -------------------------------------------------------------------------

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            self._kept += [self._index_queues, self._worker_result_queue, self._workers]
            self._kept += [self._workers_done_event]
            results: Any = self._worker_result_queue
            results.needed = self._buffers  # a thread may read for longer than this is there
        # torch's handler would raise in the middle of the training step when a worker dies.
        if self._worker_pids_set:
            signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = False
        self._in_hand.clear()
        super()._reset(loader, first_iter)

    def _next_index(self) -> Any:
        self._asked = super()._next_index()  # type: ignore[no-untyped-call]
        return self._asked

    def _try_put_index(self) -> None:
        """Send out as many batches as may be in flight; torch asks for one more at a time.

        While fewer are allowed none is sent, and several once more are. One always is: torch takes
        it for the end of the epoch when none is out.
        """
        self._keep_as_allowed()
        # torch holds its own number against what is out; ours may have grown since.
        self._prefetch_factor = max(1, -(-self.in_flight.most // self._num_workers))
        while len(self._task_info) < max(1, self.in_flight.allowed):
            task = self._send_idx
            super()._try_put_index()
            if self._send_idx == task:  # no more in this epoch
                break
            self._in_hand.sent(task, self._task_info[task][0], self._asked)
        self._count()

    def _keep_as_allowed(self) -> None:
        """Let workers keep buffers while there is room for all batches in flight."""
        if self._loans is not None:
            self._loans.is_keeping = self.in_flight.allowed >= self.in_flight.most

    def _process_data(self, data: Any, *worker: Any) -> Any:
        for owner, index in self._in_hand.taken(self._task_info):
            self.handed_out = index
            if owner not in self._working:
                self._working.add(owner)
                self._watch.renew(self._workers[owner].pid)
        if isinstance(data, ExceptionWrapper):
            data.exc_msg += f"while making the batch of the samples {numbers_of(self.handed_out)}\n"
        return super()._process_data(data, *worker)  # type: ignore[no-untyped-call]

    def _count(self) -> None:
        self.in_flight.count = len(self._task_info)
        self.in_flight.received = len(self._task_info) - self._tasks_outstanding

    def _held_by(self, worker: int) -> str:
        return self._in_hand.text(worker, self._task_info)

    # --- waiting ---------------------------------------------------------------------------------

    def _next_data(self) -> Any:
        try:
            self.in_flight.check()
            data = super()._next_data()  # type: ignore[no-untyped-call]
        except BaseException as error:
            # After Ctrl-C torch's accounts may be half done; errors of samples end nothing.
            if isinstance(error, MemoryBudgetError) or not isinstance(error, Exception):
                self._end_workers(SHORT_GRACE)
            raise
        return self._received(data)

    def _received(self, data: Any) -> Any:
        batch = data.batch if isinstance(data, Delivery) else data
        if isinstance(batch, InlineBatch):
            if not self._is_inline_told:
                self._is_inline_told = True
                warnings.warn(str(batch), stacklevel=2)
            batch = batch.open()
            data = dataclasses.replace(data, batch=batch) if isinstance(data, Delivery) else batch
        elif self._descriptors.keep(batch):
            warnings.warn(
                f"more than half of the {self._descriptors.limit:,} files that this process may "
                "have open are in use, since each batch that is kept takes some: batches are "
                "copied from now on. Raise the limit (ulimit -n) to avoid the copies",
                stacklevel=2,
            )
        return data

    def _get_data(self) -> Any:
        begin = time.monotonic()
        is_warned = False
        try:
            self._count()
            while True:
                self.in_flight.check()
                left = begin + self._timeout - time.monotonic() if self._timeout > 0 else _SLICE
                success, data = self._try_get_data(max(0.0, min(left, _SLICE)))
                if success:
                    return data
                waited = time.monotonic() - begin
                if 0 < self._timeout <= waited:
                    raise stall_of(
                        self._workers, self._held_by, waited=waited, timeout=self._timeout
                    )
                if not is_warned and waited > _WARN_AFTER:
                    is_warned = True
                    warnings.warn(slowness_of(self._workers, self._held_by, waited), stacklevel=2)
        except BaseException:
            self._end_workers(SHORT_GRACE)
            raise

    def _try_get_data(self, timeout: float = _SLICE) -> tuple[bool, Any]:
        end = time.monotonic() + timeout
        while True:
            self._watch.look(worker.pid for worker in self._workers)
            now = time.monotonic()
            try:
                # Short at first: what a worker holds is seen early, or never.
                pause = min(end - now, max(0.001, self._watch.due - now))
                return True, self._data_queue.get(timeout=max(0.0, pause))
            except queue.Empty:
                self._raise_if_dead()
            except (OSError, RuntimeError, EOFError) as error:
                if is_out_of_descriptors(error):
                    raise descriptors_error("to receive a batch") from error
                # The worker that sent it may have died before it was fetched. Its end of the line
                # is closed a moment before the system counts it as dead.
                until = time.monotonic() + _SLICE
                while time.monotonic() < until:
                    self._raise_if_dead()
                    time.sleep(0.01)
                raise
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise WorkerError("the thread that pins memory ended unexpectedly; see its output")
            if time.monotonic() >= end:
                return False, None

    def _raise_if_dead(self) -> None:
        dead = [
            number
            for number, worker in enumerate(self._workers)
            if self._workers_status[number] and not worker.is_alive()
        ]
        if dead:
            raise death_of(self._workers, dead, self._watch, self._held_by)

    # --- ending ----------------------------------------------------------------------------------

    def end_early(self) -> None:
        """End the workers at once: the loop is broken, and what they make is for nobody."""
        self._end_workers(SHORT_GRACE)

    def _shutdown_workers(self) -> None:
        """End the workers; torch calls this at the end of the epoch or of the iterator."""
        self._end_workers(GRACE)

    def _end_workers(self, grace: float) -> None:
        """End all workers together: ask, and after ``grace`` seconds terminate, then kill."""
        if not hasattr(self, "_workers") or self._shutdown or not self._home:
            return  # no worker was started, it is done, or they belong to a parent process
        self._shutdown = True
        until = time.monotonic() + grace
        is_reading = stop_pinning(
            getattr(self, "_pin_memory_thread", None),
            getattr(self, "_pin_memory_thread_done_event", None),
            self._worker_result_queue,
            grace,
        )
        end_workers(self._workers, self._index_queues, self._workers_done_event, until=until)
        queues = (
            self._index_queues if is_reading else [*self._index_queues, self._worker_result_queue]
        )
        for each in queues:
            each.cancel_join_thread()
            each.close()
        self._finalizer.cancel()


def _end_at_exit(reference: weakref.ref[ProcessIterator], kept: list[Any]) -> None:
    # multiprocessing would terminate the workers at exit, and wait for them for ever.
    if (iterator := reference()) is not None:
        iterator.end_early()
