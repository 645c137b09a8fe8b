"""A volume that is put together from parts, slab by slab along its first axis.

Between two borders of patches lies a slab. It is kept until all that belongs to it has come, then
finished and let go of: patches in order need memory for a patch's height, whatever the volume has.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharedds.errors import SharedDSError, SourceError, StoreExistsError
from sharedds.handles import MadeHere, absolute_path, storage_errors
from sharedds.patches.windows import Part

__all__ = ["FileTarget", "MemoryTarget", "Slabs", "Target"]

Values = npt.NDArray[Any]


class Target(Protocol):
    """Where finished slabs go."""

    def begin(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_flat: bool) -> None:
        """Make room for the whole; its last three axes are those of the volume.

        Args:
            shape: Of the whole.
            dtype: Of its values.
            is_flat: Whether the last axis, of length 1, is left out in the end.
        """

    def room(self, begin: int, end: int) -> Values | None:
        """Return the place of a slab, zeros, where it can be filled in place; else None."""

    def put(self, begin: int, slab: Values) -> None:
        """Take a finished slab."""

    def end(self) -> Values:
        """Return the whole."""


class MemoryTarget:
    """Slabs of an array in memory."""

    _whole: Values

    def begin(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_flat: bool) -> None:
        """Make the array."""
        self._whole = np.zeros(shape, dtype)
        self._is_flat = is_flat

    def room(self, begin: int, end: int) -> Values:
        """Return rows of the array."""
        rows: Values = self._whole[..., begin:end, :, :]
        return rows

    def put(self, begin: int, slab: Values) -> None:
        """Copy rows."""
        self._whole[..., begin : begin + slab.shape[-3], :, :] = slab

    def end(self) -> Values:
        """Return the array."""
        whole: Values = self._whole[..., 0] if self._is_flat else self._whole
        return whole


class FileTarget:
    """Slabs of a ``.npy`` file, which gets its name when it is whole.

    They are written and not mapped: a full disk is an error then, and not the end of the process.

    Args:
        path: The file to make.
        force: Whether one that is there is replaced.

    Raises:
        StoreExistsError: It is there.
        SourceError: It is a folder.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool) -> None:
        self.path = absolute_path(path)
        if os.path.isdir(self.path):
            raise SourceError(f"{self.path}: is a folder; a file is written", path=self.path)
        if os.path.lexists(self.path) and not force:
            raise StoreExistsError(
                f"{self.path}: exists already; force=True replaces it", path=self.path
            )
        self._folder = os.path.dirname(self.path)
        self._file: Any = None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with storage_errors(self._folder):
                yield
        except SharedDSError:
            raise
        except OSError as error:
            text = error.strerror or str(error)
            raise SourceError(f"{self.path}: cannot be written ({text})", path=self.path) from error

    def begin(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_flat: bool) -> None:
        """Make a file of its final size under another name.

        Raises:
            StorageFullError, SourceError: There is no room, or no such folder.
        """
        with self._writing():
            name = f".{os.path.basename(self.path)}.{secrets.token_hex(6)}.partial"
            self._partial = os.path.join(self._folder, name)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            # With the rights that any new file gets here; a temporary one is for its owner alone.
            self._file = os.fdopen(os.open(self._partial, flags, 0o666), "r+b")
            self._undo = weakref.finalize(self, _discard, self._file, self._partial, MadeHere())
            shown = shape[:-1] if is_flat else shape
            header = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": shown}
            np.lib.format.write_array_header_1_0(self._file, header)
            self._offset = self._file.tell()
            self._shape, self._dtype = shape, dtype.newbyteorder("<")
            self._file.truncate(self._offset + int(np.prod(shape, dtype=object)) * dtype.itemsize)

    def room(self, begin: int, end: int) -> None:
        """Return None: slabs are written once they are finished."""

    def put(self, begin: int, slab: Values) -> None:
        """Write rows of each channel.

        Raises:
            StorageFullError: There is no room.
        """
        rows, *sides = slab.shape[-3:]
        row_bytes = int(np.prod(sides)) * self._dtype.itemsize
        channels = slab.reshape(-1, rows, *sides)
        with self._writing():
            for number, channel in enumerate(channels):
                self._file.seek(self._offset + (number * self._shape[-3] + begin) * row_bytes)
                self._file.write(np.ascontiguousarray(channel, self._dtype).data)

    def end(self) -> Values:
        """Give the file its name; return it mapped, read-only.

        Raises:
            StorageFullError: There is no room.
        """
        if self._file is not None:
            with self._writing():
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._partial, self.path)
            self._undo.detach()
            self._file = None
        whole: Values = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return whole


def _discard(file: Any, path: str, home: MadeHere) -> None:
    """Remove what was not finished."""
    if home:
        with contextlib.suppress(OSError):  # of a disk that is full, or of a name that is gone
            file.close()
        with contextlib.suppress(OSError):
            os.unlink(path)


class Slabs:
    """The slabs that patches along the first axis make, as far as they are not finished.

    Args:
        parts: What each place along the first axis gives.
        each: How many patches have the same place there.
        target: Where finished slabs go; it was begun.
        shape: Of a slab, with -1 for its height.
        dtype: Of what is kept until a slab is finished.
        finish: What is made of a slab that has all.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        each: int,
        target: Target,
        *,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        finish: Callable[[Values], Values] | None,
    ) -> None:
        self._bounds = sorted({bound for part in parts for bound in (part.begin, part.end)})
        self._missing = [0] * (len(self._bounds) - 1)
        for part in parts:
            for number in self._numbers(part.begin, part.end):
                self._missing[number] += each
        self._target = target
        self._shape = shape
        self._dtype = dtype
        self._finish = finish
        self._open: dict[int, Values] = {}

    def _numbers(self, begin: int, end: int) -> range:
        return range(bisect.bisect_left(self._bounds, begin), bisect.bisect_left(self._bounds, end))

    @property
    def nbytes(self) -> int:
        """Bytes of slabs that are kept apart, until they are finished."""
        return sum(slab.nbytes for slab in self._open.values() if slab.base is None)

    def add(self, begin: int, end: int, give: Callable[[Values, slice], None]) -> None:
        """Take what a patch gives.

        Args:
            begin: The first row it gives to.
            end: The row after the last.
            give: Called with each slab concerned, and the rows of the patch that belong to it,
                counted from ``begin``.
        """
        for number in self._numbers(begin, end):
            low, high = self._bounds[number], self._bounds[number + 1]
            slab = self._open.get(number)
            if slab is None:
                slab = self._open[number] = self._new(low, high)
            give(slab, slice(low - begin, high - begin))
            self._missing[number] -= 1
            if not self._missing[number]:
                del self._open[number]
                if self._finish is not None or self._target.room(low, high) is None:
                    self._target.put(low, slab if self._finish is None else self._finish(slab))

    def _new(self, low: int, high: int) -> Values:
        room = self._target.room(low, high) if self._finish is None else None
        if room is not None:
            return room
        return np.zeros([high - low if side < 0 else side for side in self._shape], self._dtype)
