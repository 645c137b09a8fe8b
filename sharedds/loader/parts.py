"""Samples of one batch, made one by one by several threads: each has a range of them.

Each thread has a reader of its own, with global generators of its own
(:mod:`sharedds.generators.thread_random`) and a copy of a dataset that holds generators, so that a
sample is what one thread alone would make.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from typing import Any

from sharedds.datasets.offers import tell_epoch
from sharedds.generators.thread_random import (
    GlobalsWatch,
    ThreadGenerators,
    drawing_from,
    redirect_globals,
    restore_globals,
)
from sharedds.loader.crew import Crew
from sharedds.loader.pieces import ranges
from sharedds.loader.thread_copies import for_each_thread
from sharedds.order import Batch

__all__ = ["PartReaders"]

#: So many batches are watched for draws that go past the threads' own generators.
_WATCHED = 4
#: Seconds to wait for threads of a loop that was broken off.
_PATIENCE = 60.0


class PartReaders:
    """Some threads, each with a reader.

    Args:
        reader: A ``SampleReader``, of which they are copies.
        count: How many there are.

    Raises:
        OptionError: The dataset holds generators, and cannot be copied for each thread.
    """

    def __init__(self, reader: Any, count: int) -> None:
        self._shared = reader.dataset
        self._seeded = bool(reader.seeding)
        self._watched = _WATCHED if self._seeded else 0
        self._readers = [own for own, _ in for_each_thread(reader, None, count)]
        for own in self._readers:
            own.threads, own.is_whole = 1, False
        self._gather()
        if self._seeded:
            redirect_globals()
            weakref.finalize(self, restore_globals).atexit = False

    def _gather(self) -> None:
        self._crew = Crew(len(self._readers))
        self._own = [ThreadGenerators() if self._seeded else None for _ in self._readers]

    def begin_epoch(self, epoch: int) -> None:
        """Tell the copies of the dataset, if they are any."""
        for reader in self._readers:
            if reader.dataset is not self._shared:
                tell_epoch(reader.dataset, epoch)

    def read(self, batch: Batch) -> list[Any]:
        """Return the samples of a batch, in its order; records stand for those that failed."""
        if not self._crew.is_here:
            self._crew.join(_PATIENCE)  # those before may still work with these readers
            self._gather()
        bounds = ranges(len(batch), self._crew.count)
        indices = batch.indices.tolist()
        tasks = [
            functools.partial(_read, reader, own, _part_of(batch, part), indices)
            for reader, own, part in zip(self._readers, self._own, bounds, strict=False)
        ]
        watch = GlobalsWatch() if self._watched else None
        found = self._crew.run(tasks)
        if watch is not None:
            self._watched -= 1
            if moved := watch.changed():
                self._watched = 0
                warnings.warn(_moved_text(moved), RuntimeWarning, stacklevel=2)
        return [sample for part in found for sample in part]


def _read(reader: Any, own: ThreadGenerators | None, part: Batch, indices: list[int]) -> list[Any]:
    with contextlib.nullcontext() if own is None else drawing_from(own):
        samples: list[Any] = reader.read_part(part, indices)
        return samples


def _part_of(batch: Batch, part: slice) -> Batch:
    draws = batch.draws[part] if batch.draws is not None else None
    return Batch(batch.seed, batch.epoch, batch.indices[part], draws, batch.step, batch.consumed)


def _moved_text(moved: tuple[str, ...]) -> str:
    return (
        f"while threads made samples, the global generator of {' and of '.join(moved)} moved: "
        "something drew from it in a way that cannot be redirected (a function kept in an object, "
        "a hidden instance, a C++ extension). Such samples depend on how threads take turns; use "
        "threads_per_worker=1"
    )
