"""Threads end before the interpreter does: one that is inside C++ while it is taken down can crash.

Nothing of this is for a process that ends by ``os._exit``, as worker processes do.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

__all__ = ["end_at_exit", "join_threads"]

#: Seconds to wait for the threads.
_PATIENCE = 5.0


class _Pool(Protocol):
    """Some threads, and how to tell them to end."""

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The threads."""
        ...

    def stop(self) -> None:
        """Tell the threads to end after what is in hand."""
        ...


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


def end_at_exit(pool: _Pool) -> None:
    """Stop a pool of threads at exit if it is still there, and wait for it, but not for ever."""
    _pools.add(pool)


def join_threads(threads: Sequence[threading.Thread], timeout: float | None = None) -> None:
    """Wait until threads have ended, ``timeout`` seconds at most."""
    ends = None if timeout is None else time.monotonic() + timeout
    for thread in threads:
        if thread.ident is None:  # Ctrl-C came before it was started
            continue
        thread.join(None if ends is None else max(0.0, ends - time.monotonic()))


@atexit.register
def _end_all() -> None:
    pools = tuple(_pools)
    for pool in pools:
        pool.stop()
    join_threads([thread for pool in pools for thread in pool.threads], _PATIENCE)
