"""What a process and all below it hold in memory, each page counted once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["Scales", "tree", "weigh"]

_MB = 1e6
_PAUSE = 0.1  # seconds between two looks


def tree() -> list[int]:
    """Return this process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text()
            except OSError:  # it has just ended
                continue
            parent = int(status.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def weigh() -> tuple[float, float]:
    """Return the MB of proportional memory of the tree, and those of no file (anonymous, shm)."""
    whole = own = 0
    for pid in tree():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = dict(line.split(":") for line in lines if line.endswith(" kB"))
        kib = {name: int(rest.split()[0]) for name, rest in sizes.items()}
        whole += kib["Pss"]
        own += kib["Pss_Anon"] + kib["Pss_Shmem"]
    return whole * 1024 / _MB, own * 1024 / _MB


class Scales:
    """Weighs the tree again and again, from its making until it is read."""

    def __init__(self) -> None:
        self._most = weigh()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE):
            whole, own = weigh()
            self._most = max(whole, self._most[0]), max(own, self._most[1])

    def read(self) -> tuple[float, float]:
        """Stop, and return the most that was seen, as :func:`weigh` does."""
        self._ended.set()
        self._thread.join()
        return self._most
