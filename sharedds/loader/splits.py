"""Loaders for the splits of one dataset, whose labels must mean the same in all of them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from torch.utils.data import Dataset, Subset

from sharedds.errors import ClassMismatchError, OptionError
from sharedds.loader.build import build_loader
from sharedds.loader.planned import PlannedLoader

__all__ = ["build_loaders"]

_SHOWN = 8


def build_loaders(
    splits: Mapping[str, Dataset[Any]], *, shuffle: Collection[str] = ("train",), **options: Any
) -> dict[str, PlannedLoader[Any]]:
    """Build a loader for each split, once it is sure that all number their classes alike.

    Splits that were packed or scanned each for itself number the classes that they have: where one
    lacks a class, all later labels are shifted, and accuracy is wrong without a word. Here that is
    an error. A split that lacks classes is right where those it has keep their numbers, as with
    ``ImageDataset(..., classes=train)`` or ``sharedds pack --classes train.lmdb``.

    Args:
        splits: Datasets by name. Those with ``classes`` (names by number) are compared.
        shuffle: The names of those that are shuffled; names that are no split count for nothing.
        **options: As of :func:`~sharedds.build_loader`, for all of them.

    Raises:
        ClassMismatchError: Two splits give one class different numbers; the text has both maps.
        OptionError: As of :func:`~sharedds.build_loader`; or ``shuffle`` is no collection of names.

    Example:
        >>> loaders = build_loaders({"train": range(8), "val": range(4)}, num_workers=0)
        >>> [len(loader) for loader in loaders.values()]
        [8, 4]
    """
    if isinstance(shuffle, str | bool) or not isinstance(shuffle, Collection):
        raise OptionError(f"shuffle={shuffle!r}: the names of splits are expected, as ('train',)")
    numbered = {name: found for name in splits if (found := _numbers(splits[name])) is not None}
    for (one, first), (other, second) in itertools.combinations(numbered.items(), 2):
        if any(second.get(name, number) != number for name, number in first.items()):
            raise ClassMismatchError(
                f"{one!r} and {other!r} number their classes differently: {one} has "
                f"{_shown(first)}, {other} has {_shown(second)}; give the numbering of one to the "
                f"other, ImageDataset(..., classes={one}) or sharedds pack --classes {one}.lmdb"
            )
    return {
        name: build_loader(dataset, shuffle=name in shuffle, **options)
        for name, dataset in splits.items()
    }


def _numbers(dataset: Any) -> dict[str, int] | None:
    """The number of each class; None where the dataset has no names for them."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    classes = getattr(dataset, "classes", None)
    if not isinstance(classes, tuple | list) or not all(isinstance(name, str) for name in classes):
        return None
    return {name: number for number, name in enumerate(classes)}


def _shown(numbers: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name!r}: {number}" for name, number in [*numbers.items()][:_SHOWN])
    return "{" + shown + (", ..." if len(numbers) > _SHOWN else "") + "}"
