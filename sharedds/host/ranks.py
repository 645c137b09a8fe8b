"""How many processes train side by side on this machine, as their launcher tells."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sharedds.host.system import whole_number

__all__ = ["LocalRanks", "local_ranks", "slurm_count"]

#: Set by torchrun, Open MPI, Intel MPI, MVAPICH and MPICH.
_VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
)
_SLURM_VARIABLES = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """Processes that train together on this machine.

    Attributes:
        count: How many; at least 1.
        reason: Where this is known from, for people.
        are_tasks: Whether each is a task of SLURM, which grants CPUs to each by itself.
    """

    count: int
    reason: str
    are_tasks: bool = False


def local_ranks(environ: Mapping[str, str] | None = None) -> LocalRanks:
    """Return how many ranks share this machine.

    Args:
        environ: Environment variables; None takes those of this process.
    """
    environ = os.environ if environ is None else environ
    tasks, source = _slurm_tasks(environ)
    for name in _VARIABLES:
        if count := whole_number(environ.get(name)):
            return LocalRanks(count, name, count > 1 and count == tasks)
    if tasks:
        return LocalRanks(tasks, source, tasks > 1)
    return LocalRanks(1, "no launcher tells of others")


def slurm_count(text: str | None, node: str | None = None) -> int | None:
    """Return the entry of one node in a list such as ``8(x2),4``.

    Args:
        text: The list.
        node: The number of the node; None takes the first.
    """
    counts: list[int] = []
    wanted = whole_number(node) or 0
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\(x(\d{1,9})\))?\s*", part, re.ASCII)
        if match is None:
            return None
        wanted -= int(match[2] or 1)
        counts.append(int(match[1]))
        if wanted < 0:
            break
    return counts[-1] or None


def _slurm_tasks(environ: Mapping[str, str]) -> tuple[int | None, str]:
    # Of a lone batch script the variables tell as well, and its tasks do not run yet. A step takes
    # over those of its job, which may have asked for more tasks than the step has.
    for name in _SLURM_VARIABLES if "SLURM_STEP_ID" in environ else ():
        if count := slurm_count(environ.get(name), environ.get("SLURM_NODEID")):
            return count, name
    return None, ""
