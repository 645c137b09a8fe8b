"""Wall time and CPU time, of this process and of those it waited for."""

from __future__ import annotations

import resource
import time

__all__ = ["Stopwatch"]


class Stopwatch:
    """Runs from its making on.

    CPU time says what work costs even where other programs take part of the machine's time.
    """

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = _cpu_seconds()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._wall

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since the start, all threads, and processes that have ended since."""
        return _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
