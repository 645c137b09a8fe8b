"""Voxels of a file on their way into blocks: read in slabs, so that a file is walked few times.

Files keep the first axis together, blocks are written with the last axis running fastest: read
block by block, a file would be walked once for each row of blocks. A slab holds as many whole
rows as fit in a fixed number of bytes.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.handles import storage_errors
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["SLAB_BYTES", "BlockFile", "OneSlab", "Slabs", "Stacked", "along_file"]

SLAB_BYTES = 64 << 20

Region = tuple[slice, ...]


class OneSlab:
    """The slab that a case holds: its image and its label take turns."""

    def __init__(self) -> None:
        self.owner: object = None
        self.start: tuple[int, ...] = ()
        self.values: npt.NDArray[Any] | None = None

    def clear(self) -> None:
        """Let go of it."""
        self.owner, self.start, self.values = None, (), None


class Slabs:
    """An array read in slabs along the first spatial axis, and the second where it must be.

    A region that lies in the slab that is held is cut from it. A region that lies in no slab is
    read as it is.

    Args:
        data: The voxels.
        chunk: Shape of the blocks that will be asked for, as many numbers as ``data`` has axes.
        held: Where the slab is kept; several arrays may share the place.
        limit: Bytes of a slab.
        along_file: Blocks will be asked for in the order of :func:`along_file`.

    Attributes:
        shape: Of ``data``.
        dtype: Of ``data``.
        error: What the last read failed with, as the file's reader said it.
    """

    def __init__(
        self,
        data: VolumeData,
        chunk: Sequence[int],
        *,
        held: OneSlab | None = None,
        limit: int = SLAB_BYTES,
        along_file: bool = False,
    ) -> None:
        self._data = data
        self._held = OneSlab() if held is None else held
        self.shape = tuple(data.shape)
        self.dtype = np.dtype(data.dtype)
        self.error: BaseException | None = None
        axes = range(len(self.shape))
        order = (*axes[-3:], *axes[:-3]) if along_file else tuple(reversed(axes))
        self._size = _slab_shape(self.shape, self.dtype.itemsize, tuple(chunk), limit, order)

    @property
    def count(self) -> int:
        """How many slabs there are: so often is the file walked."""
        return math.prod(-(-n // s) for n, s in zip(self.shape, self._size, strict=True))

    def __getitem__(self, region: Region) -> npt.NDArray[Any]:
        try:
            return self._read(region)
        except BaseException as error:
            self.error = error
            raise

    def _read(self, region: Region) -> npt.NDArray[Any]:
        start = tuple(s.start // n * n for s, n in zip(region, self._size, strict=True))
        if any(s.stop > b + n for s, b, n in zip(region, start, self._size, strict=True)):
            return self._data[region]
        held = self._held
        if held.values is None or held.owner is not self or held.start != start:
            held.clear()  # the old one goes first
            whole = tuple(
                slice(b, min(b + n, size))
                for b, n, size in zip(start, self._size, self.shape, strict=True)
            )
            values = self._data[whole]
            held.owner, held.start, held.values = self, start, values
        inner = tuple(slice(s.start - b, s.stop - b) for s, b in zip(region, start, strict=True))
        return held.values[inner]


def _slab_shape(
    shape: tuple[int, ...],
    itemsize: int,
    chunk: tuple[int, ...],
    limit: int,
    order: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the shape of a slab: whole blocks, and whole axes where they fit, in this order."""
    size = [min(c, n) for c, n in zip(chunk, shape, strict=True)]
    for axis in order:
        others = itemsize * math.prod(size[:axis] + size[axis + 1 :])
        room = limit // max(others, 1)
        if room >= shape[axis]:
            size[axis] = max(shape[axis], 1)
        elif room >= 2 * size[axis]:
            size[axis] = room // size[axis] * size[axis]
        if size[axis] < shape[axis]:
            break
    return tuple(max(n, 1) for n in size)


def along_file(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[tuple[int, Region]]:
    """Yield the number and the region of each block, in the order in which files hold voxels.

    Numbers are those of the grid in C order; steps come one after the other, then slices.
    """
    grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    steps = len(grid) - 3
    for place in itertools.product(*map(range, (*grid[:steps], *reversed(grid[steps:])))):
        position = (*place[:steps], *reversed(place[steps:]))
        number = int(np.ravel_multi_index(position, grid))
        region = tuple(
            slice(p * c, min((p + 1) * c, n))
            for p, c, n in zip(position, chunk, shape, strict=True)
        )
        yield number, region


class BlockFile:
    """The blocks of a large volume in a file of their own, written while it is walked once.

    Args:
        data: The voxels.
        chunk: Shape of the blocks.
        folder: Where the file is made; it has no name there, so it goes with the process.
        limit: Bytes of the slabs in which the volume is walked.

    Attributes:
        shape: Of ``data``.
        dtype: Of ``data``.
        error: What the last read failed with.
    """

    def __init__(
        self, data: VolumeData, chunk: Sequence[int], folder: Path, *, limit: int = SLAB_BYTES
    ) -> None:
        self.shape = tuple(data.shape)
        self.dtype = np.dtype(data.dtype)
        self.error: BaseException | None = None
        self._chunk = tuple(min(c, n) for c, n in zip(chunk, self.shape, strict=True))
        self._grid = tuple(-(-n // c) for n, c in zip(self.shape, self._chunk, strict=True))
        self._room = math.prod(self._chunk) * self.dtype.itemsize
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        try:
            slabs = Slabs(data, self._chunk, limit=limit, along_file=True)
            with storage_errors(str(folder)):
                for number, region in along_file(self.shape, self._chunk):
                    self._file.seek(number * self._room)
                    self._file.write(np.ascontiguousarray(slabs[region], self.dtype).data)
                self._file.flush()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, region: Region) -> npt.NDArray[Any]:
        try:
            place = [s.start // c for s, c in zip(region, self._chunk, strict=True)]
            shape = tuple(s.stop - s.start for s in region)
            self._file.seek(int(np.ravel_multi_index(place, self._grid)) * self._room)
            data = self._file.read(math.prod(shape) * self.dtype.itemsize)
            return np.frombuffer(data, self.dtype).reshape(shape)
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Stacked:
    """Several volumes of one grid as the channels of one.

    Args:
        parts: The voxels of each, all of one shape: (i, j, k), or (steps, i, j, k).
        headers: Their descriptions.

    Attributes:
        shape: (channels, i, j, k).
        dtype: That holds all of them; float32 where they are scaled in different ways, with the
            scaling applied.
        slope, intercept: What all of them share; 1 and 0 where it was applied.
    """

    def __init__(self, parts: Sequence[VolumeData], headers: Sequence[VolumeHeader]) -> None:
        self._parts = tuple(parts)
        self._headers = tuple(headers)
        scales = {(header.slope, header.intercept) for header in headers}
        self._applied = len(scales) > 1
        self.slope, self.intercept = (1.0, 0.0) if self._applied else next(iter(scales))
        kinds = {np.dtype(part.dtype) for part in parts}
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        if not self._applied:
            self.dtype = np.result_type(*kinds)
        self._steps = [1 if len(part.shape) == 3 else part.shape[0] for part in parts]
        self.shape = (sum(self._steps), *parts[0].shape[-3:])

    def __getitem__(self, region: Region) -> npt.NDArray[Any]:
        channels, *space = region
        out = np.empty(
            (channels.stop - channels.start, *(s.stop - s.start for s in space)), self.dtype
        )
        first = 0
        for part, header, steps in zip(self._parts, self._headers, self._steps, strict=True):
            low, high = max(channels.start, first), min(channels.stop, first + steps)
            if low < high:
                inner = tuple(space)
                if len(part.shape) == 4:
                    inner = (slice(low - first, high - first), *inner)
                values = part[inner].reshape(high - low, *out.shape[1:])
                target = out[low - channels.start : high - channels.start]
                if self._applied:
                    for step, row in np.ndindex(values.shape[:2]):  # no large array of float64
                        target[step, row] = values[step, row] * header.slope + header.intercept
                else:
                    target[...] = values
            first += steps
        return out
