"""The common template of fast PyTorch training loops, as one call."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

from torch.utils.data import Dataset

from sharedds.loader.build import build_loader
from sharedds.loader.planned import PlannedLoader

__all__ = ["OptimizedDataLoader"]

T = TypeVar("T")


class OptimizedDataLoader:
    """Makes training loaders with the settings that most training scripts copy."""

    @staticmethod
    def create(
        dataset: Dataset[T],
        batch_size: int = 32,
        shuffle: bool = True,
        drop_last: bool = True,
        pin_memory: bool = True,
        persistent_workers: bool = True,
        **more: Any,
    ) -> PlannedLoader[T]:
        """Return a loader for training: shuffled, whole batches, pinned, with workers that stay.

        What a machine cannot do is left out without a word, so that one script fits all: memory is
        pinned only where there is an accelerator to copy to, and workers stay only where the plan
        has any. ``print(loader.plan)`` says what was decided, and why.

        Args:
            dataset: Any map-style dataset.
            batch_size: Samples in a batch of one rank.
            shuffle: Whether each epoch has an order of its own.
            drop_last: Whether to leave out the samples that do not fill a batch of every rank.
            pin_memory: Whether to copy batches to pinned memory where that helps.
            persistent_workers: Whether workers stay for the next epoch.
            **more: Any other option of :func:`~sharedds.loader.build_loader`.

        Raises:
            OptionError: A value that makes no sense, or values that exclude each other.
            SchemaError: ``dataset`` is not a map-style dataset.

        Example:
            >>> loader = OptimizedDataLoader.create(range(100), num_workers=0)
            >>> len(loader), len(next(iter(loader)))
            (3, 32)
        """
        if more.get("num_workers") == 0:
            persistent_workers = False
        if more.get("sampler") is not None:
            shuffle = False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pin_memory=True has no effect")
            return build_loader(
                dataset,
                batch_size=batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                pin_memory=pin_memory,
                persistent_workers=persistent_workers,
                **more,
            )
