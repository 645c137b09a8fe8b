"""Threads that make parts of one batch at the same time, for whoever makes that batch.

They share all of its process: one set of handles, one cache. They wait between batches, end with
the crew, and a fork inherits none: :attr:`Crew.is_here` says whether they are there.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sharedds.errors import WorkerError
from sharedds.handles import MadeHere
from sharedds.loader.at_exit import end_at_exit, join_threads

__all__ = ["Crew"]


class Crew:
    """``count`` threads, of which the one that calls :meth:`run` is the first.

    Args:
        count: How many work at once.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._here = MadeHere()
        self._threads = _Threads(count - 1)
        weakref.finalize(self, self._threads.stop)

    @property
    def is_here(self) -> bool:
        """Whether the threads are of this process, and none was left behind by Ctrl-C."""
        return bool(self._here) and not self._threads.stopping

    def join(self, timeout: float) -> None:
        """Wait until the other threads have ended, once they were told to.

        Raises:
            WorkerError: One has not within ``timeout`` seconds.
        """
        join_threads(self._threads.threads, timeout)
        stuck = [thread.name for thread in self._threads.threads if thread.is_alive()]
        if stuck:
            raise WorkerError(
                f"{', '.join(stuck)} still makes a sample of a loop that was broken off "
                f"{timeout:g} s ago; see what it waits for, or build the loader anew"
            )

    def run(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do all of them at the same time, and return what they return, in their order.

        Args:
            tasks: At most ``count``; the first one is done by the calling thread.

        Raises:
            BaseException: What the first of those that failed has raised, once all are done. After
                Ctrl-C nobody is waited for, and the crew is of no more use.
        """
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        try:
            for number, task in enumerate(tasks[1:], start=1):
                self._threads.tasks.put((number, task, answers))
            found = [_answer(0, tasks[0], Exception)]
            found += [answers.get() for _ in tasks[1:]]
        except BaseException:
            self._threads.stop()
            raise
        found.sort(key=lambda answer: answer[0])
        for _, _, error in found:
            if error is not None:
                try:
                    raise error
                finally:
                    del error, found  # its traceback leads here, and so to itself
        return [result for _, result, _ in found]


#: Which task, what it returned, what it raised.
_Answer = tuple[int, Any, BaseException | None]


def _answer(number: int, task: Callable[[], Any], caught: type[BaseException]) -> _Answer:
    try:
        return number, task(), None
    except caught as error:
        return number, None, error


class _Threads:
    """The other threads; they know nothing of the crew, which may go at any time."""

    def __init__(self, count: int) -> None:
        self.tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stopping = False
        self._ready = threading.Semaphore(0)
        self.threads = [
            threading.Thread(
                target=self._work,
                name=f"sharedds-loader-part-{number}",
                daemon=True,  # parked on a queue, others would keep the interpreter from its exit
            )
            for number in range(1, count + 1)
        ]
        end_at_exit(self)
        try:
            for thread in self.threads:
                thread.start()
                self._ready.acquire()
        except RuntimeError:  # the system allows no more
            self.stop()
            raise
        # What a thread sets for itself is also what threads to come would begin with.
        torch.set_num_threads(torch.get_num_threads())

    def stop(self) -> None:
        """Tell the threads to end after the task in hand."""
        self.stopping = True
        for _ in self.threads:
            self.tasks.put(None)

    def _work(self) -> None:
        torch.get_num_threads()  # at its first use a thread takes over the common number
        torch.set_num_threads(1)
        self._ready.release()
        while (task := self.tasks.get()) is not None:
            if not self.stopping:
                number, call, answers = task
                answers.put(_answer(number, call, BaseException))  # the caller decides
                del call, answers
            del task  # while waiting for the next one, keep nothing alive
