"""What can be known of a worker that died: the signal, memory, ``/dev/shm``, files cut short.

Everything here reads small files of the system below a root folder, so tests hand it fake trees.
"No information" (another system, no control groups, not allowed) is a normal answer: ``None``.
"""

from __future__ import annotations

import signal
from pathlib import Path

from sharedds.host.shared import SHARED_MEMORY, SharedMemoryRoom
from sharedds.host.system import ROOT, system_text

__all__ = ["cause_and_advice", "exit_text", "is_signal_caught"]

#: Less than this free, and the next batch may well not have fitted.
_NEARLY_FULL = 1 << 20


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
