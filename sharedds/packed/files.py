"""What all indexes in a file share: a buffered file, checks of indices, dtypes and text."""

from __future__ import annotations

import contextlib
import mmap
import operator
import os
import tempfile
import weakref
from typing import Any, BinaryIO, SupportsIndex

import numpy as np
import numpy.typing as npt

from sharedds.errors import SampleIndexError, SchemaError
from sharedds.handles import anonymous_file, storage_errors

__all__ = [
    "Appender",
    "as_array",
    "check_index",
    "close_quietly",
    "encode_text",
    "let_go",
    "plain_dtype",
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


def check_index(index: SupportsIndex, count: int) -> int:
    """Return the position of an index, which may count from the end.

    Raises:
        SampleIndexError: There is no such item.
        SchemaError: It is not a whole number.
    """
    try:
        number = operator.index(index)
    except TypeError:
        name = type(index).__name__
        raise SchemaError(f"an index must be a whole number, not {name}") from None
    position = number + count if number < 0 else number
    if not 0 <= position < count:
        raise SampleIndexError(f"index {number} is out of range for {count} items", sample=number)
    return position


def plain_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype, refusing those whose bytes mean nothing in a file."""
    plain = np.dtype(dtype)
    if plain.hasobject or plain.itemsize == 0 or np.dtype(plain.str) != plain:
        raise SchemaError(f"arrays of dtype {plain} cannot be kept in a file; use plain numbers")
    return plain


def as_array(values: Any, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Return values as one contiguous array.

    Raises:
        SchemaError: They are none, or none of this dtype.
    """
    try:
        return np.asarray(values, dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        what = f"{type(values).__name__} cannot become an array of {dtype or 'numbers'}"
        raise SchemaError(f"{what} ({error})") from error


def let_go(view: memoryview) -> None:
    """Let go of the pages of a mapped file; the system keeps them, and they are back when touched.

    Pages that were touched count as memory of the process, though the system could take them at
    any time.
    """
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def close_quietly(file: BinaryIO) -> None:
    """Close a file that may hold what a full disk has refused already."""
    with contextlib.suppress(OSError):
        file.close()


class Appender:
    """Writes bytes to an anonymous file through one buffer.

    Attributes:
        file: The file.
        size: Bytes handed to the system so far.
    """

    def __init__(self) -> None:
        self.file: BinaryIO = anonymous_file()
        weakref.finalize(self, close_quietly, self.file)  # a builder may be given up half way
        self.size = 0
        self._buffer = bytearray()

    def write(self, data: Any) -> None:
        """Append bytes, or anything that has a buffer of them."""
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the system; ``size`` is right after that."""
        with storage_errors(tempfile.gettempdir(), needed=lambda: len(self._buffer)):
            self.file.write(self._buffer)
            self.file.flush()
        self.size += len(self._buffer)
        self._buffer.clear()

    def copy_from(self, other: Appender) -> None:
        """Append all that another one has, and close that."""
        other.flush()
        other.file.seek(0)
        while block := other.file.read(_BUFFER):
            self.write(block)
        other.file.close()
