"""Batches made by threads of the process that trains: one copy of everything, nothing is sent.

Each thread makes whole batches, which come out in order. A sample is what a worker process would
have made, also where transforms draw from global generators
(:mod:`sharedds.generators.thread_random`) or from generators of their own, of which each thread
then gets a copy with the dataset.

``torch.utils.data.get_worker_info()`` is None in a loader thread, as it is in the trainer: whoever
asks does it to share memory between processes, or to tell processes apart, and here is only one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import reprlib
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from sharedds.errors import LoaderStalledError, WorkerError
from sharedds.generators.thread_random import (
    GlobalsWatch,
    ThreadGenerators,
    drawing_from,
    redirect_globals,
    restore_globals,
)
from sharedds.loader.at_exit import end_at_exit, join_threads
from sharedds.loader.flight import InFlight
from sharedds.loader.spare import SpareMemory
from sharedds.loader.thread_copies import for_each_thread

__all__ = ["ThreadIterator"]

#: Seconds between looks whether the threads are still there, and whether there was a Ctrl-C.
_PATIENCE = 1.0
#: So many batches of each epoch are watched for draws that go past the threads' own generators.
_WATCHED = 4


class ThreadIterator(_BaseDataLoaderIter):
    """Iterates over one epoch after another with ``num_workers`` threads.

    At most ``prefetch_factor`` batches for each thread are under way or waiting. An error is raised
    in the place of its batch; the next call goes on with the batch after it. Threads end with the
    epoch (or, if ``persistent_workers``, with the iterator), when the iterator is let go of, on
    Ctrl-C, and at exit, each after the batch in its hands.

    Args:
        loader: What torch's iterators take their facts from; its ``dataset`` is a ``SampleReader``.

    Raises:
        OptionError: The dataset holds generators, and cannot be copied for each thread.
        LoaderStalledError: No batch within ``timeout`` seconds; the threads end when they can.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.in_flight: InFlight = loader.in_flight
        self._init = loader.worker_init_fn
        self._reader: Any = loader.dataset
        self._seeded = bool(self._reader.seeding)
        self._outstanding: collections.deque[_Task] = collections.deque()
        self.in_flight.tasks = weakref.ref(self._outstanding)
        self._broken = False
        self._start()
        self._begin()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin another epoch; what is left of the last one is dropped."""
        self._drop()
        super()._reset(loader, first_iter)
        if self._pool.stopping:
            self._start()
        self._begin()

    def _next_data(self) -> Any:
        if self._broken:
            raise WorkerError("loading was broken off, and this epoch cannot go on; begin another")
        if not self._outstanding:
            if not self._persistent_workers:
                self._pool.stop()
                join_threads(self._pool.threads)
            raise StopIteration
        try:
            self._wait(self._outstanding[0])
            task = self._outstanding.popleft()
            self._fill()
        except BaseException:  # a stall, or Ctrl-C, which may come between any two steps
            self._broken = True
            self._drop()
            raise
        if task.error is None:
            return task.batch
        # Its traceback leads to the task: without a circle both go when the user is done with them.
        error, task.error = task.error, None
        try:
            if isinstance(error, StopIteration):  # which would look like the end of the epoch
                raise WorkerError("loading a batch raised StopIteration") from error
            raise error
        finally:
            del error

    @property
    def thread_ids(self) -> tuple[int, ...]:
        """What the system numbers the threads by."""
        return tuple(thread.native_id or 0 for thread in self._pool.threads)

    @property
    def _shutdown(self) -> bool:
        return self._pool.stopping

    # --- the epoch

    def _begin(self) -> None:
        self._broken = False
        self._watched = _WATCHED if self._seeded else 0
        self._fill()

    def _fill(self) -> None:
        """Hand out as many batches as may be in flight; one always is, until the epoch ends."""
        while len(self._outstanding) < max(1, self.in_flight.allowed) and self._submit():
            pass
        self.in_flight.count = len(self._outstanding)

    def _submit(self) -> bool:
        """Hand the next batch to the threads, if there is one."""
        try:
            task = _Task(self._next_index())  # type: ignore[no-untyped-call]
        except StopIteration:
            return False
        except Exception as error:  # raised where its batch would be
            task = _Task(None)
            task.error, task.done = error, True
            self._outstanding.append(task)
        else:
            self._outstanding.append(task)
            self._pool.submit(task)
        return True

    def _wait(self, task: _Task) -> None:
        self.in_flight.check()
        if task.done:
            return
        # While this thread waits it draws nothing itself.
        watch = GlobalsWatch() if self._watched else None
        self._watched -= watch is not None
        self._pool.wait(lambda: task.done, self._timeout, check=self.in_flight.check)
        if watch is not None and (text := watch.warning()):
            self._watched = 0
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _drop(self) -> None:
        for task in self._outstanding:
            task.dropped = True
        self._outstanding.clear()
        if self._broken:
            self._pool.stop()
        else:
            pool = self._pool
            pool.wait(lambda: not pool.pending, 0)  # none works for an old epoch in a new one

    def _start(self) -> None:
        self._reader.memory = SpareMemory(functools.partial(_pieces, self.in_flight))
        pairs = for_each_thread(self._reader, self._collate_fn, self._num_workers)
        fetchers = [
            _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
                self._dataset_kind, reader, self._auto_collation, collate, self._drop_last
            )
            for reader, collate in pairs
        ]
        device = self._pin_memory_device if self._pin_memory else None
        self._pool = _Pool(fetchers, seeded=self._seeded, device=device, init=self._init)
        weakref.finalize(self, self._pool.stop)


def _pieces(flight: InFlight) -> int:
    """How many pieces of memory batches may take, those included that nobody uses now."""
    if flight.allowed < flight.most:  # memory is short: what is not needed goes
        return flight.allowed + 1
    return 2 * (flight.most + 1)  # with an image and a mask, say, in each


# --- the threads ---------------------------------------------------------------------------------


class _Task:
    """One batch to make."""

    __slots__ = ("batch", "done", "dropped", "error", "index")

    def __init__(self, index: Any) -> None:
        self.index = index
        self.batch: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.dropped = False

    def __str__(self) -> str:
        return f"samples {reprlib.repr([int(i) for i in self.index.indices])}"


class _Pool:
    """Threads and what they share; knows nothing of the iterator, which may go at any time."""

    def __init__(
        self,
        fetchers: list[Any],
        *,
        seeded: bool,
        device: str | None,
        init: Callable[[int], None] | None,
    ) -> None:
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.changed = threading.Condition()
        self.stopping = False
        self.in_hand: list[_Task | None] = [None] * len(fetchers)
        self.pending = 0
        self.seeded = seeded
        self.device = device
        self.device_index = torch.accelerator.current_device_index() if device else 0
        self.init = init
        self._ready = threading.Semaphore(0)
        self.threads = [
            threading.Thread(
                target=self._work,
                args=(number, fetcher),
                name=f"sharedds-loader-{number}",
                daemon=True,  # parked on a queue, others would keep the interpreter from its exit
            )
            for number, fetcher in enumerate(fetchers)
        ]
        end_at_exit(self)
        for thread in self.threads:
            self._launch(thread)
        # What a thread sets for itself is also what threads to come would begin with.
        torch.set_num_threads(torch.get_num_threads())

    def _launch(self, thread: threading.Thread) -> None:
        if self.seeded:
            redirect_globals()
        try:
            thread.start()
            self._ready.acquire()
        except RuntimeError:  # the system allows no more
            if self.seeded:
                restore_globals()
            self.stop()
            raise

    def stop(self) -> None:
        """Tell the threads to end after the batch in hand."""
        self.stopping = True
        for _ in self.threads:
            self.tasks.put(None)

    def submit(self, task: _Task) -> None:
        """Let some thread make a batch."""
        with self.changed:
            self.pending += 1
        self.tasks.put(task)

    def wait(
        self,
        come: Callable[[], bool],
        timeout: float,
        *,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Wait until something has come true by what the threads do; ``check`` may raise.

        Raises:
            LoaderStalledError: Not within ``timeout`` seconds (0: no limit).
            WorkerError: There are no threads.
        """
        ends = time.monotonic() + timeout if timeout else float("inf")
        with self.changed:
            while not come():
                left = ends - time.monotonic()
                if left <= 0:
                    raise LoaderStalledError(self._stalled(timeout))
                if check is not None:
                    check()
                self.changed.wait(min(left, _PATIENCE))
                if not come() and not any(thread.is_alive() for thread in self.threads):
                    raise WorkerError(
                        "the threads of this loader are gone; an iterator serves only the process "
                        "that made it, not one forked from it"
                    )

    # --- in a thread

    def _work(self, number: int, fetcher: Any) -> None:
        try:
            torch.get_num_threads()  # at its first use a thread takes over the common number
            torch.set_num_threads(1)
            self._ready.release()
            own = fetcher.dataset.own = ThreadGenerators() if self.seeded else None
            failed = self._initialize(number, own)
            while (task := self.tasks.get()) is not None:
                self.in_hand[number] = task
                if failed is not None:
                    task.error, failed = failed, None
                elif not task.dropped and not self.stopping:
                    self._make(task, fetcher, own)
                self.in_hand[number] = None
                task.done = True
                with self.changed:
                    self.pending -= 1
                    self.changed.notify_all()
                del task  # while waiting for the next one, keep no batch alive
        finally:
            if self.seeded:
                restore_globals()

    def _initialize(self, number: int, own: ThreadGenerators | None) -> BaseException | None:
        try:
            if self.device is not None:
                torch.accelerator.set_device_index(self.device_index)
            if self.init is not None:
                with _apart(own):
                    self.init(number)
        except BaseException as error:
            return error
        return None

    def _make(self, task: _Task, fetcher: Any, own: ThreadGenerators | None) -> None:
        try:
            with _apart(None if fetcher.dataset.is_quiet else own):
                batch = fetcher.fetch(task.index)
            if self.device is not None:
                batch = pin_memory(batch, self.device)  # type: ignore[no-untyped-call]
            task.batch = batch
        except BaseException as error:  # SystemExit too: the trainer decides what it means
            task.error = error

    def _stalled(self, timeout: float) -> str:
        frames = sys._current_frames()
        about = "they are stuck or too slow, see where each of them is; raise timeout if need be"
        text = [f"no batch came from the loader threads within timeout={timeout:g} s: {about}"]
        for number, thread in enumerate(self.threads):
            frame = frames.get(thread.ident or 0)
            task = self.in_hand[number]
            text.append(f"  {thread.name}, {'idle' if task is None else f'making {task}'}")
            text += traceback.format_stack(frame) if frame else ["  ended"]
        return "\n".join(text)


def _apart(own: ThreadGenerators | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if own is None else drawing_from(own)
