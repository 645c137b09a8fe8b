"""Arrays cut into blocks, read by regions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.codecs import TILE_CODECS, BlockDecoder, Scratch, TileDecoder, tile_problem
from sharedds.errors import (
    CorruptDataError,
    DecodeError,
    OptionError,
    SchemaError,
    StoreFormatError,
)
from sharedds.store.array_meta import ArrayMeta
from sharedds.store.assembly import Assembly, scaled_blocks
from sharedds.store.block_cache import BlockCache
from sharedds.store.regions import (
    Owner,
    Piece,
    Region,
    Scale,
    copy_rows,
    filling,
    normalise,
    pieces_of,
    whole,
    whole_patch,
    window_of,
)

__all__ = ["ChunkedArray", "Owner"]

_Fetch = Callable[[int, list[int]], Iterable[memoryview]]
_Find = Callable[[int, list[int]], Iterable[tuple[memoryview, int]]]


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
        codec: Of its blocks.
        owner: Whose array it is, for errors.
        first_block: How many blocks the levels before this one have.
        tables: Of JPEG tiles: what those of this level share.
        colour: Of JPEG tiles: what their samples are where they do not say.
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
        scratch: Scratch | None = None,
        find_blocks: _Find | None = None,
    ) -> None:
        self._meta = meta
        self._find_blocks = find_blocks
        self._level = meta.levels[level]
        self._read_blocks = read_blocks
        self._number = level
        self._scratch = scratch
        self.owner = owner
        self._cache = cache if codec != "raw" or meta.shuffle else None  # raw blocks are views
        self.shape = self._level.shape
        self.chunk = self._level.chunk
        self.dtype: np.dtype[Any] = np.dtype(meta.dtype)
        self.attrs = meta.attrs
        self.levels = tuple(each.shape for each in meta.levels)
        self.codec = codec
        self.first_block = sum(each.blocks for each in meta.levels[:level])
        self.tables = self._level.tables
        self.colour = self._level.colour
        self._others: dict[int, ChunkedArray] = {}
        self._tiles = self._tile_decoder() if codec in TILE_CODECS else None

    def _tile_decoder(self) -> TileDecoder:
        """Return what decodes the tiles of this level.

        Raises:
            StoreFormatError: There are no such tiles.
        """
        largest = [min(c, n) if n else c for c, n in zip(self.chunk, self.shape, strict=True)]
        problem: object = tile_problem(self.codec, self.dtype, largest)
        if problem is None:
            try:
                return TileDecoder(
                    self.codec,
                    self.dtype,
                    tables=self.tables,
                    colour=self.colour,
                    scratch=self._scratch,
                )
            except (DecodeError, OptionError) as error:
                problem = error
        raise self.owner.error(StoreFormatError, f"level {self._number}: {problem}")

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
            raise self.owner.error(StoreFormatError, f"its affine is no matrix: {affine!r}")
        return matrix

    def _factor(self, name: str, default: float) -> float:
        value = self.attrs.get(name, default)
        if not isinstance(value, (int, float)):
            raise self.owner.error(StoreFormatError, f"its {name} is no number: {value!r}")
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
        if number == self._number:
            return self
        known = self._others.get(number)
        if known is not None:
            return known
        whole_number = isinstance(number, int | np.integer)
        if not whole_number or not 0 <= number < len(self._meta.levels):
            raise self.owner.error(
                SchemaError, f"no level {number!r}, it has {len(self._meta.levels)}"
            )
        self._others[number] = other = ChunkedArray(
            self._meta,
            self.codec,
            self._read_blocks,
            self.owner,
            int(number),
            cache=self._cache,
            scratch=self._scratch,
            find_blocks=self._find_blocks,
        )
        return other

    def __getitem__(self, region: Any) -> npt.NDArray[Any]:
        slices, squeeze = normalise(region, self.shape, self.owner)
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
        starts, sizes = whole_patch(start, size, padding, self.shape, self.owner)
        dtype = np.dtype(np.float32) if scaled else self.dtype
        if out is None:
            out = np.empty(sizes, dtype)
        elif out.shape != sizes or out.dtype != dtype or not out.flags.writeable:
            raise self.owner.error(
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
            out[...] = self.outside(fill, starts[-1:], sizes[-1:], dtype)
        self._fill(window.region, out[window.places], scaled=scaled)
        return out

    def outside(
        self,
        fill: float | Sequence[float] | None,
        start: tuple[int, ...],
        size: tuple[int, ...],
        dtype: np.dtype[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Return what stands around an array, for a part of its last axis.

        Args:
            fill: One number, one for each of the last axis, or None for the background.
            start: Where the part begins.
            size: How long it is.
            dtype: Of what is filled; as stored by default.
        """
        values = self.background if fill is None else self._filling(fill, dtype)
        if values.size == 1 or (start, size) == ((0,), self.shape[-1:]):
            return values
        return values[np.clip(np.arange(start[0], start[0] + size[0]), 0, len(values) - 1)]

    def _filling(self, fill: Any, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        return filling(fill, self.dtype if dtype is None else dtype, self.shape[-1:], self.owner)

    def stored(self, numbers: Iterable[int]) -> Iterator[memoryview]:
        """Yield blocks of this level as they are stored, compared with their checksums.

        Args:
            numbers: Of the blocks, in C order of the grid; ascending.
        """
        for number in numbers:
            yield from self._read_blocks(self._number, [number])

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
            if len(pieces) == 1 and self._tiles is None:
                for block in self._blocks([pieces[0].number], [pieces[0].shape]):
                    part = block[pieces[0].inner]
                    return part if self.codec == "raw" and not _is_blank(block) else part.copy()
        out = np.empty(shape, self.dtype)
        self._fill(region, out)
        return out

    def _fill(self, region: Region, out: npt.NDArray[Any], *, scaled: bool = False) -> None:
        """Read a region into an array of its shape, in the stored dtype or as scaled float32."""
        if out.size == 0:
            return
        scale = self._scale() if scaled else Scale(1.0, 0.0)
        if self._tiles is not None and out.dtype == self.dtype and self._kept_blocks() is None:
            pieces = pieces_of(region, self.shape, self.chunk)
            for _ in self.decoded(pieces, [out[piece.outer] for piece in pieces]):
                pass  # of each tile no more is decoded than is wanted
            scale.apply(out)
            return
        late = out.dtype == self.dtype or self.codec == "raw"  # scaled when all is there
        if self.ndim:
            assembly = Assembly(region, self.shape, self.chunk)
            blocks = self._blocks(assembly.numbers, assembly.shapes)
            assembly.copy(blocks if late else scaled_blocks(blocks, out.dtype, scale), out)
        else:
            late, (out[...],) = True, self._blocks([0], [()])
        if late:
            scale.apply(out)

    def read_tile(self, piece: Piece, data: memoryview, out: Any) -> None:
        """Decode a part of a tile.

        Args:
            piece: Which part.
            data: The tile as it is stored.
            out: Where it goes.

        Raises:
            CorruptDataError: It is damaged.
        """
        if not len(data) or self._tiles is None:
            out[...] = np.broadcast_to(self.background, piece.shape)[piece.inner]
            return
        try:
            self._tiles.read(data, piece.shape, piece.inner, out)
        except DecodeError as error:
            raise self._damaged(piece.number, error) from error

    @property
    def background(self) -> npt.NDArray[Any]:
        """What blocks that are not there show: one number for each channel, 0 where not known."""
        given = self.attrs.get("background")
        try:
            return self._filling(0 if given is None else given)
        except SchemaError as error:
            raise self.owner.error(StoreFormatError, f"its background is {given!r}") from error

    def _scale(self) -> Scale:
        return Scale(self._factor("slope", 1.0), self._factor("intercept", 0.0))

    def _kept_blocks(self) -> BlockCache | None:
        """Return the cache of decoded blocks, where one was asked for."""
        cache = self._cache() if self._cache is not None else None
        return cache if cache is not None and cache.limit else None

    def _blocks(
        self, numbers: list[int], shapes: list[tuple[int, ...]]
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield blocks of these shapes, in order, each to be read before the next one."""
        cache = self._kept_blocks()
        if cache is None:
            yield from self._decoded(numbers, shapes)
            return
        kept = [cache.get(self._key(number)) for number in numbers]
        missing = [at for at, block in enumerate(kept) if block is None]
        fresh = self._decoded([numbers[at] for at in missing], [shapes[at] for at in missing])
        for number, block in zip(numbers, kept, strict=True):
            if block is None:
                block = next(fresh)
                if not _is_blank(block):
                    block = block.copy()
                    cache.put(self._key(number), block)
            yield block

    def _decoded(
        self, numbers: list[int], shapes: list[tuple[int, ...]]
    ) -> Iterator[npt.NDArray[Any]]:
        if not numbers:
            return
        if self._tiles is not None:
            stored = self._read_blocks(self._number, numbers)
            for number, shape, data in zip(numbers, shapes, stored, strict=True):
                yield self._whole_tile(number, shape, data)
            return
        shuffle = self._meta.shuffle
        blank = functools.partial(getattr, self, "background")
        decoder = BlockDecoder(self.codec, self.dtype, shuffle=shuffle, blank=blank)
        done = 0
        try:
            if self._find_blocks is not None:
                found = self._find_blocks(self._number, numbers)
                blocks = decoder.decode_found(found, shapes)
            else:
                blocks = decoder.decode_all(self._read_blocks(self._number, numbers), shapes)
            for block in blocks:
                yield block
                done += 1
        except DecodeError as error:
            raise self._damaged(numbers[done], error) from error

    def _whole_tile(
        self, number: int, shape: tuple[int, ...], data: memoryview
    ) -> npt.NDArray[Any]:
        """Return a tile; one that is not there takes no memory, whatever size it should have."""
        if not len(data):
            return np.broadcast_to(self.background, shape)
        block = np.empty(shape, self.dtype)
        self.read_tile(Piece(number, shape, whole(shape), whole(shape)), data, block)
        return block

    def _damaged(self, number: int, error: DecodeError) -> CorruptDataError:
        return self.owner.error(CorruptDataError, f"level {self._number}, block {number}: {error}")

    def decoded(
        self, pieces: list[Piece], outs: Sequence[npt.NDArray[Any] | None]
    ) -> Iterator[tuple[int, npt.NDArray[Any] | None]]:
        """Yield blocks by number; None for those that were decoded where they belong.

        Args:
            pieces: Parts of blocks, ascending; of each there is one.
            outs: Where each part goes; None where the whole block is wanted, to be read before the
                next one.
        """
        if self._tiles is None or self._kept_blocks() is not None:
            numbers, shapes = [p.number for p in pieces], [p.shape for p in pieces]
            for piece, block, out in zip(pieces, self._blocks(numbers, shapes), outs, strict=True):
                if out is None:
                    yield piece.number, block
                else:
                    copy_rows(block[piece.inner], out)
                    yield piece.number, None
            return
        stored = self._read_blocks(self._number, [piece.number for piece in pieces])
        for piece, data, out in zip(pieces, stored, outs, strict=True):
            if out is None:
                yield piece.number, self._whole_tile(piece.number, piece.shape, data)
            else:
                self.read_tile(piece, data, out)
                yield piece.number, None

    def _key(self, number: int) -> tuple[int, str, int, int]:
        return self.owner.sample, self.owner.field, self._number, number


def _is_blank(block: npt.NDArray[Any]) -> bool:
    """Whether a block was not there: a few numbers, shown again and again."""
    return 0 in block.strides
