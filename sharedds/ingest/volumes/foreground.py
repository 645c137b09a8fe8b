"""The box of a volume that holds what is not background."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.volumes.changes import foreground_box
from sharedds.volumes.derived import Derived, Spans, pieces, slices
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["box_of_foreground"]

_PIECE = 1 << 22  # voxels that are looked at at once

Voxel = tuple[int, int, int]


def box_of_foreground(
    header: VolumeHeader, data: VolumeData, threshold: float | None
) -> tuple[Voxel, Voxel]:
    """Return the box of the voxels that measure above a threshold, in any step.

    Args:
        header: Of the volume.
        data: The voxels, (i, j, k) or (steps, i, j, k).
        threshold: A measured value; None for the lowest that each step has, whatever it is: 0 where
            the background was masked, -1024 or so in a CT.

    Returns:
        First voxel, and the one after the last, along i, j, k; the whole volume where no voxel is
        above. NaN is never above.
    """
    turned = header.slope < 0
    steps = 1 if len(data.shape) == 3 else data.shape[0]
    if threshold is not None:
        stored = (threshold - header.intercept) / header.slope
        limits = np.full(steps, stored, np.float64)
    else:
        limits = _lowest(data, steps, turned=turned)
    return foreground_box(_Above(data, limits, turned=turned), threshold=0)


def _lowest(data: VolumeData, steps: int, *, turned: bool) -> npt.NDArray[Any]:
    """Return the stored value of each step that measures least."""
    least: Any = np.fmax if turned else np.fmin  # neither counts NaN
    found: list[Any] = [None] * steps
    for spans in pieces(data.shape, _PIECE):
        values = data[slices(spans)]
        first = 0 if len(spans) == 3 else spans[0][0]
        for at, row in enumerate(values.reshape(-1, *values.shape[-3:]), first):
            low = least.reduce(row, axis=None)
            found[at] = low if found[at] is None else least(found[at], low)
    return np.array(found, data.dtype)


class _Above(Derived):
    """1 where a voxel measures above the limit of its step, else 0."""

    def __init__(self, source: VolumeData, limits: npt.NDArray[Any], *, turned: bool) -> None:
        super().__init__(source, tuple(source.shape), np.dtype(np.uint8))
        self._limits = limits
        self._turned = turned

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        values = self._source[slices(spans)]
        limits = self._limits
        if len(spans) == 4:
            limits = limits[slice(*spans[0])].reshape(-1, 1, 1, 1)
        above = values < limits if self._turned else values > limits
        return above.view(np.uint8)
