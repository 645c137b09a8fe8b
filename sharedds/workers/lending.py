"""In a worker: memory for batches that the trainer keeps mapped, used again once it came back.

A new file in shared memory for each tensor of each batch costs a fault for each of its pages, in
the worker and again in the trainer, besides clearing them. Here a worker keeps a few buffers. It
takes one for a tensor that neither it nor the trainer can see any more; else it makes a new one.
"""

from __future__ import annotations

import bisect
import mmap
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import reduction
from typing import Any, BinaryIO

import torch

from sharedds.handles import MadeHere, Unforked
from sharedds.host.descriptors import open_files_limit
from sharedds.host.shared import SharedMemoryRoom, shared_memory_room
from sharedds.workers.loans import FREE, LENT, LOST, SLOTS, Loans
from sharedds.workers.mapped import Notice, arrived
from sharedds.workers.segments import Bytes, Segment, new_segment, storage_over

__all__ = ["Buffers", "Sending", "has_room"]

#: What is left for others in /dev/shm (communication between ranks): at most this many bytes.
_MARGIN = 16 << 20
#: While less than this share of /dev/shm is free, nothing is kept there.
_SHARE_LEFT = 0.25
#: A buffer serves for what takes at least this share of it.
_SHARE_USED = 2 / 3
#: Batches in advance and so many more: what lies idle, or is held by training, for longer goes.
_PATIENCE = 4
#: Seconds without a batch after which nothing is kept idle: between epochs, for instance.
_REST = 10.0
#: Of the files that a worker may have open, buffers take at most this share.
_SHARE_OPEN = 4


@dataclass(slots=True, eq=False)
class _Buffer:
    """A piece of shared memory, and where it is now.

    Attributes:
        slot: Its number in the table of loans.
        file: To be sent along the first time.
        nbytes: Its size.
        seen: What lies over it in this process; gives None when nothing does any more.
        unforked: Whether no child of this process has what was seen there.
        size: Bytes that were taken.
        since: The batch in which it was taken, or found to be idle.
        is_idle: Whether nobody can see it; it stays so until it is taken.
        is_sent: Whether it was sent since it was taken: what is seen there is the trainer's, too.
    """

    segment: Segment
    slot: int
    file: BinaryIO | None
    seen: Callable[[], Bytes | None] = field(default=lambda: None)
    unforked: Unforked = field(default_factory=Unforked)
    size: int = 0
    since: int = 0
    is_idle: bool = False
    is_sent: bool = False

    @property
    def nbytes(self) -> int:
        return self.segment.nbytes

    def close(self) -> None:
        """Close the file, which is not needed once the trainer has it."""
        if self.file is not None:
            self.file.close()
            self.file = None


class Sending:
    """Becomes the memory of tensors in the trainer by being sent.

    Args:
        loans: The table.
        worker: The number of this worker.
        buffer: Where the tensors lie.

    Attributes:
        buffer: As given.
        is_pickled: Whether it is in the message: a batch may leave out tensors that it has.
    """

    __slots__ = ("_loans", "_worker", "buffer", "is_pickled")

    def __init__(self, loans: Loans, worker: int, buffer: _Buffer) -> None:
        self._loans = loans
        self._worker = worker
        self.buffer = buffer
        self.is_pickled = False

    def __reduce__(self) -> tuple[Any, ...]:
        self.is_pickled = True
        buffer = self.buffer
        # Looked up here: on Windows, where no buffers are kept, there is no DupFd.
        file = None if buffer.file is None else reduction.DupFd(buffer.file.fileno())
        where = (self._loans.name, self._worker, buffer.slot)
        return arrived, (*where, buffer.size, buffer.nbytes, file)


class Buffers:
    """The buffers of one worker; its threads may ask at once.

    Args:
        loans: The table that it shares with the trainer.
        worker: Its number.
    """

    def __init__(self, loans: Loans, worker: int) -> None:
        self._loans = loans
        self._worker = worker
        self._row = loans.of_worker(worker)
        self._patience = loans.ahead + _PATIENCE
        self._most = min(SLOTS, (open_files_limit() or 4 * SLOTS) // _SHARE_OPEN)
        self._buffers: dict[int, _Buffer] = {}  # by address
        self._idle: list[_Buffer] = []  # by size, of one size the one used last first
        self._batch = 0
        self._looks = 0  # since the last batch
        self._let_go: list[int] = []
        self._is_keeping = self._is_used = False
        self._home = MadeHere()
        self._lock = threading.RLock()  # collecting garbage may run anything, also a batch

    def __len__(self) -> int:
        """Return how many buffers there are."""
        return len(self._buffers)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, size: int) -> torch.UntypedStorage | None:
        """Return memory that nobody else sees; None where no more buffers shall be kept.

        Args:
            size: Bytes, at least one.
        """
        if not self._home:  # a child of the worker
            return None
        with self._lock:
            if not self._looks:
                self._look()
            if not self._is_keeping:
                self._give_back_idle()  # room for what is made instead
                return None
            buffer = self._fitting(size)
            # A batch looks when it begins; what came back since spares it a new buffer.
            if buffer is None and self._looks == 1:
                self._look()
                buffer = self._fitting(size)
            if buffer is None:
                buffer = self._new(size)
            if buffer is None and self._give_back_idle():
                buffer = self._new(size)
            if buffer is None:
                return None
            buffer.size, buffer.since = size, self._batch
            buffer.is_idle = buffer.is_sent = False
            buffer.unforked = Unforked()
            self._is_used = True
            seen = buffer.segment.lent(size)
            buffer.seen = weakref.ref(seen)
            return storage_over(seen)

    def sending(self, address: int) -> Sending | None:
        """Return what is sent for memory that was taken; None if it is not of here, or was sent."""
        buffer = self._buffers.get(address) if self._home else None
        if buffer is None or buffer.is_sent:
            return None
        return Sending(self._loans, self._worker, buffer)

    def end_batch(self) -> bool:
        """Let go of buffers that were of no use for long, or that shall not be kept any more.

        Returns:
            Whether any was taken for this batch.
        """
        if not self._home:  # a child of the worker
            return False
        with self._lock:
            if self._buffers:
                self._look()
            for buffer in [*self._buffers.values()]:
                age = self._batch - buffer.since
                if buffer.is_idle:
                    if age > self._patience or not self._is_keeping:
                        self._give_back(buffer)
                elif age > (self._patience if self._is_keeping else 0):
                    self._forget(buffer)  # it goes with whoever holds it
            is_used, self._is_used = self._is_used, False
            self._batch += 1
            self._looks = 0
            return is_used

    def rest(self) -> None:
        """Let go of all that lies idle."""
        with self._lock:
            self._look()
            self._looks = 0
            self._give_back_idle()

    def rest_when_idle(self) -> None:
        """Rest whenever no batch was made for a while; for a thread of its own, never returns."""
        while True:
            before = self._batch
            time.sleep(_REST)
            if before == self._batch and self._buffers:
                self.rest()

    @property
    def has_news(self) -> bool:
        """Whether the trainer should let go of buffers."""
        return bool(self._let_go)

    def lend(self, sent: Iterable[Sending]) -> Notice:
        """Note that a message goes out: until what is in it came back nothing is written there.

        Returns:
            What the trainer must know before it opens the message.
        """
        with self._lock:
            for sending in sent:
                if not sending.is_pickled:  # it would never come back
                    continue
                buffer = sending.buffer
                self._row[buffer.slot] = LENT
                buffer.is_sent = True
                buffer.close()
            let_go, self._let_go = self._let_go, []
            return Notice(self._loans.name, self._worker, tuple(let_go))

    # --- below the lock

    def _look(self) -> None:
        """Find out which buffers nobody can see, and whether any shall be kept."""
        self._looks += 1
        room = shared_memory_room()
        is_short = room is not None and room.free < _SHARE_LEFT * room.total
        self._is_keeping = self._loans.is_keeping and not is_short
        for buffer in [*self._buffers.values()]:
            state = self._row[buffer.slot]
            if state == LOST:
                self._forget(buffer)
            elif state == FREE and not buffer.is_idle and buffer.seen() is None:
                if buffer.unforked:
                    buffer.is_idle, buffer.since = True, self._batch
                else:
                    self._forget(buffer)
        self._idle = [buffer for buffer in self._buffers.values() if buffer.is_idle]
        self._idle.sort(key=lambda buffer: (buffer.nbytes, -buffer.since))

    def _fitting(self, size: int) -> _Buffer | None:
        at = bisect.bisect_left(self._idle, size, key=lambda buffer: buffer.nbytes)
        if at < len(self._idle) and size >= _SHARE_USED * self._idle[at].nbytes:
            return self._idle.pop(at)
        return None

    def _new(self, size: int) -> _Buffer | None:
        taken = {buffer.slot for buffer in self._buffers.values()}
        # A slot stays taken until what was lent from it came back, also when it is let go of.
        slot = next((n for n in range(SLOTS) if n not in taken and self._row[n] != LENT), None)
        if slot is None or len(taken) >= self._most:
            return None
        nbytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if not has_room(shared_memory_room(), nbytes) or (made := new_segment(nbytes)) is None:
            return None
        self._row[slot] = FREE
        segment, file = made
        buffer = self._buffers[segment.address] = _Buffer(segment, slot, file)
        return buffer

    def _give_back_idle(self) -> bool:
        """Give back all that lies idle; whether there was any."""
        idle, self._idle = self._idle, []
        for buffer in idle:
            self._give_back(buffer)
        return bool(idle)

    def _give_back(self, buffer: _Buffer) -> None:
        buffer.segment.clear()
        self._forget(buffer)

    def _forget(self, buffer: _Buffer) -> None:
        buffer.close()
        self._let_go.append(buffer.slot)
        del self._buffers[buffer.segment.address]


def has_room(room: SharedMemoryRoom | None, size: int) -> bool:
    """Whether so many bytes fit, with something left for others."""
    return room is None or room.free - min(_MARGIN, room.total // 16) >= size
