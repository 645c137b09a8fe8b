"""How much memory there is, who limits it, and what is left of it for this process.

Page cache of a control group that has not been used for long can be taken back at once, so it
counts as left, as it does in what the kernel calls available of the whole machine.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sharedds.host.groups import ControlGroup, control_groups
from sharedds.host.ranks import slurm_count
from sharedds.host.system import (
    ROOT,
    kilobytes,
    megabytes,
    named_number,
    system_text,
    whole_number,
)

__all__ = ["MachineMemory", "count_oom_kills", "machine_memory"]

#: What a limit file holds that stands for no limit: version 1 rounds 2**63 down to pages.
_NO_LIMIT = 1 << 60
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """Memory of the machine and what is left of it, in bytes; None where it is not told.

    Attributes:
        total: What the machine has.
        available: What this process and those it starts could still take: of the machine, or below
            the limit that leaves least. Ranks on the same machine share it.
        limit: The smallest limit on this process.
        limit_reason: Who sets that limit, for people.
        available_reason: What bounds ``available``, for people.
    """

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    limit_reason: str = ""
    available_reason: str = ""

    def __str__(self) -> str:
        limit = f"limit {megabytes(self.limit)}" if self.limit is not None else "no limit found"
        return f"{megabytes(self.available)} available ({limit})"


def machine_memory(root: Path = ROOT, *, environ: Mapping[str, str] | None = None) -> MachineMemory:
    """Return how much memory is left: of the machine, and below each limit on this process.

    Limits are those of control groups (versions 1 and 2, up to the top), of SLURM, and of the
    address space of the process.

    Args:
        root: The folder that holds ``proc`` and ``sys``.
        environ: Environment variables; None takes those of this process.
    """
    environ = os.environ if environ is None else environ
    total, available = _of_machine(root)
    reason = "of the whole machine" if available is not None else ""
    least: _Limit | None = None
    for limit in _limits(root, environ):
        if least is None or limit.most < least.most:
            least = limit
        left = max(0, limit.most - limit.used) if limit.used is not None else None
        if left is not None and (available is None or left < available):
            available, reason = left, f"below {limit.why}"
    return MachineMemory(
        total=total,
        available=available,
        limit=least.most if least else None,
        limit_reason=least.why if least else "",
        available_reason=reason,
    )


def count_oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes the kernel has killed for memory, in the groups of this process.

    Without control groups that tell, the count of the whole machine.
    """
    counts = []
    for group in control_groups("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            found = named_number(group.text(name), "oom_kill")
            counts += [found] if found is not None else []
    # The groups above count what happens below them (v2), or only their own limit (v1).
    return max(counts) if counts else named_number(system_text(root / "proc/vmstat"), "oom_kill")


# --- who sets limits -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Limit:
    """Bytes allowed, bytes of it in use where that is told, and who says so."""

    most: int
    used: int | None
    why: str


def _of_machine(root: Path) -> tuple[int | None, int | None]:
    text = system_text(root / "proc/meminfo")
    if not text and root == ROOT:  # not Linux
        try:
            memory = importlib.import_module("psutil").virtual_memory()
        except (OSError, RuntimeError):
            return None, None
        return int(memory.total), int(memory.available)
    return kilobytes(text, "MemTotal"), kilobytes(text, "MemAvailable")


def _limits(root: Path, environ: Mapping[str, str]) -> Iterator[_Limit]:
    for group in control_groups("memory", root):
        yield from _group_limits(group)
    status = system_text(root / "proc/self/status")
    if (job := _slurm_memory(environ)) is not None:
        # What else the job uses is not told; this process at least is a part of it.
        yield _Limit(job[0], kilobytes(status, "RssAnon") or 0, job[1])
    for line in system_text(root / "proc/self/limits").splitlines():
        if line.startswith("Max address space"):
            most = whole_number(" ".join(line.split()[3:4]))
            if most is not None and most < _NO_LIMIT:
                used = kilobytes(status, "VmSize")
                yield _Limit(most, used, "RLIMIT_AS, the address space of each process")


def _group_limits(group: ControlGroup) -> Iterator[_Limit]:
    """Above ``memory.high`` a group is not killed but slowed down until it hardly moves."""
    second = group.version == 2
    used = whole_number(group.text("memory.current" if second else "memory.usage_in_bytes"))
    if used is not None:
        idle = "inactive_file" if second else "total_inactive_file"
        used = max(0, used - (named_number(group.text("memory.stat"), idle) or 0))
    for name in ("memory.max", "memory.high") if second else ("memory.limit_in_bytes",):
        most = whole_number(group.text(name))
        if most is not None and most < _NO_LIMIT:
            yield _Limit(most, used, f"{name} of control group {group.name}")


def _slurm_memory(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """The memory of a job on this node, and the variable that tells; 0 stands for all of it."""
    if whole := whole_number(environ.get("SLURM_MEM_PER_NODE")):
        return whole * _MIB, "SLURM_MEM_PER_NODE"
    for name, counter in (
        ("SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"),
        ("SLURM_MEM_PER_GPU", "SLURM_GPUS_ON_NODE"),
    ):
        part, count = whole_number(environ.get(name)), slurm_count(environ.get(counter))
        if part and count:
            return part * count * _MIB, f"{name} for {count} of them"
    return None
