"""What all datasets here share: numbered samples; subsets, splits and joins that copy nothing."""

from __future__ import annotations

import bisect
import copy
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, Self, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset, IterableDataset

from sharedds.datasets.offers import (
    Empty,
    JoinedMaker,
    are_alike,
    form_of_all,
    reads_batches,
    tell_end,
    tell_epoch,
)
from sharedds.datasets.randomness import (
    batch_generators,
    keys_of_batch,
    making_sample,
    sample_generator,
    with_keys,
)
from sharedds.datasets.splitting import group_numbers, random_parts, random_parts_of_groups
from sharedds.errors import OptionError, SampleIndexError, SchemaError
from sharedds.order import using_keys
from sharedds.packed import MappedArray

__all__ = ["ConcatDataset", "IndexedDataset", "checked_batch", "concat"]

T = TypeVar("T")


class IndexedDataset(Dataset[T], Generic[T]):
    """Samples by number. A subset keeps the numbers it stands for in one mapped file."""

    _rows: MappedArray | None = None  # the samples of a subset; None stands for all
    _rows_digest = ""

    def _count(self) -> int:
        """Return how many samples there are in all, apart from subsets."""
        raise SchemaError(f"{type(self).__name__} does not say how many samples it has")

    def _content(self) -> str:
        """Return what changes when the samples do, apart from subsets."""
        return ""

    def __getitem__(self, index: SupportsIndex) -> T:
        """Return sample ``index``."""
        raise SchemaError(f"{type(self).__name__} has no way to read a sample")

    def __len__(self) -> int:
        return self._count() if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[T]:
        # Without this, Python would take an IndexError out of a sample for the end of the dataset.
        return (self[i] for i in range(len(self)))

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:  # type: ignore[override]
        return ConcatDataset(self, other)

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the sample being made, for ``load``, transforms and the like.

        Under :func:`sharedds.build_loader` its stream belongs to (seed, epoch, index): the same
        for any number of workers, another one in each epoch. Elsewhere it is seeded by torch's
        global generator, anew for each sample.
        """
        return sample_generator()

    @property
    def rngs(self) -> list[np.random.Generator]:
        """One generator for each of the samples being made, for ``load_many``."""
        return batch_generators()

    @property
    def reads_batches(self) -> bool:
        """Whether ``__getitems__`` does more than ``advise`` and then one sample after another."""
        return False

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Tell the storage which samples are read next; where it helps, they are fetched at once.

        Nothing is waited for, and nothing fails here that does not fail when it is read.
        """

    def key(self, index: SupportsIndex) -> str:
        """Return the name of a sample, for messages; its number where it has none."""
        return str(self._position(index))

    @property
    def fingerprint(self) -> str:
        """Class, number of samples and a hash of what they are, which costs nothing to ask for.

        Equal in all processes and after pickling. It is that of the index: the paths and not what
        the files hold. Of a subset, its numbers belong to it.
        """
        content = xxhash.xxh3_64_hexdigest(f"{self._content()} {self._rows_digest}".encode())
        return f"{type(self).__qualname__}:{len(self)}:{content}"

    def _position(self, index: SupportsIndex) -> int:
        """Return the number of a sample among all, apart from subsets."""
        count = len(self)
        if type(index) is int and 0 <= index < count and self._rows is None:
            return index
        try:
            number = operator.index(index)
        except TypeError:
            kind = type(index).__name__
            raise SchemaError(
                f"an index must be a whole number, not {kind}; subset() takes several at once"
            ) from None
        position = number + count if number < 0 else number
        if not 0 <= position < count:
            name = type(self).__name__
            raise SampleIndexError(
                f"{name} has {count} samples, there is no sample {number}", sample=number
            )
        return position if self._rows is None else int(self._rows.array[position])

    def subset(self, indices: Iterable[SupportsIndex]) -> Self:
        """Return a dataset of these samples, in this order; nothing but the indices is copied.

        Raises:
            SampleIndexError: There is no such sample.
            SchemaError: An index is not a whole number.
        """
        count = len(self)
        rows = _whole_numbers(indices)
        wrong = rows[(rows < -count) | (rows >= count)]
        if wrong.size:
            name = type(self).__name__
            raise SampleIndexError(
                f"{name} has {count} samples, there is no sample {wrong[0]}", sample=int(wrong[0])
            )
        rows = np.where(rows < 0, rows + count, rows)
        if self._rows is not None:
            rows = self._rows.array[rows]
        part = copy.copy(self)
        part._rows = MappedArray.build(rows)
        part._rows_digest = xxhash.xxh3_128_hexdigest(rows.tobytes())
        return part

    def split(
        self,
        fractions: Sequence[float],
        seed: int = 0,
        groups: Iterable[Any] | Callable[[Any], Any] | None = None,
    ) -> tuple[Self, ...]:
        """Split at random into disjoint datasets, each in the order of this one.

        The same seed gives the same split on every machine and with every version of NumPy.

        Args:
            fractions: The share of each part, such as ``(0.8, 0.2)``; what is missing to 1 is
                left out.
            seed: Any integer.
            groups: What must stay together, such as the patient: one hashable value for each
                sample, or a function of its item (of its key where there are no items). No group
                is in two parts; the shares are those of samples, met as closely as groups allow
                that are handed out in an order by chance. No part with a share stays empty.

        Raises:
            OptionError: A negative share, more than 1 together, not one group for each sample, or
                fewer groups than parts that have a share.
            SchemaError: A group that equals no other, such as NaN.
        """
        if groups is None:
            parts = random_parts(len(self), fractions, seed)
        else:
            if callable(groups):
                groups = map(groups, map(self._named, range(len(self))))
            numbers = group_numbers(groups, len(self))
            parts = random_parts_of_groups(numbers, fractions, seed)
        return tuple(self.subset(rows) for rows in parts)

    def _named(self, index: int) -> Any:
        """Return what a function of ``split`` is given for a sample."""
        return self.key(index)


def _whole_numbers(indices: Iterable[SupportsIndex]) -> npt.NDArray[np.int64]:
    try:
        if isinstance(indices, np.ndarray):
            if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
                raise SchemaError(
                    f"indices must be whole numbers in one dimension, not {indices.dtype} "
                    f"{indices.shape}; np.flatnonzero makes numbers of a mask"
                )
            return indices.astype(np.int64)
        return np.fromiter((_whole_number(i) for i in indices), np.int64)
    except (TypeError, OverflowError) as error:
        raise SchemaError(f"indices must be whole numbers ({error})") from error


def _whole_number(index: SupportsIndex) -> int:
    # A mask would be read as samples 1, 0, 0, ...
    if isinstance(index, bool) or getattr(index, "dtype", None) == torch.bool:
        raise TypeError("they are True or False; np.flatnonzero makes numbers of a mask")
    return operator.index(index)


class ConcatDataset(IndexedDataset[T]):
    """Several datasets, one after another; no index is copied. Also made by ``a + b``.

    Args:
        datasets: Map-style datasets, of this package or any other.

    Attributes:
        datasets: The same; one that is a join itself is replaced by what it joins.

    Raises:
        OptionError: No dataset at all.
        SchemaError: One has no ``__len__`` or no ``__getitem__``.
    """

    def __init__(self, *datasets: Dataset[T]) -> None:
        parts: list[Any] = []
        for part in datasets:
            if type(part) is ConcatDataset and part._rows is None:
                parts += part.datasets
            else:
                parts.append(part)
        if not parts:
            raise OptionError("there is nothing to join; pass one dataset or more")
        for part in parts:
            map_style = hasattr(part, "__getitem__") and hasattr(part, "__len__")
            if not map_style or isinstance(part, IterableDataset):
                name = type(part).__name__
                raise SchemaError(f"{name} has no numbered samples (__getitem__ and __len__)")
        self.datasets: tuple[Any, ...] = tuple(parts)
        self._ends = list(itertools.accumulate(map(len, parts)))

    def _count(self) -> int:
        return self._ends[-1]

    def _content(self) -> str:
        return " ".join(
            str(getattr(part, "fingerprint", f"{type(part).__qualname__}:{len(part)}"))
            for part in self.datasets
        )

    def _locate(self, index: SupportsIndex) -> tuple[int, int]:
        """Return which part a sample lies in, and its number there."""
        position = self._position(index)
        part = bisect.bisect_right(self._ends, position)
        return part, position - (self._ends[part - 1] if part else 0)

    def _by_part(self, indices: Sequence[SupportsIndex]) -> dict[int, tuple[list[int], list[int]]]:
        """Return, for each part concerned, places among ``indices`` and numbers in the part."""
        found: dict[int, tuple[list[int], list[int]]] = {}
        for place, index in enumerate(indices):
            part, number = self._locate(index)
            places, numbers = found.setdefault(part, ([], []))
            places.append(place)
            numbers.append(number)
        return found

    def __getitem__(self, index: SupportsIndex) -> T:
        """Return sample ``index``: that of the dataset it lies in."""
        part, number = self._locate(index)
        with making_sample():
            sample: T = self.datasets[part][number]
        return sample

    @property
    def __getitems__(self) -> Callable[[Sequence[SupportsIndex]], list[T]] | None:
        """Reads several samples at once; None where no part can do that."""
        if any(getattr(part, "__getitems__", None) for part in self.datasets):
            return self._read_batch
        return None

    @property
    def reads_batches(self) -> bool:
        """Whether a part gains by reading several samples at once."""
        return any(reads_batches(part) for part in self.datasets)

    def _read_batch(self, indices: Sequence[SupportsIndex]) -> list[T]:
        keys = keys_of_batch(len(indices))
        contexts = with_keys(len(indices))
        samples: list[Any] = [None] * len(indices)
        self.advise(indices)
        for number, (places, numbers) in self._by_part(indices).items():
            part = self.datasets[number]
            if not reads_batches(part):
                for place, at in zip(places, numbers, strict=True):
                    with contexts[place]:
                        samples[place] = part[at]
                continue
            if keys is None:
                read = part.__getitems__(numbers)
            else:
                with using_keys([keys[place] for place in places]):
                    read = part.__getitems__(numbers)
            for place, sample in zip(places, checked_batch(part, read, len(places)), strict=True):
                samples[place] = sample
        return samples

    # --- whole batches

    @property
    def makes_batches(self) -> bool:
        """Whether each dataset makes whole batches, and all of them alike, so that they can mix."""
        return are_alike(self.datasets)

    @property
    def batch_form(self) -> Hashable | None:
        """What whole batches look like; None where the datasets differ or do not tell."""
        return form_of_all(self.datasets)

    def load_batch(self, indices: Sequence[SupportsIndex], empty: Empty) -> Any:
        """Return what torch's ``default_collate`` makes of these samples, equal to the bit.

        Args:
            indices: Numbers of the samples. Their keys are in hand, or torch's global generator
                decides what is random.
            empty: Gives the memory that they are written to, those of all datasets in one piece.

        Raises:
            SchemaError: A dataset makes no whole batches, or others than the rest.
            SampleIndexError: There is no such sample.
            Exception: Whatever a dataset raises.
        """
        positions = [self._position(index) for index in indices]
        return JoinedMaker(self.datasets, self._ends)(positions, empty)

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Tell each dataset which of its samples are read next."""
        for number, (_, numbers) in self._by_part(indices).items():
            advise = getattr(self.datasets[number], "advise", None)
            if callable(advise):
                advise(numbers)

    def set_epoch(self, epoch: int) -> None:
        """Tell each dataset that wants to know which epoch begins; a loader calls this."""
        for part in self.datasets:
            tell_epoch(part, epoch)

    def end_epoch(self, epoch: int) -> None:
        """Tell each dataset that wants to know that an epoch is over; a loader calls this."""
        for part in self.datasets:
            tell_end(part, epoch)

    def key(self, index: SupportsIndex) -> str:
        """Return the name that a sample has in the dataset it lies in."""
        part, number = self._locate(index)
        key = getattr(self.datasets[part], "key", None)
        return str(key(number)) if callable(key) else str(number)

    def _named(self, index: int) -> Any:
        part, number = self._locate(index)
        dataset = self.datasets[part]
        return dataset._named(number) if isinstance(dataset, IndexedDataset) else self.key(index)

    def __repr__(self) -> str:
        return f"ConcatDataset({', '.join(type(part).__name__ for part in self.datasets)})"


def checked_batch(dataset: Any, samples: Any, count: int) -> list[Any]:
    """Return what a dataset made of several indices, after counting it.

    Raises:
        SchemaError: Not one sample for each.
    """
    name = type(dataset).__name__
    if isinstance(samples, (str, bytes, dict)) or not hasattr(samples, "__iter__"):
        kind = type(samples).__name__
        raise SchemaError(f"{name} read a batch as {kind}; a list of samples is expected")
    found = list(samples)
    if len(found) != count:
        raise SchemaError(f"{name} read {len(found)} samples for {count} items")
    return found


def concat(*datasets: Dataset[Any]) -> ConcatDataset[Any]:
    """Join datasets, one after another; see :class:`ConcatDataset`."""
    return ConcatDataset(*datasets)
