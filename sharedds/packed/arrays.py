"""Arrays in one mapped file."""

from __future__ import annotations

import tempfile
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import SchemaError
from sharedds.handles import SharedFile, anonymous_file, per_process, storage_errors
from sharedds.packed.files import Appender, as_array, close_quietly, let_go, plain_dtype

__all__ = ["MappedArray", "MappedArrayBuilder"]


class MappedArrayBuilder:
    """Builds a 1-d :class:`MappedArray` from a stream of numbers, in constant memory."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = plain_dtype(dtype)
        self._data = Appender()
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
        data = as_array(values, None if dtype is None else np.dtype(dtype))
        plain = plain_dtype(data.dtype)
        file = anonymous_file()
        try:
            with storage_errors(tempfile.gettempdir(), needed=lambda: data.nbytes):
                file.write(data.reshape(-1).view(np.uint8).data)
                file.flush()
            return cls(SharedFile(file), plain, data.shape)
        except BaseException:
            close_quietly(file)
            raise

    @per_process
    def array(self) -> npt.NDArray[Any]:
        """The mapped array, read-only."""
        return np.frombuffer(self._file.view, self._dtype).reshape(self._shape)

    def release(self) -> None:
        """Let go of the pages that were read; they are back when they are read again."""
        let_go(self._file.view)

    def __len__(self) -> int:
        return self._shape[0] if self._shape else 0

    def __repr__(self) -> str:
        return f"MappedArray(shape={self._shape}, dtype={self._dtype})"
