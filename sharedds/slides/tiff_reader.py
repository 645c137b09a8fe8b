"""The pixels of an open TIFF slide: regions put together of the tiles that they touch."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SourceError
from sharedds.slides.limits import CACHED_BYTES, CACHED_STRIP_BYTES
from sharedds.slides.source import SlideHeader
from sharedds.slides.tiff_directory import TiffSource
from sharedds.slides.tiff_page import TiffPage
from sharedds.slides.tiff_tiles import PageTiles

__all__ = ["TiffReader"]

Array = npt.NDArray[Any]
_Key = tuple[int, int, int, int]


class TiffReader:
    """Reads an open file from any place, so threads may share it.

    Decoded tiles are kept, up to 64 MiB (256 MiB of slides in strips, which may be 64 MiB each),
    for the next region that touches them.

    Args:
        source: The open file.
        header: Of the slide.
        levels: Of each level, the pages of each plane; each page has some of the channels.
        associated: Pages of the other pictures.
    """

    def __init__(
        self,
        source: TiffSource,
        header: SlideHeader,
        levels: Sequence[Sequence[Sequence[TiffPage]]],
        associated: Mapping[str, TiffPage],
    ) -> None:
        self._source = source
        self._header = header
        self._levels = levels
        self._associated = associated
        self._opened: dict[tuple[int, int, int], PageTiles] = {}
        self._kept: OrderedDict[tuple[_Key, int], Array | None] = OrderedDict()
        self._bytes = 0
        self._closed = False
        self._lock = threading.Lock()
        self._decoding: set[tuple[_Key, int]] = set()
        self._decoded = threading.Condition(self._lock)

    def read(self, level: int, *, y: int, x: int, height: int, width: int, plane: int = 0) -> Array:
        """Return a region inside a level, (height, width, channels).

        Raises:
            DecodeError: A tile is damaged or not whole; the text has level, row and column.
            SourceError: The file cannot be read, or is shorter than it was.
            OptionError: There is no such level, plane or region.
        """
        pages = self._pages(level, plane)
        high, wide = self._header.levels[level].shape
        if y < 0 or x < 0 or height < 0 or width < 0 or y + height > high or x + width > wide:
            raise OptionError(
                f"{self._source.path}: level {level} has {wide} x {high} pixels; there are no "
                f"{width} x {height} at x {x}, y {y}"
            )
        out = np.empty((height, width, self._header.channels), self._header.dtype)
        first = 0
        for number, page in enumerate(pages):
            tiles = self._tiles(level, plane, number, page)
            key = (level, plane, number)
            self._fill(tiles, key, out[..., first : first + page.channels], y, x, first)
            first += page.channels
        return out

    def _fill(
        self, tiles: PageTiles, key: tuple[int, int, int], out: Array, y: int, x: int, first: int
    ) -> None:
        high, wide = tiles.page.unit
        end_y, end_x = y + out.shape[0], x + out.shape[1]
        for row in range(y // high, -(-end_y // high)):
            top, bottom = max(y, row * high), min(end_y, (row + 1) * high)
            for column in range(x // wide, -(-end_x // wide)):
                left, right = max(x, column * wide), min(end_x, (column + 1) * wide)
                into = out[top - y : bottom - y, left - x : right - x]
                pixels = self._pixels(tiles, (*key, row), column)
                if pixels is None:
                    into[...] = self._background(first, out.shape[2])
                else:
                    above, beside = row * high, column * wide
                    into[...] = pixels[top - above : bottom - above, left - beside : right - beside]

    def rows(self, height: int) -> Iterator[Array]:
        """Yield level 0 from top to bottom, (up to height, width, channels) each."""
        if height < 1:
            raise OptionError(f"height={height}: at least one row at a time")
        high, wide = self._header.levels[0].shape
        for y in range(0, high, height):
            yield self.read(0, y=y, x=0, height=min(height, high - y), width=wide)

    def stream(self, level: int, *, row: int, column: int) -> bytes | None:
        """Return a tile's JPEG stream as it lies in the file; None where the file has no tile.

        Raises:
            DecodeError: It reaches past the end of the file; the text has level, row and column.
            OptionError: The level has no such tile, or no JPEG tiles that can be copied.
        """
        pages = self._pages(level, 0)
        rows, columns = pages[0].grid
        if self._header.levels[level].stream is None:
            raise OptionError(f"{self._source.path}: level {level} has no JPEG tiles to copy")
        if not (0 <= row < rows and 0 <= column < columns):
            raise OptionError(
                f"{self._source.path}: level {level} has {rows} x {columns} tiles; there is none "
                f"in row {row}, column {column}"
            )
        return self._tiles(level, 0, 0, pages[0]).stream(row, column)

    def associated(self, name: str) -> Array:
        """Return a picture that is no level, (height, width, channels).

        Raises:
            DecodeError: It is damaged.
            OptionError: There is none of this name.
        """
        page = self._associated.get(name)
        if page is None:
            names = ", ".join(self._associated) or "none"
            raise OptionError(f"{self._source.path}: no picture {name!r}; there are: {names}")
        self._require_open()
        tiles = PageTiles(self._source, page, name)
        out = np.zeros((*page.shape, page.channels), page.dtype)
        for row in range(page.grid[0]):
            for column in range(page.grid[1]):
                pixels = tiles.pixels(row, column)
                if pixels is not None:
                    y, x = row * page.unit[0], column * page.unit[1]
                    out[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
        return out

    def close(self) -> None:
        """Close the file; reading is an error from now on."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._source.descriptor)
            self._kept.clear()
            self._opened.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise SourceError(f"{self._source.path}: was closed", path=self._source.path)

    def _pages(self, level: int, plane: int) -> Sequence[TiffPage]:
        self._require_open()
        if not 0 <= level < len(self._levels):
            raise OptionError(
                f"{self._source.path}: no level {level}; there are {len(self._levels)}"
            )
        if not 0 <= plane < self._header.planes:
            raise OptionError(f"{self._source.path}: no plane {plane} of {self._header.planes}")
        return self._levels[level][plane]

    def _tiles(self, level: int, plane: int, number: int, page: TiffPage) -> PageTiles:
        """Return a page with its table of places, which is read once."""
        key = (level, plane, number)
        with self._lock:
            tiles = self._opened.get(key)
            if tiles is None:
                colour = self._header.levels[level].colour
                tiles = self._opened[key] = PageTiles(
                    self._source, page, level, None if colour == "as it says" else colour
                )
            return tiles

    def _pixels(self, tiles: PageTiles, place: _Key, column: int) -> Array | None:
        key = (place, column)
        with self._lock:
            while key in self._decoding:  # by another thread: not once more
                self._decoded.wait()
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            self._decoding.add(key)
        try:
            pixels = tiles.pixels(place[3], column)
            self._keep(tiles, key, pixels)
        finally:
            with self._lock:
                self._decoding.discard(key)
                self._decoded.notify_all()
        return pixels

    def _keep(self, tiles: PageTiles, key: tuple[_Key, int], pixels: Array | None) -> None:
        size = 0 if pixels is None else pixels.nbytes
        most = CACHED_BYTES if tiles.page.tiled else CACHED_STRIP_BYTES
        with self._lock:
            if key not in self._kept and not self._closed:
                self._kept[key] = pixels
                self._bytes += size
            while self._bytes > most or len(self._kept) > 4096:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= 0 if dropped is None else dropped.nbytes

    def _background(self, first: int, channels: int) -> Array:
        whole = self._header.background
        part = (0.0,) * channels if whole is None else whole[first : first + channels]
        return np.asarray(part).astype(self._header.dtype)
