"""Columns of several files as one: which part a row is in, and the rows of a batch by part."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sharedds.errors import SampleIndexError
from sharedds.store.columns import Column, RaggedColumn, TextColumn, row_of

__all__ = ["JoinedColumn", "JoinedRagged", "JoinedText", "Places"]

_MANY = 1 << 20  # rows


class Places:
    """Where the rows of several parts lie, one part after the other.

    Args:
        sizes: Rows of each part.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self.bounds = [0]
        for size in sizes:
            self.bounds.append(self.bounds[-1] + size)

    def __len__(self) -> int:
        return self.bounds[-1]

    def find(self, row: int) -> tuple[int, int]:
        """Return the part of a row, and its number there."""
        part = bisect_right(self.bounds, row) - 1
        return part, row - self.bounds[part]

    def split(self, rows: Iterable[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (part, numbers there), each part once, in order."""
        placed = map(self.find, sorted(rows))
        for part, found in groupby(placed, key=operator.itemgetter(0)):
            yield part, [row for _, row in found]


class JoinedColumn(Column):
    """A column whose rows are in several files; each is opened when a row of it is asked for.

    Args:
        name: Of the column.
        dtype: Of its values.
        shape: Of a row.
        path: Of the whole, for errors.
        places: Where rows are.
        part: Opens the column of a part.
    """

    def __init__(  # the base reads one file, of which nothing is here
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        path: str,
        places: Places,
        part: Callable[[int], Column],
    ) -> None:
        self.name, self.dtype, self.path = name, dtype, path
        self.shape = (len(places), *shape)
        self._places, self._part = places, part

    def __len__(self) -> int:
        return len(self._places)

    @property
    def segments(self) -> int:
        """Number of parts."""
        return len(self._places.bounds) - 1

    def segment(self, index: int) -> npt.NDArray[Any]:
        """Return the rows of a part."""
        return np.asarray(self._part(index))

    def release(self, index: int) -> None:
        """Let go of the pages of a part."""
        column = self._part(index)
        for number in range(column.segments):
            column.release(number)

    def advise(self, rows: Iterable[int]) -> None:
        """Tell the kernel that these rows are read soon; it fetches them meanwhile."""
        for part, numbers in self._places.split(rows):
            self._part(part).advise(numbers)

    def rows(self, numbers: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        """Yield rows one by one, in the order given; ascending is fastest."""
        placed = map(self._places.find, numbers.tolist())
        for part, found in groupby(placed, key=operator.itemgetter(0)):
            yield from self._part(part).rows(np.array([row for _, row in found], np.int64))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(*index.indices(len(self)))
        try:
            number = operator.index(index)
        except TypeError:
            return self._gather(self._rows_of(index))
        position = number + len(self) if number < 0 else number
        if not 0 <= position < len(self):
            raise self._no_row(number)
        part, row = self._places.find(position)
        return self._part(part)[row]

    def _no_row(self, number: int) -> SampleIndexError:
        return SampleIndexError(
            f"{self.path}: column {self.name!r} has {len(self)} rows, no row {number}",
            path=self.path,
            sample=number,
            field=self.name,
        )

    def _slice(self, start: int, stop: int, step: int) -> npt.NDArray[Any]:
        if abs(stop - start) > _MANY:  # what an index claims is compared before room is made for it
            for part in range(self.segments):
                self._part(part)
        if step != 1 or stop <= start:
            return self._gather(np.arange(start, stop, step))
        first, low = self._places.find(start)
        last, high = self._places.find(stop - 1)
        if first == last:
            one: npt.NDArray[Any] = self._part(first)[low : high + 1]
            return one
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        bounds = self._places.bounds
        for part in range(first, last + 1):
            begin, end = max(start, bounds[part]), min(stop, bounds[part + 1])
            if begin < end:
                inner = slice(begin - bounds[part], end - bounds[part])
                out[begin - start : end - start] = self._part(part)[inner]
        return out

    def _gather(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        flat = rows.reshape(-1)
        out = np.empty((flat.size, *self.shape[1:]), self.dtype)
        parts = np.searchsorted(self._places.bounds, flat, side="right") - 1
        for part in np.unique(parts).tolist():
            mine = parts == part
            out[mine] = self._part(part)[flat[mine] - self._places.bounds[part]]
        return out.reshape(*rows.shape, *self.shape[1:])

    def __iter__(self) -> Iterator[Any]:
        for part in range(self.segments):
            yield from self._part(part)


class JoinedRagged(RaggedColumn):
    """Rows of different lengths that are in several files."""

    def __init__(  # the base reads one file, of which nothing is here
        self,
        name: str,
        dtype: np.dtype[Any],
        path: str,
        places: Places,
        part: Callable[[int], RaggedColumn],
    ) -> None:
        self.name, self.dtype = name, dtype
        self._path, self._places, self._part = path, places, part

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]:
        part, row = _find(self, index, self._path, self._places)
        return self._part(part)[row]


class JoinedText(TextColumn):
    """Packed strings that are in several files."""

    def __init__(  # the base reads one file, of which nothing is here
        self, name: str, path: str, places: Places, part: Callable[[int], TextColumn]
    ) -> None:
        self.name = name
        self._path, self._places, self._part = path, places, part

    def __len__(self) -> int:
        return len(self._places)

    def bytes(self, index: SupportsIndex) -> bytes:
        """Return the bytes of a string."""
        part, row = _find(self, index, self._path, self._places)
        return self._part(part).bytes(row)


def _find(
    column: JoinedRagged | JoinedText, index: SupportsIndex, path: str, places: Places
) -> tuple[int, int]:
    return places.find(row_of(index, len(places), path, column.name))
