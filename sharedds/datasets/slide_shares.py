"""How much of a patch is tissue, or of a class: from counts in cells, without reading a pixel.

What was counted in a cell is taken to lie evenly in it, so a patch that covers a part of the cell
has that part of it. The last cells along an axis may be smaller than the others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["CellSpan", "grid_shares", "span_of"]

Values = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]

_STRIP = 1 << 21  # numbers that are summed up at once


class Readable(Protocol):
    """A map that is read by rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    def __getitem__(self, region: slice, /) -> Values:
        """Return some rows."""


class CellSpan(NamedTuple):
    """The cells that a patch touches along one axis.

    Attributes:
        cells: Which they are.
        weights: The part of each that is inside the patch.
        inside: Pixels of level 0 of the patch that are inside the slide.
    """

    cells: slice
    weights: Numbers
    inside: float


def span_of(start: float, stop: float, side: int, cell: int) -> CellSpan | None:
    """Return the cells that a patch touches along an axis; None if it lies outside.

    Args:
        start: Where it begins, in pixels of level 0.
        stop: Where it ends.
        side: Of the slide.
        cell: Of a cell.
    """
    low, high = max(start, 0.0), min(stop, float(side))
    if low >= high:
        return None
    first, last = int(low // cell), -int(-high // cell)
    weights = np.ones(last - first)
    # All but the two at the ends are inside as a whole; the very last one may be a smaller cell.
    ends = {first: low - first * cell}
    begin = (last - 1) * cell
    length = min(cell, side - begin)
    ends[last - 1] = ends.get(last - 1, 0.0) + length - (high - begin)
    for at, lost in ends.items():
        weights[at - first] -= lost / (length if at == last - 1 else cell)
    return CellSpan(slice(first, last), weights, high - low)


def grid_shares(
    cells: Readable, rows: Numbers, columns: Numbers, shape: tuple[int, int], cell: int
) -> Numbers:
    """Return the shares of every patch of a grid.

    Args:
        cells: The map: (rows, columns), or (rows, columns, classes); read a few rows at a time.
        rows: (n, 2), where the patches of each row of the grid begin and end, in pixels of level 0.
        columns: (m, 2), the same along the other axis.
        shape: Of level 0.
        cell: Of a cell.

    Returns:
        (n, m), or (n, m, classes): parts of what of each patch is inside the slide.
    """
    height, width = shape
    count, across, *classes = cells.shape
    x_at, x_part, x_inside = _places(columns, width, cell)
    # Sums over columns first, a few rows at a time; what is left is as wide as the grid.
    sums = np.zeros((count + 1, len(columns), *classes))
    strip = max(1, _STRIP // max(1, math.prod(cells.shape[1:])))
    for begin in range(0, count, strip):
        stop = min(begin + strip, count)
        whole = np.zeros((across + 1, stop - begin, *classes))
        np.cumsum(np.swapaxes(cells[begin:stop], 0, 1), axis=0, out=whole[1:], dtype=np.float64)
        sums[begin + 1 : stop + 1] = np.swapaxes(_between(whole, x_at, x_part), 0, 1)
    np.cumsum(sums, axis=0, out=sums)
    y_at, y_part, y_inside = _places(rows, height, cell)
    found: Numbers = _between(sums, y_at, y_part)
    area = np.outer(y_inside, x_inside)
    found /= area.reshape(*area.shape, *(1 for _ in classes))
    return found


def _places(bounds: Numbers, side: int, cell: int) -> tuple[Values, Numbers, Numbers]:
    """Return for each bound its cell and how far into it, and how much is inside the slide."""
    inside = bounds.clip(0, side)
    count = -(-side // cell)
    at = np.minimum(inside // cell, count - 1).astype(np.int64)
    begin = at * cell
    part = (inside - begin) / (np.minimum(begin + cell, side) - begin)
    return at, part, np.maximum(inside[:, 1] - inside[:, 0], 1e-9)


def _between(sums: Values, at: Values, part: Numbers) -> Numbers:
    """Return what lies between two bounds, along the first axis of sums of all before."""
    part = part.reshape(*part.shape, *(1 for _ in sums.shape[1:]))
    low, high = (
        sums[at[:, end]] * (1 - part[:, end]) + sums[at[:, end] + 1] * part[:, end]
        for end in (0, 1)
    )
    found: Numbers = high - low
    return found
