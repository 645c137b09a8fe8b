"""What a dataset offers beyond single samples: whole batches, advice before a read, its epoch.

Wrappers of torch (``Subset``, ``ConcatDataset``) are looked through.

A dataset that makes whole batches has ``makes_batches`` (True unless code of the user runs for
each sample) and ``load_batch(indices, empty)``. That returns what torch's ``default_collate`` would
make of ``[dataset[i] for i in indices]``, equal to the bit. ``empty(shape, dtype)`` gives memory
for it, uninitialised: what is written there is copied no more, however it travels. The keys of the
samples are in hand, and the loader has advised them. What is made of one sample depends on no
other, so that several threads can each make a range of a batch.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset

from sharedds.cache import DecodedCache

__all__ = [
    "Empty",
    "LoadBatch",
    "adviser",
    "batch_maker",
    "caches_of",
    "reads_batches",
    "tell_epoch",
]

Integers = npt.NDArray[np.int64]


class Empty(Protocol):
    """Gives memory for a batch."""

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
    ) -> torch.Tensor:
        """Return a tensor that is not initialised; (N, C, H, W) for ``channels_last``."""
        ...


LoadBatch = Callable[[Sequence[int], Empty], Any]


def reads_batches(dataset: Any) -> bool:
    """Whether a whole batch is best asked for at once."""
    says = _attribute(dataset, "reads_batches")
    if isinstance(says, bool):
        return says
    if isinstance(dataset, Subset):
        # Its __getitems__ may well load one by one, but then no sample would have its own key.
        own = type(dataset).__getitem__ is not Subset.__getitem__
        return not own and reads_batches(dataset.dataset)
    if _attribute(dataset, "advise") is not None:
        return False
    return bool(_attribute(dataset, "__getitems__"))


def _attribute(dataset: Any, name: str) -> Any:
    """An attribute that a dataset may have; None also where asking for it fails."""
    try:
        return getattr(dataset, name, None)
    except Exception:  # a __getattr__ of its own that knows other names only
        return None


def batch_maker(dataset: Any) -> LoadBatch | None:
    """Return what makes whole batches of a dataset; None where samples are made one by one.

    A class that has a ``__getitem__`` of its own on top of a ``load_batch`` that it inherits, or
    that passes on whatever else is asked of it, makes no batches: they would go past its code.
    """
    kind = type(dataset)
    if isinstance(dataset, Subset):
        is_plain = (
            kind.__getitem__ is Subset.__getitem__ and kind.__getitems__ is Subset.__getitems__
        )
        inner = batch_maker(dataset.dataset) if is_plain else None
        return _SubsetMaker(inner, dataset.indices) if inner is not None else None
    for owner in kind.__mro__:
        if "load_batch" in vars(owner):
            return dataset.load_batch if _attribute(dataset, "makes_batches") is True else None
        if "__getitem__" in vars(owner) or "__getitems__" in vars(owner):
            return None
    return None


class _SubsetMaker:
    def __init__(self, inner: LoadBatch, indices: Sequence[int]) -> None:
        self.inner = inner
        self.indices = indices

    def __call__(self, indices: Sequence[int], empty: Empty) -> Any:
        return self.inner([self.indices[i] for i in indices], empty)


def adviser(dataset: Any) -> Callable[[Integers], object] | None:
    """What to call with the indices of a batch before any of them is read."""
    advise = _attribute(dataset, "advise")
    if callable(advise):
        return advise  # type: ignore[no-any-return]
    if isinstance(dataset, Subset) and (inner := adviser(dataset.dataset)) is not None:
        return _SubsetAdviser(inner, dataset.indices)
    if isinstance(dataset, ConcatDataset):
        parts = [adviser(part) for part in dataset.datasets]
        if any(part is not None for part in parts):
            return _ConcatAdviser(parts, dataset.cumulative_sizes)
    return None


class _SubsetAdviser:
    def __init__(self, inner: Callable[[Integers], object], indices: Sequence[int]) -> None:
        self.inner = inner
        self.indices = indices

    def __call__(self, indices: Integers) -> None:
        self.inner(np.array([self.indices[i] for i in indices.tolist()], np.int64))


class _ConcatAdviser:
    def __init__(
        self, parts: Sequence[Callable[[Integers], object] | None], ends: Sequence[int]
    ) -> None:
        self.parts = parts
        self.ends = ends

    def __call__(self, indices: Integers) -> None:
        of_part: dict[int, list[int]] = {}
        for index in indices.tolist():
            part = bisect.bisect_right(self.ends, index)
            begin = self.ends[part - 1] if part else 0
            of_part.setdefault(part, []).append(index - begin)
        for part, own in of_part.items():
            if (advise := self.parts[part]) is not None:
                advise(np.array(own, np.int64))


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset that wants to know, also one that others wrap."""
    set_epoch = getattr(dataset, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    elif isinstance(dataset, Subset):
        tell_epoch(dataset.dataset, epoch)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            tell_epoch(part, epoch)


def caches_of(dataset: Any) -> list[DecodedCache]:
    """The caches of decoded samples that a dataset has as its ``cache``, each of them once.

    Subsets and joins, of torch and of this package, have those of what they are made from.
    """
    cache = _attribute(dataset, "cache")
    if isinstance(cache, DecodedCache):
        return [cache]
    if isinstance(dataset, Subset):
        return caches_of(dataset.dataset)
    parts = _attribute(dataset, "datasets")
    if not isinstance(parts, list | tuple):
        return []
    found = [cache for part in parts for cache in caches_of(part)]
    return list({id(cache): cache for cache in found}.values())
