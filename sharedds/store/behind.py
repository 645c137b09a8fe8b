"""Writes what a store is given on a thread of its own, so that a sync holds nobody up.

A commit waits for the disk three times: for the spool, the data and the root of the tree. What
comes meanwhile waits here, up to a limit; so the memory is that of the limit and of one
transaction, whatever is written. A transaction begins and ends in one task: a child forked while
one is open could not get rid of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sharedds.store.layout import CHUNKS, COLUMNS
from sharedds.store.partial import Partial

__all__ = ["WriteBehind"]

_BATCH = 8 << 20  # handed over at once
_IDLE_BATCH = 3 << 20  # ... to a thread that has nothing to do, so that little is left at the end
_PAGE, _INSIDE = 4096, 2016  # shorter values share a page
_WAITING = 8 << 20  # handed over and not written yet


class WriteBehind:
    """What waits to be put in an unfinished store, and the thread that puts it there.

    What the thread met first (no room, an error of the disk) ends its work. The next call that
    waits raises it, and so does every later one.

    Args:
        partial: The unfinished store; nobody else may use it until :meth:`finish` has returned.
    """

    def __init__(self, partial: Partial) -> None:
        self._partial = partial
        self._chunks: deque[tuple[bytes, bytes]] = deque()
        self._rows: deque[tuple[bytes, bytearray]] = deque()
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sharedds-write")
        self._tasks: deque[tuple[Future[None], int]] = deque()
        self._waiting = 0
        self._error: BaseException | None = None  # what the thread met first

    def put_chunk(self, key: bytes, data: Any) -> None:
        """Put a chunk; keys must rise."""
        # What is not immutable may be changed by its owner before it is written.
        self._chunks.append((key, data if type(data) is bytes else bytes(data)))
        self._grow(_room(len(data)))

    def put_rows(self, key: bytes, rows: bytearray) -> None:
        """Put a segment of a wide column, which is not the caller's any more."""
        self._rows.append((key, rows))
        self._grow(len(rows))

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= _BATCH or (self._bytes >= _IDLE_BATCH and self._is_idle()):
            self._hand_over()

    def _is_idle(self) -> bool:
        return not self._tasks or self._tasks[-1][0].done()

    def _hand_over(self) -> None:
        chunks, rows, size = self._chunks, self._rows, self._bytes
        self._chunks, self._rows, self._bytes = deque(), deque(), 0

        def write() -> None:
            self._put(chunks, rows)
            self._partial.end()

        if chunks or rows:
            self._submit(write, size)

    def _put(
        self, chunks: deque[tuple[bytes, bytes]], rows: deque[tuple[bytes, bytearray]]
    ) -> None:
        self._partial.put_all(CHUNKS, chunks, append=True)
        self._partial.put_all(COLUMNS, rows)

    def _submit(self, task: Callable[[], None], size: int = 0) -> None:
        while self._tasks and (self._waiting + size > _WAITING or self._tasks[0][0].done()):
            self._wait()
        self._tasks.append((self._thread.submit(self._run, task), size))
        self._waiting += size

    def _run(self, task: Callable[[], None]) -> None:
        if self._error is not None:  # to write what came after it would leave a hole
            raise self._error
        try:
            with self._partial.gate:
                task()
        except BaseException as error:
            self._error = error
            raise

    def _wait(self) -> None:
        task, size = self._tasks.popleft()
        self._waiting -= size
        task.result()

    def drop_from(self, sample: int, key: bytes) -> None:
        """Take back the chunks from this sample on, whose first key this is."""
        while self._chunks and self._chunks[-1][0] >= key:
            self._bytes -= _room(len(self._chunks.pop()[1]))
        if not self._chunks:  # some of the sample may have gone ahead
            self._submit(lambda: self._drop_from(sample))

    def _drop_from(self, sample: int) -> None:
        self._partial.drop_from(sample)
        self._partial.end()

    def commit(self, *, samples: int, entries: int) -> None:
        """Have everything so far made durable; returns before it is."""
        chunks, rows, size = self._chunks, self._rows, self._bytes
        self._chunks, self._rows, self._bytes = deque(), deque(), 0
        frame = self._partial.log.take()

        def write() -> None:
            self._put(chunks, rows)
            self._partial.commit(samples=samples, entries=entries, frame=frame)

        self._submit(write, size + sum(len(spooled) for spooled in frame.values()))

    def drain(self) -> None:
        """Wait until everything handed over is written."""
        while self._tasks:
            self._wait()

    def finish(self) -> None:
        """Wait until everything handed over is written, and end the thread."""
        try:
            self.drain()
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread after what was handed over, whatever it met."""
        self._thread.shutdown(wait=True)


def _room(size: int) -> int:
    """Return about what LMDB holds for a value until its transaction ends: whole pages."""
    return size if size < _INSIDE else -(-(size + 16) // _PAGE) * _PAGE
