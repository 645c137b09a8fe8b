"""Finds out what a plan is made from: of the machine, of this process, of the dataset.

All of it is cheap and none of it loads a sample; for that see :mod:`sharedds.loader.probe`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sized
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import ConcatDataset, Subset

from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.lazy import LazyDataset
from sharedds.datasets.offers import caches_of
from sharedds.errors import OptionError
from sharedds.host.descriptors import DescriptorLimits
from sharedds.host.machine import Machine
from sharedds.host.starting import is_cuda_initialized
from sharedds.host.storage import Storage
from sharedds.loader.known import DatasetFacts, LoaderFacts, RankFacts
from sharedds.loader.tree import ProcessTree

__all__ = [
    "beside_caches",
    "cached_bytes",
    "dataset_facts",
    "fingerprint_of",
    "held_by_processes",
    "machine_facts",
    "place_of",
    "server_bytes",
]

#: Where there is no limit of open files, plans count with so many.
_MOST_DESCRIPTORS = 65_536


# --- the machine and this process ----------------------------------------------------------------


def machine_facts(
    machine: Machine, *, batches: int | None, ranks: RankFacts, accelerator: str | None
) -> LoaderFacts:
    """Return what a plan needs to know of the machine.

    Args:
        machine: The machine.
        batches: Batches of one epoch, None when unknown.
        ranks: Which part of each step this process takes.
        accelerator: Type of the accelerator in use, as torch names it.
    """
    room, limits = machine.shared_memory, machine.descriptors
    return LoaderFacts(
        cpus=machine.cpus.count,
        cpus_reason=machine.cpus.reason,
        batches=batches,
        start_methods=machine.start_methods.available,
        fork_hazards=machine.start_methods.fork_hazards,
        accelerator=accelerator,
        cuda_initialized=is_cuda_initialized(),
        is_daemon=machine.is_daemon,
        ranks=ranks,
        local_ranks=machine.local_ranks,
        memory_available=machine.memory.available,
        shared_memory_free=room.free if room is not None else None,
        descriptors=_descriptors(limits),
        descriptors_open=(limits.open or 0) if limits is not None else 0,
    )


def held_by_processes(facts: LoaderFacts) -> LoaderFacts:
    """Return facts with what this process, and those below it, hold now (5 ms for each).

    What the kernel can take back (pages of files) does not count.
    """
    trainer, other, has_server = 0, 0, False
    for use in ProcessTree().exact():
        held = use.irrevocable if use.irrevocable is not None else use.memory.uss or 0
        if use.role == "trainer":
            trainer = held
        elif use.role == "server":
            has_server = True
        else:
            other += held
    return replace(facts, trainer_bytes=trainer, other_bytes=other, is_server_running=has_server)


def beside_caches(facts: LoaderFacts, dataset: Any) -> LoaderFacts:
    """Return facts less the memory that caches of decoded samples will take as they are filled.

    A cache in a folder is shared by the ranks of this machine; others have one each.
    """
    coming = sum(
        (cache.capacity - cache.nbytes) * (1 if cache.folder is not None else facts.local_ranks)
        for cache in caches_of(dataset)
        if cache.in_memory
    )
    left, free = facts.memory_available, facts.shared_memory_free
    return replace(
        facts,
        memory_available=None if left is None else max(0, left - coming),
        shared_memory_free=None if free is None else max(0, free - coming),
    )


def cached_bytes(dataset: Any) -> int:
    """Return the memory that caches of decoded samples take once they are full."""
    return sum(cache.capacity for cache in caches_of(dataset) if cache.in_memory)


def server_bytes() -> int | None:
    """Return what the fork server holds that runs; None without one, or where it is not told.

    It has imported all libraries once it has started a worker, not before.
    """
    for use in ProcessTree().exact():
        if use.role == "server":
            return use.irrevocable
    return None


def _descriptors(limits: DescriptorLimits | None) -> int | None:
    if limits is None:
        return None
    return limits.reachable if limits.reachable is not None else _MOST_DESCRIPTORS


# --- the dataset ---------------------------------------------------------------------------------


def dataset_facts(
    dataset: Any, *, batch_size: int | None, place: str | None, storage: Storage | None
) -> DatasetFacts:
    """Return what a dataset tells of itself; nothing is loaded.

    A dataset may have ``sample_nbytes``, the bytes of a sample in a batch, and ``record_nbytes``,
    the bytes of one as it is stored: numbers, or methods that return one.

    Args:
        dataset: The user's dataset.
        batch_size: Samples in a batch; None without batches.
        place: What :func:`place_of` has found.
        storage: The kind of storage there.

    Raises:
        OptionError: What it tells is no number of bytes.
    """
    size = _told(dataset, "sample_nbytes")
    record = _told(dataset, "record_nbytes")
    samples = len(dataset) if isinstance(dataset, Sized) else None
    return DatasetFacts(
        samples=samples,
        batch_size=batch_size,
        sample_bytes=size,
        record_bytes=record if record is not None else _record_bytes(dataset, place),
        storage=storage,
        source="as the dataset says" if size is not None else "",
    )


def place_of(dataset: Any) -> str | None:
    """Return a path below which the samples lie; None if the dataset does not tell.

    Asked are, in this order, ``storage_path``, ``path`` and ``root`` of the dataset, and the first
    item or key if it is one of ours.
    """
    if isinstance(dataset, Subset):
        return place_of(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return place_of(dataset.datasets[0]) if dataset.datasets else None
    for name in ("storage_path", "path", "root"):
        path = _attribute(dataset, name)
        if isinstance(path, str | os.PathLike) and _exists(path):
            return os.fspath(path)
    if isinstance(dataset, IndexedDataset) and len(dataset):
        key: Any = None
        with contextlib.suppress(Exception):  # a subclass may have its own, which needs more
            key = dataset.item(0) if isinstance(dataset, LazyDataset) else dataset.key(0)
        if isinstance(key, str):
            # Rows of a file are called "rows.npy[7]".
            return next((path for path in (key, key.rpartition("[")[0]) if _exists(path)), None)
    return None


def fingerprint_of(dataset: Any) -> str:
    """Return what tells a dataset from others of its length; empty if it says nothing."""
    own = getattr(dataset, "fingerprint", None)
    if isinstance(own, str):
        return own
    if isinstance(dataset, Subset) and (inner := fingerprint_of(dataset.dataset)):
        numbers = np.asarray(dataset.indices, np.int64)
        return f"{inner}[{xxhash.xxh3_64_hexdigest(numbers.tobytes())}]"
    if isinstance(dataset, ConcatDataset):
        parts = [fingerprint_of(part) for part in dataset.datasets]
        return "+".join(parts) if all(parts) else ""
    return ""


def _told(dataset: Any, name: str) -> int | None:
    value = _attribute(dataset, name)
    value = value() if callable(value) else value
    if value is None:
        if isinstance(dataset, Subset):
            return _told(dataset.dataset, name)
        if isinstance(dataset, ConcatDataset):
            sizes = [_told(part, name) for part in dataset.datasets]
            known = [size for size in sizes if size is not None]
            return max(known) if known and len(known) == len(sizes) else None
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 0:
        raise OptionError(f"{type(dataset).__name__}.{name} is {value!r}: bytes are expected")
    return int(value.__index__())


def _record_bytes(dataset: Any, place: str | None) -> int | None:
    """What is stored for a sample, by the size of one file; None if that tells nothing."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if place is None or not os.path.isfile(place) or isinstance(dataset, ConcatDataset):
        return None
    size = os.stat(place).st_size
    if isinstance(dataset, LazyDataset):
        return size  # the file of the first sample
    count = len(dataset) if isinstance(dataset, Sized) else 0
    # Of an array in several files, the one that was found has some of the samples only.
    is_whole = not isinstance(dataset, IndexedDataset) or hasattr(dataset, "storage_path")
    return size // count if count and is_whole else None


def _attribute(dataset: Any, name: str) -> Any:
    """Return an attribute that a dataset may have; None also where asking for it fails."""
    try:
        return getattr(dataset, name, None)
    except Exception:  # a __getattr__ of its own that knows other names only
        return None


def _exists(path: Any) -> bool:
    try:
        return bool(path) and os.path.exists(path)
    except (TypeError, ValueError):
        return False
