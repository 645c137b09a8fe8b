"""A volume with another spacing, by region: each reads the part of the source it is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError
from sharedds.text import printable
from sharedds.volumes.derived import (
    NOISE,
    WORK,
    Derived,
    Spans,
    affine_of,
    in_halves,
    nearest_whole,
    noted,
    slices,
)
from sharedds.volumes.geometry import spacing_of
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["resampled"]

_DRIFT = 1e-3  # of a voxel: over a whole axis, what a change of spacing must make to count as one
_LARGEST = 1 << 40  # voxels of a result
_MOST_IN_ONE = 1 << 24  # voxels of a source that one of the result may be made of
_SPACINGS = (1e-6, 1e6)  # mm: what is beyond is a slip


@dataclass(frozen=True, slots=True)
class _Line:
    """Where the voxels of one axis come from: voxel n from ``first + n * step`` of the source."""

    size: int  # of the source
    count: int  # of the result
    first: float = 0.0
    step: float = 1.0

    @property
    def same(self) -> bool:
        return self.size == self.count and self.first == 0.0 and self.step == 1.0

    @property
    def width(self) -> float:
        """How many voxels of the source one voxel of the result is made of."""
        return max(self.step, 1.0)

    def centres(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        centres = self.first + self.step * np.arange(start, stop, dtype=np.float64)
        whole = np.rint(centres)
        return np.where(np.abs(centres - whole) < NOISE, whole, centres)

    def reach(self, start: int, stop: int) -> int:
        """Return about how many voxels of the source a part of the result needs."""
        span = (stop - start - 1) * self.step + self.width + 1
        return min(self.size, math.ceil(span))

    def nearest(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        return nearest_whole(self.centres(start, stop)).clip(0, self.size - 1)

    def taps(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return voxels of the source and their weights, both (stop - start, taps)."""
        centres, half = self.centres(start, stop)[:, None], self.width / 2
        low = np.floor(centres - half + 0.5).clip(0, None).astype(np.int64)
        index = low + np.arange(min(math.ceil(self.width) + 1, self.size))
        right = np.minimum(centres + half, index + 0.5)
        weight = (right - np.maximum(centres - half, index - 0.5)).clip(0.0, None)
        weight[index >= self.size] = 0.0
        weight /= weight.sum(axis=1, keepdims=True)
        # A voxel that weighs nothing is not looked at: NaN and infinity times 0 are NaN. The one
        # that weighs most is taken for it too, with a part of its weight.
        most = weight.argmax(axis=1)[:, None]
        unused = weight == 0
        share = np.take_along_axis(weight, most, axis=1) / (1 + unused.sum(axis=1, keepdims=True))
        np.put_along_axis(weight, most, share, axis=1)
        return (
            np.where(unused, np.take_along_axis(index, most, axis=1), index),
            np.where(unused, share, weight),
        )


def resampled(
    data: VolumeData,
    header: VolumeHeader,
    spacing: Sequence[float],
    *,
    nearest: bool,
) -> tuple[VolumeHeader, VolumeData]:
    """Return a volume on a grid with another spacing and the same axes.

    Where the new voxels are: along each axis there are ``max(1, round(size * old / new))``, exactly
    the new spacing apart, and their middle is the middle of the old ones. So the first and the last
    centre are equally far, at most 3/4 of a new voxel, from the old outer edges of the volume.
    Centres beyond the outermost old ones take the value at the border. An axis that would move by
    less than 1/1000 voxel over its length stays as it is.

    Values: linear between neighbours along each axis. Where the new spacing is larger, the mean of
    the old voxels that the new one covers, each by the share that is covered; what a new voxel
    covers beyond the border does not count. With equal spacings the two rules are the same.
    Integers are rounded to the nearest and stay in the range of their dtype (of 64-bit integers the
    last digits may change); slope and intercept are as before. With ``nearest``, for labels, the
    value of the closest old voxel, the later one of two.

    Args:
        data: The voxels, (i, j, k) or (steps, i, j, k).
        header: What is known of them.
        spacing: New spacing along i, j, k in mm.
        nearest: Take over values instead of computing them.

    Raises:
        OptionError: The spacing is not three numbers from 0.000001 to 1,000,000 mm; the result
            would have more than 2**40 voxels, or one voxel of it be made of more than 2**24.
        DecodeError: The volume has no affine.
    """
    least, most = _SPACINGS
    try:
        wanted = tuple(float(value) for value in spacing)
    except (TypeError, ValueError):
        wanted = ()
    if len(wanted) != 3 or not all(least <= value <= most for value in wanted):
        raise OptionError(
            f"spacing={spacing!r}: three numbers of mm are needed, from {least:f} to {most:,.0f}"
        )
    affine = affine_of(header, "resampled to a spacing")
    old = spacing_of(affine)
    lines = [
        _line(size, here, there)
        for size, here, there in zip(header.shape, old, wanted, strict=True)
    ]
    if all(line.same for line in lines):
        return header, data
    shape = (lines[0].count, lines[1].count, lines[2].count)
    if math.prod(shape) > _LARGEST:
        raise OptionError(
            f"{printable(header.path)}: spacing {_numbers(wanted)} mm would make {shape} voxels of "
            f"{header.shape} at {_numbers(old)} mm; choose a larger spacing",
            path=header.path,
        )
    if math.prod(line.reach(0, 1) for line in lines) > _MOST_IN_ONE:
        raise OptionError(
            f"{printable(header.path)}: spacing {_numbers(wanted)} mm would make one voxel of "
            f"millions that are {_numbers(old)} mm apart; choose a smaller spacing",
            path=header.path,
        )
    moved = affine.copy()
    for axis, line in enumerate(lines):
        moved[:3, axis] = affine[:3, axis] * line.step
        moved[:3, 3] += affine[:3, axis] * line.first
    change = {
        "change": "resampled",
        "method": "nearest" if nearest else "linear",
        "from_spacing": list(old),
        "to_spacing": list(spacing_of(moved)),
        "from_shape": list(header.shape),
    }
    return (
        noted(header, change, shape=shape, affine=moved),
        _Resampled(data, lines, nearest=nearest),
    )


def _line(size: int, old: float, new: float) -> _Line:
    step = new / old
    if abs(step - 1.0) * size < _DRIFT:
        return _Line(size, size)
    count = max(1, math.floor(size / step + 0.5))
    return _Line(size, count, (size - 1) / 2 - step * (count - 1) / 2, step)


def _numbers(values: Sequence[float]) -> str:
    return " x ".join(f"{value:g}" for value in values)


class _Resampled(Derived):
    def __init__(self, source: VolumeData, lines: list[_Line], *, nearest: bool) -> None:
        steps = source.shape[:-3]
        super().__init__(source, (*steps, *(line.count for line in lines)), source.dtype)
        self._lines = [*(_Line(size, size) for size in steps), *lines]
        self._nearest = nearest

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        if any(start == stop for start, stop in spans):
            return np.empty([stop - start for start, stop in spans], self.dtype)
        needed = [
            max(line.reach(start, stop), stop - start)
            for line, (start, stop) in zip(self._lines, spans, strict=True)
        ]
        if math.prod(needed) > WORK and (joined := in_halves(self, spans, needed)) is not None:
            return joined
        return self._near(spans) if self._nearest else self._linear(spans)

    def _near(self, spans: Spans) -> npt.NDArray[Any]:
        rows = [line.nearest(*span) for line, span in zip(self._lines, spans, strict=True)]
        values = self._source[tuple(slice(int(row[0]), int(row[-1]) + 1) for row in rows)]
        for axis, row in enumerate(rows):
            if not self._lines[axis].same:
                values = values.take(row - row[0], axis=axis)
        return values

    def _linear(self, spans: Spans) -> npt.NDArray[Any]:
        found = [
            None if line.same else line.taps(*span)
            for line, span in zip(self._lines, spans, strict=True)
        ]
        bounds = [
            span if taps is None else (int(taps[0].min()), int(taps[0].max()) + 1)
            for span, taps in zip(spans, found, strict=True)
        ]
        values = self._source[slices(tuple(bounds))].astype(_working(self.dtype))
        # The axes that shrink most come first: what is left is less.
        for axis in sorted(range(len(found)), key=lambda axis: -self._lines[axis].step):
            taps = found[axis]
            if taps is not None:
                values = _weighted(values, taps[0] - bounds[axis][0], taps[1], axis)
        return _stored(values, self.dtype)


def _weighted(
    values: npt.NDArray[Any],
    index: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    axis: int,
) -> npt.NDArray[Any]:
    """Return sums of slices along an axis."""
    weight = weight.astype(values.dtype)
    tail = (1,) * (values.ndim - 1 - axis)
    total = values.take(index[:, 0], axis=axis)
    total *= weight[:, 0].reshape(-1, *tail)
    part = np.empty_like(total)
    for tap in range(1, index.shape[1]):
        # The indices are right; "clip" only means that no copy is made to be thrown away.
        values.take(index[:, tap], axis=axis, out=part, mode="clip")
        part *= weight[:, tap].reshape(-1, *tail)
        total += part
    return total


def _working(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    """Return the dtype to compute in: float32 holds integers of 16 bits and leaves room."""
    small = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.float32 if small else np.float64


def _stored(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "f":
        return values.astype(dtype, copy=False)
    values = np.rint(values)
    if dtype.kind == "b":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    low, high = values.dtype.type(limits.min), values.dtype.type(limits.max)
    if int(high) > limits.max:  # rounded up: of 64-bit integers
        high = np.nextafter(high, values.dtype.type(0))
    return values.clip(low, high).astype(dtype)
