"""Map-style datasets that hold a place to look instead of the data."""

from __future__ import annotations

import copy
import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Generic, Self, SupportsIndex, TypeVar

import numpy as np
from torch.utils.data import Dataset

from sharedds.errors import OptionError, SampleIndexError, SchemaError
from sharedds.packed import MappedArray, PackedStrings

__all__ = ["LazyDataset"]

T = TypeVar("T")


class LazyDataset(Dataset[T], Generic[T]):
    """A dataset of items such as paths, each loaded when it is asked for. Subclass it.

    The items are kept as bytes in one mapped file: no Python object for each, the same pages in
    every process, and a pickle of a few kilobytes however many there are.

    Args:
        items: Paths or other strings, one for each sample; read once, as a stream.

    Raises:
        OptionError: ``items`` is one string.
        SchemaError: An item is no string or path, or the subclass has no ``load``.

    Example:
        >>> class Lengths(LazyDataset[int]):
        ...     def load(self, item: str) -> int:
        ...         return len(item)
        >>> dataset = Lengths(["a", "bb", "ccc"])
        >>> len(dataset), dataset[1], list(dataset.subset([2, 0]))
        (3, 2, [3, 1])
    """

    _strings: PackedStrings | None = None
    _rows: MappedArray | None = None  # the items of a subset; None stands for all

    def __init__(self, items: Iterable[str | bytes | PathLike[Any]]) -> None:
        if type(self).load is LazyDataset.load:
            raise SchemaError(_no_load(self))
        if isinstance(items, (str, bytes, PathLike)):
            raise OptionError(f"items={items!r} is one string; pass a list of them, or a generator")
        self._strings = PackedStrings.build(items)

    def load(self, item: str) -> T:
        """Return the sample of one item; every subclass has its own."""
        raise SchemaError(_no_load(self))

    def __len__(self) -> int:
        return len(self._packed() if self._rows is None else self._rows)

    def __getitem__(self, index: SupportsIndex) -> T:
        """Load sample ``index``; negative numbers count from the end.

        Raises:
            SampleIndexError: There is no such sample.
            SchemaError: ``index`` is not a whole number.
            Exception: Whatever ``load`` raised, with a note that names the item.
        """
        item = self.item(index)
        try:
            return self.load(item)
        except Exception as error:
            where = f"sample {operator.index(index)} of {type(self).__name__}"
            error.add_note(f"while loading {where}, item {item!r}")
            raise

    def __iter__(self) -> Iterator[T]:
        # Without this, Python would take an IndexError out of load() for the end of the dataset.
        return (self[i] for i in range(len(self)))

    def item(self, index: SupportsIndex) -> str:
        """Return the item of sample ``index`` as text, undecodable bytes as surrogate escapes."""
        strings = self._packed()
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
        return strings[position if self._rows is None else int(self._rows.array[position])]

    def subset(self, indices: Iterable[SupportsIndex]) -> Self:
        """Return a dataset of these samples, in this order; nothing but the indices is copied.

        Raises:
            SampleIndexError: There is no such sample.
        """
        count = len(self)
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter((operator.index(i) for i in indices), np.int64)
        rows = indices.astype(np.int64)
        wrong = rows[(rows < -count) | (rows >= count)]
        if wrong.size:
            name = type(self).__name__
            raise SampleIndexError(
                f"{name} has {count} samples, there is no sample {wrong[0]}", sample=int(wrong[0])
            )
        rows[rows < 0] += count
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

    def _packed(self) -> PackedStrings:
        if self._strings is None:
            name = type(self).__name__
            raise SchemaError(f"{name}.__init__ must call super().__init__(items)")
        return self._strings


def _no_load(dataset: LazyDataset[Any]) -> str:
    name = type(dataset).__name__
    return f"{name} needs a method load(self, item) that returns one sample"
