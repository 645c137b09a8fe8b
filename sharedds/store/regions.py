"""Regions of arrays as plain numbers: what an index means, which blocks it touches, and padding."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sharedds.errors import SampleIndexError, SchemaError, SharedDSError

__all__ = [
    "PADDINGS",
    "Cut",
    "Owner",
    "Piece",
    "Region",
    "Scale",
    "Window",
    "copy_rows",
    "cuts_of",
    "filling",
    "normalise",
    "pieces_of",
    "whole",
    "whole_patch",
    "window_of",
]

PADDINGS = ("constant", "edge", "reflect")

Region = tuple[slice, ...]
E = TypeVar("E", bound=SharedDSError)


class Owner(NamedTuple):
    """Whose array it is, for errors."""

    path: str
    sample: int
    field: str

    def error(self, kind: type[E], text: str) -> E:
        """Return an error about this array."""
        return kind(
            f"{self.path}: sample {self.sample}, field {self.field!r}: {text}",
            path=self.path,
            sample=self.sample,
            field=self.field,
        )


def normalise(region: Any, shape: tuple[int, ...], owner: Owner) -> tuple[Region, tuple[Any, ...]]:
    """Return a slice for each axis, and what takes the axes of integers away again.

    Raises:
        SchemaError: It is not made of slices with positive steps and integers.
        SampleIndexError: An integer is outside.
    """
    parts = list(region) if isinstance(region, tuple) else [region]
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    missing = len(shape) - len(parts) + len(dots[:1])
    if len(dots) > 1 or missing < 0:
        raise owner.error(SchemaError, f"{len(parts)} indices for {len(shape)} dimensions")
    at = dots[0] if dots else len(parts)
    parts[at : at + len(dots)] = [slice(None)] * missing
    slices: list[slice] = []
    squeeze: list[Any] = []
    for axis, (part, size) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            try:
                start, stop, step = part.indices(size)
            except (TypeError, ValueError) as error:
                raise owner.error(SchemaError, f"{part} on axis {axis}: {error}") from None
            if step < 1:
                raise owner.error(
                    SchemaError, f"step {step} on axis {axis}; steps must be positive"
                )
            slices.append(slice(start, max(start, stop), step))
            squeeze.append(slice(None))
        else:
            index = _index(part, axis, size, owner)
            slices.append(slice(index, index + 1, 1))
            squeeze.append(0)
    return tuple(slices), tuple(squeeze)


def _index(part: Any, axis: int, size: int, owner: Owner) -> int:
    try:
        if isinstance(part, (bool, np.bool_)):
            raise TypeError
        index = operator.index(part)
    except TypeError:
        raise owner.error(
            SchemaError,
            f"index {part!r} on axis {axis}; a region is made of slices and integers",
        ) from None
    if not -size <= index < size:
        raise owner.error(SampleIndexError, f"index {index} on axis {axis} of size {size}")
    return index % size


class Piece(NamedTuple):
    """The part of a region that lies in one block.

    Attributes:
        number: Of the block, in C order of the grid.
        shape: Of the block.
        inner: The part, within the block.
        outer: The part, within the region.
    """

    number: int
    shape: tuple[int, ...]
    inner: Region
    outer: Region


class Cut(NamedTuple):
    """The part of a region that lies in one row of blocks across an axis.

    Attributes:
        number: What it adds to the number of a block.
        size: Of its blocks along the axis.
        inner: The part, within the block.
        outer: The part, within the region.
    """

    number: int
    size: int
    inner: slice
    outer: slice


def cuts_of(region: Region, shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[list[Cut]]:
    """Cut a region at the borders of the blocks, for each axis; as :func:`pieces_of`."""
    axes: list[list[Cut]] = []
    below = 1
    for part, side, edge in zip(reversed(region), reversed(shape), reversed(chunk), strict=True):
        low, high = part.start, part.stop
        axis = []
        for at in range(low // edge, (high - 1) // edge + 1):
            origin = at * edge
            size = min(edge, side - origin)
            first, last = max(low - origin, 0), min(high - origin, size)
            outer = slice(first + origin - low, last + origin - low)
            axis.append(Cut(at * below, size, slice(first, last), outer))
        axes.append(axis)
        below *= -(-side // edge)
    axes.reverse()
    return axes


def pieces_of(region: Region, shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[Piece]:
    """Cut a region at the borders of the blocks; blocks ascend.

    Args:
        region: A slice without a step for each axis, none of them empty.
        shape: Of the array.
        chunk: Of its blocks.
    """
    if len(shape) == 0:
        return [Piece(0, (), (), ())]
    found = []
    for cuts in itertools.product(*cuts_of(region, shape, chunk)):
        numbers, sizes, inner, outer = zip(*cuts, strict=True)
        found.append(Piece(sum(numbers), sizes, inner, outer))
    return found


def whole_patch(
    start: Sequence[int],
    size: Sequence[int],
    padding: str,
    shape: tuple[int, ...],
    owner: Owner,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return start and size of a patch for all axes: those before the ones given are whole.

    Raises:
        SchemaError: More axes than there are, no whole numbers, a negative size, another padding.
        SampleIndexError: Padding that repeats an array which has nothing to repeat.
    """
    try:
        starts = [operator.index(n) for n in start]
        sizes = [operator.index(n) for n in size]
    except TypeError as error:
        raise owner.error(
            SchemaError, f"a patch at {start} of {size}: whole numbers are needed"
        ) from error
    if len(starts) != len(sizes) or len(starts) > len(shape) or min(sizes, default=0) < 0:
        raise owner.error(
            SchemaError,
            f"a patch at {starts} of {sizes}: one start and one size, 0 or more, for each of "
            f"up to {len(shape)} axes",
        )
    if padding not in PADDINGS:
        raise owner.error(SchemaError, f"padding {padding!r}; one of {', '.join(PADDINGS)}")
    leading = len(shape) - len(starts)
    sides = shape[leading:]
    if padding != "constant" and any(n == 0 < p for n, p in zip(sides, sizes, strict=True)):
        raise owner.error(SampleIndexError, f"shape {shape} has nothing that could be repeated")
    return (0,) * leading + tuple(starts), shape[:leading] + tuple(sizes)


def whole(shape: Sequence[int]) -> Region:
    """Return the region that is all of an array."""
    return tuple(slice(0, n) for n in shape)


class Window(NamedTuple):
    """A patch that may reach beyond the array.

    Attributes:
        region: What is read of the array, one slice for each axis; one may be empty.
        places: Where that goes within the patch, one slice for each axis.
        sources: For paddings that repeat what is inside: for each axis, which row of the region
            each row of the patch shows. None where the region fills its places as it is.
        inside: Whether the patch is within the array.
    """

    region: Region
    places: Region
    sources: tuple[npt.NDArray[np.intp], ...] | None
    inside: bool


def window_of(
    start: Sequence[int], size: Sequence[int], shape: Sequence[int], padding: str
) -> Window:
    """Return what a patch shows of an array.

    Args:
        start: Its first voxel along each axis; may be negative or beyond the end.
        size: Of the patch.
        shape: Of the array.
        padding: ``"constant"``: nothing is read outside. ``"edge"`` repeats the border,
            ``"reflect"`` mirrors at it without repeating it, as often as needed.
    """
    low = [min(max(s, 0), n) for s, n in zip(start, shape, strict=True)]
    high = [
        max(min(s + p, n), first) for s, p, n, first in zip(start, size, shape, low, strict=True)
    ]
    region = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    places = tuple(
        slice(min(a - s, p), min(a - s, p) + b - a)
        for a, b, s, p in zip(low, high, start, size, strict=True)
    )
    inside = all(b - a == p for a, b, p in zip(low, high, size, strict=True))
    if inside or padding == "constant":
        return Window(region, places, None, inside)
    rows = [_repeated(s, p, n, padding) for s, p, n in zip(start, size, shape, strict=True)]
    region = tuple(slice(int(r.min()), int(r.max()) + 1) if r.size else slice(0, 0) for r in rows)
    return Window(
        region,
        tuple(slice(0, p) for p in size),
        tuple(r - part.start for r, part in zip(rows, region, strict=True)),
        inside=False,
    )


def _repeated(start: int, size: int, side: int, padding: str) -> npt.NDArray[np.intp]:
    """Return the row inside that each row of the patch shows."""
    rows = np.arange(start, start + size)
    if padding == "edge" or side == 1:
        return np.clip(rows, 0, side - 1)
    period = 2 * (side - 1)
    rows %= period
    return np.where(rows >= side, period - rows, rows)


def filling(
    fill: Any, dtype: np.dtype[Any], channels: tuple[int, ...], owner: Owner
) -> npt.NDArray[Any]:
    """Return what stands around an array: one number, or one for each of the last axis.

    Args:
        fill: The numbers.
        dtype: Of the result.
        channels: Length of the last axis, if there is one.
        owner: Whose array it is.

    Raises:
        SchemaError: The dtype does not hold them, or there are more or fewer.
    """
    try:
        given = np.asarray(fill, np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            values = given.astype(dtype)
        fits = dtype.kind == "f" or np.array_equal(values, given)
        fits = fits and given.shape in ((), (1,), channels)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise owner.error(SchemaError, f"fill {fill!r} does not fit {dtype}")
    return values


class Scale(NamedTuple):
    """What turns stored numbers into values."""

    slope: float
    intercept: float

    def apply(self, values: npt.NDArray[Any]) -> None:
        """Change float32 numbers in place."""
        if self.slope != 1.0:
            values *= np.float32(self.slope)
        if self.intercept != 0.0:
            values += np.float32(self.intercept)


def copy_rows(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Copy an array into one of its shape; numbers of another dtype are converted.

    Rows that lie in one piece on both sides are copied as single items, in half the time: NumPy
    has a loop for items and prepares another one for each row.
    """
    size = source.shape[-1] * source.itemsize if source.ndim else 0
    if (
        source.dtype == target.dtype
        and source.ndim > 1
        and source.strides[-1] == target.strides[-1] == source.itemsize
        and size
    ):
        row = f"V{size}"
        target.view(row)[...] = source.view(row)
    else:
        np.copyto(target, source, casting="unsafe")
