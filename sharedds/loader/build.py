"""Build the loader: look at the machine, plan, and carry the plan out."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Sized
from os import PathLike
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from sharedds.errors import OptionError, SchemaError
from sharedds.generators.seeding import GlobalSeeding
from sharedds.loader.facts import fingerprint_of
from sharedds.loader.failures import ErrorPolicy
from sharedds.loader.known import RankFacts
from sharedds.loader.ledger import FailureLedger
from sharedds.loader.plan import LoaderPlan
from sharedds.loader.planned import PlannedLoader
from sharedds.loader.planning import Arguments, plan_loader
from sharedds.loader.ranking import Split, describe_last_step, describe_sampler, find_rank
from sharedds.loader.sampled import OrderSampler, SampledBatches
from sharedds.loader.stream import (
    OrderedBatches,
    Position,
    SampleStream,
)
from sharedds.order import Sampling, Sequential, Shuffled
from sharedds.order.keys import checked_seed
from sharedds.workers.starting import prepare_start, start_context

__all__ = ["build_loader"]

T = TypeVar("T")


def build_loader(
    dataset: Dataset[T],
    *,
    batch_size: int | None = 1,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    num_workers: int | None = None,
    threads_per_worker: int | None = None,
    engine: str | None = None,
    start_method: str | None = None,
    prefetch_factor: int | None = None,
    pin_memory: bool | None = None,
    persistent_workers: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    pad: bool | None = None,
    seed_globals: str | None = None,
    collate_fn: Callable[[list[T]], Any] | None = None,
    batch_transform: Callable[[Any], Any] | None = None,
    sampler: Sampling | Sampler[Any] | Iterable[Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    on_error: Literal["raise", "skip", "replace"] = "raise",
    error_budget: float | None = None,
    error_log: str | PathLike[str] | None = None,
    timeout: float | None = None,
    max_memory: float | str | None = None,
    plan: LoaderPlan | Literal["tuned"] | None = None,
) -> PlannedLoader[T]:
    """Build a ``torch.utils.data.DataLoader`` planned for this machine.

    Its batches are bit-identical for any number of workers, random transforms included, and after
    a resume (``loader.state_dict()``) at any batch, with whatever workers, batch size and ranks.
    Every ``iter(loader)`` begins the next epoch by itself; a dataset that has ``set_epoch`` is told
    which, in the workers.

    The dataset, ``collate_fn`` and ``worker_init_fn`` may be defined anywhere: in a module, in a
    notebook cell, in a script without a main guard, as a lambda or inside a function. Workers never
    run the main script. Each worker keeps to one thread and ends with this process.

    Args:
        dataset: Any map-style dataset: an object with ``__getitem__`` and ``__len__``.
        batch_size: Samples in a batch of one rank; None hands out single samples uncollated.
        shuffle: Whether each epoch has an order of its own.
        seed: Any integer; decides the orders and all random numbers of the samples.
        drop_last: Whether to leave out the samples that do not fill a batch of every rank.
        num_workers: Workers; None lets the plan choose, 0 makes batches in this process.
        threads_per_worker: Threads of each worker (without workers, of this process) that make the
            samples of one batch; they share its handles, so the dataset must be safe to read from
            several threads. None stands for 1.
        engine: What the workers are: "process", unless the plan says so, or "thread"; "auto" takes
            threads where the dataset makes whole batches and no code of yours runs in them.
        start_method: "forkserver", "spawn" or "fork"; None lets the plan choose.
        prefetch_factor: Batches that each worker prepares in advance.
        pin_memory: Whether to copy batches to pinned memory; None pins if there is an accelerator.
        persistent_workers: Whether workers stay for the next epoch.
        rank: Which of the ranks this is; None asks torch.distributed, or torchrun's environment.
        world_size: How many ranks train together; given with ``rank``.
        pad: Whether samples are repeated at the end of an epoch so that all ranks get equally many;
            None pads where a random order is split over several ranks. Without it every sample
            counts exactly once and ranks may differ by one batch.
        seed_globals: "sample", unless the plan says so, seeds ``random``, numpy and torch for each
            sample, "batch" for each batch (then batch size and ranks must stay the same at a
            resume), "off" leaves them as torch does: results then depend on the number of workers.
        collate_fn: Makes a batch of a list of samples; None for torch's default.
        batch_transform: Changes each batch once it is collated, where batches are made. The global
            generators are seeded from the key of the first sample of the batch, so what it draws
            depends on which samples share a batch: batch size and ranks must stay the same at a
            resume for the same numbers.
        sampler: Instead of ``shuffle``: a :class:`~sharedds.order.Sampling`, split over the ranks;
            or a torch sampler or other iterable of whole numbers, all of them for this rank.
        worker_init_fn: Called in each worker with its number, after its threads are limited.
        on_error: What to do with a sample that cannot be loaded: "raise", "skip" or "replace" (by
            another of the dataset; with a ``sampler``, by another of its batch).
        error_budget: How many of them at most: a count, or a share below 1.
        error_log: A file to note them in, as lines of JSON.
        timeout: Seconds to wait for a batch from the workers; 0 waits for ever.
        max_memory: What this process, its workers and all batches may take together: bytes, "8GiB",
            "8GB", or a share such as "50%" of what this process has and could take. Workers and
            batches in advance are planned within it. For that a few samples are loaded in a worker
            process, unless ``dataset.sample_nbytes`` tells the bytes of one.
        plan: A plan whose choices count where no argument is given; "tuned" takes the one that
            was found by measuring this dataset on this machine, if there is one.

    Returns:
        The loader; ``print(loader.plan)`` shows every choice with its reason.

    Raises:
        OptionError: A value that makes no sense, values that exclude each other, or a plan that
            does not fit; the text then names the nearest that does.
        SchemaError: ``dataset`` is not a map-style dataset.
        SharedDSError: With ``max_memory``: no sample could be loaded in a worker process.
    """
    _check_dataset(dataset, sampler)
    seed = checked_seed(seed)
    for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
        if not isinstance(value, bool | np.bool_):
            raise OptionError(f"{name}={value!r}: True or False is expected")
    drop_last = bool(drop_last)
    batch_size = _checked_batch_size(batch_size, drop_last=drop_last)
    _check_exclusions(shuffle=shuffle, sampler=sampler, timeout=timeout, num_workers=num_workers)
    if batch_size is None:
        _check_without_batches(batch_transform, threads_per_worker)
    policy = ErrorPolicy(on_error=on_error, budget=error_budget, log=error_log)
    own_rank = find_rank(rank, world_size)
    split: Split | None = None
    source: OrderedBatches | SampledBatches
    if sampler is None or isinstance(sampler, Sampling):
        sampling = sampler or _sampling(dataset, shuffle=shuffle)
        whole = OrderedBatches(
            sampling=sampling, batch_size=batch_size or 1, seed=seed, drop_last=drop_last
        )
        split = Split(whole, pad)
        source = split.over(own_rank)
        ranks = describe_last_step(own_rank, source)
    else:
        if rank is not None or pad is not None:
            raise OptionError(
                "rank, world_size and pad do not go with a sampler that yields indices: all of "
                "them are for this rank; let the sampler split them, or pass a Sampling"
            )
        source = SampledBatches(sampler, batch_size=batch_size or 1, seed=seed, drop_last=drop_last)
        ranks = describe_sampler(own_rank, sampler)
    stream = SampleStream(
        source,
        seed=seed,
        samples=len(dataset) if isinstance(dataset, Sized) else 0,
        fingerprint=functools.partial(fingerprint_of, dataset),
    )
    planned = plan_loader(
        Arguments(
            dataset=dataset,
            batch_size=batch_size,
            engine=engine,
            num_workers=num_workers,
            threads_per_worker=threads_per_worker,
            start_method=start_method,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            seed_globals=seed_globals,
            max_memory=max_memory,
            plan=plan,
            seed=seed,
            collate_fn=collate_fn,
            batch_transform=batch_transform,
            worker_init_fn=worker_init_fn,
        ),
        batches=source.length(Position(0, 0)),
        ranks=ranks,
    )
    made = planned.plan
    if pin_memory and not made.pin_memory:
        reason = dict(made.reasons)["pin_memory"]
        warnings.warn(f"pin_memory=True has no effect here: {reason}", stacklevel=2)
    if made.start_method is not None:
        prepare_start(made.start_method)
    indices: Any = OrderSampler(stream) if isinstance(source, OrderedBatches) else sampler
    loader: PlannedLoader[T] = PlannedLoader(
        dataset,
        batch_size=batch_size,
        sampler=indices,
        num_workers=made.num_workers,
        collate_fn=collate_fn,
        pin_memory=made.pin_memory,
        drop_last=drop_last,
        timeout=(timeout or 0) if made.num_workers else 0,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=start_context(made.start_method) if made.start_method else None,
        # torch would draw the seeds of workers from the global generator, and so change training.
        generator=torch.Generator(),
        prefetch_factor=made.prefetch_factor,
        persistent_workers=made.persistent_workers,
    )
    ledger = FailureLedger(policy, source.samples_of_rank(Position(0, 0)))
    return loader.set_up(
        planned=planned,
        stream=stream,
        seeding=GlobalSeeding(made.seed_globals),
        ledger=ledger,
        batch_transform=batch_transform,
        split=split if own_rank == RankFacts() else None,
    )


# --- the order -----------------------------------------------------------------------------------


def _sampling(dataset: Any, *, shuffle: bool) -> Sampling:
    count = len(dataset)
    return Shuffled(count) if shuffle else Sequential(count)


# --- checks --------------------------------------------------------------------------------------


def _check_dataset(dataset: object, sampler: object | None) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise SchemaError(
            f"{kind} is an IterableDataset; build_loader needs samples that can be asked for by "
            "number: a dataset with __getitem__ and __len__"
        )
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__getitems__"):
        raise SchemaError(f"dataset is a {kind} without __getitem__; build_loader cannot read it")
    if sampler is None and not isinstance(dataset, Sized):
        raise SchemaError(f"{kind} has no __len__: add it, or pass a sampler that has the indices")
    if sampler is not None and not isinstance(sampler, Sampling | Iterable):
        raise OptionError(f"sampler={sampler!r}: an iterable of indices or a Sampling is expected")


def _checked_batch_size(batch_size: int | None, *, drop_last: bool) -> int | None:
    if batch_size is None:
        if drop_last:
            raise OptionError("drop_last=True means nothing without batches (batch_size=None)")
        return None
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__"):
        raise OptionError(f"batch_size={batch_size!r}: a whole number or None is expected")
    if operator.index(batch_size) < 1:
        raise OptionError(f"batch_size={batch_size}: 1 or more is expected")
    return operator.index(batch_size)


def _check_without_batches(batch_transform: object, threads_per_worker: int | None) -> None:
    if batch_transform is not None:
        raise OptionError("batch_transform needs batches, and batch_size=None asks for none")
    if threads_per_worker not in (None, 1):
        raise OptionError(
            f"threads_per_worker={threads_per_worker}: threads share the samples of a batch, and "
            "batch_size=None asks for none"
        )


def _check_exclusions(
    *, shuffle: bool, sampler: object | None, timeout: float | None, num_workers: int | None
) -> None:
    if shuffle and sampler is not None:
        raise OptionError("shuffle=True and sampler both decide the order; leave out one of them")
    if timeout is not None and not (hasattr(timeout, "__float__") and timeout >= 0):
        raise OptionError(f"timeout={timeout}: seconds, 0 or more, are expected (0: no limit)")
    if timeout and num_workers == 0:
        raise OptionError(f"timeout={timeout} needs workers, and num_workers=0 asks for none")
