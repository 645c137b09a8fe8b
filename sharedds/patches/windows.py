"""How much each patch counts where several overlap: along one axis, from its place on the grid.

Weights are products of one factor for each axis, and so are their sums, since a grid has every
combination of its places. Each factor is divided by its sum over the patches of that axis: what is
added up is right at once, and nothing has to be divided in the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError

__all__ = ["Mode", "Part", "checked_mode", "most_overlap", "parts_of_axis"]

Mode = Literal["crop", "mean", "hann", "gaussian"]
Weights = npt.NDArray[np.float64]

_SIGMA = 1 / 8  # of a Gaussian window, in patches


@dataclass(frozen=True, slots=True)
class Part:
    """What one place along an axis gives to the volume.

    Attributes:
        begin, end: Voxels of the volume.
        offset: The element of the patch that lies at ``begin``.
        weights: (end - begin,), how much the patch counts there; all of them 1 where it is alone.
    """

    begin: int
    end: int
    offset: int
    weights: Weights


def checked_mode(mode: Any) -> Mode:
    """Return a way of joining patches.

    Raises:
        OptionError: There is no such way.
    """
    if mode not in get_args(Mode):
        raise OptionError(f"mode {mode!r}: one of {', '.join(get_args(Mode))}")
    return cast("Mode", mode)


def parts_of_axis(starts: Sequence[int], size: int, length: int, mode: Mode) -> list[Part]:
    """Return what each place along an axis gives; all together have weight 1 everywhere.

    Args:
        starts: First voxels of the patches, ascending; each voxel is in one of them at least.
        size: Of a patch.
        length: Of the volume.
        mode: ``"crop"``: neighbours meet in the middle of what they share.
    """
    if mode == "crop":
        return _cropped(starts, size, length)
    window = _window(size, mode)
    spans = [(max(start, 0), min(start + size, length), max(-start, 0)) for start in starts]
    total = np.zeros(length)
    for begin, end, offset in spans:
        total[begin:end] += window[offset : offset + end - begin]
    return [
        Part(begin, end, offset, window[offset : offset + end - begin] / total[begin:end])
        for begin, end, offset in spans
    ]


def _cropped(starts: Sequence[int], size: int, length: int) -> list[Part]:
    middles = [(after + before + size + 1) // 2 for before, after in itertools.pairwise(starts)]
    ends = [*middles, length]
    begins = [0, *middles]
    return [
        Part(begin, end, begin - start, np.ones(end - begin))
        for start, begin, end in zip(starts, begins, ends, strict=True)
    ]


def _window(size: int, mode: Mode) -> Weights:
    """Return how much the elements of a patch count; never 0."""
    at = np.arange(size) + 0.5
    if mode == "hann":
        hann: Weights = np.square(np.sin(math.pi * at / size))
        return hann
    if mode == "gaussian":
        gaussian: Weights = np.exp(-0.5 * np.square((at / size - 0.5) / _SIGMA))
        return gaussian
    return np.ones(size)


def most_overlap(parts: Sequence[Part], length: int) -> int:
    """Return the largest number of patches that give to one voxel along an axis."""
    steps = np.zeros(length + 1, np.int64)
    for part in parts:
        steps[part.begin] += 1
        steps[part.end] -= 1
    return int(np.cumsum(steps).max())
