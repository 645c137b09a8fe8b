"""What a loader does on this machine, and why: a pure function of facts and requests.

Nothing here imports torch, looks at the machine or starts anything, so that every rule can be
tested with made-up facts. What the user asked for always wins; a request that cannot be met is
refused, never bent, and the refusal names the nearest that can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sharedds.errors import OptionError
from sharedds.loader.budget import MemoryEstimate, Shape, estimate_memory, limit_text
from sharedds.loader.choices import (
    choose_engine,
    choose_persistence,
    choose_pinning,
    choose_prefetch,
    choose_read_ahead,
    choose_seeding,
    choose_start_method,
    choose_threads,
    choose_threads_per_worker,
    choose_workers,
    many_workers,
    with_engine,
)
from sharedds.loader.fitting import Fitted, bounds_of, fit, fits
from sharedds.loader.known import (
    ENGINES,
    Choice,
    DatasetFacts,
    LoaderFacts,
    LoaderRequest,
    RankFacts,
    counted,
    whole_number,
)
from sharedds.loader.screen import memory_lines, plan_lines, screen_width
from sharedds.text import decimal_size

__all__ = [
    "ENGINES",
    "DatasetFacts",
    "LoaderFacts",
    "LoaderPlan",
    "LoaderRequest",
    "MemoryEstimate",
    "Planned",
    "RankFacts",
    "make_plan",
]

_CHOICES = (
    "engine",
    "num_workers",
    "threads_per_worker",
    "start_method",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "torch_threads",
    "read_ahead",
    "seed_globals",
    "rank",
    "last_step",
    "max_memory",
)
#: More workers than usual must leave this much of the memory that is left.
_TO_SPARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """Every choice of one loader, with its reason; ``print(plan)`` shows them as a table.

    Attributes:
        engine: What the workers are: "process" or "thread".
        num_workers: Workers; 0 makes the batches when they are asked for, in this process.
        start_method: How workers start ("forkserver", "spawn" or "fork"); None without processes.
        prefetch_factor: Batches each worker prepares in advance; None without workers.
        pin_memory: Whether batches are copied to pinned memory.
        persistent_workers: Whether workers stay for the next epoch.
        torch_threads: Threads torch may use inside each worker; None without workers.
        seed_globals: When the global generators are seeded: "sample", "batch" or "off".
        rank: Which of the ranks this process is.
        world_size: How many ranks train together.
        last_step: What becomes of samples that do not fill a step of all ranks.
        reasons: A pair (choice, reason) for each of the above.
        threads_per_worker: Threads that make the samples of one batch.
        read_ahead: Records of a batch that are asked of the storage before the first is read; 0
            asks for none.
        max_memory: Bytes that this process, its workers and all batches may take together.
        limits: A pair (choice, what bound it) for each choice.
        estimate: What all will take in memory; None while the size of a sample is not known.
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
    threads_per_worker: int = 1
    read_ahead: int = 0
    max_memory: int | None = None
    limits: tuple[tuple[str, str], ...] = ()
    estimate: MemoryEstimate | None = None

    def on_rank(self, ranks: RankFacts) -> LoaderPlan:
        """Return the plan with the rank that was found out later."""
        told = {"rank": ranks.reason, "last_step": ranks.last_step_reason}
        return replace(
            self,
            rank=ranks.rank,
            world_size=ranks.world_size,
            last_step=ranks.last_step,
            reasons=tuple((name, told.get(name, reason)) for name, reason in self.reasons),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the choices as plain values, and why each was made, and what bound it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "reasons": dict(self.reasons),
            "limits": dict(self.limits),
            "estimate": self.estimate.to_dict() if self.estimate is not None else None,
        }

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoaderPlan:
        """Return the plan that :meth:`to_dict` gave; what is not known here is passed over.

        Raises:
            OptionError: Something is missing, or has the wrong type.
        """
        found: dict[str, Any] = {}
        for name, kinds in _TYPES.items():
            value = values.get(name, _ADDED.get(name))
            is_number = isinstance(value, bool) and bool not in kinds
            if not isinstance(value, kinds) or is_number:
                raise OptionError(f"{name}={value!r} in a saved plan: it is damaged, or no plan")
            found[name] = value
        for name in ("reasons", "limits"):
            pairs = found[name].items()
            if not all(isinstance(part, str) for pair in pairs for part in pair):
                raise OptionError(f"{name} in a saved plan must be texts by name")
            found[name] = tuple(pairs)
        if found["estimate"] is not None:
            found["estimate"] = MemoryEstimate.from_dict(found["estimate"])
        return cls(**found)

    def text(self, width: int = 80) -> str:
        """Return the plan as a table.

        Args:
            width: The longest that a line may be, in characters.
        """
        reasons = dict(self.reasons)
        values = {name: _shown(getattr(self, name)) for name in _CHOICES}
        values["rank"] = f"{self.rank} of {self.world_size}"
        if self.max_memory is not None:
            values["max_memory"] = limit_text(self.max_memory).partition(" (")[0]
        rows = [(name, value, reasons.get(name, "")) for name, value in values.items()]
        lines = ["loader plan", *plan_lines(rows, width)]
        if self.estimate is not None:
            workers = self.num_workers
            lines += ["memory it takes at most"]
            lines += memory_lines(
                self.estimate,
                num_workers=workers,
                batches=workers * (self.prefetch_factor or 0) + 1 if workers else 3,
                is_forkserver=self.start_method != "spawn",
                max_memory=self.max_memory,
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text(screen_width())


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and how it changes once a batch was seen.

    Attributes:
        plan: What a loader begins with.
        sized: Returns the plan for samples of so many bytes, of which it changes nothing but the
            number of batches in advance; None where that was asked for, or the size is known.
    """

    plan: LoaderPlan
    sized: Callable[[int], LoaderPlan] | None = None


_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "engine": (str,),
    "num_workers": (int,),
    "threads_per_worker": (int,),
    "start_method": (str, _NONE),
    "prefetch_factor": (int, _NONE),
    "pin_memory": (bool,),
    "persistent_workers": (bool,),
    "torch_threads": (int, _NONE),
    "seed_globals": (str,),
    "rank": (int,),
    "world_size": (int,),
    "last_step": (str,),
    "reasons": (dict,),
    "read_ahead": (int,),
    "max_memory": (int, _NONE),
    "limits": (dict,),
    "estimate": (dict, _NONE),
}
#: What plans that were saved by an earlier version do not say.
_ADDED: dict[str, Any] = {"threads_per_worker": 1}


def make_plan(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts | None = None
) -> LoaderPlan:
    """Plan a loader.

    Args:
        request: What the user asked for.
        facts: What is known of the machine.
        dataset: What is known of the samples; None for nothing.

    Raises:
        OptionError: A request that is no valid value, that excludes another one, or that does not
            fit; the text then names the nearest that does.
    """
    dataset = dataset if dataset is not None else DatasetFacts()
    whole_number("max_memory", request.max_memory, least=1)
    request = with_engine(request, dataset)
    engine = choose_engine(request)
    pinned = choose_pinning(request, facts, dataset)
    workers, prefetch, fitted = _sizes(request, facts, dataset, is_pinned=pinned.value)
    method = choose_start_method(request, facts, workers=workers.value)
    ranks = facts.ranks
    choices: dict[str, Choice[Any]] = {
        "engine": engine,
        "num_workers": workers,
        "threads_per_worker": choose_threads_per_worker(
            request, facts, dataset, workers=workers.value
        ),
        "start_method": method,
        "prefetch_factor": prefetch,
        "pin_memory": pinned,
        "persistent_workers": choose_persistence(
            request, workers=workers.value, method=method.value
        ),
        "torch_threads": choose_threads(request, workers=workers.value),
        "read_ahead": choose_read_ahead(dataset),
        "seed_globals": choose_seeding(request),
        "rank": Choice(ranks.rank, ranks.reason, "ranks"),
        "last_step": Choice(ranks.last_step, ranks.last_step_reason, "ranks"),
        "max_memory": _memory_choice(request, dataset, fitted),
    }
    is_estimated = dataset.planned_sample_bytes is not None
    return LoaderPlan(
        **{name: choice.value for name, choice in choices.items()},
        world_size=ranks.world_size,
        reasons=tuple((name, choices[name].reason) for name in _CHOICES),
        limits=tuple((name, choices[name].limit) for name in _CHOICES),
        estimate=estimate_memory(fitted.shape, facts, dataset) if is_estimated else None,
    )


def _sizes(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts, *, is_pinned: bool
) -> tuple[Choice[int], Choice[int | None], Fitted]:
    """Choose workers and batches in advance, as many as there is room for."""
    workers = choose_workers(request, facts, dataset)
    bounds = bounds_of(request, facts, dataset)

    def shape(number: int) -> Shape:
        """What is wanted with so many workers."""
        ahead = choose_prefetch(request, dataset, workers=number)
        return Shape(
            engine=request.engine,
            start_method=choose_start_method(request, facts, workers=number).value,
            num_workers=number,
            threads_per_worker=request.threads_per_worker or 1,
            prefetch_factor=ahead.value or 0,
            pin_memory=is_pinned,
            batch_size=dataset.batch_size or 1,
        )

    # More than usual, but only where all of them fit: less room never means more of anything.
    more = many_workers(request, facts, dataset)
    is_usual = workers.limit in ("rule", "CPUs")
    if more is not None and is_usual and fits(shape(more.value), bounds, memory_share=_TO_SPARE):
        workers = more
    fitted = fit(shape(workers.value), request, bounds, facts)
    prefetch = choose_prefetch(request, dataset, workers=fitted.shape.num_workers)
    return (
        _fitted_choice(workers, fitted.shape.num_workers, fitted),
        _fitted_choice(prefetch, fitted.shape.prefetch_factor or None, fitted),
        fitted,
    )


def _fitted_choice(wanted: Choice[Any], value: int | None, fitted: Fitted) -> Choice[Any]:
    """The choice after fitting: with what bound it, where it is less than wanted."""
    bound = fitted.bound
    if fitted.tight is not None and value is not None:
        tight = fitted.tight
        needs = tight.text(tight.need(fitted.shape))
        return Choice(value, f"{wanted.reason}; {tight.said}, and it may take {needs}", tight.name)
    if bound is None or value == wanted.value or value is None:
        return Choice(value, wanted.reason, wanted.limit)
    fit_text = f"{value} of {wanted.value} fit" if value else f"none of {wanted.value} fits"
    return Choice(value, f"{fit_text}: {bound.said}", bound.name)


def _memory_choice(
    request: LoaderRequest, dataset: DatasetFacts, fitted: Fitted
) -> Choice[int | None]:
    if request.max_memory is None:
        return Choice(None, "no limit was asked for")
    said = request.said("max_memory")
    size = dataset.planned_sample_bytes
    if size is None:
        return Choice(request.max_memory, f"{said}; what a sample takes is not known", "request")
    source = f", {dataset.source}" if dataset.source else ""
    count = counted(fitted.shape.batches if fitted.shape.num_workers else 3, "batch")
    reason = f"{said}; holds {count} of {decimal_size(size * fitted.shape.batch_size)}{source}"
    return Choice(request.max_memory, reason, "request")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
