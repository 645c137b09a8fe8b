"""From the arguments of a loader to its plan: what is asked for, known and measured."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.utils.data import default_collate, default_convert

from sharedds.datasets.offers import batch_maker, reads_batches
from sharedds.errors import OptionError, SharedDSError
from sharedds.generators.seeding import GlobalSeeding
from sharedds.host.accelerator import torch_device
from sharedds.host.machine import Machine, look
from sharedds.loader.budget import Shape, parse_memory
from sharedds.loader.choices import with_engine
from sharedds.loader.facts import (
    beside_caches,
    cached_bytes,
    dataset_facts,
    fingerprint_of,
    held_by_processes,
    machine_facts,
    place_of,
    server_bytes,
)
from sharedds.loader.failures import ErrorPolicy
from sharedds.loader.fitting import overfull
from sharedds.loader.known import DatasetFacts, LoaderFacts, LoaderRequest, RankFacts
from sharedds.loader.plan import LoaderPlan, Planned, make_plan
from sharedds.loader.probe import Measured, probe
from sharedds.loader.samples import SampleReader
from sharedds.loader.seen import WorkerStart
from sharedds.loader.tuned import read_tuned, tuned_key, tuned_keys

if sys.platform != "win32":
    from multiprocessing import forkserver

__all__ = ["Arguments", "makes_whole_batches", "measure_samples", "plan_loader", "spread"]

_PROBED_BATCHES = 3
_GOLDEN = 0.6180339887498949
#: Taken from a given plan where the argument is not given.
_TAKEN = (
    *("num_workers", "threads_per_worker", "start_method", "prefetch_factor"),
    *("pin_memory", "persistent_workers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Arguments of ``build_loader`` that the plan is made from."""

    dataset: Any
    batch_size: int | None
    engine: str | None = None
    num_workers: int | None = None
    threads_per_worker: int | None = None
    start_method: str | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    seed_globals: str | None = None
    max_memory: float | str | None = None
    plan: LoaderPlan | Literal["tuned"] | None = None
    seed: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None


def plan_loader(asked: Arguments, *, batches: int | None, ranks: RankFacts) -> Planned:
    """Look at machine and dataset, measure what a memory limit needs to know, and plan.

    Args:
        asked: What the user asked for.
        batches: Batches of one epoch, None when unknown.
        ranks: Which part of each step this process takes.

    Raises:
        OptionError: A request that makes no sense, or that does not fit.
        SharedDSError: A limit was given, and the samples could not be measured.
    """
    given = asked.plan
    if given is not None and not isinstance(given, LoaderPlan) and given != "tuned":
        raise OptionError(f"plan={given!r}: a LoaderPlan or 'tuned' is expected")
    place = place_of(asked.dataset)
    machine = look(() if place is None else (place,))
    accelerator = torch_device()
    facts = machine_facts(
        machine,
        batches=batches,
        ranks=ranks,
        accelerator=accelerator.type if accelerator is not None else None,
    )
    facts = beside_caches(facts, asked.dataset)
    storage = machine.storage[0] if machine.storage else None
    known = dataset_facts(
        asked.dataset, batch_size=asked.batch_size or 1, place=place, storage=storage
    )
    known = _with_batches(known, asked)
    if given != "tuned":
        return _planned(_request(asked, given), asked, machine, facts, known)
    plan = _tuned(asked.dataset, machine)
    if plan is not None:
        try:
            request = _request(asked, plan, origin="as tuned")
            return _planned(request, asked, machine, facts, known)
        except OptionError as error:
            # If it is not the tuned plan that does not fit, it is raised below again.
            normal = _planned(_request(asked, None), asked, machine, facts, known)
            warnings.warn(f"plan='tuned' does not fit here: {error}", stacklevel=3)
            return normal
    return _planned(_request(asked, None), asked, machine, facts, known)


def measure_samples(
    asked: Arguments, *, method: str, seeding: GlobalSeeding | None = None
) -> Measured:
    """Load a few samples, spread over the dataset, in one worker process.

    Args:
        asked: The dataset and how its batches are made.
        method: How the worker starts.
        seeding: How the global generators are seeded.

    Raises:
        SharedDSError: The dataset is empty or has no length, cannot be sent, or fails.
    """
    size = asked.batch_size or 1
    if not isinstance(asked.dataset, Sized) or not len(asked.dataset):
        raise OptionError(
            f"samples of {type(asked.dataset).__name__} cannot be measured, since it has no length "
            "or is empty; give it an attribute sample_nbytes (bytes of one sample in a batch)"
        )
    is_batched = asked.batch_size is not None
    collate: Any = asked.collate_fn or (default_collate if is_batched else default_convert)
    if asked.batch_transform is not None:
        collate = _Changed(collate, asked.batch_transform)
    reader = SampleReader(
        asked.dataset,
        seeding=seeding if seeding is not None else GlobalSeeding("sample"),
        policy=ErrorPolicy(on_error="raise"),
        collate_fn=collate,
    )
    return probe(
        reader,
        method=method,
        numbers=spread(len(asked.dataset), _PROBED_BATCHES * size),
        batch_size=size,
        seed=asked.seed,
        collate_fn=collate,
        init_fn=WorkerStart(asked.worker_init_fn),
        is_batched=is_batched,
    )


@dataclass(frozen=True, slots=True)
class _Changed:
    """Collates, then changes the batch: what is measured is what is sent."""

    collate: Callable[[Any], Any]
    change: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Any:
        """Return the batch."""
        return self.change(self.collate(samples))


def spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` numbers below ``count``, spread evenly however early one stops."""
    found: dict[int, None] = {}
    for step in range(most * 2):
        if len(found) == min(most, count):
            break
        found.setdefault(int((step * _GOLDEN) % 1.0 * count))
    return list(found)


# --- what is asked for ---------------------------------------------------------------------------


def _request(
    asked: Arguments, given: LoaderPlan | None, *, origin: str = "as in the given plan"
) -> LoaderRequest:
    """Merge arguments with a given plan, whose choices count where there is no argument."""
    values: dict[str, Any] = {name: getattr(asked, name) for name in _TAKEN}
    engine, seeding = asked.engine, asked.seed_globals
    origins = []
    if given is not None:
        if engine is None and asked.start_method is None:
            engine = given.engine
            origins.append(("engine", origin))
        if seeding is None and origin != "as tuned":  # which decides on speed alone
            seeding = given.seed_globals
        for name in _TAKEN:
            if values[name] is None and (value := getattr(given, name)) is not None:
                values[name] = value
                origins.append((name, origin))
        if asked.num_workers == 0:  # of the plan, what needs workers is void
            values |= {
                name: getattr(asked, name) for name in ("prefetch_factor", "persistent_workers")
            }
        if engine != given.engine or asked.num_workers == 0:
            values["start_method"] = asked.start_method
        if engine != given.engine or (origin == "as tuned" and not _may_share(asked, given)):
            values["threads_per_worker"] = asked.threads_per_worker
    return LoaderRequest(
        **values,
        engine=engine if engine is not None else "process",
        seed_globals=seeding if seeding is not None else "sample",
        origins=tuple(origins),
    )


def _may_share(asked: Arguments, given: LoaderPlan) -> bool:
    """Whether the threads of a tuned plan fit what is asked for.

    They were found for so many workers, and for whole batches: code of the user that runs for each
    sample may not be safe for threads.
    """
    is_whole = makes_whole_batches(asked.dataset, asked.batch_size, asked.collate_fn)
    return is_whole and asked.num_workers in (None, given.num_workers)


def _tuned(dataset: Any, machine: Machine) -> LoaderPlan | None:
    """Return the tuned plan for a dataset on this machine; None, with a warning, without one."""
    fingerprint = fingerprint_of(dataset)
    try:
        key = tuned_key(fingerprint, machine)
        plan = read_tuned(key)
        others = tuned_keys(fingerprint) if plan is None else []
        also = f" (only for {'; '.join(map(repr, others))})" if others else ""
        problem = f"there is none for {key!r}{also}; `sharedds tune` makes one"
    except OptionError as error:
        plan, problem = None, str(error)
    if plan is None:
        warnings.warn(f"plan='tuned' has no effect: {problem}", stacklevel=4)
    return plan


# --- what is known and measured ------------------------------------------------------------------


def _planned(
    request: LoaderRequest,
    asked: Arguments,
    machine: Machine,
    facts: LoaderFacts,
    known: DatasetFacts,
) -> Planned:
    request = with_engine(request, known)
    limit: float | str | None = asked.max_memory
    if limit is None and isinstance(asked.plan, LoaderPlan) and asked.plan.max_memory is not None:
        limit = asked.plan.max_memory
        request = replace(
            request, origins=(*request.origins, ("max_memory", "as in the given plan"))
        )
    if limit is None:
        plan = make_plan(request, facts, known)
        _warn_if_overfull(plan, request, facts, known)
        is_open = plan.num_workers and request.prefetch_factor is None
        if not is_open or known.sample_bytes is not None:
            return Planned(plan)
        return Planned(plan, functools.partial(_with_size, plan, request, facts, known))
    facts = held_by_processes(facts)
    size = parse_memory(limit, machine, used=(facts.trainer_bytes or 0) + facts.other_bytes)
    facts = replace(facts, other_bytes=facts.other_bytes + cached_bytes(asked.dataset))
    request = replace(request, max_memory=size)
    # Refuses what cannot fit whatever the samples are, before any are loaded.
    plan = make_plan(request, facts, known)
    if known.sample_bytes is not None or facts.batches == 0:
        _warn_if_overfull(plan, request, facts, known)
        return Planned(plan)
    return Planned(_plan_by_measuring(request, asked, facts, known, plan))


def _with_size(
    plan: LoaderPlan,
    request: LoaderRequest,
    facts: LoaderFacts,
    known: DatasetFacts,
    sample_bytes: int,
) -> LoaderPlan:
    """The plan with as many batches in advance as suit the samples of the first one."""
    known = replace(known, sample_bytes=max(1, sample_bytes), source="of the first batch")
    try:
        better = make_plan(replace(request, num_workers=plan.num_workers), facts, known)
    except OptionError:  # too little room for what runs already: it stays as it is
        return plan
    reason = f"{dict(better.reasons)['prefetch_factor']} (seen in the first batch)"
    bound = dict(better.limits)["prefetch_factor"]
    return replace(
        plan,
        prefetch_factor=better.prefetch_factor,
        reasons=tuple((dict(plan.reasons) | {"prefetch_factor": reason}).items()),
        limits=tuple((dict(plan.limits) | {"prefetch_factor": bound}).items()),
    )


def makes_whole_batches(
    dataset: Any, batch_size: int | None, collate_fn: Callable[[list[Any]], Any] | None
) -> bool:
    """Whether a dataset makes the batches of a loader as a whole."""
    is_default = collate_fn is None or collate_fn is default_collate
    return batch_size is not None and is_default and batch_maker(dataset) is not None


def _with_batches(known: DatasetFacts, asked: Arguments) -> DatasetFacts:
    """Facts with how batches will be made."""
    is_whole = makes_whole_batches(asked.dataset, asked.batch_size, asked.collate_fn)
    if asked.batch_transform is not None:  # what comes out of it has a size of its own
        known = replace(known, sample_bytes=None, largest_sample_bytes=None)
    return replace(
        known,
        makes_batches=is_whole,
        reads_batches=reads_batches(asked.dataset),
        runs_user_code=not is_whole or asked.batch_transform is not None,
    )


def _warn_if_overfull(
    plan: LoaderPlan,
    request: LoaderRequest,
    facts: LoaderFacts,
    known: DatasetFacts,
    *,
    level: int = 5,
) -> None:
    """Say it where a plan needs more memory than is left, which only its reasons would tell."""
    shape = Shape(
        engine=plan.engine,
        start_method=plan.start_method,
        num_workers=plan.num_workers,
        threads_per_worker=plan.threads_per_worker,
        prefetch_factor=plan.prefetch_factor or 0,
        pin_memory=plan.pin_memory,
        batch_size=known.batch_size or 1,
    )
    if (problem := overfull(shape, request, facts, known)) is not None:
        warnings.warn(problem, stacklevel=level)


def _plan_by_measuring(
    request: LoaderRequest,
    asked: Arguments,
    facts: LoaderFacts,
    known: DatasetFacts,
    rough: LoaderPlan,
) -> LoaderPlan:
    if facts.is_daemon:
        raise OptionError(
            f"max_memory={asked.max_memory!r} needs the size of a sample, and this process is "
            "itself a worker, which may not start one that measures; give the dataset an attribute "
            "sample_nbytes (bytes of one sample in a batch)"
        )
    # Without worker processes, one that leaves no server behind.
    method = rough.start_method or "spawn"
    try:
        measured = measure_samples(
            asked, method=method, seeding=GlobalSeeding(request.seed_globals)
        )
        known = measured.added_to(known)
        if rough.start_method is None:
            known = replace(known, worker_bytes=None)
        elif method == "forkserver":
            facts = replace(facts, server_bytes=server_bytes())
        plan = make_plan(request, facts, known)
    except SharedDSError as error:
        if method == "forkserver" and not facts.is_server_running:
            _stop_server()
        if rough.start_method is None and "cannot be sent" in str(error):
            raise OptionError(
                f"max_memory={asked.max_memory!r} needs the size of a sample, which a worker "
                f"process measures, and {error}. Or give the dataset an attribute sample_nbytes "
                "(bytes of one sample in a batch)"
            ) from error
        raise
    if method == "forkserver" and not plan.num_workers and not facts.is_server_running:
        _stop_server()
    _warn_if_overfull(plan, request, facts, known, level=6)
    return plan


def _stop_server() -> None:
    """End the fork server, which nobody needs; the next worker would start it again."""
    server: Any = forkserver._forkserver
    if (stop := getattr(server, "_stop", None)) is not None:
        stop()
