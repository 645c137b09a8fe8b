"""Patches side by side: all of a volume, in parts that overlap as far as wanted."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharedds.errors import OptionError
from sharedds.patches.location import Location, Triple, checked_size, several, triple
from sharedds.patches.sampler import Case, Floats, Integers, Patches

__all__ = ["Grid", "GridPatches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The patches of one volume, by their places along each axis.

    Attributes:
        shape: Of the volume.
        starts: Along each axis, the first voxels of what is covered, ascending.
        size: What each patch covers.
        margin: How much further each patch reaches on the low side: what is read, and not covered.
    """

    shape: Triple
    starts: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    size: Triple
    margin: Triple = (0, 0, 0)

    @property
    def counts(self) -> Triple:
        """How many places there are along each axis."""
        return triple(len(each) for each in self.starts)

    def place(self, start: Sequence[int]) -> Triple | None:
        """Return the numbers of the patch that begins at a voxel; None if none does."""
        found = []
        for at, margin, starts in zip(start, self.margin, self.starts, strict=True):
            number = bisect.bisect_left(starts, at + margin)
            if number == len(starts) or starts[number] != at + margin:
                return None
            found.append(number)
        return triple(found)


@dataclass(frozen=True, kw_only=True)
class GridPatches(Patches):
    """All of a volume in patches of one size: each voxel is in one patch or more.

    Patches begin at every ``size - overlap``-th voxel; the last one along an axis ends at the
    border, so that it overlaps more. Their number is known without reading anything. Along an axis
    where the patch is larger than the volume there is one, put around it and padded.

    Items are ordered by case, then by i, j and k.

    Args:
        size: Voxels along (i, j, k), or one number for all axes.
        overlap: What neighbours share: voxels, or a share of the size below 1 as a ``float``
            (rounded down); one, or one for each axis.
        output_size: For a model that gives less than it is shown: what it gives of a patch, in its
            middle. These parts then cover the volume, with that overlap; patches reach beyond the
            border, where they are padded.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> GridPatches((16, 16, 16), overlap=4).counts(np.array([[37, 41, 29]])).tolist()
        [36]
    """

    size: int | Triple = field(kw_only=False)
    overlap: float | tuple[float, float, float] = field(default=0.0, kw_only=False)
    output_size: int | Triple | None = None

    is_indexed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size = checked_size(self.size)
        object.__setattr__(self, "size", size)
        if self.per_case != 1:
            raise OptionError("GridPatches gives each patch as an item: per_case has to stay 1")
        if self.output_size is not None:
            given = checked_size(self.output_size, "output_size")
            if any(part > whole for part, whole in zip(given, size, strict=True)):
                raise OptionError(f"output_size={given} is larger than the size {size}")
            object.__setattr__(self, "output_size", given)
        object.__setattr__(self, "overlap", _checked_overlap(self.overlap, self.covered))

    @property
    def fixed_size(self) -> Triple:
        """Size of each patch."""
        return checked_size(self.size)

    @property
    def covered(self) -> Triple:
        """What each patch covers: its size, or what a model gives of it."""
        return self.fixed_size if self.output_size is None else checked_size(self.output_size)

    @property
    def _margin(self) -> Triple:
        pairs = zip(self.fixed_size, self.covered, strict=True)
        return triple((whole - part) // 2 for whole, part in pairs)

    @property
    def _steps(self) -> Triple:
        shared: Any = self.overlap  # voxels on each axis since it was checked
        return triple(part - each for part, each in zip(self.covered, shared, strict=True))

    def counts(self, shapes: Integers) -> Integers:
        """Return how many patches each volume has."""
        beyond = np.maximum(np.asarray(shapes, np.int64) - self.covered, 0)
        along = 1 + -(-beyond // np.array(self._steps))
        found: Integers = along.prod(axis=1)
        return found

    def grid(self, shape: Sequence[int]) -> Grid:
        """Return where the patches of a volume are.

        Args:
            shape: Voxels along (i, j, k).
        """
        sides = checked_size(tuple(shape), "shape")
        first, second, third = (
            tuple(_start(at, n, p, step) for at in range(_places(n, p, step)))
            for n, p, step in zip(sides, self.covered, self._steps, strict=True)
        )
        return Grid(
            shape=sides, starts=(first, second, third), size=self.covered, margin=self._margin
        )

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where patch ``number`` of a case lies."""
        shape, covered, steps = case.shape, self.covered, self._steps
        counts = [_places(*axis) for axis in zip(shape, covered, steps, strict=True)]
        rest, k = divmod(number, counts[2])
        i, j = divmod(rest, counts[1])
        start = triple(
            _start(at, n, p, step) - margin
            for at, n, p, step, margin in zip(
                (i, j, k), shape, covered, steps, self._margin, strict=True
            )
        )
        return [Location(start=start, size=self.fixed_size)]


def _places(n: int, p: int, step: int) -> int:
    """Return how many patches there are along an axis."""
    return 1 if p >= n else 1 + -(-(n - p) // step)


def _start(at: int, n: int, p: int, step: int) -> int:
    """Return where patch ``at`` of an axis begins."""
    return -((p - n) // 2) if p >= n else min(at * step, n - p)


def _checked_overlap(given: Any, size: Triple) -> Triple:
    """Return the voxels that neighbours share along each axis."""
    parts = several(given) or (given,) * 3
    if len(parts) != 3:
        raise OptionError(f"overlap={given!r}: one value, or one for each of (i, j, k)")
    return triple(_shared(part, side, given) for part, side in zip(parts, size, strict=True))


def _shared(part: Any, side: int, given: Any) -> int:
    if isinstance(part, bool) or not hasattr(part, "__float__"):
        raise OptionError(f"overlap={given!r}: voxels, or a share of the size, are expected")
    if not hasattr(part, "__index__"):
        share = float(part)
        if not 0 <= share < 1:
            raise OptionError(f"overlap={given!r}: a share is 0 or more, and below 1")
        # 0.3 of 10 is 3, also where the product is a little less.
        return min(int(share * side + 1e-9), side - 1)
    voxels = int(part.__index__())
    if not 0 <= voxels < side:
        raise OptionError(
            f"overlap={given!r}: {voxels} voxels are shared, of {side} that a patch covers; it has "
            "to be less"
        )
    return voxels
