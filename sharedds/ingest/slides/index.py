"""What is on each part of a slide: tissue, mean colour and sharpness, from the pixels of a tile.

A tile is cut into cells, squares of some pixels; a cell never spans two tiles. The rules look at
nothing but the tile, so that the figures are the same in whatever order tiles are read, and a slide
without tissue has none: no threshold is fitted, which would always split a slide in two.

*Tissue*, where pixels are red, green and blue (of 16 bits the upper 8): stain has a colour, glass
and shadow have none. The picture is reduced to means of 4 x 4 pixels, where noise and the colours
that JPEG invents at edges are gone. A mean is tissue where its largest and smallest channel differ
by more than 12 of 255, and the largest is over 30: what is darker was not scanned. *Elsewhere*
(fluorescence, other channels): where any channel is over an eighth of the range of its dtype; for
floats, over 0.125.

*Sharpness*: the variance of the Laplacian (each pixel less the mean of its four neighbours, times
four) of the green channel or the mean of all channels, 0 to 255, over the pixels of a cell that
have all four neighbours in the tile; the measure of J. L. Pech-Pacheco et al., "Diatom autofocusing
in brightfield microscopy", ICPR 2000.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CellStatistics", "cell_of", "statistics"]

_MEAN = 4  # pixels along a side of the means that tissue is told by
_COLOUR, _DARK = 12, 30  # of 255
_SHARE = 0.125  # of the range of other dtypes
_LEAST_CELL, _LARGEST_CELL = 16, 128


class CellStatistics(NamedTuple):
    """What is on the cells of a tile.

    Attributes:
        tissue: Pixels of tissue in each cell, (rows, columns) uint16.
        mean: Mean of each channel, (rows, columns, channels): uint8 for uint8 tiles, rounded; else
            float32.
        sharpness: (rows, columns) float32.
    """

    tissue: npt.NDArray[np.uint16]
    mean: npt.NDArray[Any]
    sharpness: npt.NDArray[np.float32]


def cell_of(tile: int) -> int:
    """Return the side of a cell for tiles of some side, in pixels.

    A quarter of the tile, 16 at least and 128 at most; it divides the tile, so that cells lie on
    one grid over the whole slide.

    Args:
        tile: A multiple of 16.
    """
    most = min(_LARGEST_CELL, max(_LEAST_CELL, tile // 4))
    return next(side for side in range(most, 0, -_MEAN) if tile % side == 0)


def statistics(tile: npt.NDArray[Any], *, cell: int, is_rgb: bool) -> CellStatistics:
    """Return what is on the cells of a tile.

    Args:
        tile: (y, x, channels), of any dtype of numbers.
        cell: Side of a cell in pixels, a multiple of 4, at most 252; those at the right and lower
            edge are cut.
        is_rgb: Whether the channels are red, green and blue.
    """
    height, width, channels = tile.shape
    small = _reduced(tile, _wide(tile.dtype, _MEAN))
    areas = np.outer(_sides(height, cell), _sides(width, cell))
    means = _cells(small, cell, _wide(tile.dtype, cell)) / areas[..., None]
    if tile.dtype == np.uint8:
        mean: npt.NDArray[Any] = np.rint(means).astype(np.uint8)
    else:
        mean = means.astype(np.float32)
    if is_rgb and channels >= 3 and tile.dtype in (np.uint8, np.uint16):
        if tile.dtype == np.uint16:
            small = _reduced((tile >> 8).astype(np.uint8), np.dtype(np.uint16))
        parts = np.outer(_sides(height, _MEAN), _sides(width, _MEAN)).astype(np.uint16)
        red, green, blue = (small[..., n] for n in range(3))
        most = np.maximum(np.maximum(red, green), blue)
        least = np.minimum(np.minimum(red, green), blue)
        pixels = ((most - least > _COLOUR * parts) & (most > _DARK * parts)) * parts
    else:
        pixels = _reduced(_bright(tile), np.dtype(np.uint16))[..., 0]
    tissue = _cells(pixels, cell, np.dtype(np.uint16))
    return CellStatistics(tissue, mean, _sharpness(_grey(tile, is_rgb=is_rgb), cell))


def _wide(dtype: np.dtype[Any], side: int) -> np.dtype[Any]:
    """Return a dtype that holds sums of squares of a side."""
    if dtype.kind == "f":
        return np.dtype(np.float64)
    if dtype == np.uint8:
        return np.dtype(np.uint16 if side == _MEAN else np.uint32)
    return np.dtype(np.int64)


def _sides(size: int, cell: int) -> npt.NDArray[np.int64]:
    """Return how long each cell is along an axis."""
    sides = np.full(-(-size // cell), cell)
    sides[-1] = size - cell * (len(sides) - 1)
    return sides


def _reduced(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the sums of 4 x 4 pixels; those at the right and lower edge are of fewer."""
    height, width, channels = values.shape
    more = -height % _MEAN, -width % _MEAN
    if any(more):
        values = np.pad(values, ((0, more[0]), (0, more[1]), (0, 0)))
    rows = values.reshape(len(values) // _MEAN, _MEAN, -1)
    down = rows[:, 0].astype(dtype)
    for number in range(1, _MEAN):
        down += rows[:, number]
    columns = down.reshape(len(down), -1, _MEAN, channels)
    found: npt.NDArray[Any] = columns[:, :, 0] + columns[:, :, 1]
    found += columns[:, :, 2]
    found += columns[:, :, 3]
    return found


def _cells(small: npt.NDArray[Any], cell: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the sums over cells of what was reduced before."""
    step = cell // _MEAN
    down = np.add.reduceat(small, np.arange(0, len(small), step), axis=0, dtype=dtype)
    found: npt.NDArray[Any] = np.add.reduceat(
        down, np.arange(0, small.shape[1], step), axis=1, dtype=dtype
    )
    return found


def _bright(tile: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return the pixels in which any channel is bright, (y, x, 1)."""
    dtype = tile.dtype
    limit = _SHARE if dtype.kind == "f" else _SHARE * float(np.iinfo(dtype).max)
    found: npt.NDArray[np.bool_] = np.any(tile > limit, axis=-1, keepdims=True)
    return found


def _grey(tile: npt.NDArray[Any], *, is_rgb: bool) -> npt.NDArray[Any]:
    """Return one channel, 0 to 255: int16 for uint8 tiles, else float32."""
    if tile.dtype == np.uint8 and (is_rgb or tile.shape[2] == 1):
        return tile[..., 1 if tile.shape[2] >= 3 else 0].astype(np.int16)
    grey = tile.mean(-1, dtype=np.float32) if tile.shape[2] > 1 else tile[..., 0].astype("f4")
    most = 1.0 if tile.dtype.kind == "f" else float(np.iinfo(tile.dtype).max)
    return grey * np.float32(255 / most)


def _sharpness(grey: npt.NDArray[Any], cell: int) -> npt.NDArray[np.float32]:
    """Return the variance of the Laplacian in each cell; 0 where a cell has no inner pixel."""
    height, width = grey.shape
    rows, columns = -(-height // cell), -(-width // cell)
    if min(height, width) < 3:
        return np.zeros((rows, columns), np.float32)
    inner = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1]
    laplacian += grey[1:-1, :-2]
    laplacian += grey[1:-1, 2:]
    laplacian -= inner * 4
    values = laplacian.astype(np.float32)
    starts = [np.maximum(np.arange(0, n, cell) - 1, 0) for n in (height, width)]
    ends = [n - 2 for n in (height, width)]
    counts = np.outer(*(_lengths(s, e) for s, e in zip(starts, ends, strict=True)))
    safe = [s.clip(max=e - 1) for s, e in zip(starts, ends, strict=True)]

    def added(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        down = np.add.reduceat(numbers, safe[0], axis=0)
        found: npt.NDArray[np.float64] = np.add.reduceat(down, safe[1], axis=1, dtype=np.float64)
        return found

    divisor = np.maximum(counts, 1)
    mean = added(values) / divisor
    variance = added(values * values) / divisor - mean * mean
    found: npt.NDArray[np.float32] = np.where(counts > 0, variance.clip(min=0), 0).astype("f4")
    return found


def _lengths(starts: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.int64]:
    """Return how many numbers there are from each start to the next one, the last to the end."""
    return np.diff(np.append(starts, end)).clip(min=0)
