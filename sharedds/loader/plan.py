"""What a loader does on this machine, and why: a pure function of facts and requests.

Nothing here imports torch, looks at the machine or starts anything, so that every rule can be
tested with made-up facts. What the user asked for always wins; a request that cannot be met is
refused, never bent.
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass, fields
from typing import Any, SupportsIndex

from sharedds.errors import OptionError
from sharedds.host.starting import FORK_AFTER_CUDA

__all__ = [
    "ENGINES",
    "LoaderFacts",
    "LoaderPlan",
    "LoaderRequest",
    "RankFacts",
    "make_plan",
]

ENGINES = ("process", "thread")

_PREFETCH = 2
_MOST_WORKERS = 8
_FEWEST_WORKERS = 2
_CHOICES = (
    "engine",
    "num_workers",
    "start_method",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "torch_threads",
    "seed_globals",
    "rank",
    "last_step",
)
_REQUESTED = "as requested"
_IN_PROCESS = "no workers: batches are made in this process"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Which part of each step this process takes.

    Attributes:
        rank: Which of the ranks this is.
        world_size: How many ranks train together.
        reason: Where this is known from.
        last_step: What becomes of samples that do not fill a step: "padded", "dropped", "split"
            (over the ranks), "kept", or "as sampled".
        last_step_reason: How many they are, and why so.
    """

    rank: int = 0
    world_size: int = 1
    reason: str = "one process trains alone"
    last_step: str = "kept"
    last_step_reason: str = "every sample counts exactly once"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is known before planning.

    Attributes:
        cpus: CPUs this process may use.
        cpus_reason: What limits them, for people; empty for the bare number.
        batches: Batches of one epoch, None when unknown.
        start_methods: Ways this platform can start a process, its preferred one first.
        accelerator: Type of the accelerator in use ("cuda", "mps", ...), None without one.
        cuda_initialized: Whether this process has used CUDA already.
        is_daemon: Whether this process is itself a worker, which may not start others.
        ranks: Which part of each step this process takes.
    """

    cpus: int
    batches: int | None
    start_methods: tuple[str, ...]
    accelerator: str | None = None
    cuda_initialized: bool = False
    is_daemon: bool = False
    cpus_reason: str = ""
    ranks: RankFacts = RankFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRequest:
    """What the user asked for; None leaves the choice to the plan."""

    num_workers: int | None = None
    start_method: str | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    engine: str = "process"
    seed_globals: str = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """Every choice of one loader, with its reason; ``print(plan)`` shows them as a table.

    Attributes:
        engine: What the workers are: "process" or "thread".
        num_workers: Workers; 0 makes the batches when they are asked for, in this process.
        start_method: How workers start ("forkserver", "spawn" or "fork"); None without workers.
        prefetch_factor: Batches each worker prepares in advance; None without workers.
        pin_memory: Whether batches are copied to pinned memory.
        persistent_workers: Whether workers stay for the next epoch.
        torch_threads: Threads torch may use inside each worker; None without worker processes.
        seed_globals: When the global generators are seeded: "sample", "batch" or "off".
        rank: Which of the ranks this process is.
        world_size: How many ranks train together.
        last_step: What becomes of samples that do not fill a step of all ranks.
        reasons: A pair (choice, reason) for each of the above, in this order.
    """

    engine: str
    num_workers: int
    start_method: str | None
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    torch_threads: int | None
    seed_globals: str
    rank: int
    world_size: int
    last_step: str
    reasons: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the choices, and under ``reasons`` why each was made, as plain values."""
        names = (field.name for field in fields(self))
        return {name: getattr(self, name) for name in names} | {"reasons": dict(self.reasons)}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        reasons = dict(self.reasons)
        values = {name: _shown(getattr(self, name)) for name in _CHOICES}
        values["rank"] = f"{self.rank} of {self.world_size}"
        rows = [(name, value, reasons.get(name, "")) for name, value in values.items()]
        wide = max(len(value) for _, value, _ in rows)
        lines = [f"  {name:<18}  {value:<{wide}}  {reason}" for name, value, reason in rows]
        return "\n".join(["loader plan", *(line.rstrip() for line in lines)])


def make_plan(request: LoaderRequest, facts: LoaderFacts) -> LoaderPlan:
    """Plan a loader.

    Raises:
        OptionError: A request that is no valid value, or that excludes another one.
    """
    engine, engine_reason = _plan_engine(request)
    workers, workers_reason = _plan_workers(request, facts)
    method, method_reason = _plan_start_method(request, facts, workers=workers)
    prefetch, prefetch_reason = _plan_prefetch(request, workers=workers)
    pinned, pinned_reason = _plan_pinning(request, facts)
    persistent, persistent_reason = _plan_persistence(request, workers=workers, method=method)
    threads, threads_reason = _plan_threads(request, workers=workers)
    seeding, seeding_reason = _plan_seeding(request)
    reasons = (
        engine_reason,
        workers_reason,
        method_reason,
        prefetch_reason,
        pinned_reason,
        persistent_reason,
        threads_reason,
        seeding_reason,
        facts.ranks.reason,
        facts.ranks.last_step_reason,
    )
    return LoaderPlan(
        engine=engine,
        num_workers=workers,
        start_method=method,
        prefetch_factor=prefetch,
        pin_memory=pinned,
        persistent_workers=persistent,
        torch_threads=threads,
        seed_globals=seeding,
        rank=facts.ranks.rank,
        world_size=facts.ranks.world_size,
        last_step=facts.ranks.last_step,
        reasons=tuple(zip(_CHOICES, reasons, strict=True)),
    )


def _plan_engine(request: LoaderRequest) -> tuple[str, str]:
    if request.engine not in ENGINES:
        known = " and ".join(map(repr, ENGINES))
        raise OptionError(f"engine={request.engine!r}: there are {known}")
    if request.engine == "thread":
        return "thread", f"{_REQUESTED}: one copy of all, for work that releases the GIL"
    return "process", "Python code of different samples runs at the same time"


def _plan_seeding(request: LoaderRequest) -> tuple[str, str]:
    mode = request.seed_globals
    reasons = {
        "sample": "random, numpy, torch follow (seed, epoch, index) in each sample",
        "batch": "random, numpy, torch follow (seed, epoch, index) in each batch",
        "off": "torch seeds each worker: results depend on how many there are",
    }
    if mode not in reasons:
        raise OptionError(f"seed_globals={mode!r}: one of {', '.join(map(repr, reasons))} fits")
    return mode, reasons[mode]


def _plan_threads(request: LoaderRequest, *, workers: int) -> tuple[int | None, str]:
    if not workers:
        return None, _IN_PROCESS
    if request.engine == "thread":
        return None, "the setting of this process holds for its threads"
    return 1, "one core for each worker; this process keeps its own"


def _plan_workers(request: LoaderRequest, facts: LoaderFacts) -> tuple[int, str]:
    asked = _whole_number("num_workers", request.num_workers, least=0)
    threads = request.engine == "thread"
    available = facts.cpus_reason or f"{_count(facts.cpus, 'CPU')} for this process"
    if asked is not None:
        if asked and facts.is_daemon and not threads:
            raise OptionError(
                f"num_workers={asked}: this process is itself a worker and may not start others; "
                "pass num_workers=0, or leave it out"
            )
        if asked > facts.cpus:
            return asked, f"{_REQUESTED}; this process may use {_count(facts.cpus, 'CPU')} only"
        return asked, _REQUESTED
    if facts.is_daemon and not threads:
        return 0, "this process is itself a worker and may not start others"
    wanted = max(min(_FEWEST_WORKERS, facts.cpus), min(_MOST_WORKERS, facts.cpus - 2))
    if facts.batches is not None and facts.batches < wanted:
        return facts.batches, f"no more workers than batches ({facts.batches})"
    if wanted == _MOST_WORKERS:
        return wanted, f"{available}; {_MOST_WORKERS} workers are enough"
    left = facts.cpus - wanted
    return wanted, f"{available}; {left} left for training" if left else available


def _plan_start_method(
    request: LoaderRequest, facts: LoaderFacts, *, workers: int
) -> tuple[str | None, str]:
    asked = request.start_method
    if asked is not None:
        if asked not in facts.start_methods:
            known = ", ".join(facts.start_methods)
            raise OptionError(f"start_method={asked!r}: this platform offers {known}")
        if request.engine == "thread":
            raise OptionError(f"start_method={asked!r}: threads are not started by a method")
        if asked == "fork" and facts.cuda_initialized and workers:
            raise OptionError(FORK_AFTER_CUDA)
    if not workers:
        return None, _IN_PROCESS
    if request.engine == "thread":
        return None, "threads of this process"
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
    if request.engine == "thread":
        return False, "threads start at once"
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
