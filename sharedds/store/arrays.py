"""Arrays cut into blocks: how they are cut, and how a region of one is read.

The blocks of an array are numbered in C order of the grid. Blocks at the far edges are as small as
what is left there; nothing is padded.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sharedds.codecs import BlockDecoder
from sharedds.errors import (
    CorruptDataError,
    DecodeError,
    SampleIndexError,
    SchemaError,
    StoreFormatError,
)
from sharedds.store.block_cache import BlockCache
from sharedds.store.layout import DTYPE, MAX_DIMENSIONS
from sharedds.store.regions import (
    PADDINGS,
    Owner,
    Piece,
    Region,
    Scale,
    copy_rows,
    normalise,
    pieces_of,
    window_of,
)

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

_Fetch = Callable[[int, list[int]], Iterable[memoryview]]


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

    ``array[region]`` gives the stored dtype, :meth:`read` and :meth:`patch` numbers after slope and
    intercept. Threads may share one.

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
        read_blocks: _Fetch,
        owner: Owner,
        level: int = 0,
        *,
        cache: Callable[[], BlockCache | None] | None = None,
    ) -> None:
        self._meta = meta
        self._level = meta.levels[level]
        self._codec = codec
        self._read_blocks = read_blocks
        self._number = level
        self._owner = owner
        self._cache = cache if codec != "raw" or meta.shuffle else None  # raw blocks are views
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
        return ChunkedArray(
            self._meta, self._codec, self._read_blocks, self._owner, number, cache=self._cache
        )

    def __getitem__(self, region: Any) -> npt.NDArray[Any]:
        slices, squeeze = normalise(region, self.shape, self._owner)
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
        scaled_values = values.astype(np.float32)
        self._scale().apply(scaled_values)
        return scaled_values

    def patch(
        self,
        start: Sequence[int],
        size: Sequence[int],
        *,
        scaled: bool = True,
        padding: str = "constant",
        fill: float = 0,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Cut a patch of the last axes, which may reach beyond the array; earlier axes are whole.

        Args:
            start: First voxel along each of the last ``len(start)`` axes; may be negative.
            size: Voxels along each of them.
            scaled: float32 after slope and intercept, which are applied to what was cut; False for
                the stored dtype and values.
            padding: What is outside: ``"constant"``, ``"edge"`` (the border repeated) or
                ``"reflect"`` (mirrored at the border, which is not repeated).
            fill: The constant, in the values that are returned.
            out: Where to write, of just that shape and dtype; a new array by default.

        Returns:
            A new array that may be written to (or ``out``), of shape ``(*leading axes, *size)``.

        Raises:
            SchemaError: More axes than there are, a negative size, another padding, or an ``out``
                that does not fit.
            SampleIndexError: Padding that repeats an array which has nothing to repeat.
            CorruptDataError: A block is damaged.
        """
        starts, sizes = self._whole_patch(start, size, padding)
        dtype = np.dtype(np.float32) if scaled else self.dtype
        if out is None:
            out = np.empty(sizes, dtype)
        elif out.shape != sizes or out.dtype != dtype or not out.flags.writeable:
            raise self._owner.error(
                SchemaError,
                f"out is {out.dtype} of shape {out.shape}; {dtype} of shape {sizes} that can be "
                "written is needed",
            )
        window = window_of(starts, sizes, self.shape, padding)
        if window.sources is not None:
            values = np.empty([part.stop - part.start for part in window.region], dtype)
            self._fill(window.region, values, scaled=scaled)
            out[...] = values[np.ix_(*window.sources)]
            return out
        if not window.inside:
            out[...] = self._constant(fill, dtype)
        self._fill(window.region, out[window.places], scaled=scaled)
        return out

    def _constant(self, fill: float, dtype: np.dtype[Any]) -> Any:
        """Return the value around an array, refusing what its dtype cannot hold."""
        try:
            value = dtype.type(fill)
            fits = dtype.kind == "f" or bool(value == fill)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise self._owner.error(SchemaError, f"fill {fill!r} does not fit {dtype}")
        return value

    def _whole_patch(
        self, start: Sequence[int], size: Sequence[int], padding: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return start and size for all axes."""
        try:
            starts = [operator.index(n) for n in start]
            sizes = [operator.index(n) for n in size]
        except TypeError as error:
            raise self._owner.error(
                SchemaError, f"a patch at {start} of {size}: whole numbers are needed"
            ) from error
        if len(starts) != len(sizes) or len(starts) > self.ndim or min(sizes, default=0) < 0:
            raise self._owner.error(
                SchemaError,
                f"a patch at {starts} of {sizes}: one start and one size, 0 or more, for each of "
                f"up to {self.ndim} axes",
            )
        if padding not in PADDINGS:
            raise self._owner.error(
                SchemaError, f"padding {padding!r}; one of {', '.join(PADDINGS)}"
            )
        leading = self.ndim - len(starts)
        sides = self.shape[leading:]
        if padding != "constant" and any(n == 0 < p for n, p in zip(sides, sizes, strict=True)):
            raise self._owner.error(
                SampleIndexError, f"shape {self.shape} has nothing that could be repeated"
            )
        return (0,) * leading + tuple(starts), self.shape[:leading] + tuple(sizes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self[()], dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ChunkedArray(shape={self.shape}, dtype={self.dtype}, chunk={self.chunk})"

    def _read(self, region: Region) -> npt.NDArray[Any]:
        """Return a region in the stored dtype: of a single raw block as a view of it."""
        shape = tuple(s.stop - s.start for s in region)
        if 0 not in shape:
            pieces = pieces_of(region, self.shape, self.chunk)
            if len(pieces) == 1:
                for piece, block in self._blocks(pieces):
                    part = block[piece.inner]
                    return part if self._codec == "raw" else part.copy()
        out = np.empty(shape, self.dtype)
        self._fill(region, out)
        return out

    def _fill(self, region: Region, out: npt.NDArray[Any], *, scaled: bool = False) -> None:
        """Read a region into an array of its shape, in the stored dtype or as scaled float32."""
        if out.size == 0:
            return
        scale = self._scale() if scaled else Scale(1.0, 0.0)
        late = out.dtype == self.dtype or self._codec == "raw"  # scaled when all is there
        room = np.empty(0 if late else math.prod(self.chunk), out.dtype)
        for piece, block in self._blocks(pieces_of(region, self.shape, self.chunk)):
            if not late:  # converted as a whole, while the processor has it at hand
                values = room[: block.size].reshape(block.shape)
                np.copyto(values, block, casting="unsafe")
                scale.apply(values)
                block = values
            copy_rows(block[piece.inner], out[piece.outer])
        if late:
            scale.apply(out)

    def _scale(self) -> Scale:
        return Scale(self._factor("slope", 1.0), self._factor("intercept", 0.0))

    def _blocks(self, pieces: list[Piece]) -> Iterator[tuple[Piece, npt.NDArray[Any]]]:
        """Yield each piece with its block, in order, which is to be read before the next one."""
        cache = self._cache() if self._cache is not None else None
        if cache is None or not cache.limit:
            yield from self._decoded(pieces)
            return
        kept = {piece.number: cache.get(self._key(piece.number)) for piece in pieces}
        fresh = self._decoded([piece for piece in pieces if kept[piece.number] is None])
        for piece in pieces:
            block = kept[piece.number]
            if block is None:
                block = next(fresh)[1].copy()
                cache.put(self._key(piece.number), block)
            yield piece, block

    def _decoded(self, pieces: list[Piece]) -> Iterator[tuple[Piece, npt.NDArray[Any]]]:
        if not pieces:
            return
        decoder = BlockDecoder(self._codec, self.dtype, shuffle=self._meta.shuffle)
        stored = self._read_blocks(self._number, [piece.number for piece in pieces])
        blocks = decoder.decode_all(stored, [piece.shape for piece in pieces])
        done = 0
        try:
            for piece, block in zip(pieces, blocks, strict=True):
                yield piece, block
                done += 1
        except DecodeError as error:
            text = f"level {self._number}, block {pieces[done].number}: {error}"
            raise self._owner.error(CorruptDataError, text) from error

    def _key(self, number: int) -> tuple[int, str, int, int]:
        return self._owner.sample, self._owner.field, self._number, number
