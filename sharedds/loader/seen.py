"""What torch's iterators and workers see in place of the user's dataset and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate, get_worker_info

from sharedds.loader.batches import BatchTransform, collate_with_failures
from sharedds.loader.flight import InFlight
from sharedds.loader.heap import LeanStart
from sharedds.loader.samples import SampleReader
from sharedds.workers.buffers import keep_buffers
from sharedds.workers.loans import Loans

__all__ = ["LoaderView", "WorkerStart"]


class WorkerStart:
    """Runs first in each worker: shows it the user's dataset, then calls the user's function.

    Args:
        function: The user's ``worker_init_fn``, if there is one.
        loans: The table of buffers, if batches of worker processes travel in some that stay.
    """

    def __init__(self, function: Callable[[int], None] | None, loans: Loans | None = None) -> None:
        self.function = function
        self.loans = loans

    def __call__(self, worker_id: int) -> None:
        """Begin the work of a worker."""
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SampleReader):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch made it read-only
        if self.loans is not None:
            keep_buffers(self.loans, worker_id)
        if self.function is not None:
            self.function(worker_id)


class LoaderView:
    """A loader as torch's iterators shall see it: with our reader and our batches.

    Args:
        loader: A ``PlannedLoader``; what is not said here is its own.
        in_flight: The batches on their way.
        loans: The table of buffers, if batches travel in some that stay.
        sends: Whether batches are made in worker processes.
    """

    def __init__(
        self,
        loader: Any,
        in_flight: InFlight,
        loans: Loans | None = None,
        *,
        sends: bool = False,
    ) -> None:
        self._loader = loader
        self.in_flight = in_flight
        self.loans = loans
        transform = loader._batch_transform
        self.collate_fn = collate_with_failures(
            loader.collate_fn,
            BatchTransform(transform, loader._seeding) if transform is not None else None,
            sends=sends,
        )
        self.dataset = SampleReader(
            loader.dataset,
            seeding=loader._seeding,
            policy=loader._ledger.policy,
            collate_fn=self.collate_fn,
            pool=loader._stream.source.pool,
            is_whole=loader.batch_size is not None and loader.collate_fn is default_collate,
            threads=loader.plan.threads_per_worker,
            sends=sends,
        )
        self.policy = loader._ledger.policy
        self.seeding = loader._seeding
        start: Any = loader.worker_init_fn
        plan = loader.plan
        self.dataset.read_ahead = plan.read_ahead
        if plan.engine == "process" and loader._is_tight():
            start = LeanStart(start)
        self.worker_init_fn = WorkerStart(start, loans)
        self._index_sampler = loader._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
