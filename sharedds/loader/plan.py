"""What a loader does on this machine, and why: a pure function of facts and requests.

Nothing here imports torch, looks at the machine or starts anything, so that every rule can be
tested with made-up facts. What the user asked for always wins; a request that cannot be met is
refused, never bent.
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import Any, SupportsIndex

from sharedds.errors import OptionError

__all__ = ["FORK_AFTER_CUDA", "LoaderFacts", "LoaderPlan", "LoaderRequest", "make_plan"]

FORK_AFTER_CUDA = (
    "start_method='fork': CUDA is already in use in this process, and a forked worker would "
    "inherit a broken copy of it; leave start_method out, or pass 'forkserver' or 'spawn'"
)

_PREFETCH = 2
_MOST_WORKERS = 8
_FEWEST_WORKERS = 2
_CHOICES = (
    "num_workers",
    "start_method",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "torch_threads",
)
_REQUESTED = "as requested"
_IN_PROCESS = "no workers: batches are made in this process"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is known before planning.

    Attributes:
        cpus: CPUs this process may use.
        batches: Batches of one epoch, None when unknown.
        start_methods: Ways this platform can start a process, its preferred one first.
        accelerator: Type of the accelerator in use ("cuda", "mps", ...), None without one.
        cuda_initialized: Whether this process has used CUDA already.
        is_daemon: Whether this process is itself a worker, which may not start others.
    """

    cpus: int
    batches: int | None
    start_methods: tuple[str, ...]
    accelerator: str | None = None
    cuda_initialized: bool = False
    is_daemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRequest:
    """What the user asked for; None leaves the choice to the plan."""

    num_workers: int | None = None
    start_method: str | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """Every choice of one loader, with its reason; ``print(plan)`` shows them as a table.

    Attributes:
        num_workers: Worker processes; 0 makes the batches in this process.
        start_method: How workers start ("forkserver", "spawn" or "fork"); None without workers.
        prefetch_factor: Batches each worker prepares in advance; None without workers.
        pin_memory: Whether batches are copied to pinned memory.
        persistent_workers: Whether workers stay for the next epoch.
        torch_threads: Threads torch may use inside each worker; None without workers.
        reasons: A pair (choice, reason) for each of the above, in this order.
    """

    num_workers: int
    start_method: str | None
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    torch_threads: int | None
    reasons: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the choices, and under ``reasons`` why each was made, as plain values."""
        return {name: getattr(self, name) for name in _CHOICES} | {"reasons": dict(self.reasons)}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        reasons = dict(self.reasons)
        rows = [(name, _shown(getattr(self, name)), reasons.get(name, "")) for name in _CHOICES]
        wide = max(len(value) for _, value, _ in rows)
        lines = [f"  {name:<18}  {value:<{wide}}  {reason}" for name, value, reason in rows]
        return "\n".join(["loader plan", *(line.rstrip() for line in lines)])


def make_plan(request: LoaderRequest, facts: LoaderFacts) -> LoaderPlan:
    """Plan a loader.

    Raises:
        OptionError: A request that is no valid value, or that excludes another one.
    """
    workers, workers_reason = _plan_workers(request, facts)
    method, method_reason = _plan_start_method(request, facts, workers=workers)
    prefetch, prefetch_reason = _plan_prefetch(request, workers=workers)
    pinned, pinned_reason = _plan_pinning(request, facts)
    persistent, persistent_reason = _plan_persistence(request, workers=workers, method=method)
    threads = 1 if workers else None
    threads_reason = "one core for each worker; this process keeps its own" if workers else ""
    reasons = (
        workers_reason,
        method_reason,
        prefetch_reason,
        pinned_reason,
        persistent_reason,
        threads_reason or _IN_PROCESS,
    )
    return LoaderPlan(
        num_workers=workers,
        start_method=method,
        prefetch_factor=prefetch,
        pin_memory=pinned,
        persistent_workers=persistent,
        torch_threads=threads,
        reasons=tuple(zip(_CHOICES, reasons, strict=True)),
    )


def _plan_workers(request: LoaderRequest, facts: LoaderFacts) -> tuple[int, str]:
    asked = _whole_number("num_workers", request.num_workers, least=0)
    if asked is not None:
        if asked and facts.is_daemon:
            raise OptionError(
                f"num_workers={asked}: this process is itself a worker and may not start others; "
                "pass num_workers=0, or leave it out"
            )
        if asked > facts.cpus:
            return asked, f"{_REQUESTED}; this process may use {_count(facts.cpus, 'CPU')} only"
        return asked, _REQUESTED
    if facts.is_daemon:
        return 0, "this process is itself a worker and may not start others"
    wanted = min(_MOST_WORKERS, max(_FEWEST_WORKERS, facts.cpus - 2))
    if facts.batches is not None and facts.batches < wanted:
        return facts.batches, f"no more workers than batches ({facts.batches})"
    rule = f"min({_MOST_WORKERS}, max({_FEWEST_WORKERS}, CPUs - 2))"
    return wanted, f"{_count(facts.cpus, 'CPU')} for this process: {rule}"


def _plan_start_method(
    request: LoaderRequest, facts: LoaderFacts, *, workers: int
) -> tuple[str | None, str]:
    asked = request.start_method
    if asked is not None:
        if asked not in facts.start_methods:
            known = ", ".join(facts.start_methods)
            raise OptionError(f"start_method={asked!r}: this platform offers {known}")
        if asked == "fork" and facts.cuda_initialized and workers:
            raise OptionError(FORK_AFTER_CUDA)
    if not workers:
        return None, _IN_PROCESS
    if asked is not None:
        return asked, _REQUESTED
    method = facts.start_methods[0]
    if method == "forkserver":
        return method, "starts like a fork, inherits no handles, threads or CUDA state"
    return method, "the safe way to start a process on this platform"


def _plan_prefetch(request: LoaderRequest, *, workers: int) -> tuple[int | None, str]:
    asked = _whole_number("prefetch_factor", request.prefetch_factor, least=1)
    if asked is not None and request.num_workers == 0:
        raise OptionError(
            f"prefetch_factor={asked} needs worker processes, and num_workers=0 asks for none; "
            "leave out one of them"
        )
    if not workers:
        return None, _IN_PROCESS
    if asked is not None:
        return asked, _REQUESTED
    return _PREFETCH, f"{_count(_PREFETCH, 'batch')} ready or under way in each worker"


def _plan_pinning(request: LoaderRequest, facts: LoaderFacts) -> tuple[bool, str]:
    asked = _truth("pin_memory", request.pin_memory)
    if facts.accelerator is None:
        return False, "no accelerator to copy to"
    if facts.accelerator == "mps":
        return False, "MPS shares its memory with the CPU"
    if asked is not None:
        return asked, _REQUESTED
    return True, f"copies to {facts.accelerator} can overlap with computing"


def _plan_persistence(
    request: LoaderRequest, *, workers: int, method: str | None
) -> tuple[bool, str]:
    asked = _truth("persistent_workers", request.persistent_workers)
    if asked and request.num_workers == 0:
        raise OptionError(
            "persistent_workers=True needs worker processes, and num_workers=0 asks for none; "
            "leave out one of them"
        )
    if not workers:
        return False, _IN_PROCESS
    if asked is not None:
        return asked, _REQUESTED
    if method == "spawn":
        return True, "a spawned worker takes seconds to start"
    return False, "workers start fast, and an idle loader holds no memory"


def _whole_number(name: str, value: SupportsIndex | None, *, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name}={value!r}: a whole number is expected")
    number = operator.index(value)
    if number < least:
        raise OptionError(f"{name}={number}: {least} or more is expected")
    return number


def _truth(name: str, value: bool | None) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: True, False or None is expected")
    return value


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
