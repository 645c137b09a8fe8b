"""How many CPUs this process may use: affinity, cgroup quota, SLURM, and the ranks beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

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
    root: Path = Path("/"),
) -> CpuShare:
    """Return the share of this process: the least of all limits, divided by the local ranks.

    Args:
        allowed: CPUs by affinity; None asks the system.
        environ: Environment variables; None takes those of this process.
        root: The folder that holds ``proc`` and ``sys``.
    """
    environ = os.environ if environ is None else environ
    limits = [(_allowed() if allowed is None else allowed, "for this process")]
    if (quota := cpu_quota(root)) is not None:
        limits.append((math.ceil(quota), f"by a cgroup quota of {quota:g}"))
    if (tasks := _positive(environ.get("SLURM_CPUS_PER_TASK"))) is not None:
        limits.append((tasks, "by SLURM_CPUS_PER_TASK"))
    count, why = min(limits, key=lambda limit: limit[0])
    reason = f"{count} CPU{'' if count == 1 else 's'} {why}"
    ranks = _positive(environ.get("LOCAL_WORLD_SIZE")) or 1
    # Where each rank is a SLURM task of its own, what was read is its own share already.
    if ranks > 1 and _positive(environ.get("SLURM_NTASKS_PER_NODE")) != ranks:
        count, reason = count // ranks, f"{reason}, shared by {ranks} ranks"
    return CpuShare(max(1, count), reason)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPUs that control groups grant (1.5: one and a half), None if they set no limit.

    A group is limited by those above it too. "No information" is a normal answer.

    Args:
        root: The folder that holds ``proc`` and ``sys``.
    """
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            quotas += [_quota_v2(folder) for folder in _upwards(root / "sys/fs/cgroup", path)]
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys((controllers, "cpu", "cpu,cpuacct")):
                mount = root / "sys/fs/cgroup" / name
                quotas += [_quota_v1(folder) for folder in _upwards(mount, path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _upwards(mount: Path, path: str) -> list[Path]:
    """The folder of a group and of those above it; in a container only the topmost may exist."""
    inner = PurePosixPath(path.strip("/"))
    if ".." in inner.parts:
        return [mount]
    return [mount / part for part in (inner, *inner.parents)]


def _quota_v2(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    return _ratio(*words) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    quota = _read(folder / "cpu.cfs_quota_us").strip()
    return _ratio(quota, _read(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or nothing there
        return None
    return share if share > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _positive(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None
