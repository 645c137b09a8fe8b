"""From what was read for a batch to what is handed out: collated, changed, with what failed.

A reader hands on samples, or a batch that the dataset has made. After that the user's
``batch_transform`` may change it. It is seeded by the key of the first sample, so it draws the same
numbers whoever makes the batch, as long as the batch is the same.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate_int_fn, default_collate_fn_map

from sharedds.errors import WorkerError
from sharedds.generators.seeding import GlobalSeeding
from sharedds.loader.failures import Delivery, FailedSample, split_failures
from sharedds.order import Batch
from sharedds.workers.delivery import deliverable

__all__ = ["BatchTransform", "KeyedBatch", "WholeBatch", "collate_with_failures"]


_INTEGERS = {int}


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """A batch that the dataset has made: nothing is left to collate.

    Args:
        batch: What torch's ``default_collate`` would have made of its samples.
    """

    batch: Any


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """What was read for a batch, and what it was asked for as: a ``batch_transform`` follows.

    Args:
        read: A list of samples, or a WholeBatch.
        asked: The numbers and keys of the samples.
    """

    read: Any
    asked: Batch


class BatchTransform:
    """Calls the user's function of a batch, with the global generators seeded for that batch.

    Args:
        function: Called with the collated batch; what it returns is handed out.
        seeding: Unless it is off, ``random``, NumPy and torch are seeded.
    """

    def __init__(self, function: Callable[[Any], Any], seeding: GlobalSeeding) -> None:
        self.function = function
        self.seeding = seeding

    def __call__(self, batch: Any, asked: Batch) -> Any:
        """Return what the function makes of a batch.

        Raises:
            WorkerError: It raised StopIteration.
            Exception: What else it raised, with a note that names the samples.
        """
        if self.seeding:
            self.seeding.seed(asked.key(0), "batch")
        numbers = reprlib.repr(asked.indices.tolist())
        try:
            return self.function(batch)
        except StopIteration as error:
            raise WorkerError(
                f"batch_transform raised StopIteration at the batch of samples {numbers}, which "
                "would look like the end of the epoch; give next() a default there"
            ) from error
        except Exception as error:
            error.add_note(
                f"while batch_transform changed the batch of samples {numbers} of epoch "
                f"{asked.epoch}"
            )
            raise


class _Collate:
    """Collates what is left of a batch, and sends the failures along."""

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        batch_transform: BatchTransform | None,
        *,
        sends: bool,
    ) -> None:
        self.collate_fn = collate_fn
        self.batch_transform = batch_transform
        self.sends = sends

    def __call__(self, read: Any, kinds: set[type] | None = None) -> Any:
        asked = None
        if type(read) is KeyedBatch:
            read, asked = read.read, read.asked
        failures: tuple[FailedSample, ...] = ()
        if type(read) is WholeBatch:
            batch = read.batch
        else:
            is_batch = isinstance(read, list)
            items = read if is_batch else [read]
            if kinds is None:  # else none has failed
                items, failures = split_failures(items)
            if not items or any(failed.is_final for failed in failures):
                return Delivery(None, failures, is_empty=True)
            if kinds == _INTEGERS and self.collate_fn is default_collate:
                batch = _numbers(items)
            else:
                batch = self._collated(items if is_batch else items[0])
        if self.batch_transform is not None and asked is not None:
            batch = self.batch_transform(batch, asked)
        if self.sends:
            batch = deliverable(batch)
        return Delivery(batch, failures) if failures else batch

    def _collated(self, samples: Any) -> Any:
        try:
            return self.collate_fn(samples)
        except StopIteration as error:
            raise WorkerError(
                "collate_fn raised StopIteration, which would look like the end of the epoch; give "
                "next() a default there"
            ) from error


def _numbers(items: list[int]) -> Any:
    """As torch's ``default_collate`` of whole numbers, in a quarter of the time."""
    if default_collate_fn_map.get(int) is collate_int_fn:
        batch = torch.empty(len(items), dtype=torch.int64)
        with contextlib.suppress(OverflowError):
            if batch.is_cpu:  # else another device is the default
                batch.numpy()[:] = items
                return batch
    return default_collate(items)


def collate_with_failures(
    collate_fn: Callable[[Any], Any],
    batch_transform: BatchTransform | None = None,
    *,
    sends: bool = False,
) -> Callable[[Any], Any]:
    """Wrap a ``collate_fn``: what failed travels with the batch, which fits where it has to go.

    The function returned takes a list of samples (with the types that occur among them, where it is
    known that none has failed), or one sample, in which ``ErrorPolicy.failed``
    has left its records; or a :class:`WholeBatch`; or a :class:`KeyedBatch` of either. It returns
    the batch, or a :class:`~sharedds.loader.failures.Delivery`, or, where it is sent, what
    :func:`~sharedds.workers.delivery.deliverable` makes of it. It can be pickled if both functions
    can.

    Args:
        collate_fn: Makes a batch of samples.
        batch_transform: Changes the batch.
        sends: Whether batches are made in a worker process, for its trainer. A loader without
            workers of its own that is iterated in such a process hands out batches as they are.
    """
    return _Collate(collate_fn, batch_transform, sends=sends)
