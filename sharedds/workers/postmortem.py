"""What can be known of a worker that died: the signal, memory, ``/dev/shm``, files cut short.

Everything here reads small files of the system below a root folder, so tests hand it fake trees.
"No information" (another system, no control groups, not allowed) is a normal answer: ``None``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ROOT",
    "SHARED_MEMORY",
    "MachineMemory",
    "SharedMemoryRoom",
    "cause_and_advice",
    "count_oom_kills",
    "exit_text",
    "is_signal_caught",
    "machine_memory",
    "megabytes",
    "shared_memory_room",
    "system_text",
]

#: Where the system keeps what processes share.
SHARED_MEMORY = "/dev/shm"  # noqa: S108
#: Below it are the files of the system.
ROOT = Path("/")
#: What a limit file holds that stands for no limit: version 1 rounds 2**63 down to pages.
_NO_LIMIT = 1 << 60
#: Less than this free, and the next batch may well not have fitted.
_NEARLY_FULL = 1 << 20


# --- the machine ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """Memory that is left, in bytes.

    Args:
        available: What this process and its workers could still take: of the machine, or of the
            control group where that is less.
        limit: The smallest limit of the control groups this process is in.
    """

    available: int | None = None
    limit: int | None = None

    def __str__(self) -> str:
        limit = f"limit {megabytes(self.limit)}" if self.limit is not None else "no limit found"
        return f"{megabytes(self.available)} available ({limit})"


@dataclass(frozen=True, slots=True)
class SharedMemoryRoom:
    """Bytes free and in all where batches travel (``/dev/shm``)."""

    free: int
    total: int

    def __str__(self) -> str:
        return f"{megabytes(self.free)} free of {megabytes(self.total)}"


def megabytes(count: int | None) -> str:
    """Return bytes as text for people; ``unknown`` for None."""
    return "unknown" if count is None else f"{count / 1e6:,.1f} MB"


def machine_memory(root: Path = ROOT) -> MachineMemory:
    """Return how much memory is left, with the control groups of this process (v2 and v1)."""
    available = None
    for line in system_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit = None
    for group in _memory_groups(root):
        most = _number(group / "memory.max", group / "memory.limit_in_bytes")
        if most is None or most >= _NO_LIMIT:
            continue
        limit = most if limit is None else min(limit, most)
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if used is not None:
            rest = max(0, most - used)
            available = rest if available is None else min(available, rest)
    return MachineMemory(available=available, limit=limit)


def count_oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes the kernel has killed for memory, in the groups of this process.

    Without control groups that tell, the count of the whole machine.
    """
    counts = []
    for group in _memory_groups(root):
        for name in ("memory.events", "memory.oom_control"):
            found = _named(system_text(group / name), "oom_kill")
            counts += [found] if found is not None else []
    # The groups above count what happens below them (v2), or only their own limit (v1).
    return max(counts) if counts else _named(system_text(root / "proc/vmstat"), "oom_kill")


def shared_memory_room(path: str = SHARED_MEMORY) -> SharedMemoryRoom | None:
    """Return how much room there is for batches; None where there is no such place."""
    try:
        info = os.statvfs(path)
    except (AttributeError, OSError):
        return None
    return SharedMemoryRoom(info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize)


def _memory_groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups for memory, from that of this process up to the top."""
    for line in system_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            tops = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "memory" in controllers.split(","):
            tops = [root / "sys/fs/cgroup/memory"]
        else:
            continue
        for top in tops:
            # In a container the path may be that of the host, of which only the top is here.
            parts = [part for part in path.split("/") if part and part != ".."]
            for depth in range(len(parts), -1, -1):
                folder = top.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder


# --- a worker ------------------------------------------------------------------------------------


def is_signal_caught(pid: int, number: int, root: Path = ROOT) -> bool:
    """Whether a process has a handler for a signal, and so survives it."""
    for line in system_text(root / "proc" / str(pid) / "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def exit_text(code: int | None) -> str:
    """Return how a process ended: ``was killed by SIGKILL (signal 9)``, ``ended with ...``."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "an unnamed signal"
    return f"was killed by {name} (signal {-code})"


def cause_and_advice(
    code: int | None,
    *,
    oom_killed: bool | None,
    room: SharedMemoryRoom | None,
    changed: list[str],
) -> str:
    """Return what most likely ended a worker, and what to do about it.

    Args:
        code: The exit code, negative for a signal.
        oom_killed: Whether the kernel has killed for memory meanwhile.
        room: What ``/dev/shm`` holds now.
        changed: Mapped files that were cut short or written to.
    """
    number = -code if code is not None and code < 0 else 0
    if number == getattr(signal, "SIGKILL", 9):
        if oom_killed:
            return (
                "the kernel killed it because memory ran out: use fewer workers, a smaller "
                "prefetch_factor or batch, or raise the memory limit"
            )
        if oom_killed is None:
            return (
                "most often the kernel, because memory ran out (see `dmesg`), or somebody's kill: "
                "use fewer workers or a smaller batch if memory is what was short"
            )
        return (
            "not the kernel for want of memory (its count stands still): someone else, a job "
            "scheduler, or the dataset itself sent the signal"
        )
    if number == getattr(signal, "SIGBUS", 7):
        return _bus_error(room, changed)
    if number in {getattr(signal, name, -1) for name in ("SIGSEGV", "SIGILL", "SIGABRT", "SIGFPE")}:
        return (
            "native code of a library crashed while it made a sample; load the samples named above "
            "with num_workers=0 to see which one, and update the library that the stack names"
        )
    if number:
        return "someone sent this signal; look for a job scheduler, a time limit or a kill command"
    return (
        "the dataset or a library ended the process itself (os._exit, sys.exit or exit() in C "
        "code): load the samples named above with num_workers=0 to see where"
    )


def _bus_error(room: SharedMemoryRoom | None, changed: list[str]) -> str:
    if changed:
        files = "; ".join(changed)
        return (
            f"a file was changed while it was mapped: {files}. Replace files by a rename, never in "
            "place, and build the dataset anew"
        )
    if room is not None and room.free < max(_NEARLY_FULL, room.total // 100):
        return (
            f"{SHARED_MEMORY}, where batches travel, is full ({room}): give the container more "
            "(docker run --shm-size=8g), or use fewer workers, a smaller prefetch_factor or batch"
        )
    return (
        f"{SHARED_MEMORY} has room ({room or 'unknown'}) and no mapped file was seen to be cut "
        "short, so a disk or network file system failed while a mapped file was read (see "
        "`dmesg`), or a file was cut short and restored"
    )


# --- reading -------------------------------------------------------------------------------------


def system_text(path: Path) -> str:
    """Return the text of a file of the system; nothing where there is none to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # none here, not allowed, or the process has just ended
        return ""


def _number(*paths: Path) -> int | None:
    """The number in the first file that holds one; "max" is none."""
    for path in paths:
        text = system_text(path).strip()
        if text.isdecimal():
            return int(text)
    return None


def _named(text: str, name: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
