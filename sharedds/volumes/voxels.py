"""Voxels of an open volume, in memory or in a mapped file, read by regions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SourceError, StoreError
from sharedds.handles.mapped import MappedFile

__all__ = ["HeldVoxels", "Layout", "MappedVoxels", "as_source", "file_layout"]

_RELEASED_FROM = 64 << 20  # of smaller files all pages may stay
_RELEASED_AT = 32 << 20
_AROUND = 64 << 10  # touching one byte of a mapped file maps so many around it
_TILE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the voxels lie in a file: every byte from ``offset`` on for ``nbytes``, in any order.

    Attributes:
        offset: Of the first voxel, in bytes; of the unpacked content where it is compressed.
        dtype: In the file, with its byte order.
        shape: As the reader gives them: (i, j, k) or (steps, i, j, k).
        strides: In bytes, one for each axis of ``shape``.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all voxels."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size

    @property
    def end(self) -> int:
        """Bytes that the file has to have at least."""
        return self.offset + self.nbytes

    @property
    def native(self) -> np.dtype[Any]:
        """The dtype of what is read, little-endian."""
        return self.dtype.newbyteorder("<")


def file_layout(
    dtype: np.dtype[Any],
    shape: tuple[int, int, int],
    steps: int,
    *,
    offset: int,
    samples: int,
    plain: bool,
) -> Layout:
    """Return the layout that files of volumes share: i is the fastest, or samples before it.

    Args:
        dtype: In the file.
        shape: Voxels along (i, j, k).
        steps: How many volumes, or samples of one voxel.
        offset: Of the first voxel.
        samples: How many values of a voxel lie side by side; 1 where volumes follow each other.
        plain: There is one volume and no axis for it.
    """
    i, j, k = shape
    one = dtype.itemsize * samples
    spatial = (one, one * i, one * i * j)
    if plain:
        return Layout(offset=offset, dtype=dtype, shape=shape, strides=spatial)
    step = dtype.itemsize if samples > 1 else one * i * j * k
    return Layout(offset=offset, dtype=dtype, shape=(steps, *shape), strides=(step, *spatial))


class HeldVoxels:
    """Voxels in memory.

    Args:
        array: (i, j, k) or (steps, i, j, k), in any memory order.
        owner: What has to live as long as the array.
    """

    def __init__(self, array: npt.NDArray[Any], owner: object = None) -> None:
        self._array: npt.NDArray[Any] | None = array
        self._owner = owner
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = array.dtype.newbyteorder("<")

    def __getitem__(self, region: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Return a copy of a region, in C order."""
        if self._array is None:
            raise OptionError("the volume is closed; read its voxels inside the with block")
        return _copied(self._array[_checked(region, self.shape)], self.dtype)

    def close(self) -> None:
        """Let go of the voxels."""
        self._array = self._owner = None


class MappedVoxels(HeldVoxels):
    """Voxels of a mapped file; regions are copies, and pages of a large file are let go again.

    Args:
        file: The mapped file.
        layout: Where the voxels lie in it.
    """

    def __init__(self, file: MappedFile, layout: Layout) -> None:
        super().__init__(
            np.ndarray(layout.shape, layout.dtype, file.view, layout.offset, layout.strides), file
        )
        self._file: MappedFile | None = file
        self._layout = layout
        self._touched = 0
        self._low, self._high = file.size, 0

    def __getitem__(self, region: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Return a copy of a region, in C order.

        Raises:
            SourceError: The file was cut short since it was opened.
        """
        file = self._file
        if file is not None:
            with as_source(file.path):
                file.require_whole()
        found = super().__getitem__(region)
        if file is not None and file.size > _RELEASED_FROM and found.size:
            self._passed(file, _checked(region, self.shape))
        return found

    def close(self) -> None:
        """Let go of the file."""
        super().close()
        self._file = None

    def _passed(self, file: MappedFile, region: tuple[slice, ...]) -> None:
        """Count the pages that a region touched, and release all of them now and then."""
        itemsize = self._layout.dtype.itemsize
        strides = self._layout.strides
        low = self._layout.offset + sum(
            part.start * stride for part, stride in zip(region, strides, strict=True)
        )
        high = low + itemsize
        extent, pieces = itemsize, 1
        for stride, part in sorted(zip(strides, region, strict=True), key=lambda pair: pair[0]):
            length = part.stop - part.start
            high += stride * (length - 1)
            if pieces == 1 and stride <= extent + _AROUND:
                extent += stride * (length - 1)
            else:
                pieces *= length
        self._touched += pieces * (extent + _AROUND)
        self._low, self._high = min(self._low, low), max(self._high, high)
        if self._touched >= _RELEASED_AT:
            file.release(self._low, self._high - self._low)
            self._touched = 0
            self._low, self._high = file.size, 0


@contextmanager
def as_source(path: str) -> Iterator[None]:
    """Say what is wrong with a file in terms of an input; the mapping speaks of stores."""
    try:
        yield
    except StoreError as error:
        raise SourceError(str(error), path=path) from error


def _checked(region: Any, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return a region with its bounds filled in."""
    if not isinstance(region, tuple) or len(region) != len(shape):
        raise OptionError(f"{region!r} is no region of {shape}; one slice for each axis is needed")
    found = []
    for part, size in zip(region, shape, strict=True):
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise OptionError(f"{part!r} is no slice with step 1; read the region and take part")
        start, stop, _ = part.indices(size)
        found.append(slice(start, max(start, stop)))
    return tuple(found)


def _copied(view: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a C-ordered copy; a large one tile by tile where the file has another order.

    Copied at once, every single value would be fetched from another page.
    """
    out = np.empty(view.shape, dtype)
    if view.ndim < 2 or view.size < 4 * _TILE**3 or view.strides[-1] == view.itemsize:
        out[...] = view
        return out
    for j in range(0, view.shape[-2], _TILE):
        for k in range(0, view.shape[-1], _TILE):
            tile = (..., slice(j, j + _TILE), slice(k, k + _TILE))
            out[tile] = view[tile]
    return out
