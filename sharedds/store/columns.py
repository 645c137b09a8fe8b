"""Columns: one mapped array for each scalar or fixed-shape field; nothing per sample exists in Python.

A column is cut along its first axis into segments (see ``layout.rows_per_segment``); one that fits
into a single segment is a plain view of the file. A segment is checked against its checksum when it is
first touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import CorruptDataError, SampleIndexError, StoreFormatError
from sharedds.store.layout import ColumnSpec

__all__ = ["Column", "RaggedColumn", "TextColumn"]


class Column:
    """A column of a store: behaves like a read-only array of shape (rows, \\*row_shape).

    ``column[3]`` is a row, ``column[[5, 2, 9]]`` or ``column[10:20]`` an array of rows,
    ``np.asarray(column)`` the whole: without copying where it lies in one segment.
    """

    def __init__(
        self,
        spec: ColumnSpec,
        locate: Callable[[str, int], tuple[int, int]],
        view: memoryview,
        path: str,
        row_checksums: Column | None = None,
    ) -> None:
        self.name = spec.name
        self.dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self.shape = (spec.rows, *spec.shape)
        self.path = path
        self._spec = spec
        self._locate = locate
        self._view = view
        self._segments: list[npt.NDArray[Any] | None] = [None] * min(spec.segments, 1 << 20)
        self._row_checksums = row_checksums
        if spec.segments > len(self._segments):
            raise StoreFormatError(f"{path}: column {spec.name!r} has {spec.segments} segments")

    def __len__(self) -> int:
        return self._spec.rows

    @property
    def segments(self) -> int:
        """Number of segments."""
        return self._spec.segments

    def segment_bytes(self, index: int) -> memoryview:
        """Return the stored bytes of a segment, checked for their length only."""
        spec = self._spec
        offset, length = self._locate(spec.name, index)
        rows = min(spec.segment_rows, spec.rows - index * spec.segment_rows)
        if length != rows * spec.row_bytes:
            raise StoreFormatError(
                f"{self.path}: column {spec.name!r}, segment {index}: {length} bytes, "
                f"{rows * spec.row_bytes} expected",
                path=self.path,
                field=spec.name,
            )
        return self._view[offset : offset + length]

    def segment(self, index: int) -> npt.NDArray[Any]:
        """Return a segment as an array, checked against its checksum the first time."""
        segment = self._segments[index]
        if segment is None:
            data = self.segment_bytes(index)
            self.check_segment(index, data)
            segment = np.frombuffer(data, self.dtype)
            if not segment.flags.aligned:
                segment = segment.copy()  # short values share a page with others
                segment.flags.writeable = False
            segment = segment.reshape(-1, *self._spec.shape)
            self._segments[index] = segment
        return segment

    def check_segment(self, index: int, data: memoryview) -> None:
        """Compare a segment with the checksum in the header.

        Raises:
            CorruptDataError: They differ.
        """
        checksums = self._spec.checksums
        if checksums and xxhash.xxh3_64_hexdigest(data) != checksums[index]:
            raise CorruptDataError(
                f"{self.path}: column {self.name!r}, segment {index} fails its checksum: the file was "
                "damaged after packing; restore it from a copy or pack it again",
                path=self.path,
                field=self.name,
            )

    def check_row(self, index: int) -> None:
        """Compare a row of a wide column with its checksum; other columns are checked by segment.

        Raises:
            CorruptDataError: They differ.
        """
        if self._row_checksums is None:
            return
        row = np.ascontiguousarray(self._row(index))
        if xxhash.xxh3_64_intdigest(row.data.cast("B")) != int(self._row_checksums[index]):
            raise CorruptDataError(
                f"{self.path}: sample {index}, field {self.name!r} fails its checksum: the file was "
                "damaged after packing; restore it from a copy or pack it again",
                path=self.path,
                sample=index,
                field=self.name,
            )

    def _row(self, index: int) -> npt.NDArray[Any]:
        segment, row = divmod(index, self._spec.segment_rows)
        return self.segment(segment)[row]  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, np.integer)):
            position = int(index) + self._spec.rows if index < 0 else int(index)
            if not 0 <= position < self._spec.rows:
                raise SampleIndexError(
                    f"{self.path}: column {self.name!r} has {self._spec.rows} rows, no row {index}",
                    path=self.path,
                    sample=int(index),
                    field=self.name,
                )
            return self._row(position)
        if self._spec.segments == 1:
            return self.segment(0)[index]
        if isinstance(index, slice):
            return self._slice(index)
        rows = np.arange(self._spec.rows)[index] if np.asarray(index).dtype == bool else np.asarray(index)
        return self._gather(np.where(rows < 0, rows + self._spec.rows, rows))

    def _slice(self, index: slice) -> npt.NDArray[Any]:
        start, stop, step = index.indices(self._spec.rows)
        if step != 1 or stop <= start:
            return self._gather(np.arange(start, stop, step))
        size = self._spec.segment_rows
        first, last = start // size, (stop - 1) // size
        parts = [
            self.segment(s)[max(0, start - s * size) : stop - s * size] for s in range(first, last + 1)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gather(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if rows.size and not (0 <= rows.min() and rows.max() < self._spec.rows):
            raise SampleIndexError(
                f"{self.path}: column {self.name!r} has {self._spec.rows} rows, no row {rows.max()}",
                path=self.path,
                field=self.name,
            )
        flat = rows.reshape(-1)
        out = np.empty((flat.size, *self._spec.shape), self.dtype)
        segments = flat // self._spec.segment_rows
        for segment in np.unique(segments):
            where = np.flatnonzero(segments == segment)
            out[where] = self.segment(int(segment))[flat[where] % self._spec.segment_rows]
        return out.reshape(*rows.shape, *self._spec.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = self[:] if self._spec.rows else np.empty(self.shape, self.dtype)
        return np.array(whole, dtype=dtype, copy=copy)

    def __iter__(self) -> Iterator[Any]:
        return (self._row(i) for i in range(self._spec.rows))

    def __repr__(self) -> str:
        return f"Column({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class RaggedColumn:
    """Rows of different lengths: ``column[i]`` is an array in the stored dtype, read-only.

    Args:
        values: All rows one after another.
        ends: Where each row begins, and the end: rows + 1 numbers.
        shapes: The shape of each row, (rows, dimensions), or None for 1-d rows.
    """

    def __init__(self, values: Column, ends: Column, shapes: Column | None = None) -> None:
        self.name = values.name
        self.dtype = values.dtype
        self._values = values
        self._ends = ends
        self._shapes = shapes

    def __len__(self) -> int:
        return len(self._ends) - 1

    def span(self, index: int) -> tuple[int, int]:
        """Return where a row begins and ends, checked."""
        if not 0 <= index < len(self):
            raise SampleIndexError(
                f"{self._values.path}: column {self.name!r} has {len(self)} rows, no row {index}",
                path=self._values.path,
                sample=index,
                field=self.name,
            )
        start, stop = int(self._ends[index]), int(self._ends[index + 1])
        if not 0 <= start <= stop <= len(self._values):
            raise StoreFormatError(
                f"{self._values.path}: column {self.name!r}, row {index} spans {start} to {stop} of "
                f"{len(self._values)}",
                path=self._values.path,
                field=self.name,
            )
        return start, stop

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        start, stop = self.span(index + len(self) if index < 0 else index)
        row: npt.NDArray[Any] = self._values[start:stop]
        if self._shapes is None:
            return row
        shape = tuple(int(n) for n in self._shapes[index])
        if min(shape, default=1) < 0 or int(np.prod(shape, dtype=object)) != row.size:
            raise StoreFormatError(
                f"{self._values.path}: column {self.name!r}, row {index}: shape {shape} does not fit "
                f"{row.size} values",
                path=self._values.path,
                field=self.name,
            )
        return row.reshape(shape)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[i] for i in range(len(self)))


class TextColumn:
    """Packed strings: ``column[i]`` is a str, ``column.bytes(i)`` its bytes.

    Undecodable bytes (from file names) come back as surrogate escapes.
    """

    def __init__(self, values: Column, ends: Column) -> None:
        self._rows = RaggedColumn(values, ends)
        self.name = values.name

    def __len__(self) -> int:
        return len(self._rows)

    def bytes(self, index: int) -> bytes:
        """Return the bytes of a string."""
        return self._rows[index].tobytes()

    def __getitem__(self, index: int) -> str:
        return self.bytes(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"TextColumn({self.name!r}, {len(self)} strings)"
