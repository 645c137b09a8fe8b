"""What all datasets here share: numbered samples, subsets and splits that copy nothing."""

from __future__ import annotations

import copy
import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, SupportsIndex, TypeVar

import numpy as np
from torch.utils.data import Dataset

from sharedds.errors import OptionError, SampleIndexError, SchemaError
from sharedds.packed import MappedArray

__all__ = ["IndexedDataset"]

T = TypeVar("T")


class IndexedDataset(Dataset[T], Generic[T]):
    """Samples by number. A subset keeps the numbers it stands for in one mapped file."""

    _rows: MappedArray | None = None  # the samples of a subset; None stands for all

    def _count(self) -> int:
        """Return how many samples there are in all, apart from subsets."""
        raise SchemaError(f"{type(self).__name__} does not say how many samples it has")

    def __getitem__(self, index: SupportsIndex) -> T:
        """Return sample ``index``."""
        raise SchemaError(f"{type(self).__name__} has no way to read a sample")

    def __len__(self) -> int:
        return self._count() if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[T]:
        # Without this, Python would take an IndexError out of a sample for the end of the dataset.
        return (self[i] for i in range(len(self)))

    def _position(self, index: SupportsIndex) -> int:
        """Return the number of a sample among all, apart from subsets."""
        try:
            number = operator.index(index)
        except TypeError:
            kind = type(index).__name__
            raise SchemaError(
                f"an index must be a whole number, not {kind}; subset() takes several at once"
            ) from None
        count = len(self)
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
        return part

    def split(self, fractions: Sequence[float], seed: int = 0) -> tuple[Self, ...]:
        """Split at random into disjoint datasets, each in the order of this one.

        The same seed gives the same split on every machine and with every version of NumPy.

        Args:
            fractions: The share of each part, such as ``(0.8, 0.2)``; what is missing to 1 is
                left out.
            seed: Any integer.

        Raises:
            OptionError: A negative share, or more than 1 together.
        """
        shares = [float(fraction) for fraction in fractions]
        if not all(share >= 0 for share in shares) or not sum(shares) <= 1 + 1e-9:
            raise OptionError(f"fractions={fractions!r}: shares of at most 1 together are expected")
        digest = hashlib.blake2b(str(operator.index(seed)).encode(), digest_size=16).digest()
        # RandomState, since NumPy promises to keep its streams as they are for ever.
        order = np.random.RandomState(np.frombuffer(digest, "<u4")).permutation(len(self))
        ends = np.rint(np.cumsum([0.0, *shares]) * len(self)).astype(np.int64)
        return tuple(self.subset(np.sort(order[a:b])) for a, b in itertools.pairwise(ends))


def _whole_numbers(indices: Iterable[SupportsIndex]) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        if isinstance(indices, np.ndarray):
            if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
                raise SchemaError(
                    f"indices must be whole numbers in one dimension, not {indices.dtype} "
                    f"{indices.shape}; np.flatnonzero makes numbers of a mask"
                )
            return indices.astype(np.int64)
        return np.fromiter((operator.index(i) for i in indices), np.int64)
    except TypeError as error:
        raise SchemaError(f"indices must be whole numbers ({error})") from error
