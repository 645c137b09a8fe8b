"""Labels on the grid of a picture, by region: each reads the part of the labels that it meets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, OptionError
from sharedds.text import printable
from sharedds.volumes.derived import (
    WORK,
    Derived,
    Spans,
    affine_of,
    in_halves,
    nearest_whole,
    noted,
    slices,
)
from sharedds.volumes.geometry import corner_distance, spacing_of
from sharedds.volumes.source import Affine, VolumeData, VolumeHeader

__all__ = ["onto_grid"]


def onto_grid(
    label_data: VolumeData,
    label_header: VolumeHeader,
    header: VolumeHeader,
    *,
    fill: float = 0,
) -> tuple[VolumeHeader, VolumeData]:
    """Return labels on the grid of a picture: each voxel takes the label that is nearest to it.

    The grids may be shifted, mirrored, turned and of different spacing; only values that occur in
    the labels, and ``fill``, occur in the result. Of labels that are equally near the one with the
    higher index is taken.

    Args:
        label_data: The labels, (i, j, k) or (steps, i, j, k).
        label_header: What is known of them.
        header: Of the picture: its shape and affine are taken over.
        fill: Where the labels do not reach.

    Raises:
        DecodeError: One of the two has no affine, or they do not overlap at all.
        OptionError: ``fill`` is not a value of the labels' dtype.
    """
    target = affine_of(header, "a grid for labels")
    source = affine_of(label_header, "put onto the grid of a picture")
    dtype = label_data.dtype
    with np.errstate(invalid="ignore", over="ignore"):
        filler = np.asarray(fill).astype(dtype)
    if not filler == fill:
        raise OptionError(f"fill={fill!r} is no value of {dtype}")
    matrix = np.linalg.inv(source) @ target
    if not _meet(matrix, header.shape, label_header.shape):
        raise DecodeError(
            f"{printable(label_header.path)}: these labels and the picture "
            f"{printable(header.path)} do not overlap anywhere; one of the two is misplaced",
            path=label_header.path,
        )
    if label_header.shape == header.shape and np.array_equal(source, target):
        return label_header, label_data
    change: dict[str, Any] = {
        "change": "onto_grid",
        "method": "nearest",
        "fill": filler.item(),
        "from_spacing": list(spacing_of(source)),
        "from_shape": list(label_header.shape),
    }
    if label_header.shape == header.shape:
        change["moved_mm"] = corner_distance(source, target, header.shape)
    return (
        noted(label_header, change, shape=header.shape, affine=target),
        _OntoGrid(label_data, header.shape, matrix, filler),
    )


def _bounds(
    matrix: Affine, first: Sequence[float], last: Sequence[float]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the lowest and highest voxels of another grid that a box from corner to corner meets.

    The box around the box is meant, along the axes of the other grid.
    """
    ends = np.stack([matrix[:3, :3] * first, matrix[:3, :3] * last])
    low, high = ends.min(0).sum(1), ends.max(0).sum(1)
    return nearest_whole(low + matrix[:3, 3]), nearest_whole(high + matrix[:3, 3])


def _meet(matrix: Affine, shape: Sequence[int], labels: Sequence[int]) -> bool:
    """Return whether a grid takes voxels of labels; boxes that only touch may be taken to meet."""
    low, high = _bounds(matrix, (0, 0, 0), [size - 1 for size in shape])
    if np.any(high < 0) or np.any(low >= labels):
        return False
    # A grid that is turned may be off though the box around it is not: seen from the other side.
    edges = [size - 0.5 for size in labels]
    back = np.asarray(np.linalg.inv(matrix), np.float64)
    low, high = _bounds(back, (-0.5, -0.5, -0.5), edges)
    return not (np.any(high < 0) or np.any(low >= shape))


class _OntoGrid(Derived):
    def __init__(
        self,
        source: VolumeData,
        shape: tuple[int, int, int],
        matrix: Affine,
        fill: npt.NDArray[Any],
    ) -> None:
        super().__init__(source, (*source.shape[:-3], *shape), source.dtype)
        self._matrix = matrix  # from voxels of the result to voxels of the source
        self._fill = fill

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        shape = [stop - start for start, stop in spans]
        lead, space = spans[:-3], spans[-3:]
        if 0 in shape:
            return np.empty(shape, self.dtype)
        sizes = np.array(self._source.shape[-3:])
        first, last = zip(*((start, stop - 1) for start, stop in space), strict=True)
        low, high = _bounds(self._matrix, first, last)
        low, high = low.clip(0, None), high.clip(None, sizes - 1)
        if np.any(low > high):
            return np.full(shape, self._fill)
        box = [*shape[:-3], *(high - low + 1)]
        if max(math.prod(map(int, box)), math.prod(shape)) > WORK:
            joined = in_halves(self, spans, shape)
            if joined is not None:
                return joined
        values = self._source[slices((*lead, *zip(low.tolist(), (high + 1).tolist(), strict=True)))]
        index, inside = self._nearest(space, low, high)
        out = np.full(shape, self._fill)
        i, j, k = (row[inside] for row in index)
        out[..., inside] = values[..., i, j, k]
        return out

    def _nearest(
        self, space: Spans, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]
    ) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]:
        """Return for each voxel its voxel in a box of the source, and whether it is in the box."""
        numbers = np.ogrid[slices(space)]
        inside = np.ones([stop - start for start, stop in space], np.bool_)
        index = []
        for axis in range(3):
            row = self._matrix[axis]
            place = sum((row[n] * numbers[n] for n in range(3)), row[3])
            near = nearest_whole(place)
            inside &= (near >= low[axis]) & (near <= high[axis])
            index.append(near - low[axis])
        return index, inside
