"""How worker processes are ended: asked, then told, then killed, never waited for without limit."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sharedds.host.shared import SHARED_MEMORY

__all__ = ["GRACE", "SHORT_GRACE", "end_workers", "stop_pinning"]

GRACE = 1.5  # seconds that workers get to end by themselves
SHORT_GRACE = 0.2  # ... when something went wrong, or somebody pressed Ctrl-C
_LAST_GRACE = 0.2  # ... after each signal


def end_workers(workers: list[Any], tasks: list[Any], done: Any, *, until: float) -> None:
    """End all workers together: ask, and when time is up terminate, then kill.

    Args:
        workers: Worker processes; none lives on, and none leaves files behind.
        tasks: The queue of each.
        done: The event that tells them to end.
        until: How long they may take by themselves, on the monotonic clock.
    """
    # A worker that was killed may hold the lock of the event for ever.
    if _within(_LAST_GRACE, done.set):
        for queue in tasks:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                queue.put(None)
        _wait_for(workers, until)
    for stop in ("terminate", "kill"):
        alive = [worker for worker in workers if worker.is_alive()]
        for worker in alive:
            getattr(worker, stop)()
        _wait_for(alive, time.monotonic() + _LAST_GRACE)
    for worker in workers:
        worker.join(0)
        _remove_left_overs(worker.pid)
        if getattr(worker, "line", None) is not None:
            worker.line.close()


def stop_pinning(thread: threading.Thread | None, done: Any, results: Any, grace: float) -> bool:
    """End the thread that pins memory; whether it is still reading from the workers.

    Args:
        thread: The thread, if there is one.
        done: The event that tells it to end.
        results: The queue from which it reads.
        grace: Seconds that it may take.
    """
    if thread is None:
        return False
    done.set()
    results.cancel_join_thread()
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        results.put((None, None))  # it may be waiting for a batch
    thread.join(grace)
    return bool(thread.is_alive())


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
