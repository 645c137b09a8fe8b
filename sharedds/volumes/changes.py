"""What may be done to a volume on its way into a store: turned, cut, converted, resampled.

Each change takes a volume and its header and returns the changed pair, computed by region when it
is read. What was done is appended to the list ``changes`` of the header's attributes, one object
for each change; a change that would change nothing returns what it was given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, OptionError
from sharedds.text import printable
from sharedds.volumes.derived import Derived, Spans, affine_of, noted, pieces, slices
from sharedds.volumes.geometry import orientation_of, reorientation, reoriented_affine, shifted
from sharedds.volumes.other_grid import onto_grid
from sharedds.volumes.resampling import resampled
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["converted", "cropped", "foreground_box", "onto_grid", "reoriented", "resampled"]

_PIECE = 1 << 22  # voxels that are looked at at once

Voxel = tuple[int, int, int]


def reoriented(
    data: VolumeData, header: VolumeHeader, target: str
) -> tuple[VolumeHeader, VolumeData]:
    """Return a volume whose axes i, j, k point to ``target``; nothing is interpolated.

    Axes are exchanged and reversed. Every voxel keeps its value and its place in millimetres; of an
    oblique volume each axis points to the closest direction, so it stays oblique.

    Args:
        data: The voxels, (i, j, k) or (steps, i, j, k).
        header: What is known of them.
        target: Three letters such as ``"RAS"``.

    Raises:
        OptionError: ``target`` is no orientation.
        DecodeError: The volume has no affine.
    """
    affine = affine_of(header, f"turned to {target}")
    perm, flips = reorientation(affine, target)
    if perm == (0, 1, 2) and not any(flips):
        return header, data
    shape = (header.shape[perm[0]], header.shape[perm[1]], header.shape[perm[2]])
    turned = reoriented_affine(affine, header.shape, perm, flips)
    change = {
        "change": "reoriented",
        "from": orientation_of(affine),
        "to": orientation_of(turned),
    }
    return noted(header, change, shape=shape, affine=turned), _Turned(data, perm, flips)


class _Turned(Derived):
    def __init__(self, source: VolumeData, perm: Voxel, flips: tuple[bool, bool, bool]) -> None:
        lead = len(source.shape) - 3
        self._order = (*range(lead), *(lead + axis for axis in perm))
        self._flips = (*(False,) * lead, *flips)
        super().__init__(source, tuple(source.shape[axis] for axis in self._order), source.dtype)

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        region = [(0, 0)] * len(spans)
        turns = []
        for (start, stop), axis, flip, size in zip(
            spans, self._order, self._flips, self.shape, strict=True
        ):
            region[axis] = (size - stop, size - start) if flip else (start, stop)
            turns.append(slice(None, None, -1 if flip else 1))
        values = self._source[slices(tuple(region))]
        return values.transpose(self._order)[tuple(turns)]


def cropped(
    data: VolumeData, header: VolumeHeader, start: Sequence[int], stop: Sequence[int]
) -> tuple[VolumeHeader, VolumeData]:
    """Return the part of a volume from voxel ``start`` up to, and without, ``stop``.

    The affine is moved along, so every voxel keeps its place in millimetres.

    Args:
        data: The voxels, (i, j, k) or (steps, i, j, k); all steps are kept.
        header: What is known of them.
        start: First voxel along i, j, k.
        stop: The one after the last.

    Raises:
        OptionError: The box is empty or does not lie inside.
    """
    box = tuple((int(first), int(last)) for first, last in zip(start, stop, strict=True))
    sizes = header.shape
    if len(box) != 3 or not all(
        0 <= first < last <= size for (first, last), size in zip(box, sizes, strict=True)
    ):
        raise OptionError(
            f"{printable(header.path)}: no box from {tuple(start)} to {tuple(stop)} in a volume of "
            f"{sizes} voxels",
            path=header.path,
        )
    if all(span == (0, size) for span, size in zip(box, sizes, strict=True)):
        return header, data
    begin, end = [first for first, _ in box], [last for _, last in box]
    change = {"change": "cropped", "start": begin, "stop": end, "from_shape": list(sizes)}
    affine = None if header.affine is None else shifted(header.affine, begin)
    shape = (end[0] - begin[0], end[1] - begin[1], end[2] - begin[2])
    return noted(header, change, shape=shape, affine=affine), _Cropped(data, box)


class _Cropped(Derived):
    def __init__(self, source: VolumeData, box: Spans) -> None:
        steps = source.shape[:-3]
        super().__init__(source, (*steps, *(stop - start for start, stop in box)), source.dtype)
        self._starts = (*(0,) * len(steps), *(start for start, _ in box))

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        moved = [
            (start + by, stop + by) for (start, stop), by in zip(spans, self._starts, strict=True)
        ]
        return self._source[slices(tuple(moved))]


def foreground_box(data: VolumeData, *, threshold: float) -> tuple[Voxel, Voxel]:
    """Return the smallest box that holds every voxel above a threshold, in any step.

    The volume is read once, some megabytes of neighbouring slices at a time.

    Args:
        data: The voxels, (i, j, k) or (steps, i, j, k).
        threshold: As a stored value: slope and intercept are the caller's. NaN is never above.

    Returns:
        First voxel, and the one after the last, along i, j, k; the whole volume where no voxel is
        above.
    """
    lead = len(data.shape) - 3
    low, high = list(data.shape[lead:]), [0, 0, 0]
    for spans in pieces(data.shape, _PIECE):
        with np.errstate(over="ignore"):  # a threshold beyond a short float is infinite
            above = data[slices(spans)] > threshold
        for axis in range(3):
            others = tuple(n for n in range(above.ndim) if n != lead + axis)
            found = np.flatnonzero(above.any(axis=others))
            if found.size:
                first = spans[lead + axis][0]
                low[axis] = min(low[axis], first + int(found[0]))
                high[axis] = max(high[axis], first + int(found[-1]) + 1)
    if not all(high):
        low, high = [0, 0, 0], list(data.shape[lead:])
    return (low[0], low[1], low[2]), (high[0], high[1], high[2])


def converted(
    data: VolumeData, header: VolumeHeader, dtype: npt.DTypeLike
) -> tuple[VolumeHeader, VolumeData]:
    """Return a volume whose stored values have another dtype, the same values.

    A float may lose digits to a shorter float (so that of a very small one 0 may be left), nothing
    else may change: a fraction, a number out of range or NaN does not become an integer, and an
    integer that a float cannot hold exactly does not become one. Slope and intercept stay as they
    are.

    What does not fit is found when the region is read; then all of the volume is looked at, to say
    how many values there are of that kind.

    Args:
        data: The voxels.
        header: What is known of them.
        dtype: An integer, float or bool dtype.

    Raises:
        OptionError: Voxels cannot be of this dtype.
        DecodeError: On reading: values do not fit. It counts them, and gives the range of all.
    """
    try:
        wanted = np.dtype(dtype or "").newbyteorder("<")  # None would be float64
    except (TypeError, ValueError, SyntaxError):
        raise OptionError(f"dtype={dtype!r} is none; use int16, float32, ...") from None
    if wanted.kind not in "biuf" or wanted.itemsize > 8:
        raise OptionError(f"dtype={wanted}: use an integer or float of up to 64 bits")
    if wanted == header.dtype:
        return header, data
    change = {"change": "converted", "from": header.dtype.name, "to": wanted.name}
    return (
        noted(header, change, dtype=wanted),
        _Converted(data, wanted, printable(header.path)),
    )


class _Converted(Derived):
    def __init__(self, source: VolumeData, dtype: np.dtype[Any], name: str) -> None:
        super().__init__(source, source.shape, dtype)
        self._name = name

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        values = self._source[slices(spans)]
        result, wrong = _exact(values, self.dtype)
        if wrong.any():
            raise self._refusal()
        return result

    def _refusal(self) -> DecodeError:
        count, low, high = 0, math.inf, -math.inf
        for spans in pieces(self.shape, _PIECE):
            values = self._source[slices(spans)]
            count += int(np.count_nonzero(_exact(values, self.dtype)[1]))
            finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
            if finite.size:
                low, high = min(low, finite.min().item()), max(high, finite.max().item())
        total = math.prod(self.shape)
        do = "does" if count == 1 else "do"
        known = f"from {low:g} to {high:g}" if low <= high else "none of them a number"
        return DecodeError(
            f"{self._name}: {count:,} of {total:,} values {do} not fit {self.dtype.name} without "
            f"loss (they are {self._source.dtype.name}, {known}); choose another dtype"
        )


def _exact(
    values: npt.NDArray[Any], dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return values in a dtype, and which of them have changed."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = values.astype(dtype)
        if values.dtype.kind == "f" and dtype.kind == "f":
            return result, np.isfinite(result) != np.isfinite(values)
        back = result.astype(values.dtype)
        # Both ways: 2**64 - 1 as a float is 2**64, which an integer cannot be.
        return result, (result != values) | (back != values)
