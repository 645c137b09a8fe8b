"""What a dataset offers beyond single samples: whole batches, advice before a read, its epoch.

Wrappers of torch (``Subset``, ``ConcatDataset``) are looked through.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, Subset

__all__ = ["adviser", "reads_batches", "tell_epoch"]

Integers = npt.NDArray[np.int64]


def reads_batches(dataset: Any) -> bool:
    """Whether a whole batch is best asked for at once."""
    says = getattr(dataset, "reads_batches", None)
    if isinstance(says, bool):
        return says
    if isinstance(dataset, Subset):
        # Its __getitems__ may well load one by one, but then no sample would have its own key.
        own = type(dataset).__getitem__ is not Subset.__getitem__
        return not own and reads_batches(dataset.dataset)
    if getattr(dataset, "advise", None) is not None:
        return False
    return bool(getattr(dataset, "__getitems__", None))


def adviser(dataset: Any) -> Callable[[Integers], object] | None:
    """What to call with the indices of a batch before any of them is read."""
    advise = getattr(dataset, "advise", None)
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
