"""The processes of a trainer, and what each of them holds: exactly, or at a glance."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from sharedds.errors import SourceError
from sharedds.host.shared import SHARED_MEMORY, shared_memory_room
from sharedds.host.system import ROOT, system_text
from sharedds.loader.accounts import ProcessUse
from sharedds.loader.heap import give_back, keep_no_large_blocks
from sharedds.memory import parse_smaps_rollup, process_memory

if sys.platform != "win32":
    from multiprocessing import forkserver

__all__ = ["ProcessTree", "Quick", "busy_share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """What a glance at the processes shows, in bytes: good for how it changes.

    Pages that processes share are counted for each of them, unlike in a share (PSS), but no more
    than all that is in shared memory.

    Attributes:
        resident: Heap and mapped shared memory of all processes.
        waiting: Shared memory with batches that workers have made and nobody has fetched.
        untouched: The same of batches that this process has fetched and not touched.
    """

    resident: int
    waiting: int = 0
    untouched: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return self.resident + self.waiting + self.untouched


class ProcessTree:
    """Measures this process and those below it.

    Args:
        workers: The number of each worker of the loader, by its process id.
        root: Where the system's files are.
    """

    def __init__(self, workers: Mapping[int, int] | None = None, root: Path = ROOT) -> None:
        self._workers = dict(workers or {})
        self._root = root
        self._pids: tuple[int, ...] = ()
        self._begun: dict[int, int] = {}
        self._is_trimmed = False
        #: Of each worker, shared memory that it has unmapped: batches that wait to be fetched.
        self._unmapped: dict[int, set[int]] = {}

    def add_workers(self, workers: Mapping[int, int]) -> None:
        """Learn the numbers of workers, by process id."""
        self._workers.update(workers)

    def exact(self) -> tuple[ProcessUse, ...]:
        """Measure all processes: some 5 ms for each, more for large ones.

        Returns:
            This process first; those that end meanwhile are left out.
        """
        own = process_memory()
        measured = [("trainer", own)]
        known = _known()
        for pid in self._below(own.pid):
            try:
                memory = process_memory(pid)
            except SourceError:
                continue
            number = self._workers.get(pid)
            role = known.get(pid, "other") if number is None else f"worker {number}"
            if number is None and role == "other" and not memory.pss:
                continue  # just forked, or ended
            measured.append((role, memory))
        self._pids = tuple(memory.pid for _, memory in measured)
        waiting = self._held_unseen()
        uses = [
            ProcessUse(role=role, memory=memory, waiting=waiting.get(memory.pid, 0))
            for role, memory in measured
        ]
        order = {"trainer": 0, "server": 1, "other": 3}
        uses.sort(key=lambda use: (order.get(use.role, 2), self._workers.get(use.memory.pid, 0)))
        return tuple(uses)

    def _held_unseen(self) -> dict[int, int]:
        """Bytes of shared files that this process and workers hold and that are part of no PSS.

        A file counts once. What another process maps counts there, by its share; of what this
        process alone maps, the pages that it has not touched are left.
        """
        own, *below = self._pids
        files = {pid: _shared_files(pid, self._root) for pid in self._pids}
        if not any(files.values()):
            return {}
        counted = {inode for pid in below for inode in _mapped(pid, self._root)}
        touched = _touched(own, self._root)
        held = {}
        for pid, sizes in files.items():
            new = sizes.keys() - counted
            held[pid] = sum(max(0, sizes[inode] - touched.get(inode, 0)) for inode in new)
            counted |= new | touched.keys()
        return held

    def watched(self) -> tuple[ProcessUse, ...]:
        """As :meth:`exact`, with what each has grown by since it was first seen."""
        uses = []
        for use in self.exact():
            if use.role in ("server", "other"):
                uses.append(use)
                continue
            now = (use.irrevocable or 0) - use.waiting
            first = self._begun.setdefault(use.memory.pid, now)
            uses.append(replace(use, grown=max(0, now - first)))
        return tuple(uses)

    def trim(self) -> bool:
        """Give the system back what this process has freed; malloc keeps no large blocks then.

        Returns:
            Whether this is new: less memory is needed for the same from now on.
        """
        is_new = not self._is_trimmed
        if is_new:
            self._is_trimmed = True
            keep_no_large_blocks()
        give_back()
        return is_new

    def begin_again(self) -> None:
        """Forget what processes held when they were first seen: they have begun to work now."""
        self._begun.clear()

    def quick(self) -> Quick | None:
        """Glance at the processes that were measured last: 0.1 ms for each; None: not told."""
        heap = shared = waiting = untouched = 0
        for pid in self._pids:
            figures = parse_smaps_rollup(system_text(self._root / "proc" / str(pid) / "status"))
            if "RssAnon" not in figures:  # it has ended
                continue
            mapped = figures.get("RssShmem", 0)
            heap += figures["RssAnon"]
            shared += mapped
            if pid in self._workers:
                waiting += self._waiting(pid)
            elif pid == self._pids[0]:
                untouched += self._untouched(pid, mapped)
        if not heap:
            return None
        if room := shared_memory_room():  # what many map is there once
            shared = min(shared, max(0, room.total - room.free - waiting - untouched))
        return Quick(resident=heap + shared, waiting=waiting, untouched=untouched)

    def _waiting(self, pid: int) -> int:
        """Bytes of the batches that a worker has made and nobody has fetched.

        It keeps them open, after having unmapped them, so they belong to no process.
        """
        files = _shared_files(pid, self._root)
        known = self._unmapped.setdefault(pid, set())
        known &= files.keys()
        if unknown := files.keys() - known:
            known |= unknown - _mapped(pid, self._root)
        return sum(files[inode] for inode in known)

    def _untouched(self, pid: int, mapped: int) -> int:
        """Bytes of the batches that this process has fetched and not looked at yet.

        They are mapped, but a page counts for a process only once it has been touched.
        """
        return max(0, sum(_shared_files(pid, self._root).values()) - mapped)

    def _below(self, own: int) -> list[int]:
        """All processes below this one; where the system does not list them, those known."""
        found: dict[int, None] = {}
        if not (self._root / "proc" / str(own) / "task" / str(own) / "children").exists():
            return [*_known(), *self._workers]
        waiting = [own]
        while waiting:
            for child in _children(waiting.pop(), self._root):
                if child not in found:
                    found[child] = None
                    waiting.append(child)
        return list(found)


def _children(pid: int, root: Path) -> list[int]:
    folder = root / "proc" / str(pid) / "task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return []
    texts = (system_text(folder / thread / "children") for thread in threads)
    return [int(word) for text in texts for word in text.split() if word.isdecimal()]


def _shared_files(pid: int, root: Path) -> dict[int, int]:
    """Size in memory of each unlinked file in shared memory that a process has open, by inode."""
    folder = f"{root / 'proc' / str(pid) / 'fd'}/"
    found: dict[int, int] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(folder + name)
            if target.startswith(SHARED_MEMORY) and target.endswith("(deleted)"):
                info = os.stat(folder + name)
                found[info.st_ino] = info.st_blocks * 512
        except OSError:
            continue
    return found


def _mapped(pid: int, root: Path) -> set[int]:
    """The inodes of the files in shared memory that a process maps."""
    found = set()
    for line in system_text(root / "proc" / str(pid) / "maps").splitlines():
        if (inode := _inode(line)) is not None:
            found.add(inode)
    return found


def _touched(pid: int, root: Path) -> dict[int, int]:
    """Bytes of each file in shared memory that a process maps and has touched, by inode."""
    found: dict[int, int] = {}
    inode: int | None = None
    for line in system_text(root / "proc" / str(pid) / "smaps").splitlines():
        if line.startswith("Rss:"):
            if inode is not None:
                found[inode] = found.get(inode, 0) + int(line.split()[1]) * 1024
            inode = None
        elif SHARED_MEMORY in line:
            inode = _inode(line)
    return found


def _inode(line: str) -> int | None:
    """The inode in a line of maps, if it is that of a file in shared memory."""
    if SHARED_MEMORY not in line:
        return None
    words = line.split(None, 5)
    is_shared = len(words) == 6 and words[5].startswith(SHARED_MEMORY)
    return int(words[4]) if is_shared else None


def _known() -> dict[int, str]:
    """The processes that multiprocessing keeps for this one."""
    found: dict[int, str] = {}
    tracker: Any = multiprocessing.resource_tracker
    pairs = [("other", getattr(tracker, "_resource_tracker", None), "_pid")]
    if sys.platform != "win32":
        server: Any = forkserver
        pairs.append(("server", getattr(server, "_forkserver", None), "_forkserver_pid"))
    for role, keeper, name in pairs:
        pid = getattr(keeper, name, None)
        if isinstance(pid, int):
            found[pid] = role
    return found


def busy_share(workers: Iterable[int], threads: Iterable[int] = ()) -> float | None:
    """Return which share of their life worker processes, or threads, spent on a CPU, on average.

    Args:
        workers: Process ids.
        threads: Numbers that the system gave to threads of this process.

    Returns:
        None where there are none any more, or the system does not tell.
    """
    shares = []
    for pid in workers:
        try:
            process = psutil.Process(pid)
            spent = process.cpu_times()
            passed = time.time() - process.create_time()
        except psutil.Error:
            continue
        shares.append((spent.user + spent.system) / max(passed, 0.01))
    if wanted := set(threads):
        shares += _threads_busy(wanted)
    return min(1.0, sum(shares) / len(shares)) if shares else None


def _threads_busy(wanted: set[int]) -> list[float]:
    """The same of threads, each from when it was started."""
    shares = []
    try:
        ticks, up = os.sysconf("SC_CLK_TCK"), time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, ValueError, OSError):
        return []
    for thread in wanted:
        text = system_text(ROOT / "proc" / "self" / "task" / str(thread) / "stat")
        words = text.rpartition(")")[2].split()
        if len(words) > 19:
            spent = (int(words[11]) + int(words[12])) / ticks
            shares.append(spent / max(up - int(words[19]) / ticks, 0.01))
    return shares
