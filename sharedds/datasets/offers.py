"""What a dataset offers beyond single samples: whole batches, advice before a read, its epoch.

Wrappers of torch (``Subset``, ``ConcatDataset``) are looked through.

A dataset that makes whole batches has ``makes_batches`` (True unless code of the user runs for
each sample) and ``load_batch(indices, empty)``. That returns what torch's ``default_collate`` would
make of ``[dataset[i] for i in indices]``, equal to the bit. ``empty(shape, dtype)`` gives memory
for it, uninitialised: what is written there is copied no more, however it travels. The keys of the
samples are in hand, and the loader has advised them. What is made of one sample depends on no
other, so that several threads can each make a range of a batch.

Datasets that are joined make whole batches where each part does and they are alike, which a part
tells by its ``batch_form``: a value that is equal where batches have the same structure, shapes
(but for the number of samples) and dtypes; None where that is not known.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, Subset

from sharedds.cache import DecodedCache
from sharedds.datasets.randomness import keys_of_batch, making_rows
from sharedds.datasets.rows import BatchMemory, Empty, UnevenError, joined
from sharedds.errors import SchemaError
from sharedds.order import using_keys

__all__ = [
    "Empty",
    "JoinedMaker",
    "LoadBatch",
    "adviser",
    "are_alike",
    "batch_form",
    "batch_maker",
    "caches_of",
    "form_of_all",
    "reads_batches",
    "tell_end",
    "tell_epoch",
]

Integers = npt.NDArray[np.int64]


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
    if isinstance(dataset, ConcatDataset):
        is_plain = kind.__getitem__ is ConcatDataset.__getitem__ and not hasattr(
            kind, "__getitems__"
        )
        makes = is_plain and are_alike(dataset.datasets)
        return JoinedMaker(dataset.datasets, dataset.cumulative_sizes) if makes else None
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


def batch_form(dataset: Any) -> Hashable | None:
    """Return what whole batches of a dataset look like; equal for those that may be mixed."""
    if isinstance(dataset, Subset):
        return batch_form(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return form_of_all(dataset.datasets)
    form: Hashable | None = _attribute(dataset, "batch_form")
    return form


def form_of_all(parts: Sequence[Any]) -> Hashable | None:
    """Return the form that whole batches of several datasets have; None where it is not one."""
    forms = {batch_form(part) for part in parts if len(part)}
    return forms.pop() if len(forms) == 1 else None


def are_alike(parts: Sequence[Any]) -> bool:
    """Whether datasets, one after another, make whole batches, also such as mix them."""
    used = [part for part in parts if len(part)]
    if not used or any(batch_maker(part) is None for part in used):
        return False
    return len(used) == 1 or form_of_all(used) is not None


class JoinedMaker:
    """Makes whole batches of datasets, one after another.

    A batch that mixes them is filled run by run, each run being neighbours that lie in one dataset.
    All of them get their rows of one memory.

    Args:
        parts: The datasets.
        ends: Where each ends, in the numbers of all.
    """

    def __init__(self, parts: Sequence[Any], ends: Sequence[int]) -> None:
        self._parts = parts
        self._ends = ends
        self._makers: dict[int, LoadBatch] = {}

    def __call__(self, indices: Sequence[int], empty: Empty) -> Any:
        """Return the batch of some samples.

        Raises:
            SchemaError: A part makes no whole batches, or others than the rest.
            Exception: Whatever a part raises.
        """
        runs = self._runs(indices)
        if len(runs) == 1:
            [(part, numbers, _)] = runs
            return self._maker(part)(numbers, empty)
        keys = keys_of_batch(len(indices))
        memory = BatchMemory(empty, len(indices))
        made = []
        try:
            for part, numbers, own in runs:
                in_hand = contextlib.nullcontext() if keys is None else using_keys(keys[own])
                with in_hand, making_rows(own, len(indices)):
                    made.append(self._maker(part)(numbers, memory.of(own)))
            return joined(made, [own for _, _, own in runs], memory)
        except UnevenError as error:
            names = sorted({type(self._parts[part]).__name__ for part, _, _ in runs})
            raise SchemaError(
                f"whole batches of datasets that are joined ({', '.join(names)}) do not fit "
                "together: their batch_form is equal, but not the shapes, dtypes or structure"
            ) from error

    def _runs(self, indices: Sequence[int]) -> list[tuple[int, list[int], slice]]:
        """Return part, numbers in the part and place in the batch of each run."""
        runs: list[tuple[int, list[int], slice]] = []
        for place, index in enumerate(indices):
            part = bisect.bisect_right(self._ends, index)
            number = index - (self._ends[part - 1] if part else 0)
            if runs and runs[-1][0] == part:
                _, numbers, own = runs[-1]
                numbers.append(number)
                runs[-1] = part, numbers, slice(own.start, place + 1)
            else:
                runs.append((part, [number], slice(place, place + 1)))
        return runs

    def _maker(self, part: int) -> LoadBatch:
        if part not in self._makers:
            maker = batch_maker(self._parts[part])
            if maker is None:
                name = type(self._parts[part]).__name__
                raise SchemaError(f"{name}, which is joined with others, makes no whole batches")
            self._makers[part] = maker
        return self._makers[part]


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


def tell_end(dataset: Any, epoch: int) -> None:
    """Tell a dataset that an epoch was handed out to its end, also one that others wrap.

    The process that trains does, once an epoch; what workers have seen the dataset has to know by
    itself.
    """
    end_epoch = _attribute(dataset, "end_epoch")
    if callable(end_epoch):
        end_epoch(epoch)
    elif isinstance(dataset, Subset):
        tell_end(dataset.dataset, epoch)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            tell_end(part, epoch)


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
