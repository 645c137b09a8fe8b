"""How many CPUs this process may use: affinity, cgroup quota, SLURM, and the ranks beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sharedds.host.groups import ControlGroup, control_groups
from sharedds.host.ranks import local_ranks, slurm_count
from sharedds.host.system import ROOT, system_text, whole_number

__all__ = ["CpuShare", "cpu_quota", "usable_cpus"]


@dataclass(frozen=True, slots=True)
class CpuShare:
    """CPUs for one training process.

    Attributes:
        count: How many; at least 1.
        reason: What decided it, for people.
    """

    count: int
    reason: str


def usable_cpus(
    *,
    allowed: int | None = None,
    environ: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> CpuShare:
    """Return the share of this process: the least of all limits, divided by the local ranks.

    Args:
        allowed: CPUs by affinity; None asks the system.
        environ: Environment variables; None takes those of this process.
        root: The folder that holds ``proc`` and ``sys``.
    """
    environ = os.environ if environ is None else environ
    allowed = _allowed(root) if allowed is None else allowed
    ranks = local_ranks(environ)
    # SLURM starts each task with CPUs of its own, or lets all tasks use all those of the job.
    limits = [_Limit(allowed, "for this process", ranks.are_tasks)]
    if job := slurm_count(environ.get("SLURM_CPUS_ON_NODE")):
        limits.append(_Limit(job, "by SLURM_CPUS_ON_NODE"))
    if (found := _least_quota(root)) is not None:
        quota, group = found
        where = "" if group.name == "/" else f" of {group.name}"
        limits.append(_Limit(math.ceil(quota), f"by a cgroup quota of {quota:g}{where}"))
    if tasks := whole_number(environ.get("SLURM_CPUS_PER_TASK")):
        limits.append(_Limit(tasks, "by SLURM_CPUS_PER_TASK", ranks.are_tasks))
    least = min(limits, key=lambda limit: limit.share(ranks.count))
    reason = f"{least.count} CPU{'' if least.count == 1 else 's'} {least.why}"
    if ranks.count > 1 and not least.is_own:
        reason += f", shared by {ranks.count} ranks"
    return CpuShare(least.share(ranks.count), reason)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs that control groups grant (1.5: one and a half), None if they set no limit.

    A group is limited by those above it too. "No information" is a normal answer.

    Args:
        root: The folder that holds ``proc`` and ``sys``.
    """
    found = _least_quota(root)
    return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class _Limit:
    """CPUs, and whether each rank has as many (or all ranks share them)."""

    count: int
    why: str
    is_own: bool = False

    def share(self, ranks: int) -> int:
        return max(1, self.count if self.is_own else self.count // ranks)


def _allowed(root: Path) -> int:
    if root != ROOT and (count := _listed(root)):
        return count
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _listed(root: Path) -> int:
    """The CPUs in ``Cpus_allowed_list: 0-3,8``."""
    count = 0
    for line in system_text(root / "proc/self/status").splitlines():
        name, _, rest = line.partition(":")
        for part in rest.split(",") if name == "Cpus_allowed_list" else ():
            first, dash, last = part.partition("-")
            low, high = whole_number(first), whole_number(last if dash else first)
            if low is not None and high is not None:
                count += max(0, high - low + 1)
    return count


def _least_quota(root: Path) -> tuple[float, ControlGroup] | None:
    quotas = [(_quota(group), group) for group in control_groups("cpu", root)]
    known = [(quota, group) for quota, group in quotas if quota is not None]
    return min(known, key=lambda pair: pair[0], default=None)


def _quota(group: ControlGroup) -> float | None:
    if group.version == 2:
        words = group.text("cpu.max").split()
    else:
        words = [group.text("cpu.cfs_quota_us"), group.text("cpu.cfs_period_us")]
    if len(words) != 2:
        return None
    quota, period = map(whole_number, words)  # "max" and -1 are none
    return quota / period if quota and period else None
