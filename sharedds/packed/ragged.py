"""Rows of different lengths in one mapped file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sharedds.errors import SchemaError
from sharedds.handles import SharedFile, per_process
from sharedds.packed.files import Appender, as_array, check_index, plain_dtype

__all__ = ["RaggedArray", "RaggedArrayBuilder"]


class RaggedArrayBuilder:
    """Builds a :class:`RaggedArray` from a stream, in constant memory."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = plain_dtype(dtype)
        self._values = Appender()
        self._ends = Appender()
        self._end = 0
        self._count = 0
        self._ends.write((0).to_bytes(8, "little"))

    def append(self, values: npt.ArrayLike | bytes) -> None:
        """Append one row: a 1-d array, or the bytes of one.

        Raises:
            SchemaError: Not 1-d, not of this dtype, or a number of bytes that ends inside a value.
            StorageFullError: The temporary folder is full.
        """
        if isinstance(values, bytes):
            if len(data := values) % self._dtype.itemsize:
                raise SchemaError(f"{len(data)} bytes are no whole number of {self._dtype} values")
        else:
            row = as_array(values, self._dtype)
            if row.ndim != 1:
                raise SchemaError(f"a row must have one dimension, this one has {row.ndim}")
            data = row.tobytes()
        self._values.write(data)
        self._end += len(data) // self._dtype.itemsize
        self._ends.write(self._end.to_bytes(8, "little"))
        self._count += 1

    def finish(self) -> RaggedArray:
        """Return the finished array; the builder cannot be used any more."""
        self._values.flush()
        self._values.write(bytes(-self._values.size % 8))
        self._values.flush()
        offsets_at = self._values.size
        self._values.copy_from(self._ends)
        self._values.flush()
        return RaggedArray(SharedFile(self._values.file), self._dtype, self._count, offsets_at)


class RaggedArray:
    """Rows of different lengths and one dtype, in one mapped file.

    ``rows[i]`` is a read-only 1-d view of the file. Make one with :meth:`build`.
    """

    def __init__(self, file: SharedFile, dtype: np.dtype[Any], count: int, offsets_at: int) -> None:
        self._file = file
        self._dtype = dtype.str
        self._count = count
        self._offsets_at = offsets_at

    @classmethod
    def build(cls, rows: Iterable[npt.ArrayLike], dtype: npt.DTypeLike) -> RaggedArray:
        """Build from any iterable of 1-d rows, read once as a stream.

        Raises:
            SchemaError: A row that is not 1-d or not of this dtype, or a dtype of objects.
            StorageFullError: The temporary folder is full.
        """
        builder = RaggedArrayBuilder(dtype)
        for row in rows:
            builder.append(row)
        return builder.finish()

    @per_process
    def _views(self) -> tuple[npt.NDArray[Any], memoryview]:
        view = self._file.view
        values = np.frombuffer(view[: self._offsets_at], np.uint8)
        end = values.size - values.size % np.dtype(self._dtype).itemsize
        return values[:end].view(self._dtype), view[self._offsets_at :].cast("Q")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every row."""
        return np.dtype(self._dtype)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]:
        position = check_index(index, self._count)
        values, ends = self._views
        return values[ends[position] : ends[position + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[i] for i in range(self._count))

    def __repr__(self) -> str:
        return f"RaggedArray({self._count} rows of {self._dtype}, {self._file.size} bytes)"
