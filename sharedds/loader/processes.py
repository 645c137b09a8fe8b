"""The batches of worker processes: none waits for ever, and no worker ends without an answer.

torch's own iterator does the work; this one watches. It remembers which batch is in hand at which
worker, so that the error for a worker that died or got stuck says which samples it was at. Such
errors come out of ``next()`` only: torch would raise them from a signal handler, anywhere in the
training step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import multiprocessing.connection
import multiprocessing.util
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from sharedds.errors import LoaderStalledError, WorkerDiedError, WorkerError
from sharedds.handles import MadeHere
from sharedds.loader.failures import Delivery, name_of
from sharedds.workers.delivery import (
    DescriptorKeeper,
    InlineBatch,
    open_files_limit,
    raise_open_files_limit,
)
from sharedds.workers.postmortem import (
    SHARED_MEMORY,
    cause_and_advice,
    exit_text,
    shared_memory_room,
)
from sharedds.workers.stacks import stacks_of
from sharedds.workers.watch import WorkerWatch

__all__ = ["ProcessIterator"]

_SLICE = 0.5  # seconds after which a death is noticed at the latest
_GRACE = 1.5  # seconds that workers get to end by themselves
_SHORT_GRACE = 0.2  # ... when something went wrong, or somebody pressed Ctrl-C
_LAST_GRACE = 0.2  # ... after each signal
_WARN_AFTER = 60.0  # seconds without a batch until a warning says which worker has which samples
_NAMED = 20  # samples of a batch that a message names


class ProcessIterator(_MultiProcessingDataLoaderIter):
    """Iterates over the batches that worker processes make.

    Data may come as a :class:`~sharedds.loader.failures.Delivery`, to be taken by a
    :class:`~sharedds.loader.ledger.FailureLedger`; all else is the batch itself.

    Args:
        loader: What torch's iterator wants to know, as attributes.

    Attributes:
        handed_out: The index, or batch of indices, of what was returned last.
    """

    _dataset: Any
    _workers: list[Any]
    _workers_status: list[bool]
    _task_info: dict[int, tuple[Any, ...]]

    def __init__(self, loader: Any) -> None:
        self._home = MadeHere()
        self.handed_out: Any = None
        self._asked: Any = None
        #: By number of the task, what it was sent to and what it is.
        self._in_hand: dict[int, tuple[int, Any]] = {}
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
            self._end_workers(_SHORT_GRACE)
            if _is_out_of_descriptors(error):
                raise _descriptors_error("to start workers") from error
            raise

    @property
    def is_ended(self) -> bool:
        """Whether the workers have ended, so that nothing more comes."""
        return bool(self._shutdown)

    # --- what is in hand -------------------------------------------------------------------------

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            self._kept += [self._index_queues, self._worker_result_queue, self._workers]
            self._kept += [self._workers_done_event]
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
        before = self._send_idx
        super()._try_put_index()
        if self._send_idx > before:
            self._in_hand[before] = (self._task_info[before][0], self._asked)

    def _process_data(self, data: Any, *worker: Any) -> Any:
        for number in [n for n in self._in_hand if n not in self._task_info]:
            owner, self.handed_out = self._in_hand.pop(number)
            if owner not in self._working:
                self._working.add(owner)
                self._watch.renew(self._workers[owner].pid)
        if isinstance(data, ExceptionWrapper):
            data.exc_msg += f"while making the batch of the samples {_numbers(self.handed_out)}\n"
        return super()._process_data(data, *worker)  # type: ignore[no-untyped-call]

    def _held_by(self, worker: int) -> str:
        """Say which samples a worker has in hand and which wait for it."""
        tasks = [
            index
            for number, (owner, index) in sorted(self._in_hand.items())
            if owner == worker and len(self._task_info.get(number, (0, 0))) == 1
        ]
        if not tasks:
            return "nothing in hand"
        epoch = getattr(tasks[0], "epoch", None)
        of = f" of epoch {epoch}" if epoch is not None else ""
        text = f"in hand: samples {_numbers(tasks[0])}{of}"
        reader = self._dataset
        dataset = reader.dataset if hasattr(reader, "load") else reader
        names = [name_of(dataset, index) for index in _indices(tasks[0])[:_NAMED]]
        if any(name is not None for name in names):
            text += f" ({', '.join(map(str, names))})"
        waiting = [index for task in tasks[1:] for index in _indices(task)]
        return f"{text}; waiting for it: {_shortened(waiting)}" if waiting else text

    # --- waiting ---------------------------------------------------------------------------------

    def _next_data(self) -> Any:
        try:
            data = super()._next_data()  # type: ignore[no-untyped-call]
        except Exception:
            raise
        except BaseException:  # Ctrl-C: torch's accounts may be half done
            self._end_workers(_SHORT_GRACE)
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
            while True:
                left = begin + self._timeout - time.monotonic() if self._timeout > 0 else _SLICE
                success, data = self._try_get_data(max(0.0, min(left, _SLICE)))
                if success:
                    return data
                waited = time.monotonic() - begin
                if 0 < self._timeout <= waited:
                    raise self._stalled(waited)
                if not is_warned and waited > _WARN_AFTER:
                    is_warned = True
                    self._warn(waited)
        except BaseException:
            self._end_workers(_SHORT_GRACE)
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
                if _is_out_of_descriptors(error):
                    raise _descriptors_error("to receive a batch") from error
                # The worker that sent it may have died before it was fetched.
                multiprocessing.connection.wait([w.sentinel for w in self._workers], _SLICE)
                self._raise_if_dead()
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
            raise self._died(dead)

    def _died(self, dead: list[int]) -> WorkerDiedError:
        # If several did, a signal tells more than an exit code.
        first = min(dead, key=lambda number: self._workers[number].exitcode or 0)
        worker = self._workers[first]
        code = worker.exitcode
        also = ", ".join(
            f"worker {number} {exit_text(self._workers[number].exitcode)}"
            for number in dead
            if number != first
        )
        advice = cause_and_advice(
            code,
            oom_killed=self._watch.oom_killed(),
            room=shared_memory_room(),
            changed=self._watch.changed_files(),
        )
        (stack,) = stacks_of([worker], 0.1)
        lines = [
            f"worker {first} (pid {worker.pid}) {exit_text(code)}; {self._held_by(first)}",
            self._watch.memory_text(worker.pid),
            *([f"  at the same time: {also}"] if also else []),
            f"  cause and remedy: {advice}",
            *([f"  where it was:\n{_indented(stack)}"] if stack else []),
        ]
        return WorkerDiedError("\n".join(lines))

    def _stalled(self, waited: float) -> LoaderStalledError:
        stacks = stacks_of(self._workers)
        text = (
            f"no batch came from the workers for {waited:.1f} s (timeout={self._timeout:g}): they "
            "are stuck or too slow, see where each of them is; raise timeout if samples may take "
            "that long"
        )
        lines = [text]
        for number, (worker, stack) in enumerate(zip(self._workers, stacks, strict=True)):
            where = _indented(stack or "waiting for work, or not able to answer")
            lines += [f"  worker {number} (pid {worker.pid}), {self._held_by(number)}", where]
        return LoaderStalledError("\n".join(lines))

    def _warn(self, waited: float) -> None:
        held = "; ".join(
            f"worker {number} (pid {worker.pid}) has {self._held_by(number)}"
            for number, worker in enumerate(self._workers)
        )
        warnings.warn(
            f"no batch came from the workers for {waited:.0f} s: {held}. With timeout=<seconds> "
            "the loader ends instead, and says where each worker is stuck",
            stacklevel=2,
        )

    # --- ending ----------------------------------------------------------------------------------

    def _shutdown_workers(self) -> None:
        """End the workers; torch calls this at the end of the epoch or of the iterator."""
        self._end_workers(_GRACE)

    def _end_workers(self, grace: float) -> None:
        """End all workers together: ask, and after ``grace`` seconds terminate, then kill."""
        if not hasattr(self, "_workers") or self._shutdown or not self._home:
            return  # no worker was started, it is done, or they belong to a parent process
        self._shutdown = True
        end = time.monotonic() + grace
        is_reading = self._stop_pinning(grace)
        # A worker that was killed may hold the lock of the event for ever.
        if _within(_LAST_GRACE, self._workers_done_event.set):
            for tasks in self._index_queues:
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    tasks.put(None)
            _wait_for(self._workers, end)
        for stop in ("terminate", "kill"):
            alive = [worker for worker in self._workers if worker.is_alive()]
            for worker in alive:
                getattr(worker, stop)()
            _wait_for(alive, time.monotonic() + _LAST_GRACE)
        for worker in self._workers:
            worker.join(0)
            _remove_left_overs(worker.pid)
            if getattr(worker, "line", None) is not None:
                worker.line.close()
        queues = (
            self._index_queues if is_reading else [*self._index_queues, self._worker_result_queue]
        )
        for each in queues:
            each.cancel_join_thread()
            each.close()
        self._finalizer.cancel()

    def _stop_pinning(self, grace: float) -> bool:
        """End the thread that pins memory; whether it is still reading from the workers."""
        thread = getattr(self, "_pin_memory_thread", None)
        if thread is None:
            return False
        self._pin_memory_thread_done_event.set()
        self._worker_result_queue.cancel_join_thread()
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._worker_result_queue.put((None, None))  # it may be waiting for a batch
        thread.join(grace)
        return bool(thread.is_alive())


def _end_at_exit(reference: weakref.ref[ProcessIterator], kept: list[Any]) -> None:
    # multiprocessing would terminate the workers at exit, and wait for them for ever.
    if (iterator := reference()) is not None:
        iterator._end_workers(_SHORT_GRACE)


def _within(seconds: float, function: Callable[[], None]) -> bool:
    """Call something that could block; return whether it is done when time is up."""
    thread = threading.Thread(target=function, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no new threads while the interpreter ends
        function()
        return True
    thread.join(seconds)
    return not thread.is_alive()


def _wait_for(workers: Iterable[Any], end: float) -> None:
    waiting = [worker for worker in workers if worker.is_alive()]
    while waiting and (left := end - time.monotonic()) > 0:
        multiprocessing.connection.wait([worker.sentinel for worker in waiting], left)
        waiting = [worker for worker in waiting if worker.is_alive()]


def _remove_left_overs(pid: int | None) -> None:
    """Remove files that a worker was about to unlink when it was killed."""
    with contextlib.suppress(OSError):
        for path in Path(SHARED_MEMORY).glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)


# --- text ----------------------------------------------------------------------------------------


def _indices(task: Any) -> list[int]:
    """The numbers of the samples of a task: a batch, a list of numbers, or a number."""
    numbers = getattr(task, "indices", task)
    return [int(number) for number in numbers] if isinstance(numbers, Iterable) else [int(numbers)]


def _numbers(task: Any) -> str:
    try:
        return _shortened(_indices(task))
    except (TypeError, ValueError):  # a sampler may yield anything
        return repr(task)[:200]


def _shortened(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:_NAMED]))
    return text if len(numbers) <= _NAMED else f"{text}, ... ({len(numbers):,} in all)"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _is_out_of_descriptors(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    return isinstance(error, RuntimeError) and "ancdata" in str(error)


def _descriptors_error(purpose: str) -> WorkerError:
    limit = open_files_limit()
    return WorkerError(
        f"no descriptor is left {purpose}: this process may have {limit} files open at once, and "
        "each tensor of a batch that is kept takes one. Raise the limit (ulimit -n 65536), or keep "
        "copies of batches (tensor.clone())"
    )
