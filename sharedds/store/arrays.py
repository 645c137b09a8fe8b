"""Arrays cut into blocks: how they are cut, and how a region of one is read.

The blocks of an array are numbered in C order of the grid. Blocks at the far edges are as small as
what is left there; nothing is padded.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from sharedds.codecs import decode_block
from sharedds.errors import (
    CorruptDataError,
    DecodeError,
    SampleIndexError,
    SchemaError,
    SharedDSError,
    StoreFormatError,
)
from sharedds.store.layout import DTYPE, MAX_DIMENSIONS

__all__ = [
    "MAX_BLOCK",
    "ArrayMeta",
    "ChunkedArray",
    "LevelMeta",
    "Owner",
    "block_slices",
    "default_chunk",
    "parse_meta",
]

MAX_BLOCK = 0x7E00_0000  # bytes of a block before coding: what LZ4 takes
_TARGET = 128 << 10  # bytes of a block: small enough for patches, large enough for codecs
_WHOLE = 256 << 10  # an array up to this size is one block

Region = tuple[slice, ...]
E = TypeVar("E", bound=SharedDSError)


class Owner(NamedTuple):
    """Whose array it is, for errors."""

    path: str
    sample: int
    field: str

    def error(self, kind: type[E], text: str) -> E:
        """Return an error about this array."""
        return kind(
            f"{self.path}: sample {self.sample}, field {self.field!r}: {text}",
            path=self.path,
            sample=self.sample,
            field=self.field,
        )


class LevelMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One resolution of an array: its shape and the shape of its blocks."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(self.grid)


class ArrayMeta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of one stored array; kept as JSON beside it."""

    dtype: str
    levels: tuple[LevelMeta, ...]
    shuffle: bool = False
    attrs: dict[str, Any] = {}


def parse_meta(data: bytes, owner: Owner) -> ArrayMeta:
    """Parse and check the JSON record of an array.

    Raises:
        StoreFormatError: It is damaged.
    """
    try:
        meta = msgspec.json.decode(data, type=ArrayMeta)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise owner.error(StoreFormatError, f"its description is damaged ({error})") from error
    if not meta.levels or len(meta.levels) > 255 or not DTYPE.match(meta.dtype):
        raise owner.error(StoreFormatError, f"its description is damaged (dtype {meta.dtype!r})")
    itemsize = np.dtype(meta.dtype).itemsize
    for level in meta.levels:
        shape, chunk = level.shape, level.chunk
        sizes_fit = len(shape) == len(chunk) <= MAX_DIMENSIONS and min(shape, default=0) >= 0
        if not sizes_fit or min(chunk, default=1) < 1 or math.prod(shape) >= 1 << 56:
            raise owner.error(StoreFormatError, f"its description is damaged ({shape} in {chunk})")
        if math.prod(min(c, n) for c, n in zip(chunk, shape, strict=True)) * itemsize > MAX_BLOCK:
            raise owner.error(StoreFormatError, f"blocks of {chunk} are over {MAX_BLOCK:,} bytes")
    return meta


def default_chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the block shape for an array: whole up to 256 KiB, else about cubic near 128 KiB.

    The longest edge of the block is halved until the block is small enough; edges stay powers of
    two.
    """
    if math.prod(shape) * itemsize <= _WHOLE:
        return tuple(max(1, n) for n in shape)
    chunk = [1 << (max(1, n) - 1).bit_length() for n in shape]
    while math.prod(chunk) * itemsize > _TARGET:
        chunk[chunk.index(max(chunk))] //= 2
    return tuple(min(c, max(1, n)) for c, n in zip(chunk, shape, strict=True))


def block_slices(level: LevelMeta) -> Iterator[Region]:
    """Yield the region of each block, in C order of the grid."""
    for position in itertools.product(*(range(n) for n in level.grid)):
        yield tuple(
            slice(p * c, min((p + 1) * c, n))
            for p, c, n in zip(position, level.chunk, level.shape, strict=True)
        )


class ChunkedArray:
    """An array of a store, read by regions: only the blocks that a region touches are decoded.

    Attributes:
        shape: Of this level.
        dtype: As stored.
        chunk: Shape of a block.
        levels: Shapes of all levels, finest first.
        attrs: Anything kept with the array: ``slope``, ``intercept``, ``affine``, ...
    """

    def __init__(
        self,
        meta: ArrayMeta,
        codec: str,
        read_blocks: Callable[[int, list[int]], list[memoryview]],
        owner: Owner,
        level: int = 0,
    ) -> None:
        self._meta = meta
        self._level = meta.levels[level]
        self._codec = codec
        self._read_blocks = read_blocks
        self._number = level
        self._owner = owner
        self.shape = self._level.shape
        self.chunk = self._level.chunk
        self.dtype: np.dtype[Any] = np.dtype(meta.dtype)
        self.attrs = meta.attrs
        self.levels = tuple(each.shape for each in meta.levels)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def affine(self) -> npt.NDArray[np.float64] | None:
        """Matrix from index (i, j, k) to millimetres in RAS+, or None when not known."""
        affine = self.attrs.get("affine")
        if affine is None:
            return None
        try:
            matrix = np.asarray(affine, np.float64)
        except (TypeError, ValueError):
            matrix = np.empty(0)
        if matrix.ndim != 2 or min(matrix.shape) < 3:
            raise self._owner.error(StoreFormatError, f"its affine is no matrix: {affine!r}")
        return matrix

    def _factor(self, name: str, default: float) -> float:
        value = self.attrs.get(name, default)
        if not isinstance(value, (int, float)):
            raise self._owner.error(StoreFormatError, f"its {name} is no number: {value!r}")
        return float(value)

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Millimetres between neighbours along each axis of the affine, or None."""
        affine = self.affine
        if affine is None:
            return None
        return tuple(float(n) for n in np.linalg.norm(affine[:3, :3], axis=0))

    def level(self, number: int) -> ChunkedArray:
        """Return another resolution of the same array; 0 is the finest.

        Raises:
            SchemaError: No such level.
        """
        if not 0 <= number < len(self._meta.levels):
            raise self._owner.error(
                SchemaError, f"no level {number}, it has {len(self._meta.levels)}"
            )
        return ChunkedArray(self._meta, self._codec, self._read_blocks, self._owner, number)

    def __getitem__(self, region: Any) -> npt.NDArray[Any]:
        slices, squeeze = self._normalise(region)
        steps = tuple(slice(None, None, s.step) for s in slices)
        out = self._read(tuple(slice(s.start, s.stop) for s in slices))[steps]
        return out[squeeze] if any(not isinstance(s, slice) for s in squeeze) else out

    def read(self, region: Any = None, *, scaled: bool = True) -> npt.NDArray[Any]:
        """Read a region; with ``scaled`` as float32 after slope and intercept.

        Args:
            region: As in ``array[region]``; None for the whole.
            scaled: False for the stored dtype and values.
        """
        values = self[() if region is None else region]
        if not scaled:
            return values
        slope, intercept = self._factor("slope", 1.0), self._factor("intercept", 0.0)
        scaled_values = values.astype(np.float32)
        if slope != 1.0:
            scaled_values *= np.float32(slope)
        if intercept != 0.0:
            scaled_values += np.float32(intercept)
        return scaled_values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self[()], dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ChunkedArray(shape={self.shape}, dtype={self.dtype}, chunk={self.chunk})"

    def _normalise(self, region: Any) -> tuple[Region, tuple[Any, ...]]:
        """Return a slice for each axis, and what takes the axes of integers away again."""
        parts = list(region) if isinstance(region, tuple) else [region]
        dots = [at for at, part in enumerate(parts) if part is Ellipsis]
        missing = self.ndim - len(parts) + len(dots[:1])
        if len(dots) > 1 or missing < 0:
            raise self._owner.error(SchemaError, f"{len(parts)} indices for {self.ndim} dimensions")
        at = dots[0] if dots else len(parts)
        parts[at : at + len(dots)] = [slice(None)] * missing
        slices: list[slice] = []
        squeeze: list[Any] = []
        for axis, (part, size) in enumerate(zip(parts, self.shape, strict=True)):
            if isinstance(part, slice):
                try:
                    start, stop, step = part.indices(size)
                except (TypeError, ValueError) as error:
                    raise self._owner.error(
                        SchemaError, f"{part} on axis {axis}: {error}"
                    ) from None
                if step < 1:
                    raise self._owner.error(
                        SchemaError, f"step {step} on axis {axis}; steps must be positive"
                    )
                slices.append(slice(start, max(start, stop), step))
                squeeze.append(slice(None))
            else:
                index = self._index(part, axis, size)
                slices.append(slice(index, index + 1, 1))
                squeeze.append(0)
        return tuple(slices), tuple(squeeze)

    def _index(self, part: Any, axis: int, size: int) -> int:
        try:
            if isinstance(part, (bool, np.bool_)):
                raise TypeError
            index = operator.index(part)
        except TypeError:
            raise self._owner.error(
                SchemaError,
                f"index {part!r} on axis {axis}; a region is made of slices and integers",
            ) from None
        if not -size <= index < size:
            raise self._owner.error(
                SampleIndexError, f"index {index} on axis {axis} of size {size}"
            )
        return index % size

    def _read(self, region: Region) -> npt.NDArray[Any]:
        shape = tuple(s.stop - s.start for s in region)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        spans = [
            range(s.start // c, (s.stop - 1) // c + 1)
            for s, c in zip(region, self.chunk, strict=True)
        ]
        positions = list(itertools.product(*spans))
        grid = self._level.grid
        numbers = [int(np.ravel_multi_index(p, grid)) if p else 0 for p in positions]
        blocks = self._read_blocks(self._number, numbers)
        out: npt.NDArray[Any] | None = None
        for position, number, data in zip(positions, numbers, blocks, strict=True):
            origin = [p * c for p, c in zip(position, self.chunk, strict=True)]
            size = tuple(
                min(c, n - o) for c, n, o in zip(self.chunk, self.shape, origin, strict=True)
            )
            block = self._decode(data, size, number)
            inner = tuple(
                slice(max(s.start - o, 0), min(s.stop - o, n))
                for s, o, n in zip(region, origin, size, strict=True)
            )
            if len(positions) == 1:
                return block[inner]
            if out is None:
                out = np.empty(shape, self.dtype)
            outer = tuple(
                slice(i.start + o - s.start, i.stop + o - s.start)
                for i, o, s in zip(inner, origin, region, strict=True)
            )
            out[outer] = block[inner]
        return out if out is not None else np.empty(shape, self.dtype)

    def _decode(self, data: memoryview, size: tuple[int, ...], number: int) -> npt.NDArray[Any]:
        try:
            return decode_block(
                data, self._codec, dtype=self.dtype, shape=size, shuffle=self._meta.shuffle
            )
        except DecodeError as error:
            text = f"level {self._number}, block {number}: {error}"
            raise self._owner.error(CorruptDataError, text) from error
