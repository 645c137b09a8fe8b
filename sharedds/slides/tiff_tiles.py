"""Tiles and strips of one page of a TIFF, by number: where they lie, their bytes, their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.codecs.tiles import TileDecoder
from sharedds.errors import DecodeError
from sharedds.slides.limits import MAX_TILE_BYTES
from sharedds.slides.source import Colour
from sharedds.slides.tiff_directory import TiffSource
from sharedds.slides.tiff_page import JPEG, TiffPage
from sharedds.slides.tiff_samples import finished, samples_of
from sharedds.slides.tiff_unpack import jpeg_2000_pixels, unpacked

__all__ = ["PageTiles", "jpeg_colour"]

_JPEG_2000 = (33003, 33004, 33005, 34712)
_WEBP = 50001
_JFIF = b"\xff\xe0", b"JFIF\0"


def jpeg_colour(page: TiffPage, stream: bytes) -> tuple[Colour, bool]:
    """Return what the samples of a page's JPEG tiles are, and whether its tag contradicts it.

    A JFIF marker in the tile or in the shared tables means YCbCr; else the tag of the page decides.
    """
    if page.unit_samples == 1:
        return "grey", False
    if _has_jfif(stream) or _has_jfif(page.tables):
        return "ycc", page.photometric != 6
    return ("ycc" if page.photometric == 6 else "rgb"), False


def _has_jfif(stream: bytes) -> bool:
    at = 2
    while at + 9 <= len(stream) and stream[at] == 0xFF:
        marker = stream[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in (0xDA, 0xD9):
            return False
        if stream[at : at + 2] == _JFIF[0] and stream[at + 4 : at + 9] == _JFIF[1]:
            return True
        at += 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
    return False


class PageTiles:
    """The tiles of a page in an open file. Threads may share one.

    Args:
        source: The open file.
        page: A page of it.
        level: Its number as a level, for errors; or the name of the picture.
        colour: Of JPEG tiles; None: by the first tile that is there.

    Raises:
        DecodeError: Its table of places is damaged.
    """

    def __init__(
        self, source: TiffSource, page: TiffPage, level: int | str, colour: Colour | None = None
    ) -> None:
        self.page = page
        self._source = source
        self._level = level
        self._offsets = page.offsets.read(source, page.stored_units)
        self._lengths = (
            None if page.lengths is None else page.lengths.read(source, page.stored_units)
        )
        if page.split > 1 and self.counts()[1]:
            # Of a file that is cut short, or claims a huge strip, no single rows are looked for.
            raise DecodeError(
                f"{source.path}: page {page.number} is cut short: its strips of "
                f"{page.width} x {page.height} pixels end past the end of the file, which has "
                f"{source.size:,} bytes; copy it anew",
                path=source.path,
            )
        self._jpeg: TileDecoder | None = None
        self._webp: TileDecoder | None = None
        if page.compression == JPEG:
            if colour is None:
                colour = jpeg_colour(page, self.first()[1])[0]
            self._jpeg = self._jpeg_decoder(colour)
        elif page.compression == _WEBP:
            self._webp = TileDecoder("webp", np.uint8)

    def _jpeg_decoder(self, colour: Colour) -> TileDecoder:
        try:
            return TileDecoder("jpeg", np.uint8, tables=self.page.tables, colour=colour)
        except DecodeError as error:
            raise DecodeError(
                f"{self._source.path}: level {self._level}: {error}", path=self._source.path
            ) from error

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Of each stored tile or strip, whether the file has it."""
        found: npt.NDArray[np.bool_] = self._offsets != 0
        return found if self._lengths is None else found & (self._lengths != 0)

    def counts(self) -> tuple[int, int]:
        """Return how many tiles or strips are not there, and how many reach past the file's end."""
        there = self.there
        lengths: Any = 1 if self._lengths is None else self._lengths.astype(np.float64)
        if self.page.split > 1:  # the last strip has fewer rows
            lengths = np.full(len(there), float(self.page.unit_bytes(self.page.unit[0])))
            lengths *= self.page.split
            each = len(there) // (self.page.samples if self.page.apart else 1)
            strip = self.page.split * self.page.unit[0]
            rows = self.page.height - (each - 1) * strip
            lengths[each - 1 :: each] = self.page.unit_bytes(rows)
        past = there & (self._offsets.astype(np.float64) + lengths > self._source.size)
        return int(np.count_nonzero(~there)), int(np.count_nonzero(past))

    def first(self) -> tuple[int, bytes]:
        """Return number and bytes of the first tile that is there and whole; none: (-1, b"")."""
        for number in np.flatnonzero(self.there)[:64].tolist():
            offset, length = self._place(number)
            if length <= MAX_TILE_BYTES and offset + length <= self._source.size:
                return number, self._source.read(offset, length)
        return -1, b""

    def stream(self, row: int, column: int) -> bytes | None:
        """Return a tile of all samples as stored; None where the file has none.

        Raises:
            DecodeError: It reaches past the end of the file; the text has level, row and column.
            SourceError: The file cannot be read, or is shorter than it was.
        """
        return self._stored(row * self.page.grid[1] + column, row, column)

    def pixels(self, row: int, column: int) -> npt.NDArray[Any] | None:
        """Return what a tile or strip shows, (y, x, channels), cut at the edges of the page.

        None where the file has no tile.

        Raises:
            DecodeError: It is damaged or not whole; the text has level, row and column.
            SourceError: The file cannot be read, or is shorter than it was.
        """
        page = self.page
        rows, columns = page.grid
        height = min(page.unit[0], page.height - row * page.unit[0])
        width = min(page.unit[1], page.width - column * page.unit[1])
        stored_row, part = divmod(row, page.split)
        each = -(-rows // page.split) * columns
        planes: list[npt.NDArray[Any] | None] = []
        for sample in range(page.samples if page.apart else 1):
            number = sample * each + stored_row * columns + column
            data = self._stored(number, row, column, part=part, rows=height)
            try:
                planes.append(None if data is None else self._decoded(data, height, width))
            except DecodeError as error:
                raise self._damaged(row, column, str(error)) from error
        if all(plane is None for plane in planes):
            return None
        there = next(plane for plane in planes if plane is not None)
        whole = [np.zeros_like(there) if plane is None else plane for plane in planes]
        return finished(page, whole[0] if len(whole) == 1 else np.concatenate(whole, axis=2))

    def _decoded(self, data: bytes, height: int, width: int) -> npt.NDArray[Any]:
        page = self.page
        shape = height, width, page.unit_samples
        if self._jpeg is not None:
            return self._jpeg.decode(data, shape)
        if self._webp is not None:
            return self._webp.decode(data, shape)
        if page.compression in _JPEG_2000:
            return jpeg_2000_pixels(data, page.compression, shape)
        rows = page.unit[0] if page.tiled else height
        stored_rows, row_bytes = page.stored_rows(rows)
        content = unpacked(
            data,
            page.compression,
            rows=stored_rows,
            row_bytes=row_bytes,
            reversed_bits=page.reversed_bits,
        )
        return samples_of(page, content, rows)[:height, :width]

    def _place(self, number: int) -> tuple[int, int]:
        offset = int(self._offsets[number])
        if self._lengths is None:
            return offset, max(0, min(self._source.size - offset, MAX_TILE_BYTES))
        return offset, int(self._lengths[number])

    def _stored(
        self, number: int, row: int, column: int, *, part: int = 0, rows: int | None = None
    ) -> bytes | None:
        offset, length = self._place(number)
        if offset == 0 or length == 0:
            return None
        page = self.page
        if page.compression == 1 and rows is not None:
            # Lengths that writers give for plain strips are often wrong: what is needed is known.
            before = part * page.unit_bytes(page.unit[0])
            wanted = page.unit_bytes(page.unit[0] if page.tiled else rows)
            if page.tiled and length < wanted:
                raise self._damaged(row, column, f"holds {length:,} bytes of {wanted:,}")
            offset, length = offset + before, wanted
        if offset + length > self._source.size:
            raise self._damaged(
                row,
                column,
                f"is cut short: it ends at byte {offset + length:,}, the file has "
                f"{self._source.size:,}",
            )
        if length > MAX_TILE_BYTES:
            raise self._damaged(
                row, column, f"takes {length:,} bytes in the file; {MAX_TILE_BYTES:,} is the most"
            )
        return self._source.read(offset, length)

    def _damaged(self, row: int, column: int, what: str) -> DecodeError:
        level = f"level {self._level}" if isinstance(self._level, int) else self._level
        kind = "tile" if self.page.tiled else "strip"
        return DecodeError(
            f"{self._source.path}: {level}: the {kind} in row {row}, column {column} {what}; "
            "copy the file anew",
            path=self._source.path,
        )
