"""In the trainer: the buffers of workers, mapped once, and batches that lie in them."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from sharedds.workers.loans import Loans
from sharedds.workers.segments import Segment, address_of, storage_over

__all__ = ["MappedBuffers", "Notice", "arrived", "in_buffer", "opened"]

#: By the name of the table: what is sent says in which one it lies.
_mapped: weakref.WeakValueDictionary[str, MappedBuffers] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Notice:
    """What the trainer must know before it opens a message of a worker.

    Attributes:
        table: The name of the table of the worker's buffers.
        worker: Its number.
        let_go: Buffers that it had let go of before.
    """

    table: str
    worker: int
    let_go: tuple[int, ...]


class MappedBuffers:
    """The buffers of the workers of one iterator.

    Batches outlive it. It must live as long as messages of the workers can be read.

    Args:
        loans: The table that it shares with the workers.
    """

    def __init__(self, loans: Loans) -> None:
        self._loans = loans
        self._segments: dict[tuple[int, int], Segment] = {}
        _mapped[loans.name] = self

    def __len__(self) -> int:
        """Return how many buffers are mapped."""
        return len(self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is mapped."""
        return sum(segment.nbytes for segment in tuple(self._segments.values()))

    def arrived(
        self, worker: int, slot: int, size: int, nbytes: int, file: Any
    ) -> torch.UntypedStorage:
        """Return memory that a worker has lent; it goes back when nothing lies over it any more.

        Args:
            worker: The worker.
            slot: Its number for the buffer.
            size: Bytes that were lent.
            nbytes: Bytes of the buffer.
            file: Comes along the first time.
        """
        if file is not None:
            descriptor = file.detach()
            try:
                self._segments[worker, slot] = Segment(descriptor, nbytes)
            finally:
                os.close(descriptor)
        lent = self._segments[worker, slot].lent(size)
        self._loans.lend(lent, worker, slot)
        return storage_over(lent)

    def forget(self, worker: int, slots: Iterable[int]) -> None:
        """Let go of buffers that a worker has let go of."""
        for slot in slots:
            self._segments.pop((worker, slot), None)

    def has(self, address: int) -> bool:
        """Whether one of the buffers begins there."""
        return any(segment.address == address for segment in tuple(self._segments.values()))


def opened(notice: Notice, data: bytes) -> Any:
    """Return a batch that a worker has pickled."""
    if notice.let_go:
        _mapped[notice.table].forget(notice.worker, notice.let_go)
    return pickle.loads(data)  # noqa: S301 - from our own worker process


def arrived(
    name: str, worker: int, slot: int, size: int, nbytes: int, file: Any
) -> torch.UntypedStorage:
    """Return memory that a worker has lent; see :meth:`MappedBuffers.arrived`."""
    return _mapped[name].arrived(worker, slot, size, nbytes, file)


def in_buffer(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a buffer that some worker waits for."""
    address = address_of(tensor)
    return any(mapped.has(address) for mapped in tuple(_mapped.values()))
