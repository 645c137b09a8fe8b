"""JPEG tiles, which may share their tables: only what is wanted of them is decoded.

Tiles that were cut from one picture begin with the same headers. These are looked at once and known
again by their bytes, so that hardly anything is left to do for a tile but to decode it.
"""

from __future__ import annotations

import re
from typing import Any

import simplejpeg
from numpy.typing import NDArray

from sharedds.codecs import jpeg
from sharedds.codecs.header import BytesLike
from sharedds.codecs.jpeg_cuts import cut_out, upper_rows
from sharedds.codecs.jpeg_layout import COLOURS, Layout, look_at, shared_tables
from sharedds.codecs.scratch import Scratch
from sharedds.errors import OptionError

__all__ = ["JpegTiles"]

_LEFT_OVER = re.compile("extraneous bytes before marker 0xd9")
_KNOWN = 8  # headers that are kept
_COLORSPACES = {1: "GRAY", 3: "RGB"}


class JpegTiles:
    """Decodes JPEG tiles with ``tables`` and a ``colour`` in common; threads may share it.

    Args:
        tables: The abbreviated stream that the tiles share; empty where each has its own.
        colour: What the three channels of a tile without a JFIF marker are: ``"rgb"`` or ``"ycc"``;
            else its own markers decide.
        scratch: Memory for tiles of which a part is wanted.

    Raises:
        DecodeError: The tables are damaged.
        OptionError: Another colour.
    """

    def __init__(self, tables: bytes, colour: str, scratch: Scratch) -> None:
        if colour not in COLOURS:
            raise OptionError(f"colour={colour!r}: one of {', '.join(map(repr, COLOURS))}")
        self._tables = shared_tables(tables)
        self._colour = colour
        self._scratch = scratch
        self._known: tuple[Layout, ...] = ()

    def layout(self, data: BytesLike) -> Layout:
        """Return what the headers of a tile say.

        Raises:
            DecodeError: They are damaged, or the kind of JPEG is not supported.
        """
        for known in self._known:
            if bytes(data[: len(known.prefix)]) == known.prefix:
                return known
        layout = look_at(data, self._tables, self._colour)
        if layout.plain:  # of others more than the headers has to be looked at
            self._known = (layout, *self._known[: _KNOWN - 1])
        return layout

    def read(
        self, data: BytesLike, layout: Layout, part: tuple[slice, ...], out: NDArray[Any]
    ) -> None:
        """Decode a part of a tile.

        Args:
            data: The tile.
            layout: Its headers.
            part: Rows, columns and channels that are wanted, inside the tile.
            out: Where they go, of that shape.

        Raises:
            DecodeError: It is damaged or truncated.
        """
        header = layout.header
        shape = (header.height, header.width, header.channels)
        cut = cut_out(data, layout, part) or upper_rows(data, layout, part[0].stop)
        if cut is not None:
            room = self._scratch.array((*cut.size, header.channels))
            if _decoded(cut.data, layout, room, whole=cut.whole):
                (top, left), (rows, columns) = cut.start, part[:2]
                out[...] = room[
                    rows.start - top : rows.stop - top,
                    columns.start - left : columns.stop - left,
                    part[2],
                ]
                return
        if layout.ready is not layout.prefix:
            data = b"".join((layout.ready, memoryview(data)[len(layout.prefix) :]))
        straight = shape == out.shape and out.flags.c_contiguous
        room = out if straight else self._scratch.array(shape)
        if not _decoded(data, layout, room):
            # A rare kind of JPEG, or it is damaged and is told how.
            room[...] = jpeg.decode_pixels(data, header, _COLORSPACES[header.channels])
        if not straight:
            out[...] = room[part]


def _decoded(data: BytesLike, layout: Layout, out: NDArray[Any], *, whole: bool = True) -> bool:
    """Decode a stream; False where that did not go as it should.

    A stream that was made shorter than it is has data left, of which the decoder complains. It
    tells of the first thing that it complains of, so with this one there was nothing before.
    """
    colorspace = _COLORSPACES[layout.header.channels]
    try:
        found = simplejpeg.decode_jpeg(data, colorspace=colorspace, buffer=out)
    except ValueError as error:
        return not whole and _LEFT_OVER.search(str(error)) is not None
    return bool(found.shape == out.shape)
