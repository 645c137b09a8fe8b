"""What processes cost in memory, told apart by who pays for it.

The resident size (RSS) counts a page that ten processes share ten times, so it cannot show what a
worker costs. Two figures can:

* USS, the private pages: what would be free again if this one process ended;
* PSS, the proportional share: every page divided by the number of processes that map it. The sum
  over all processes is what they really occupy together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from sharedds.errors import SourceError

__all__ = ["ProcessMemory", "parse_smaps_rollup", "process_memory", "process_tree"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process at one moment, in bytes; ``None`` where the system does not tell.

    Args:
        pid: The number of the process.
        name: Its name, as the system shows it.
        pss: Proportional share: each page divided by the number of processes that map it.
        uss: Private pages, clean and dirty: what the end of this process would free.
        private_dirty: Private pages that were written to; they can only be swapped, not dropped.
        anonymous: The part of ``pss`` that belongs to no file (heap, stacks).
        file: The part of ``pss`` that maps files (libraries, stores).
        shared_memory: The part of ``pss`` that is shared memory (``/dev/shm``).
    """

    pid: int
    name: str
    pss: int | None = None
    uss: int | None = None
    private_dirty: int | None = None
    anonymous: int | None = None
    file: int | None = None
    shared_memory: int | None = None


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Measure one process.

    Args:
        pid: The number of the process; this process by default.

    Returns:
        Its memory. On Linux all figures are known; elsewhere only ``uss``. A process that another
        user owns may show none.

    Raises:
        SourceError: No such process, or it has ended.
    """
    try:
        return _measure(psutil.Process(pid))
    except (psutil.NoSuchProcess, psutil.ZombieProcess, ValueError) as error:
        raise SourceError(f"process {pid} has ended or never was; pass a running one") from error


def process_tree(pid: int | None = None) -> tuple[ProcessMemory, ...]:
    """Measure a process and all processes below it.

    Args:
        pid: The number of the process at the top; this process by default.

    Returns:
        The process itself first, then its descendants. Those that end meanwhile are left out.

    Raises:
        SourceError: No such process, or it has ended.
    """
    measured = [process_memory(pid)]
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    for process in below:
        try:
            measured.append(_measure(process))
        except psutil.NoSuchProcess:  # a zombie is one, too
            continue
    return tuple(measured)


def parse_smaps_rollup(text: str) -> dict[str, int]:
    """Read the text of ``/proc/PID/smaps_rollup``.

    Args:
        text: Lines such as ``Private_Dirty:   1234 kB``; lines of another form are passed over.

    Returns:
        Bytes by the kernel's own name of each figure.
    """
    figures: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
            figures[name.strip()] = int(words[0]) * 1024
    return figures


def _measure(process: psutil.Process) -> ProcessMemory:
    name = str(process.name())
    figures = _rollup(process.pid)
    if figures:
        return ProcessMemory(
            pid=process.pid,
            name=name,
            pss=figures.get("Pss"),
            uss=_sum(figures, "Private_Clean", "Private_Dirty"),
            private_dirty=figures.get("Private_Dirty"),
            anonymous=figures.get("Pss_Anon"),
            file=figures.get("Pss_File"),
            shared_memory=figures.get("Pss_Shmem"),
        )
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.ZombieProcess(process.pid)
    try:
        return ProcessMemory(pid=process.pid, name=name, uss=int(process.memory_full_info().uss))
    except psutil.AccessDenied:
        return ProcessMemory(pid=process.pid, name=name)


def _rollup(pid: int) -> dict[str, int]:
    """Return the kernel's figures, or nothing: no such file here, not allowed, or just ended."""
    try:
        return parse_smaps_rollup((_PROC / str(pid) / "smaps_rollup").read_text())
    except OSError:
        return {}


def _sum(figures: Mapping[str, int], *names: str) -> int | None:
    known = [figures[name] for name in names if name in figures]
    return sum(known) if len(known) == len(names) else None
