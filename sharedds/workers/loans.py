"""Which buffers of workers are lent to the trainer: one byte for each, which both can see.

====== ============= ======== ====================================================================
byte   the buffer is written  when
====== ============= ======== ====================================================================
FREE   idle          worker   it is made; nobody can see it
FREE   taken         -        the worker writes a batch into it, which it sees itself
LENT   lent          worker   the batch is pickled, before it is sent
FREE   idle again    trainer  the last tensor over it is gone, at any moment and in any thread
LOST   nobody's      trainer  the same, but the trainer has forked since: the worker lets go of it
====== ============= ======== ====================================================================

What the worker itself still sees is not idle either, though its byte says so: it watches that by a
weak reference of its own. So it writes into a buffer exactly when the memory of the tensor would
have been given back to the system otherwise, and nobody sees more than without buffers. A process
forked from the trainer maps what its parent maps, and may look at it for ever: memory that is lost
goes with its last user.
"""

from __future__ import annotations

import mmap
import os
import uuid
import weakref

import numpy as np

from sharedds.errors import SharedDSError
from sharedds.handles import MadeHere, SharedFile, Unforked, anonymous_file, per_process
from sharedds.host.shared import SHARED_MEMORY
from sharedds.workers.segments import Bytes

__all__ = ["FREE", "LENT", "LOST", "SLOTS", "Loans", "new_loans"]

FREE, LENT, LOST = 0, 1, 2
#: Buffers of one worker at most.
SLOTS = 512


class _Cells(SharedFile):
    """A few bytes that several processes write to."""

    _access, _flags = mmap.ACCESS_WRITE, os.O_RDWR
    _what = "a table of buffers"


class Loans:
    """The table of one iterator and its workers; pickles, so that a worker has it too.

    Args:
        workers: How many there are.
        ahead: Batches that a worker makes in advance at most.

    Attributes:
        name: Tells this table from others.
        ahead: As given.

    Raises:
        SharedDSError: There is no room for it.
    """

    def __init__(self, workers: int, *, ahead: int) -> None:
        file = anonymous_file(SHARED_MEMORY)
        file.write(bytes((workers + 1) * SLOTS))  # the last row is for the trainer's wishes
        self._file = _Cells(file)
        self.name = uuid.uuid4().hex
        self.ahead = ahead

    @per_process
    def _cells(self) -> Bytes:
        return np.frombuffer(self._file.view, np.uint8).reshape(-1, SLOTS)

    def of_worker(self, worker: int) -> Bytes:
        """Return what is known of the buffers of a worker: a row of SLOTS bytes to be written."""
        row: Bytes = self._cells[worker]
        return row

    @property
    def is_keeping(self) -> bool:
        """Whether workers shall keep buffers; the trainer may change its mind at any time."""
        return not self._cells[-1, 0]

    @is_keeping.setter
    def is_keeping(self, keeping: bool) -> None:
        self._cells[-1, 0] = not keeping

    def lend(self, lent: Bytes, worker: int, slot: int) -> None:
        """In the trainer: let the buffer come back when nothing lies over ``lent`` any more."""
        row = self.of_worker(worker)
        weakref.finalize(lent, _come_back, row, slot, MadeHere(), Unforked()).atexit = False


def _come_back(row: Bytes, slot: int, here: MadeHere, unforked: Unforked) -> None:
    # Called at any moment, in the middle of anything: no lock, one byte. A Ctrl-C that arrives just
    # here is reported and ends nothing, and the byte stays: the slot is lent for good, which costs
    # one of many, and the worker lets go of the buffer after a while. No memory is used too early.
    if here:
        row[slot] = FREE if unforked else LOST


def new_loans(workers: int, *, ahead: int) -> Loans | None:
    """Return a new table; None where buffers cannot be kept: no ``/dev/shm``, or it is full."""
    if not os.path.isdir(SHARED_MEMORY) or not hasattr(mmap, "MADV_REMOVE"):
        return None
    try:
        return Loans(workers, ahead=ahead)
    except (OSError, SharedDSError):
        return None
