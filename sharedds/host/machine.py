"""All that is known of the machine at one moment, and what told it."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sharedds.host.accelerator import Accelerator, accelerator
from sharedds.host.cpus import CpuShare, usable_cpus
from sharedds.host.descriptors import DescriptorLimits, descriptor_limits
from sharedds.host.memory import MachineMemory, machine_memory
from sharedds.host.ranks import local_ranks
from sharedds.host.shared import SHARED_MEMORY, SharedMemoryRoom, shared_memory_room
from sharedds.host.starting import StartMethods, start_methods
from sharedds.host.storage import Storage, storage_of
from sharedds.host.system import ROOT

__all__ = ["Machine", "look", "machine"]

_NARROWEST, _WIDEST = 60, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this process may use of the machine; ``print(machine)`` shows it on one screen.

    None is a normal answer: the system does not tell.

    Attributes:
        cpus: CPUs for this process, and what decided how many.
        memory: Memory in all, what is left of it, and the limit on this process.
        shared_memory: Room where batches travel between processes.
        descriptors: Files that this process may have open.
        accelerator: What training can use beside the CPU.
        start_methods: How processes can be started, and what makes fork unsafe now.
        local_ranks: Processes that train side by side here; they share memory and room.
        local_ranks_reason: Where their number is known from.
        is_daemon: Whether this process is itself a worker, which may not start others.
        system: Operating system and processor, for people.
        storage: Where each path that was asked about lies.
    """

    cpus: CpuShare
    memory: MachineMemory
    shared_memory: SharedMemoryRoom | None
    descriptors: DescriptorLimits | None
    accelerator: Accelerator | None
    start_methods: StartMethods
    local_ranks: int
    local_ranks_reason: str = ""
    is_daemon: bool
    system: str
    storage: tuple[Storage, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; the keys are the names of the attributes."""
        plain = asdict(self)
        methods = plain["start_methods"]
        plain["start_methods"] = {name: list(value) for name, value in methods.items()}
        return plain | {"storage": list(plain["storage"])}

    def text(self, width: int = 80) -> str:
        """Return each fact with what decided it, in lines of at most ``width`` characters.

        Only a path or another single word that is longer makes a line longer.
        """
        rows = list(self._rows())
        first = max(len(name) for name, _, _ in rows)
        lines = []
        for name, value, reason in rows:
            words = _printable(f"{value}  ({reason})" if reason else value)
            lines += textwrap.wrap(
                words,
                width,
                initial_indent=f"{name:<{first}}  ",
                subsequent_indent=" " * (first + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        columns = shutil.get_terminal_size((80, 24)).columns
        return self.text(max(_NARROWEST, min(columns, _WIDEST)))

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, value and reason of each fact."""
        memory, methods = self.memory, self.start_methods
        yield "system", self.system, ""
        yield "CPUs", str(self.cpus.count), self.cpus.reason
        yield "local ranks", str(self.local_ranks), self.local_ranks_reason
        yield "memory", _size(memory.total), ""
        yield "  limit", _size(memory.limit) if memory.limit else "none found", memory.limit_reason
        yield "  left", _size(memory.available), memory.available_reason
        room = self.shared_memory
        free = "unknown" if room is None else f"{_size(room.free)} free of {_size(room.total)}"
        yield SHARED_MEMORY, free, ""
        yield "open files", *_descriptor_row(self.descriptors)
        yield "accelerator", *_accelerator_row(self.accelerator)
        yield "processes", f"by {', '.join(methods.available)}", _starting_reason(self)
        yield "  fork now", *_fork_row(methods)
        for storage in self.storage:
            words: list[str] = [storage.kind or "unknown"]
            words += [f"on {storage.device}"] if storage.device else []
            words += [f"as {storage.file_system}"] if storage.file_system else []
            yield "storage", f"{storage.path}: {' '.join(words)}", storage.reason


def machine(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    root: Path = ROOT,
    environ: Mapping[str, str] | None = None,
) -> Machine:
    """Look at the machine: what this process may use of it now.

    Nothing is started, loaded or changed by looking: neither torch nor CUDA.

    Args:
        paths: Files or folders whose kind of storage is wanted.
        root: The folder that holds ``proc``, ``sys`` and ``dev``; tests hand over made-up ones.
        environ: Environment variables; None takes those of this process.
    """
    environ = os.environ if environ is None else environ
    asked = [paths] if isinstance(paths, str | os.PathLike) else paths
    ranks = local_ranks(environ)
    return Machine(
        cpus=usable_cpus(environ=environ, root=root),
        memory=machine_memory(root, environ=environ),
        shared_memory=shared_memory_room(str(root / SHARED_MEMORY.lstrip("/"))),
        descriptors=descriptor_limits(),
        accelerator=accelerator(root, environ=environ),
        start_methods=start_methods(root),
        local_ranks=ranks.count,
        local_ranks_reason=ranks.reason,
        is_daemon=multiprocessing.current_process().daemon,
        system=f"{platform.system()} {platform.release()}, {platform.machine()}, "
        f"Python {platform.python_version()}",
        storage=tuple(storage_of(path, root) for path in asked),
    )


#: The same, for those who import from here.
look = machine


def _printable(text: str) -> str:
    """Paths and names of threads may hold anything."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    if count < 1e9:
        return f"{count / 1e6:,.1f} MB"
    return f"{count / 1e9:,.1f} GB"


def _descriptor_row(limits: DescriptorLimits | None) -> tuple[str, str]:
    if limits is None:
        return "unknown", ""
    soft = "no limit" if limits.soft is None else f"at most {limits.soft:,}"
    now = "" if limits.open is None else f", {limits.open:,} open now"
    if limits.reachable is None or limits.reachable == limits.soft:
        return soft + now, ""
    return soft + now, f"a loader raises it to {limits.reachable:,}"


def _accelerator_row(found: Accelerator | None) -> tuple[str, str]:
    if found is None:
        return "none found", ""
    words = [f"{found.count} × {found.kind}", found.name]
    return ", ".join(word for word in words if word), found.reason


def _starting_reason(machine: Machine) -> str:
    if machine.is_daemon:
        return "but this process is a worker, which may start none"
    return "the first is preferred"


def _fork_row(methods: StartMethods) -> tuple[str, str]:
    if "fork" not in methods.available:
        return "not on this system", ""
    return "; ".join(methods.fork_hazards) or "nothing found that makes it unsafe", ""
