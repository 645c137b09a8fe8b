"""Slices of a volume: patches of two dimensions out of three."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sharedds.errors import OptionError
from sharedds.patches.grid import Grid
from sharedds.patches.location import (
    Location,
    Triple,
    checked_count,
    checked_size,
    free_start,
    several,
)
from sharedds.patches.sampler import Case, Floats, Integers, Patches

__all__ = ["SlicePatches"]

Values = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class SlicePatches(Patches):
    """All slices across one axis, each an item of two dimensions; that axis is left out of it.

    Args:
        axis: Across which axis, 0, 1 or 2: 2 for the slices of most scans.
        size: Voxels along the two axes that are left: a part at random, each place equally likely,
            padded where it is larger than the slice. None for whole slices; those of volumes of
            different shapes make no batch.
        thickness: So many neighbouring slices, an odd number, become channels: those of the first
            channel of the volume, then those of the second. The label is that of the middle one.
            Slices beyond the ends are padded.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> SlicePatches(axis=2, size=(256, 256), thickness=3).image_shape(1, (256, 256, 3))
        (3, 256, 256)
    """

    axis: int = field(default=2, kw_only=False)
    size: int | tuple[int, int] | None = None
    thickness: int = 1

    is_indexed: ClassVar[bool] = True
    uniforms: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if isinstance(self.axis, bool) or not hasattr(self.axis, "__index__"):
            raise OptionError(f"axis={self.axis!r}: 0, 1 or 2 is expected")
        # A plain number: two ways to write an axis are one way to cut.
        object.__setattr__(self, "axis", operator.index(self.axis))
        if self.axis not in (0, 1, 2):
            raise OptionError(f"axis={self.axis!r}: 0, 1 or 2 is expected")
        if self.per_case != 1:
            raise OptionError("SlicePatches gives each slice as an item: per_case has to stay 1")
        object.__setattr__(self, "thickness", checked_count(self.thickness, "thickness"))
        if self.thickness % 2 == 0:
            raise OptionError(f"thickness={self.thickness}: an odd number, as there is a middle")
        if self.size is not None:
            sides = several(self.size) or (self.size,) * 2
            if len(sides) != 2:
                raise OptionError(f"size={self.size!r}: voxels along the two axes of a slice")
            checked = checked_size((*sides, 1))
            object.__setattr__(self, "size", checked[:2])

    @property
    def fixed_size(self) -> Triple | None:
        """Size of the part that is cut, where it has one."""
        return None if self.size is None else self.size_of((1, 1, 1))

    def size_of(self, shape: Triple) -> Triple:
        """Return the size of the part that is cut of a volume."""
        given: Any = self.size
        sides = list(shape) if given is None else list(given)
        if given is None:
            sides[self.axis] = self.thickness
        else:
            sides.insert(self.axis, self.thickness)
        return sides[0], sides[1], sides[2]

    def counts(self, shapes: Integers) -> Integers:
        """Return how many slices each volume has."""
        found: Integers = np.asarray(shapes, np.int64)[:, self.axis]
        return found

    def grid(self, shape: Sequence[int]) -> Grid:
        """Return where whole slices of a volume are, for an :class:`~sharedds.Aggregator`.

        Raises:
            OptionError: These are parts of slices, which lie anywhere.
        """
        if self.size is not None:
            raise OptionError(f"{self}: parts at random cover no volume; leave out size")
        sides = list(checked_size(tuple(shape), "shape"))
        starts: list[tuple[int, ...]] = [(0,), (0,), (0,)]
        starts[self.axis] = tuple(range(sides[self.axis]))
        margin = [0, 0, 0]
        margin[self.axis] = self.thickness // 2
        size = list(sides)
        size[self.axis] = 1
        return Grid(
            shape=(sides[0], sides[1], sides[2]),
            starts=(starts[0], starts[1], starts[2]),
            size=(size[0], size[1], size[2]),
            margin=(margin[0], margin[1], margin[2]),
        )

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where slice ``number`` of a case lies."""
        size = self.size_of(case.shape)
        start = list(free_start(case.shape, size, uniforms[0].tolist()))
        start[self.axis] = number - self.thickness // 2
        return [Location(start=(start[0], start[1], start[2]), size=size)]

    def image_shape(self, channels: int, size: Triple) -> tuple[int, ...]:
        """Return (channels times thickness, and the two axes that are left)."""
        left = tuple(side for axis, side in enumerate(size) if axis != self.axis)
        return channels * size[self.axis], *left

    def label_location(self, location: Location) -> Location:
        """Return the slice in the middle."""
        start, size = list(location.start), list(location.size)
        start[self.axis] += self.thickness // 2
        size[self.axis] = 1
        return replace(
            location, start=(start[0], start[1], start[2]), size=(size[0], size[1], size[2])
        )

    def as_cut(self, values: Values, channels: int, size: Triple) -> Values:
        """Return memory that is handed out, seen as the part that is cut."""
        apart = values.reshape(channels, size[self.axis], *values.shape[1:])
        return np.moveaxis(apart, 1, 1 + self.axis)
