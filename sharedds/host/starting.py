"""How processes can be started here, and what makes fork unsafe now."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharedds.host.system import ROOT, system_text

__all__ = [
    "FORK_AFTER_CUDA",
    "StartMethods",
    "available_start_methods",
    "is_cuda_initialized",
    "start_methods",
]

FORK_AFTER_CUDA = (
    "start_method='fork': CUDA is already in use in this process, and a forked worker would "
    "inherit a broken copy of it; leave start_method out, or pass 'forkserver' or 'spawn'"
)

#: So many threads are named; the rest is counted.
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMethods:
    """How this process can start others.

    Attributes:
        available: The start methods of this platform, the preferred one first.
        fork_hazards: What makes fork unsafe at this moment, one text each; empty where nothing was
            found, or where there is no fork.
    """

    available: tuple[str, ...]
    fork_hazards: tuple[str, ...] = ()


def available_start_methods() -> tuple[str, ...]:
    """Return the start methods of this platform, the preferred one first."""
    methods = multiprocessing.get_all_start_methods()
    preferred = "forkserver" if sys.platform == "linux" else "spawn"
    return tuple(sorted(methods, key=lambda method: method != preferred))


def start_methods(root: Path = ROOT) -> StartMethods:
    """Return how this process can start others, and what speaks against fork now.

    Args:
        root: The folder that holds ``proc``.
    """
    available = available_start_methods()
    if "fork" not in available:
        return StartMethods(available=available)
    hazards = []
    if is_cuda_initialized():
        hazards.append("CUDA is in use: a forked worker inherits a broken copy")
    if threads := _other_threads(root):
        count = "1 other thread" if len(threads) == 1 else f"{len(threads)} other threads"
        hazards.append(f"{count} alive, whose locks stay locked in a fork: {_named(threads)}")
    if sys.platform == "darwin":
        hazards.append("system libraries of macOS may crash after a fork")
    return StartMethods(available=available, fork_hazards=tuple(hazards))


def is_cuda_initialized() -> bool:
    """Whether torch has started CUDA in this process; asking does not load torch."""
    torch: Any = sys.modules.get("torch")
    try:
        return torch is not None and bool(torch.cuda.is_initialized())
    except Exception:  # it is being imported at this moment
        return False


def _other_threads(root: Path) -> list[str]:
    """Names of all threads but this one, those that Python did not start included."""
    own = threading.get_native_id()
    known = {
        thread.native_id: thread.name
        for thread in threading.enumerate()
        if thread.native_id not in (None, own)
    }
    folder = root / "proc/self/task"
    try:
        numbers = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    except (OSError, ValueError):
        return list(known.values())
    if own not in numbers:  # another process, or another way of counting: the first one is main
        numbers = numbers[1:]
    else:
        numbers.remove(own)
    return [known.get(number) or _native_name(folder / str(number) / "comm") for number in numbers]


def _native_name(path: Path) -> str:
    return system_text(path).strip() or "unnamed"


def _named(threads: list[str]) -> str:
    counts = Counter(threads)
    texts = [f"{name} ({count})" if count > 1 else name for name, count in counts.items()]
    rest = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
