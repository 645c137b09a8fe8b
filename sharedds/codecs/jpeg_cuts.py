"""A part of a JPEG tile as a JPEG of its own, made of the pieces between restart markers.

Between two such markers lies a run of units of the grid that is coded by itself. Runs put together
with other sizes in the headers are the picture of that part, to the bit: nothing is decoded that is
not wanted. Other files are decoded down to the last row that is wanted.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from sharedds.codecs.header import BytesLike
from sharedds.codecs.jpeg_layout import Layout

__all__ = ["Cut", "cut_out", "upper_rows"]

_WORTH_WHILE = 32  # a part of the rows that has to be saved to pay for the copy
_WORTH_CUTTING = 8  # a part of the pixels that has to be saved to pay for looking at the runs
_MARGIN = 4  # rows below the last one wanted, whose colours take part in it


class Cut(NamedTuple):
    """A part of a tile.

    Attributes:
        data: The JPEG.
        start: Where it begins in the tile, (y, x).
        size: Its (height, width).
        whole: Whether it ends where its data end; else data are left, of which decoders complain.
    """

    data: bytearray
    start: tuple[int, int]
    size: tuple[int, int]
    whole: bool


def upper_rows(data: BytesLike, layout: Layout, rows: int) -> Cut | None:
    """Return a picture of at least the first rows; None where that saves little or cannot be."""
    height = rows + _MARGIN
    whole = layout.header.height
    if not layout.plain or layout.interval or height + whole // _WORTH_WHILE > whole:
        return None
    headers = _sized(layout, (height, layout.header.width))
    headers += memoryview(data)[len(layout.prefix) :]
    return Cut(headers, (0, 0), (height, layout.header.width), whole=False)


def cut_out(data: BytesLike, layout: Layout, part: tuple[slice, ...]) -> Cut | None:
    """Return a picture of at least a part; None where that saves little or cannot be.

    Args:
        data: The tile.
        layout: Its headers.
        part: The rows and columns that are wanted.
    """
    header, (down, across) = layout.header, layout.unit
    units = -(-header.width // across)
    if not layout.plain or not layout.interval or units % layout.interval:
        return None
    step = across * layout.interval
    grid = -(-header.height // down), units // layout.interval
    margin = layout.mixed  # pixels at the border of a unit are mixed with those beyond
    top, bottom = _span(part[0], down, grid[0], down if margin else 0)
    left, right = _span(part[1], step, grid[1], across if margin else 0)
    start = top * down, left * step
    size = min(bottom * down, header.height) - start[0], min(right * step, header.width) - start[1]
    whole = header.height * header.width
    if size[0] * size[1] + whole // _WORTH_CUTTING > whole:
        return None
    coded = np.frombuffer(data, np.uint8)[len(layout.prefix) :]
    ends = _ends(coded, grid[0] * grid[1])
    if ends is None:
        return None
    first = np.arange(top, bottom)[:, None] * grid[1] + np.arange(left, right)
    lengths = ends[first + 1] - ends[first]
    begins, stops = ends[first[:, 0]].tolist(), ends[first[:, -1] + 1].tolist()
    made = _sized(layout, size)
    ahead = len(made)
    made += b"".join([coded[a:b].data for a, b in zip(begins, stops, strict=True)])
    numbers = np.arange(first.size, dtype=np.uint8)
    markers = np.frombuffer(made, np.uint8)[ahead:]
    markers[np.cumsum(lengths) - 1] = (numbers & 7) | 0xD0
    markers[-1] = 0xD9
    return Cut(made, start, size, whole=True)


def _span(part: slice, step: int, count: int, margin: int) -> tuple[int, int]:
    """Return the first run that is needed along an axis, and the one behind the last."""
    return max(0, (part.start - margin) // step), min(count, -(-(part.stop + margin) // step))


def _ends(
    coded: np.ndarray[tuple[int], np.dtype[np.uint8]], count: int
) -> np.ndarray[tuple[int], np.dtype[np.intp]] | None:
    """Return where each run begins, and the end of the last one, behind its marker."""
    if 2 * count > len(coded):
        return None
    at = np.flatnonzero(coded[:-1] == 0xFF) + 1
    kinds = coded[at]
    at = at[(kinds & 0xF8 == 0xD0) | (kinds == 0xD9)][:count]
    kinds = coded[at]
    expected = (np.arange(count, dtype=np.uint8) & 7) | 0xD0
    expected[-1] = 0xD9
    if len(kinds) != count or not np.array_equal(kinds, expected):
        return None
    ends = np.empty(count + 1, np.intp)
    ends[0] = 0
    ends[1:] = at + 1
    return ends


def _sized(layout: Layout, size: tuple[int, int]) -> bytearray:
    headers = bytearray(layout.ready)
    at = layout.height_at
    headers[at : at + 4] = struct.pack(">HH", *size)
    return headers
