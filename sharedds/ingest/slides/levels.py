"""The tiles of a slide, made one by one: read or copied, reduced, encoded, and looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharedds.codecs import TILE_CODECS, TileDecoder, encode_block, encode_tile
from sharedds.errors import DecodeError
from sharedds.ingest.slides.index import statistics
from sharedds.ingest.slides.recipe import LevelPlan, SlidePlan, SlideRecipe
from sharedds.ingest.slides.shapes import Shapes
from sharedds.ingest.slides.spool import TileSpool
from sharedds.slides.source import SlideHeader, SlideReader
from sharedds.store.array_meta import ArrayMeta, LevelMeta
from sharedds.store.arrays import ChunkedArray
from sharedds.store.blocking import EFFORT
from sharedds.store.regions import Owner

__all__ = ["Made", "Place", "TileMaker", "array_meta", "encoded_tile"]

Values = npt.NDArray[Any]


class Place(NamedTuple):
    """A tile: its level, plane (number among those stored), row and column."""

    level: int
    plane: int
    row: int
    column: int


class Made(NamedTuple):
    """What became of a tile.

    Attributes:
        data: As it is stored; no bytes where there is no tile.
        figures: What is on its cells, where it is one that is indexed.
        error: Why it could not be read.
    """

    data: bytes
    figures: bytes
    error: DecodeError | None = None


def array_meta(plan: SlidePlan, header: SlideHeader, attrs: dict[str, Any]) -> ArrayMeta:
    """Return what is stored about the picture."""
    lead, one = ((len(plan.planes),), (1,)) if plan.has_planes else ((), ())
    levels = tuple(
        LevelMeta(
            (*lead, *level.shape, header.channels),
            (*one, *_fitting(level), header.channels),
            tables=level.tables,
            colour=level.colour,
        )
        for level in plan.levels
    )
    dtype = np.dtype(header.dtype).newbyteorder("<")
    return ArrayMeta(dtype.str, levels, is_shuffled(plan.codec, dtype), attrs)


def _fitting(level: LevelPlan) -> tuple[int, int]:
    """Return the shape of the blocks: no larger than the level, as all arrays have it."""
    return min(level.tile[0], level.shape[0]), min(level.tile[1], level.shape[1])


def is_shuffled(codec: str, dtype: np.dtype[Any]) -> bool:
    """Return whether bytes of blocks are grouped by significance."""
    return codec in ("lz4", "zstd") and dtype.itemsize > 1


@dataclass(frozen=True, kw_only=True)
class TileMaker:
    """Makes the tiles of one slide; threads may share it.

    Args:
        reader: The open file.
        header: Of the file.
        plan: How it is stored.
        recipe: How tiles are encoded.
        spool: Has the tiles of the levels before.
        shapes: Regions drawn on it.
        classes: Names of all classes, in order.
    """

    reader: SlideReader
    header: SlideHeader
    plan: SlidePlan
    recipe: SlideRecipe
    spool: TileSpool
    shapes: Shapes | None = None
    classes: tuple[str, ...] = ()

    def places(self) -> Iterator[Place]:
        """Yield all tiles, in the order in which they are stored."""
        for number, level in enumerate(self.plan.levels):
            for plane in range(len(self.plan.planes)):
                for row in range(level.grid[0]):
                    for column in range(level.grid[1]):
                        yield Place(number, plane, row, column)

    def make(self, work: tuple[Place, Values | None]) -> Made:
        """Make one tile; what is wrong with it is returned and not raised.

        Args:
            work: The tile, and its pixels where they were read already.
        """
        place, pixels = work
        level = self.plan.levels[place.level]
        try:
            if level.keeps and level.source is not None:
                return self._kept(place, level)
            if pixels is None:
                pixels = self._read(place, level)
        except DecodeError as error:
            return Made(b"", b"", error)
        data = encoded_tile(pixels, self.plan.codec, self.recipe)
        return Made(data, self._figures(place, pixels))

    def _kept(self, place: Place, level: LevelPlan) -> Made:
        data = self.reader.stream(level.source or 0, row=place.row, column=place.column)
        if not data:
            return Made(b"", self._figures(place, None))
        decoder = TileDecoder("jpeg", "u1", tables=level.tables, colour=level.colour)
        _, _, height, width = self._window(place, level)
        try:  # decoded once, which proves it
            pixels = decoder.decode(data, (height, width, self.header.channels))
        except DecodeError as error:
            raise DecodeError(
                f"level {place.level}, row {place.row}, column {place.column}: {error}"
            ) from error
        return Made(bytes(data), self._figures(place, pixels))

    def _window(self, place: Place, level: LevelPlan) -> tuple[int, int, int, int]:
        """Return (y, x, height, width) of a tile in its level."""
        y, x = place.row * level.tile[0], place.column * level.tile[1]
        height, width = level.shape
        return y, x, min(level.tile[0], height - y), min(level.tile[1], width - x)

    def _read(self, place: Place, level: LevelPlan) -> Values:
        y, x, height, width = self._window(place, level)
        if level.source is not None:
            return self.reader.read(
                level.source,
                y=y,
                x=x,
                height=height,
                width=width,
                plane=self.plan.planes[place.plane],
            )
        below = self._below(place.level - 1)
        part: Any = (slice(2 * y, 2 * (y + height)), slice(2 * x, 2 * (x + width)))
        return _halved(below[(place.plane, *part) if self.plan.has_planes else part])

    def _below(self, number: int) -> ChunkedArray:
        """Return a level that is in the spool, to read regions of it."""
        meta = array_meta(self.plan, self.header, self.background_attrs())
        first = sum(level.blocks for level in meta.levels[:number])

        def fetch(_: int, numbers: list[int]) -> Iterable[memoryview]:
            return self.spool.tiles(first + each for each in numbers)

        return ChunkedArray(
            meta, self.plan.codec, fetch, Owner(self.header.path, 0, "image"), number
        )

    def background_attrs(self) -> dict[str, Any]:
        """Return what absent tiles show, as attributes."""
        given = self.header.background
        if given is None:
            return {}
        whole = np.dtype(self.header.dtype).kind in "iu"
        return {"background": [round(n) if whole else float(n) for n in given]}

    def _figures(self, place: Place, pixels: Values | None) -> bytes:
        """Return what is on the cells of a tile of level 0, for the plane that is indexed."""
        if place.level or place.plane != self.plan.indexed:
            return b""
        level = self.plan.levels[0]
        y, x, height, width = self._window(place, level)
        if pixels is None:  # there is no tile: nothing was scanned
            pixels = np.zeros((height, width, self.header.channels), self.header.dtype)
            attrs = self.background_attrs()
            pixels[...] = attrs.get("background", 0)
        found = statistics(
            pixels.reshape(pixels.shape[-3:]), cell=self.plan.cell, is_rgb=self.header.is_rgb
        )
        parts = [found.tissue.tobytes(), found.mean.tobytes(), found.sharpness.tobytes()]
        if self.shapes is not None:
            counts = self.shapes.counts(
                y=y, x=x, height=height, width=width, cell=self.plan.cell, classes=self.classes
            )
            parts.append(counts.tobytes())
        return b"".join(parts)


def encoded_tile(pixels: Values, codec: str, recipe: SlideRecipe) -> bytes:
    """Return a tile, (height, width, channels), as it is stored."""
    values = np.ascontiguousarray(pixels.reshape(pixels.shape[-3:]))
    if codec in TILE_CODECS:
        quality = recipe.quality if codec == "jpeg" else None  # webp: without loss
        return encode_tile(values, codec, quality=quality, chroma=recipe.chroma)
    return encode_block(
        values, codec, shuffle=is_shuffled(codec, values.dtype), effort=EFFORT[codec]
    )


def _halved(values: Values) -> Values:
    """Return means of 2 x 2 pixels, rounded; an odd row or column is a mean of what there is."""
    flat: Any = values.reshape(values.shape[-3:])
    height, width, _ = flat.shape
    if height % 2 or width % 2:
        flat = np.pad(flat, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    dtype = values.dtype
    wide: Any = np.float64 if dtype.kind == "f" else np.uint16 if dtype == np.uint8 else np.int64
    sums: Values = flat[0::2].astype(wide)
    sums += flat[1::2]
    both: Values = sums[:, 0::2] + sums[:, 1::2]
    if dtype.kind == "f":
        both /= 4
    else:
        both += 2  # halves are rounded up
        both //= 4
    found: Values = both.astype(dtype)
    return found
