"""What workers are like while they live: a dead one tells nothing any more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sharedds.host.memory import count_oom_kills, machine_memory
from sharedds.host.shared import SHARED_MEMORY, shared_memory_room
from sharedds.host.system import ROOT, megabytes, system_text
from sharedds.memory import parse_smaps_rollup

__all__ = ["WorkerMemory", "WorkerWatch", "mapped_files", "worker_memory"]

#: Measuring private pages may take this share of the time at most.
_SHARE_OF_TIME = 0.005
_LONGEST_LOOK = 0.03  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Memory of a worker when it was last looked at, in bytes.

    Args:
        anonymous: What belongs to no file; after a fork, pages shared with the parent as well.
        peak: The most that was resident at once, pages shared with others included.
        moment: When these two were read, on the monotonic clock.
        private: Pages of its own (USS); costs more to find out, so it is older.
        share: Its proportional share (PSS).
        private_moment: When these two were read.
    """

    anonymous: int | None = None
    peak: int | None = None
    moment: float = 0.0
    private: int | None = None
    share: int | None = None
    private_moment: float = 0.0

    def __str__(self) -> str:
        now = time.monotonic()
        text = (
            f"anonymous {megabytes(self.anonymous)}, peak resident {megabytes(self.peak)} "
            f"{now - self.moment:.1f} s before this report"
        )
        if self.private is None or not self.private_moment:
            return text
        older = f"{now - self.private_moment:.1f} s before"
        private = f"private (USS) {megabytes(self.private)}, PSS {megabytes(self.share)}"
        return f"{private} {older}; {text}"


def worker_memory(pid: int, root: Path = ROOT) -> WorkerMemory | None:
    """Measure a process in a hurry (some 0.05 ms): without its private pages.

    None when it is gone, or where the system does not tell.
    """
    figures = parse_smaps_rollup(system_text(root / "proc" / str(pid) / "status"))
    if "VmHWM" not in figures:  # a zombie
        return None
    anonymous, peak = figures.get("RssAnon"), figures["VmHWM"]
    return WorkerMemory(anonymous=anonymous, peak=peak, moment=time.monotonic())


def _with_private(memory: WorkerMemory, pid: int, root: Path) -> WorkerMemory:
    """The same with the private pages: the kernel walks all that is mapped, 10 ms or far more."""
    figures = parse_smaps_rollup(system_text(root / "proc" / str(pid) / "smaps_rollup"))
    parts = [figures[name] for name in ("Private_Clean", "Private_Dirty") if name in figures]
    return replace(
        memory,
        private=sum(parts) if parts else None,
        share=figures.get("Pss"),
        private_moment=time.monotonic(),
    )


def mapped_files(pid: int | str, root: Path = ROOT) -> dict[str, tuple[int, int, int]]:
    """Return size, time of change (ns) and inode of each data file that a process has mapped.

    Programs and libraries are left out.
    """
    paths: set[str] = set()
    programs: set[str] = set()
    for line in system_text(root / "proc" / str(pid) / "maps").splitlines():
        words = line.split(None, 5)
        if len(words) < 6 or not words[5].startswith("/") or words[5].endswith(" (deleted)"):
            continue
        (programs if "x" in words[1] else paths).add(words[5])
    found = {}
    for path in paths - programs:
        try:
            info = os.stat(root / path.lstrip("/"))
        except OSError:
            continue
        found[path] = (info.st_size, info.st_mtime_ns, info.st_ino)
    return found


@dataclass(slots=True)
class WorkerWatch:
    """Looks at workers now and then, since a process that has died tells nothing any more.

    Args:
        root: Where the system's files are.
        oom_kills: The kernel's count when the watch began.
        memory: What was last seen of each process.
        files: Size, time of change and inode of each file that a worker maps, when first seen.
    """

    root: Path = ROOT
    oom_kills: int | None = None
    memory: dict[int, WorkerMemory] = field(default_factory=dict)
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _due: float = 0.0
    _pause: float = 0.02
    _private_due: float = 0.0

    def __post_init__(self) -> None:
        self.oom_kills = count_oom_kills(self.root)
        self.files = mapped_files("self", self.root)
        self._due = time.monotonic() + self._pause

    @property
    def due(self) -> float:
        """When the next look is due, on the monotonic clock."""
        return self._due

    def look(self, pids: Iterable[int | None]) -> None:
        """Measure these processes, if it is time to: often at first, then each second.

        Private pages are measured of one process at a time: of each new one once, and then so
        seldom that it costs at most 0.5 % of the time.
        """
        begin = time.monotonic()
        if begin < self._due:
            return
        for pid in pids:
            memory = worker_memory(pid, self.root) if pid is not None else None
            if pid is None or memory is None:
                continue
            seen = self.memory.get(pid, memory)
            self.memory[pid] = replace(
                memory,
                private=seen.private,
                share=seen.share,
                private_moment=seen.private_moment,
            )
        is_new = False
        while self.memory and time.monotonic() - begin < _LONGEST_LOOK:
            oldest = min(self.memory, key=lambda pid: self.memory[pid].private_moment)
            is_new = not self.memory[oldest].private_moment
            if not is_new and begin < self._private_due:
                break
            start = time.monotonic()
            self.memory[oldest] = self._look_closer(oldest, self.memory[oldest])
            taken = time.monotonic() - start
            self._private_due = begin + max(1.0, taken / _SHARE_OF_TIME)
        self._pause = self._pause if is_new else min(2 * self._pause, 1.0)
        self._due = time.monotonic() + self._pause

    def renew(self, pid: int | None) -> None:
        """Measure the private pages of a process anew at the next look: it has begun to work."""
        if pid in self.memory:
            self.memory[pid] = replace(self.memory[pid], private_moment=0.0)

    def _look_closer(self, pid: int, memory: WorkerMemory) -> WorkerMemory:
        for path, facts in mapped_files(pid, self.root).items():
            # The first look counts: a file may be cut short before the last.
            self.files.setdefault(path, facts)
        return _with_private(memory, pid, self.root)

    def changed_files(self) -> list[str]:
        """Say of each mapped file that is not what it was when first seen how it changed."""
        said = []
        for path, (size, changed, inode) in self.files.items():
            try:
                info = os.stat(self.root / path.lstrip("/"))
            except OSError:
                continue
            if info.st_ino != inode:
                continue  # replaced by a rename: what is mapped stays whole
            if info.st_size < size:
                said.append(f"{path} was cut short: {info.st_size:,} bytes are left of {size:,}")
            elif info.st_mtime_ns != changed and info.st_size != size:
                said.append(f"{path} was written to: {size:,} bytes became {info.st_size:,}")
        return said

    def memory_text(self, pid: int | None) -> str:
        """Return what is known of the memory of a worker and of the machine."""
        seen = self.memory.get(pid or -1)
        after = count_oom_kills(self.root)
        kills = "not told by this system"
        if after is not None:
            kills = f"{self.oom_kills} before, {after} now"
        return (
            f"  memory of the worker: {seen or 'not seen before it ended'}\n"
            f"  memory of the machine: {machine_memory(self.root)}\n"
            f"  processes killed for memory: {kills}\n"
            f"  {SHARED_MEMORY}: {shared_memory_room() or 'none'}"
        )

    def oom_killed(self) -> bool | None:
        """Whether the kernel has killed for memory since the watch began; None: not told."""
        after = count_oom_kills(self.root)
        if after is None or self.oom_kills is None:
            return None
        return after > self.oom_kills
