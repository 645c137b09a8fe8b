"""Build the loader: look at the machine, plan, and carry the plan out."""

from __future__ import annotations

import hashlib
import multiprocessing
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from sharedds.errors import OptionError, SchemaError
from sharedds.loader.plan import LoaderFacts, LoaderPlan, LoaderRequest, make_plan
from sharedds.loader.worker import available_start_methods, start_context

__all__ = ["PlannedLoader", "build_loader"]

T = TypeVar("T")


class PlannedLoader(DataLoader[T]):
    """A ``torch.utils.data.DataLoader`` that knows why it is set up as it is.

    Attributes:
        plan: Every choice with its reason; print it.
    """

    plan: LoaderPlan

    def check_worker_number_rationality(self) -> None:
        """Do nothing: the plan has counted the CPUs and says so in its reasons."""


def build_loader(
    dataset: Dataset[T],
    *,
    batch_size: int | None = 1,
    shuffle: bool = False,
    seed: int = 0,
    num_workers: int | None = None,
    start_method: str | None = None,
    prefetch_factor: int | None = None,
    pin_memory: bool | None = None,
    persistent_workers: bool | None = None,
    drop_last: bool = False,
    collate_fn: Callable[[list[T]], Any] | None = None,
    sampler: Sampler[Any] | Iterable[Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    timeout: float = 0,
) -> PlannedLoader[T]:
    """Build a ``torch.utils.data.DataLoader`` planned for this machine.

    The dataset, ``collate_fn`` and ``worker_init_fn`` may be defined anywhere: in a module, in a
    notebook cell, in a script without a main guard, as a lambda or inside a function. Workers never
    run the main script. Each worker keeps to one thread and ends with this process.

    Args:
        dataset: Any map-style dataset: an object with ``__getitem__`` and ``__len__``.
        batch_size: Samples in a batch; None hands out single samples without collating.
        shuffle: Whether each epoch has an order of its own.
        seed: Any integer; decides the orders and the random state of the workers.
        num_workers: Worker processes; None lets the plan choose, 0 makes batches in this process.
        start_method: "forkserver", "spawn" or "fork"; None lets the plan choose.
        prefetch_factor: Batches that each worker prepares in advance.
        pin_memory: Whether to copy batches to pinned memory; None pins if there is an accelerator.
        persistent_workers: Whether workers stay for the next epoch.
        drop_last: Whether to leave out an incomplete last batch.
        collate_fn: Makes a batch of a list of samples; None for torch's default.
        sampler: Yields the indices of an epoch, instead of ``shuffle``.
        worker_init_fn: Called in each worker with its number, after its threads are limited.
        timeout: Seconds to wait for a batch from the workers; 0 waits for ever.

    Returns:
        The loader; ``print(loader.plan)`` shows every choice with its reason.

    Raises:
        OptionError: A value that makes no sense, or values that exclude each other.
        SchemaError: ``dataset`` is not a map-style dataset.
    """
    _check_dataset(dataset, sampler)
    batch_size = _checked_batch_size(batch_size, drop_last=drop_last)
    _check_exclusions(shuffle=shuffle, sampler=sampler, timeout=timeout, num_workers=num_workers)
    request = LoaderRequest(
        num_workers=num_workers,
        start_method=start_method,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
    )
    batches = _count_batches(dataset, sampler, batch_size, drop_last=drop_last)
    plan = make_plan(request, _observe(batches))
    if pin_memory and not plan.pin_memory:
        reason = dict(plan.reasons)["pin_memory"]
        warnings.warn(f"pin_memory=True has no effect here: {reason}", stacklevel=2)
    if shuffle and len(dataset) > 0:  # type: ignore[arg-type]
        sampler = RandomSampler(dataset, generator=_generator(seed, "order"))  # type: ignore[arg-type]
    loader: PlannedLoader[T] = PlannedLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=plan.num_workers,
        collate_fn=collate_fn,
        pin_memory=plan.pin_memory,
        drop_last=drop_last,
        timeout=timeout if plan.num_workers else 0,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=start_context(plan.start_method) if plan.start_method else None,
        # Not the generator of the order: starting workers would change the order that follows.
        generator=_generator(seed, "workers"),
        prefetch_factor=plan.prefetch_factor,
        persistent_workers=plan.persistent_workers,
    )
    loader.plan = plan
    return loader


# --- what the plan needs to know -----------------------------------------------------------------


def _observe(batches: int | None) -> LoaderFacts:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return LoaderFacts(
        cpus=_usable_cpus(),
        batches=batches,
        start_methods=available_start_methods(),
        accelerator=accelerator.type if accelerator is not None else None,
        cuda_initialized=torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        is_daemon=multiprocessing.current_process().daemon,
    )


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count_batches(
    dataset: object, sampler: object | None, batch_size: int | None, *, drop_last: bool
) -> int | None:
    counted = dataset if sampler is None else sampler
    if not isinstance(counted, Sized):
        return None
    samples = len(counted)
    if batch_size is None:
        return samples
    return samples // batch_size if drop_last else -(-samples // batch_size)


def _generator(seed: int, purpose: str) -> torch.Generator:
    """A generator of its own for each purpose, from any integer."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OptionError(f"seed={seed!r}: a whole number is expected")
    text = f"{operator.index(seed)} {purpose}".encode()
    folded = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    return torch.Generator().manual_seed(folded)


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


def _check_exclusions(
    *, shuffle: bool, sampler: object | None, timeout: float, num_workers: int | None
) -> None:
    if shuffle and sampler is not None:
        raise OptionError("shuffle=True and sampler both decide the order; leave out one of them")
    if not timeout >= 0:
        raise OptionError(f"timeout={timeout}: seconds, 0 or more, are expected (0: no limit)")
    if timeout and num_workers == 0:
        raise OptionError(f"timeout={timeout} needs workers, and num_workers=0 asks for none")
