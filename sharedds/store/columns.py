"""Columns: one mapped array for each scalar or fixed-shape field; nothing per sample is an object.

A column is cut along its first axis into segments (see ``layout.rows_per_segment``), and these into
blocks of up to 1 MiB. A block is compared with its checksum when it is first touched; a row of a
wide column whenever it is read. Few bytes are copied from the file, so that rows read at random
leave nothing mapped behind; many are a view of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import CorruptDataError, SampleIndexError, SchemaError, StoreFormatError
from sharedds.handles import MappedFile
from sharedds.store.layout import ColumnSpec

__all__ = ["Column", "RaggedColumn", "TextColumn", "row_of"]

_COPIED = 64 << 10  # bytes that are rather copied than mapped
_MAPPED = 8 << 20  # bytes of a column that may stay mapped behind what was gathered
_DAMAGED = "the file was damaged after packing; restore it from a copy or pack it again"


class Column:
    """A column of a store: behaves like a read-only array of shape (rows, ``*row_shape``).

    ``column[3]`` is a row, ``column[[5, 2, 9]]``, ``column[mask]`` or ``column[10:20]`` an array of
    rows, ``np.asarray(column)`` the whole: without copying where it lies in one segment (and is
    over 64 KiB).

    Raises:
        SampleIndexError: No such row.
        SchemaError: An index that does not name rows.
        CorruptDataError: The data read fail their checksum.
        StoreChangedError: The file was cut short since it was opened.
    """

    def __init__(
        self,
        spec: ColumnSpec,
        locate: Callable[[str, int], tuple[int, int]],
        file: MappedFile,
        path: str,
        row_checksums: Column | None = None,
    ) -> None:
        self.name = spec.name
        self.dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self.shape = (spec.rows, *spec.shape)
        self.path = path
        self._spec = spec
        self._locate = locate
        self._file = file
        self._row_bytes = spec.row_bytes
        self._block_rows = spec.block_rows
        self._spans: dict[int, tuple[int, int]] = {}
        self._segments: dict[int, npt.NDArray[Any]] = {}
        self._checked = bytearray(spec.blocks if spec.checksums else 0)  # 1: was found sound
        self._row_checksums = row_checksums

    def __len__(self) -> int:
        return self._spec.rows

    @property
    def segments(self) -> int:
        """Number of segments."""
        return self._spec.segments

    def _span(self, index: int) -> tuple[int, int]:
        """Return (offset in the file, length) of a segment, its length checked."""
        span = self._spans.get(index)
        if span is None:
            spec = self._spec
            offset, length = self._locate(spec.name, index)
            rows = min(spec.segment_rows, spec.rows - index * spec.segment_rows)
            if length != rows * self._row_bytes:
                raise StoreFormatError(
                    f"{self.path}: column {spec.name!r}, segment {index}: {length} bytes, "
                    f"{rows * self._row_bytes} expected",
                    path=self.path,
                    field=spec.name,
                )
            span = self._spans[index] = offset, length
        return span

    def segment_bytes(self, index: int) -> memoryview:
        """Return the stored bytes of a segment, checked for their length only."""
        self._file.require_whole()
        offset, length = self._span(index)
        return self._file.view[offset : offset + length]

    def segment(self, index: int) -> npt.NDArray[Any]:
        """Return a segment as an array; what was not yet compared with its checksums is."""
        rows = self._mapped(index)
        first = index * self._spec.segment_rows
        self._require_sound(first, first + len(rows))
        return rows

    def release(self, index: int) -> None:
        """Let go of the pages of a segment; its views stay, and bring back what they touch."""
        self._file.release(*self._span(index))

    def _mapped(self, index: int) -> npt.NDArray[Any]:
        """Return a segment as an array, compared with nothing."""
        self._file.require_whole()
        segment = self._segments.get(index)
        if segment is None:
            segment = np.frombuffer(self.segment_bytes(index), self.dtype)
            if not segment.flags.aligned:
                segment = segment.copy()  # short values share a page with others
                segment.flags.writeable = False
            segment = self._segments[index] = segment.reshape(-1, *self._spec.shape)
        return segment

    def _require_sound(self, start: int, stop: int) -> None:
        """Check the blocks of these rows that were not checked before."""
        if self._checked:
            for block in range(start // self._block_rows, (stop - 1) // self._block_rows + 1):
                if not self._checked[block]:
                    self.check_block(block)

    def blocks_of(self, segment: int) -> range:
        """Return the numbers of the blocks with a checksum in a segment."""
        each = self._spec.segment_rows // self._block_rows
        return range(segment * each, min((segment + 1) * each, len(self._checked)))

    def check_block(self, block: int) -> None:
        """Compare a block with its checksum in the header.

        Raises:
            CorruptDataError: They differ.
        """
        first = block * self._block_rows
        last = min(first + self._block_rows, self._spec.rows) - 1
        segment, row = divmod(first, self._spec.segment_rows)
        at, size = row * self._row_bytes, (last + 1 - first) * self._row_bytes
        found = xxhash.xxh3_64_hexdigest(self.segment_bytes(segment)[at : at + size])
        # One row may be all that is wanted of it.
        self._file.release(self._span(segment)[0] + at, size)
        if found != self._spec.checksums[block]:
            raise CorruptDataError(
                f"{self.path}: column {self.name!r}, rows {first} to {last} fail their checksum: "
                f"{_DAMAGED}",
                path=self.path,
                field=self.name,
            )
        self._checked[block] = 1

    def _check_rows(self, first: int, rows: npt.NDArray[Any]) -> None:
        """Compare rows of a wide column, numbered from ``first``, with their checksums."""
        if self._row_checksums is None:
            return
        wanted = self._row_checksums[first : first + len(rows)]
        for number, (row, checksum) in enumerate(zip(rows, wanted.tolist(), strict=True), first):
            self._check_row(number, row, checksum)

    def _check_row(self, number: int, row: Any, checksum: int) -> None:
        if xxhash.xxh3_64_intdigest(row) != checksum:
            raise CorruptDataError(
                f"{self.path}: sample {number}, field {self.name!r} fails its checksum: {_DAMAGED}",
                path=self.path,
                sample=number,
                field=self.name,
            )

    def advise(self, rows: Iterable[int]) -> None:
        """Tell the kernel that these rows are read soon; it fetches them meanwhile."""
        self._file.advise(self._spans_of(sorted(rows)))

    def _spans_of(self, rows: Iterable[int]) -> Iterator[tuple[int, int]]:
        for number in rows:
            segment, row = divmod(number, self._spec.segment_rows)
            yield self._span(segment)[0] + row * self._row_bytes, self._row_bytes

    def rows(self, numbers: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        """Yield rows one by one; those of a wide column as views of the file, checked when due.

        Args:
            numbers: (n,), each from 0 to ``len(self) - 1``; ascending is fastest.
        """
        if self._row_checksums is None:
            yield from self[numbers]
            return
        checksums = self._row_checksums[numbers].tolist()
        for number, checksum in zip(numbers.tolist(), checksums, strict=True):
            segment, at = divmod(number, self._spec.segment_rows)
            row = self._mapped(segment)[at]
            self._check_row(number, row, checksum)
            yield row

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(*index.indices(self._spec.rows))
        try:
            number = operator.index(index)
        except TypeError:
            return self._gather(self._rows_of(index))
        position = number + self._spec.rows if number < 0 else number
        if not 0 <= position < self._spec.rows:
            raise self._no_row(number)
        return self._slice(position, position + 1, 1)[0]

    def _no_row(self, number: int) -> SampleIndexError:
        return SampleIndexError(
            f"{self.path}: column {self.name!r} has {self._spec.rows} rows, no row {number}",
            path=self.path,
            sample=number,
            field=self.name,
        )

    def _rows_of(self, index: Any) -> npt.NDArray[np.int64]:
        """Turn a list, array or mask into row numbers of the same shape."""
        rows = np.asarray(index)
        if rows.dtype == bool and rows.shape == self.shape[:1]:
            return np.flatnonzero(rows)
        if isinstance(index, tuple) or (rows.dtype.kind not in "iu" and rows.size):
            raise SchemaError(
                f"column {self.name!r} takes one index: a number, a slice, a list or array of "
                f"numbers, or a mask of {len(self)}; index the rows it returns further",
                path=self.path,
                field=self.name,
            )
        wrong = rows[(rows < -len(self)) | (rows >= len(self))] if rows.size else rows
        if wrong.size:
            raise self._no_row(int(wrong.flat[0]))
        numbers = rows.astype(np.int64)
        return np.where(numbers < 0, numbers + len(self), numbers)

    def _slice(self, start: int, stop: int, step: int) -> npt.NDArray[Any]:
        if step != 1 or stop <= start:
            return self._gather(np.arange(start, stop, step))
        self._require_sound(start, stop)
        size = self._spec.segment_rows
        number, row = divmod(start, size)
        length = (stop - start) * self._row_bytes
        if length <= _COPIED and self._row_checksums is None and row + stop - start <= size:
            data = self._file.read(self._span(number)[0] + row * self._row_bytes, length)
            return np.frombuffer(data, self.dtype).reshape(-1, *self._spec.shape)
        parts = []
        for number in range(start // size, (stop - 1) // size + 1):
            first = max(start, number * size)
            part = self._mapped(number)[first - number * size : stop - number * size]
            self._check_rows(first, part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gather(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        flat = rows.reshape(-1)
        out = np.empty((flat.size, *self._spec.shape), self.dtype)
        if self._row_checksums is not None:
            self._gather_checked(flat.tolist(), out)
        elif flat.size:
            self._gather_blocks(flat, out)
        return out.reshape(*rows.shape, *self._spec.shape)

    def _gather_blocks(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Copy short rows, segment by segment."""
        if self._checked:
            blocks = rows // self._block_rows
            checked = np.frombuffer(self._checked, np.bool_)
            for block in np.unique(blocks[~checked[blocks]]).tolist():
                self.check_block(block)
        large = self._spec.rows * self._row_bytes > _MAPPED
        segments = rows // self._spec.segment_rows
        for segment in np.unique(segments).tolist() if self._spec.segments > 1 else [0]:
            where = segments == segment
            out[where] = self._mapped(segment)[rows[where] % self._spec.segment_rows]
            if large:
                self.release(segment)

    def _gather_checked(self, rows: list[int], out: npt.NDArray[Any]) -> None:
        """Copy long rows one by one: each is compared with its checksum while it is at hand."""
        for at, number in enumerate(rows):
            segment, row = divmod(number, self._spec.segment_rows)
            out[at] = self._mapped(segment)[row]
            self._check_rows(number, out[at : at + 1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self[:], dtype=dtype, copy=copy)

    def __iter__(self) -> Iterator[Any]:
        step = max(1, _COPIED // max(1, self._row_bytes))
        for start in range(0, len(self), step):
            yield from self[start : start + step]

    def __repr__(self) -> str:
        return f"Column({self.name!r}, shape={self.shape}, dtype={self.dtype})"


def row_of(index: SupportsIndex, count: int, path: str, name: str) -> int:
    """Return which of ``count`` rows an index means; negative ones count from the end.

    Raises:
        SchemaError: It is no whole number.
        SampleIndexError: There is no such row.
    """
    try:
        number = operator.index(index)
    except TypeError:
        kind = type(index).__name__
        raise SchemaError(f"an index must be a whole number, not {kind}") from None
    position = number + count if number < 0 else number
    if not 0 <= position < count:
        raise SampleIndexError(
            f"{path}: column {name!r} has {count} rows, no row {number}",
            path=path,
            sample=number,
            field=name,
        )
    return position


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

    def _damaged(self, what: str) -> StoreFormatError:
        path = self._values.path
        return StoreFormatError(f"{path}: column {self.name!r}, {what}", path=path, field=self.name)

    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]:
        position = row_of(index, len(self), self._values.path, self.name)
        start, stop = int(self._ends[position]), int(self._ends[position + 1])
        if not 0 <= start <= stop <= len(self._values):
            raise self._damaged(f"row {position} spans {start} to {stop} of {len(self._values)}")
        row: npt.NDArray[Any] = self._values[start:stop]
        if self._shapes is None:
            return row
        shape = tuple(self._shapes[position].tolist())
        possible = min(shape, default=0) >= 0 and math.prod(max(n, 1) for n in shape) < 1 << 48
        if not possible or math.prod(shape) != row.size:
            raise self._damaged(f"row {position}: shape {shape} does not fit {row.size} values")
        return row.reshape(shape)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"RaggedColumn({self.name!r}, {len(self)} rows of {self.dtype})"


class TextColumn:
    """Packed strings: ``column[i]`` is a str, ``column.bytes(i)`` its bytes.

    Undecodable bytes (from file names) come back as surrogate escapes.
    """

    def __init__(self, values: Column, ends: Column) -> None:
        self._rows = RaggedColumn(values, ends)
        self.name = values.name

    def __len__(self) -> int:
        return len(self._rows)

    def bytes(self, index: SupportsIndex) -> bytes:
        """Return the bytes of a string."""
        return self._rows[index].tobytes()

    def __getitem__(self, index: SupportsIndex) -> str:
        return self.bytes(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"TextColumn({self.name!r}, {len(self)} strings)"
