"""Indexes of many items in one mapped file: no Python object for each item, O(1) to pickle.

A list of a million paths costs a hundred megabytes in every worker, and reading it dirties the
pages that a fork had shared. Here the items are bytes in a file without a name (a ``SharedFile``):
every process maps the same pages, a pickle carries only where they are, and nothing is left behind,
even after kill -9.
"""

from __future__ import annotations

import contextlib
import operator
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, SupportsIndex

import numpy as np
import numpy.typing as npt

from sharedds.errors import SampleIndexError, SchemaError
from sharedds.handles import SharedFile, anonymous_file, per_process, storage_errors

__all__ = [
    "MappedArray",
    "MappedArrayBuilder",
    "PackedStrings",
    "PackedStringsBuilder",
    "RaggedArray",
    "RaggedArrayBuilder",
    "encode_text",
]

_BUFFER = 1 << 20


def encode_text(item: str | bytes | os.PathLike[Any]) -> bytes:
    """Return the bytes of a string or path: UTF-8, undecodable file names byte for byte.

    Raises:
        SchemaError: It is neither text, bytes nor a path, or holds a lone surrogate.
    """
    try:
        item = os.fspath(item)
    except TypeError:
        name = type(item).__name__
        raise SchemaError(f"an item must be str, bytes or a path, not {name}: {item!r}") from None
    if isinstance(item, bytes):
        return item
    try:
        return item.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SchemaError(f"{item!r} cannot be stored as UTF-8 ({error.reason})") from None


def _check_index(index: SupportsIndex, count: int) -> int:
    try:
        number = operator.index(index)
    except TypeError:
        name = type(index).__name__
        raise SchemaError(f"an index must be a whole number, not {name}") from None
    position = number + count if number < 0 else number
    if not 0 <= position < count:
        raise SampleIndexError(f"index {number} is out of range for {count} items", sample=number)
    return position


def _plain_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype, refusing those whose bytes mean nothing in a file."""
    plain = np.dtype(dtype)
    if plain.hasobject or plain.itemsize == 0 or np.dtype(plain.str) != plain:
        raise SchemaError(f"arrays of dtype {plain} cannot be kept in a file; use plain numbers")
    return plain


def _as_array(values: Any, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    try:
        return np.asarray(values, dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        what = f"{type(values).__name__} cannot become an array of {dtype or 'numbers'}"
        raise SchemaError(f"{what} ({error})") from error


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # what a full disk refused is refused again
        file.close()


class _Appender:
    """Writes bytes to an anonymous file through one buffer."""

    def __init__(self) -> None:
        self.file: BinaryIO = anonymous_file()
        weakref.finalize(self, _close, self.file)  # a builder may be given up half way
        self.size = 0
        self._buffer = bytearray()

    def write(self, data: Any) -> None:
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        with storage_errors(tempfile.gettempdir(), needed=lambda: len(self._buffer)):
            self.file.write(self._buffer)
            self.file.flush()
        self.size += len(self._buffer)
        self._buffer.clear()

    def copy_from(self, other: _Appender) -> None:
        other.flush()
        other.file.seek(0)
        while block := other.file.read(_BUFFER):
            self.write(block)
        other.file.close()


class RaggedArrayBuilder:
    """Builds a :class:`RaggedArray` from a stream, in constant memory."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = _plain_dtype(dtype)
        self._values = _Appender()
        self._ends = _Appender()
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
            row = _as_array(values, self._dtype)
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
        position = _check_index(index, self._count)
        values, ends = self._views
        return values[ends[position] : ends[position + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[i] for i in range(self._count))

    def __repr__(self) -> str:
        return f"RaggedArray({self._count} rows of {self._dtype}, {self._file.size} bytes)"


class PackedStringsBuilder:
    """Builds :class:`PackedStrings` from a stream, in constant memory."""

    def __init__(self) -> None:
        self._rows = RaggedArrayBuilder(np.uint8)

    def append(self, item: str | bytes | os.PathLike[Any]) -> None:
        """Append one string, bytes or path."""
        self._rows.append(encode_text(item))

    def finish(self) -> PackedStrings:
        """Return the finished strings; the builder cannot be used any more."""
        return PackedStrings(self._rows.finish())


class PackedStrings:
    """Strings or paths in one mapped file; reads like a sequence of ``str``.

    Undecodable bytes of file names come back as surrogate escapes. Make one with :meth:`build`.

    Example:
        >>> names = PackedStrings.build(f"{i:04d}.jpg" for i in range(1000))
        >>> len(names), names[7], names[-1]
        (1000, '0007.jpg', '0999.jpg')
    """

    def __init__(self, rows: RaggedArray) -> None:
        self._rows = rows

    @classmethod
    def build(cls, items: Iterable[str | bytes | os.PathLike[Any]]) -> PackedStrings:
        """Build from any iterable, read once as a stream; no list is kept.

        Raises:
            SchemaError: An item that is neither text, bytes nor a path.
            StorageFullError: The temporary folder is full.
        """
        builder = PackedStringsBuilder()
        for item in items:
            builder.append(item)
        return builder.finish()

    def bytes(self, index: SupportsIndex) -> bytes:
        """Return item ``index`` as bytes."""
        return self._rows[index].tobytes()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> str:
        return self._rows[index].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedStrings({len(self)} strings)"


class MappedArrayBuilder:
    """Builds a 1-d :class:`MappedArray` from a stream of numbers, in constant memory."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = _plain_dtype(dtype)
        self._data = _Appender()
        self._pending = array("q")

    def append(self, value: int) -> None:
        """Append one integer.

        Raises:
            SchemaError: Not an integer, or one that the dtype cannot hold (told within 65,536).
            StorageFullError: The temporary folder is full.
        """
        try:
            self._pending.append(value)
        except (TypeError, OverflowError) as error:
            raise SchemaError(f"{value!r} is no integer of 64 bits") from error
        if len(self._pending) >= 1 << 16:
            self._flush()

    def _flush(self) -> None:
        values = np.array(self._pending, np.int64)
        stored = values.astype(self._dtype)
        if not np.array_equal(stored, values):
            wrong = values[stored != values][0]
            raise SchemaError(f"{wrong} does not fit {self._dtype}")
        self._data.write(stored.tobytes())
        del self._pending[:]

    def finish(self) -> MappedArray:
        """Return the finished array; the builder cannot be used any more."""
        self._flush()
        self._data.flush()
        count = self._data.size // self._dtype.itemsize
        return MappedArray(SharedFile(self._data.file), self._dtype, (count,))


class MappedArray:
    """A read-only array in one mapped file, O(1) to pickle. Make one with :meth:`build`."""

    def __init__(self, file: SharedFile, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file = file
        self._dtype = dtype.str
        self._shape = shape

    @classmethod
    def build(cls, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> MappedArray:
        """Copy an array into a mapped file.

        Raises:
            SchemaError: It is not an array of numbers, or of text of one length.
            StorageFullError: The temporary folder is full.
        """
        data = _as_array(values, None if dtype is None else np.dtype(dtype))
        plain = _plain_dtype(data.dtype)
        file = anonymous_file()
        try:
            with storage_errors(tempfile.gettempdir(), needed=lambda: data.nbytes):
                file.write(data.reshape(-1).view(np.uint8).data)
                file.flush()
            return cls(SharedFile(file), plain, data.shape)
        except BaseException:
            _close(file)
            raise

    @per_process
    def array(self) -> npt.NDArray[Any]:
        """The mapped array, read-only."""
        return np.frombuffer(self._file.view, self._dtype).reshape(self._shape)

    def __len__(self) -> int:
        return self._shape[0] if self._shape else 0

    def __repr__(self) -> str:
        return f"MappedArray(shape={self._shape}, dtype={self._dtype})"
