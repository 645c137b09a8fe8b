"""Many regions at once, and regions by the size of their pixels."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharedds.errors import SchemaError
from sharedds.store.arrays import ChunkedArray
from sharedds.store.regions import (
    PADDINGS,
    Piece,
    Window,
    pieces_of,
    whole,
    whole_patch,
    window_of,
)

__all__ = [
    "Request",
    "averaged",
    "blocks_touched",
    "checked_requests",
    "downsamples",
    "entries_touched",
    "is_bounded",
    "level_for",
    "pixel_size",
    "read_regions",
    "read_scaled",
    "resized",
]

Values = npt.NDArray[Any]
_SAME = 1e-6  # of a ratio of pixel sizes, that is none
_FINE_ENOUGH = 1 + 1e-3  # levels of files are rarely whole parts of the finest: 4.0003, say
_MOST = 1 << 27  # pixels that are read, made, or made in between, for one region
_LONGEST = 1 << 14  # pixels along a side that are averaged to one


class Request(NamedTuple):
    """A region of one array.

    Attributes:
        sample: Number of the sample.
        level: 0 is the finest.
        start: Its first number along each of the last axes; may be negative.
        size: Along each of them.
    """

    sample: int
    level: int
    start: tuple[int, ...]
    size: tuple[int, ...]


class _Wanted(NamedTuple):
    """What one request takes of one block: decoded into ``out``, or copied there."""

    piece: Piece
    out: Values


def checked_requests(
    given: Iterable[Any], position: Callable[[Any], int], path: str
) -> list[Request]:
    """Return requests as they came from a user.

    Args:
        given: (sample, level, start, size) each.
        position: Checks the number of a sample.
        path: Of the store, for errors.

    Raises:
        SchemaError: One is none.
    """
    found = []
    for request in given:
        try:
            sample, level, start, size = request
            found.append(
                Request(position(sample), operator.index(level), tuple(start), tuple(size))
            )
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"{path}: a region {request!r}: (sample, level, start, size), start and size one "
                "whole number for each axis",
                path=path,
            ) from error
    return found


def blocks_touched(array: ChunkedArray, request: Request) -> list[int]:
    """Return the numbers of the blocks of its level that a request touches, ascending."""
    window = window_of(
        *whole_patch(request.start, request.size, "constant", array.shape, array.owner),
        array.shape,
        "constant",
    )
    if any(part.stop <= part.start for part in window.region):
        return []
    return [piece.number for piece in pieces_of(window.region, array.shape, array.chunk)]


def entries_touched(
    requests: Sequence[Request],
    array_of: Callable[[int, int], ChunkedArray],
    first_of: Callable[[int], int],
) -> list[int]:
    """Return the entries that requests touch, ascending.

    Args:
        requests: In any order.
        array_of: Gives the array of a sample and level.
        first_of: Gives the first entry of a sample.
    """
    found: set[int] = set()
    for request in requests:
        array = array_of(request.sample, request.level)
        first = first_of(request.sample) + array.first_block
        found |= {first + number for number in blocks_touched(array, request)}
    return sorted(found)


def read_regions(
    requests: Sequence[Request],
    array_of: Callable[[int, int], ChunkedArray],
    *,
    padding: str,
    fill: float | Sequence[float] | None,
) -> list[Values]:
    """Read regions; every block is decoded once, however many regions touch it.

    Args:
        requests: In any order.
        array_of: Gives the array of a sample and level.
        padding: As of :meth:`ChunkedArray.patch`.
        fill: What is outside: a number, one for each channel, or None for the background.

    Returns:
        Arrays of their own, in the order of the requests.
    """
    if padding not in PADDINGS:
        raise SchemaError(f"padding {padding!r}; one of {', '.join(PADDINGS)}")
    found: list[Values] = []
    late: list[tuple[int, Window, Values]] = []
    wanted: dict[tuple[int, int], dict[int, list[_Wanted]]] = {}
    for number, request in enumerate(requests):
        array = array_of(request.sample, request.level)
        start, size = whole_patch(request.start, request.size, padding, array.shape, array.owner)
        window = window_of(start, size, array.shape, padding)
        out = np.empty(size, array.dtype)
        if window.sources is not None:
            values = np.empty([part.stop - part.start for part in window.region], array.dtype)
            late.append((number, window, values))
        else:
            if not window.inside:
                out[...] = array.outside(fill, start[-1:], size[-1:])
            values = out[window.places]
        found.append(out)
        if values.size:
            blocks = wanted.setdefault((request.sample, request.level), {})
            for piece in pieces_of(window.region, array.shape, array.chunk):
                blocks.setdefault(piece.number, []).append(_Wanted(piece, values[piece.outer]))
    for (sample, level), blocks in sorted(wanted.items()):
        _read_blocks(array_of(sample, level), blocks)
    for number, window, values in late:
        if window.sources is not None:
            found[number][...] = values[np.ix_(*window.sources)]
    return found


def _read_blocks(array: ChunkedArray, blocks: dict[int, list[_Wanted]]) -> None:
    """Read blocks of one array, each for all that want a part of it."""
    alone = {n: parts[0] for n, parts in blocks.items() if len(parts) == 1}
    numbers = sorted(blocks)
    pieces = [alone[n].piece if n in alone else _entire(blocks[n][0].piece) for n in numbers]
    outs = [alone[n].out if n in alone else None for n in numbers]
    for number, block in array.decoded(pieces, outs):
        if block is None:  # it was decoded where it belongs
            continue
        for part in blocks[number]:
            part.out[...] = block[part.piece.inner]


def _entire(piece: Piece) -> Piece:
    return piece._replace(inner=whole(piece.shape), outer=whole(piece.shape))


def level_for(downsamples: Sequence[float], factor: float) -> int:
    """Return the coarsest level that is not coarser than wanted, by a thousandth at most.

    Args:
        downsamples: Of the levels, finest first.
        factor: Pixels of level 0 for each pixel that is wanted.
    """
    fitting = [n for n, step in enumerate(downsamples) if step <= factor * _FINE_ENOUGH]
    return fitting[-1] if fitting else 0


def pixel_size(array: ChunkedArray) -> tuple[float, float] | None:
    """Return micrometres for each pixel of level 0, along (y, x); None where that is not known."""
    found = _numbers(array.attrs.get("mpp"), 2)
    return None if found is None else (found[0], found[1])


def downsamples(array: ChunkedArray) -> tuple[float, ...]:
    """Return pixels of level 0 for each pixel of a level; by their rows where that is not said."""
    found = _numbers(array.attrs.get("downsamples"), len(array.levels))
    if found is not None:
        return found
    rows = [shape[-3] for shape in array.levels]
    return tuple(max(1, rows[0]) / max(1, n) for n in rows)


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """Return so many positive numbers of a description; None where it holds something else."""
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    if not all(isinstance(each, int | float) and 0 < each < math.inf for each in value):
        return None
    return tuple(float(each) for each in value)


def is_bounded(strides: Sequence[float], size: Sequence[int]) -> bool:
    """Whether averaging a region takes no more memory and time than a process should spend.

    Each axis counts for itself: a pixel size that is tiny along one and huge along the other has
    an ordinary area, and still asks for any number of rows.

    Args:
        strides: Pixels of a level for each of the result, (y, x).
        size: Of the result.
    """
    if not 0 < min(size) <= max(size) <= _MOST:
        return False
    if not _SAME < min(strides) <= max(strides) <= _LONGEST:
        return False
    return math.prod(max(1, stride) * n for stride, n in zip(strides, size, strict=True)) <= _MOST


def read_scaled(
    array: ChunkedArray,
    name: str,
    *,
    y: float,
    x: float,
    size: int | tuple[int, int],
    mpp: float,
    plane: int = 0,
) -> Values:
    """Read a region of a slide by the size of its pixels: see :meth:`Store.read_mpp`."""
    own = pixel_size(array)
    if own is None:
        who = f"({name}) " if name else ""
        raise array.owner.error(
            SchemaError, f"{who}how large its pixels are is not known; read it by level"
        )
    (height, width), begin, plane = _asked(array, y, x, size, mpp, plane)
    factors = [float(mpp) / each for each in own]
    steps = downsamples(array)
    number = level_for(steps, min(factors))
    level, step = array.level(number), steps[number]
    begins = [at / step for at in begin]
    strides = [factor / step for factor in factors]
    if not is_bounded(strides, (height, width)) or not all(map(math.isfinite, begins)):
        rows, columns = (f"{stride:.3g}" for stride in strides)
        raise array.owner.error(
            SchemaError,
            f"{height:.7g} x {width:.7g} pixels at mpp={mpp}, each of {rows} x {columns} pixels of "
            f"level {number}, the coarsest that is fine enough: {_MOST:,} pixels can be read and "
            f"made, from {_SAME} to {_LONGEST:,} along a side for each; read less of it, or make "
            "coarser levels",
        )
    lows = [math.floor(at + _SAME) for at in begins]
    sides = [
        max(1, math.ceil(at + stride * n - _SAME) - low)
        for at, stride, n, low in zip(begins, strides, (height, width), lows, strict=True)
    ]
    planes = ((plane,), (1,)) if array.ndim == 4 else ((), ())
    start, shape = (*planes[0], *lows, 0), (*planes[1], *sides, array.shape[-1])
    (found,) = read_regions(
        [Request(0, number, start, shape)], lambda *_: level, padding="constant", fill=None
    )
    shifts = [at - low for at, low in zip(begins, lows, strict=True)]
    return resized(found.reshape(found.shape[-3:]), shifts, strides, (height, width))


def _asked(
    array: ChunkedArray, y: float, x: float, size: Any, mpp: float, plane: int
) -> tuple[tuple[int, int], tuple[float, float], int]:
    """Return the size, the place and the plane of a region as plain numbers.

    Raises:
        SchemaError: They are none.
    """
    try:
        height, width = (
            operator.index(n) for n in (size if isinstance(size, Iterable) else (size, size))
        )
        place, plane = (float(y), float(x)), operator.index(plane)
        float(height), float(width)
        sound = min(height, width) > 0 < float(mpp) < math.inf and all(map(math.isfinite, place))
    except (TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise array.owner.error(
            SchemaError,
            f"a region at x={x!r}, y={y!r} of size={size!r} at mpp={mpp!r}: a "
            "place, and sizes above 0",
        )
    planes = array.shape[0] if array.ndim == 4 else 1
    if array.ndim not in (3, 4) or not 0 <= plane < planes:
        raise array.owner.error(
            SchemaError, f"no plane {plane!r} of pictures in an array of shape {array.shape}"
        )
    return (height, width), place, plane


def resized(
    values: Values, begins: Sequence[float], strides: Sequence[float], size: tuple[int, int]
) -> Values:
    """Average a part of a level down by area.

    Args:
        values: (y, x, channels).
        begins: Where the result begins, (y, x) in pixels of the part.
        strides: Pixels of the part for each of the result, (y, x).
        size: Of the result.

    Returns:
        (h, w, channels) in the dtype of the values; the values themselves where nothing changes.
    """
    same = all(abs(stride - 1) < _SAME for stride in strides)
    if same and all(abs(begin) < _SAME for begin in begins) and values.shape[:2] == size:
        return values
    kind = np.float64 if values.dtype.itemsize > 2 else np.float32
    rows = averaged(values.astype(kind), begins[0], strides[0], size[0])
    turned = np.ascontiguousarray(rows.swapaxes(0, 1))
    both = averaged(turned, begins[1], strides[1], size[1]).swapaxes(0, 1)
    whole_numbers = np.rint(both) if values.dtype.kind in "iu" else both
    return np.ascontiguousarray(whole_numbers.astype(values.dtype))


def averaged(values: Values, begin: float, step: float, count: int) -> Values:
    """Return means over pieces of the first axis of floats, each as long as the step.

    A piece covers some rows as a whole and two in part: they are added up, the first of all pieces
    at once, then the second, and so on. A step below 1 repeats rows, mixed at their borders.

    Args:
        values: (n, ...) floats.
        begin: Where the first piece begins, in rows.
        step: How long a piece is.
        count: How many there are.
    """
    n = len(values)
    edges = np.clip(begin + step * np.arange(count + 1), 0, n)
    low, high = edges[:-1], edges[1:]
    first = np.minimum(low.astype(np.int64), n - 1)
    lengths = np.maximum(high - low, _SAME)
    found = np.zeros((count, *values.shape[1:]), values.dtype)
    for turn in range(math.ceil(step) + 1):
        at = first + turn
        weights = (np.minimum(high, at + 1) - np.maximum(low, at)).clip(0) / lengths
        if weights.any():
            taken = values[np.minimum(at, n - 1)]
            taken *= weights.astype(values.dtype).reshape(-1, *(1,) * (values.ndim - 1))
            found += taken
    return found
