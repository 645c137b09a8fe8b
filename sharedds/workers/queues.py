"""Queues that answer for what cannot be sent, and never wait for the rest of half a message."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import os
import select
import struct
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from torch._utils import ExceptionWrapper

from sharedds.errors import WorkerError
from sharedds.workers.transport import explain

__all__ = ["AnsweringQueue"]


class _PatientReader:
    """Reads messages of a connection, and keeps the part that has come when time is up.

    A worker that is killed while it writes leaves a part of a message; the rest never comes, nor
    does an end, since its siblings hold the other end open as well.

    Args:
        connection: Read by nobody else.
    """

    def __init__(self, connection: Connection) -> None:
        self._descriptor = connection.fileno()
        self._ready = select.poll()
        self._ready.register(self._descriptor, select.POLLIN)
        self._start()

    def _start(self) -> None:
        self._message = memoryview(bytearray(4))
        self._done = 0
        self._headers = [">i", ">Q"]  # a length, or -1 and a longer length

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether a whole message is there, waiting for ``timeout`` seconds at most."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._done < len(self._message) or self._headers:
            left = None if end is None else max(0.0, end - time.monotonic()) * 1000
            if not self._ready.poll(left):
                return False
            count = os.readv(self._descriptor, [self._message[self._done :]])
            if count == 0:
                raise EOFError
            self._done += count
            while self._headers and self._done == len(self._message):
                (length,) = struct.unpack(self._headers.pop(0), self._message)
                if length >= 0:
                    self._headers.clear()
                self._message = memoryview(bytearray(8 if length < 0 else length))
                self._done = 0
        return True

    def recv_bytes(self) -> memoryview:
        """Return the next message, waiting for as long as it takes."""
        self.poll(None)
        message = self._message
        self._start()
        return message


class AnsweringQueue(multiprocessing.queues.Queue):  # type: ignore[type-arg] # no [] when running
    """A queue that answers for what it could not send, and never waits for half a message.

    Attributes:
        needed: In the process that reads, what its messages need to be opened.
    """

    needed: object = None

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc]
        if sys.platform != "win32":  # there, the system delivers messages whole
            connection: Connection = self._reader  # type: ignore[attr-defined]
            reader = _PatientReader(connection)
            self._poll, self._recv_bytes = reader.poll, reader.recv_bytes

    @property
    def _on_queue_feeder_error(self) -> Callable[[Exception, Any], None]:
        # The feeder thread keeps this for its whole life; a strong reference would keep the queue.
        queue = weakref.ref(self)

        def answer(error: Exception, item: Any) -> None:
            sender = queue()
            in_worker = getattr(multiprocessing.current_process(), "is_loader_worker", False)
            if sender is None or not in_worker or not isinstance(item, tuple) or len(item) != 2:
                multiprocessing.queues.Queue._on_queue_feeder_error(error, item)  # type: ignore[attr-defined]
                return
            sender.put((item[0], _unsent(item[1], error)))

        return answer


def _unsent(batch: Any, error: Exception) -> ExceptionWrapper:
    """What the trainer gets in place of something that cannot be pickled."""
    if isinstance(batch, ExceptionWrapper):
        kind = getattr(batch.exc_type, "__qualname__", batch.exc_type)
        text = f"{kind} (a class that cannot be sent from a worker):\n{batch.exc_msg}"
    else:
        path, culprit = explain("batch", batch, by_value=False) or ("batch", "")
        text = (
            f"{path} cannot be sent from a worker: {culprit or error}; classes of what a dataset "
            "or collate_fn returns must stand at the top level of a module or of the main script"
        )
    try:
        raise WorkerError(text) from None
    except WorkerError:
        return ExceptionWrapper(where="in a DataLoader worker process")  # type: ignore[no-untyped-call]
