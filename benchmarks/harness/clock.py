"""Wall time and CPU time of this process and those it waited for, and what others took."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from harness.weigh import tree

__all__ = ["Elsewhere", "Stopwatch", "tree_cpu_seconds"]


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


def tree_cpu_seconds() -> float:
    """CPU time of this process and all below it up to now; 0 where the system does not tell."""
    threads = (path for pid in tree() for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


class Elsewhere:
    """Counts from its making on how much of the machine went to anybody but our own processes.

    Other programs, the kernel's own threads and what a hypervisor took away all count.
    """

    def __init__(self) -> None:
        self._began = _machine_seconds()
        self._own = _cpu_seconds()

    @property
    def share(self) -> float:
        """Part of all CPU time since the start (0 to 1); 0 where the system does not tell."""
        busy, total = (
            now - then for now, then in zip(_machine_seconds(), self._began, strict=True)
        )
        return max(0.0, busy - (_cpu_seconds() - self._own)) / total if total > 0 else 0.0


def _machine_seconds() -> tuple[float, float]:
    """Return the busy and all CPU seconds of the machine so far."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0.0, 0.0
    ticks = [
        int(word) for word in line.split()[1:9]
    ]  # user nice system idle iowait irq softirq steal
    each = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / each, sum(ticks) / each
