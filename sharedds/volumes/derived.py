"""Volumes that are made of other volumes, region by region: what all changes have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError
from sharedds.text import printable
from sharedds.volumes.source import Affine, VolumeData, VolumeHeader

__all__ = [
    "NOISE",
    "WORK",
    "Derived",
    "Spans",
    "affine_of",
    "in_halves",
    "nearest_whole",
    "noted",
    "pieces",
    "slices",
]

WORK = 1 << 21  # voxels of a source, or of a result, that are worked on at once
NOISE = 1e-6  # of a voxel: of the arithmetic of places

Spans = tuple[tuple[int, int], ...]
"""A region: first voxel and the one after the last, along each axis."""


class Derived:
    """A volume whose regions are computed when they are asked for.

    Args:
        source: What it is made of.
        shape: (i, j, k), or (steps, i, j, k).
        dtype: Of its values.
    """

    def __init__(self, source: VolumeData, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._source = source
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, region: tuple[slice, ...], /) -> npt.NDArray[Any]:
        spans = tuple(part.indices(size)[:2] for part, size in zip(region, self.shape, strict=True))
        return self.read(tuple((start, max(start, stop)) for start, stop in spans))

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        """Return a region that lies inside."""
        raise NotImplementedError


def slices(spans: Spans) -> tuple[slice, ...]:
    """Return a region as slices."""
    return tuple(slice(start, stop) for start, stop in spans)


def nearest_whole(places: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the nearest whole numbers; halves go up, also those that noise has made smaller."""
    return np.floor(places + (0.5 + NOISE)).astype(np.int64)


def in_halves(volume: Derived, spans: Spans, needed: Sequence[int]) -> npt.NDArray[Any] | None:
    """Read a region in two parts, each in its turn; None where it is a single voxel.

    Args:
        volume: To read from.
        spans: The region.
        needed: Along each axis, how much of the source it takes: the longest is cut.
    """
    axes = [axis for axis, (start, stop) in enumerate(spans) if stop - start > 1]
    if not axes:
        return None
    axis = max(axes, key=lambda axis: needed[axis])
    first, second = _halves(spans, axis)
    out = np.empty([stop - start for start, stop in spans], volume.dtype)
    middle = first[axis][1] - first[axis][0]
    before = (slice(None),) * axis
    out[(*before, slice(None, middle))] = volume.read(first)
    out[(*before, slice(middle, None))] = volume.read(second)
    return out


def _halves(spans: Spans, axis: int) -> tuple[Spans, Spans]:
    start, stop = spans[axis]
    middle = (start + stop) // 2
    first, second = list(spans), list(spans)
    first[axis], second[axis] = (start, middle), (middle, stop)
    return tuple(first), tuple(second)


def pieces(shape: tuple[int, ...], most: int) -> Iterator[Spans]:
    """Cut a volume into regions of up to ``most`` voxels, to walk through all of it.

    Steps are cut apart first, then slices along k, as files have them one after the other; rows
    of i are cut last.
    """
    ndim = len(shape)
    order = (*range(ndim - 3), *range(ndim - 1, ndim - 4, -1))
    waiting: list[Spans] = [tuple((0, size) for size in shape)]
    while waiting:
        spans = waiting.pop()
        lengths = [stop - start for start, stop in spans]
        if math.prod(lengths) <= most or max(lengths) <= 1:
            yield spans
        else:
            axis = next(axis for axis in order if lengths[axis] > 1)
            waiting.extend(reversed(_halves(spans, axis)))


def noted(header: VolumeHeader, change: Mapping[str, Any], **facts: Any) -> VolumeHeader:
    """Return a header with other facts, and with one more entry in the list ``changes``.

    Args:
        header: Before the change.
        change: What was done, as JSON; ``"change"`` names it.
        facts: Attributes of the header that are different now.
    """
    changes = [*header.attrs.get("changes", ()), dict(change)]
    return replace(header, attrs={**header.attrs, "changes": changes}, **facts)


def affine_of(header: VolumeHeader, what: str) -> Affine:
    """Return the affine of a volume that needs one.

    Args:
        header: Of the volume.
        what: What cannot be done without it, such as ``"resampled to a spacing"``.

    Raises:
        DecodeError: Its file says nothing about where it is.
    """
    if header.affine is None:
        raise DecodeError(
            f"{printable(header.path)}: no affine in it, so it cannot be {what}; pack it as it is, "
            "or give the file an affine",
            path=header.path,
        )
    return header.affine
