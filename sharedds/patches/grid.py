"""Patches side by side: all of a volume, in parts that overlap as far as wanted."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sharedds.errors import OptionError
from sharedds.patches.frame import checked_factors, to_level_0
from sharedds.patches.location import Location, Triple, checked_size, several, triple
from sharedds.patches.planar import Pair, Planar, checked_pair, checked_sides, flat_size
from sharedds.patches.sampler import Case, Floats, Integers, Patches

__all__ = ["Grid", "GridPatches", "places_along"]


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

    def on_level_0(
        self, downsample: float | tuple[float, float]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return, along (y, x) of a slide, which patch begins in which pixel of level 0.

        Args:
            downsample: Pixels of level 0 for each pixel of the grid.

        Raises:
            OptionError: It is no number above 0, or one for each axis.
        """
        factors = checked_factors(downsample)
        y, x = (
            {to_level_0(at - margin, factor): at - margin for at in starts}
            for starts, margin, factor in zip(self.starts, self.margin, factors, strict=False)
        )
        return y, x


@dataclass(frozen=True, kw_only=True, repr=False)
class GridPatches(Planar, Patches):
    """All of a volume or a slide in patches of one size: each voxel is in one patch or more.

    Patches begin at every ``size - overlap``-th voxel; the last one along an axis ends at the
    border, so that it overlaps more. Their number is known without reading anything. Along an axis
    where the patch is larger than the volume there is one, put around it and padded.

    Items are ordered by case, then by i, j and k; those of slides by y and x.

    Args:
        size: Voxels along (i, j, k), or one number for all axes. For slides pixels along (y, x).
        overlap: What neighbours share: voxels, or a share of the size below 1 as a ``float``
            (rounded down); one, or one for each axis.
        output_size: For a model that gives less than it is shown: what it gives of a patch, in its
            middle. These parts then cover the volume, with that overlap; patches reach beyond the
            border, where they are padded.
        level: For slides: the level they are cut from.
        mpp: For slides: micrometres for each pixel, instead of a level.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> GridPatches((16, 16, 16), overlap=4).counts(np.array([[37, 41, 29]])).tolist()
        [36]
    """

    size: int | Triple | Pair = field(kw_only=False)
    overlap: float | tuple[float, ...] = field(default=0.0, kw_only=False)
    output_size: int | Triple | Pair | None = None

    is_indexed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size = checked_sides(self.size)
        object.__setattr__(self, "size", size)
        if self.per_case != 1:
            raise OptionError("GridPatches gives each patch as an item: per_case has to stay 1")
        if self.output_size is not None:
            checked: Any = checked_pair if len(size) == 2 else checked_size
            given = checked(self.output_size, "output_size")
            if any(part > whole for part, whole in zip(given, size, strict=True)):
                raise OptionError(f"output_size={given} is larger than the size {size}")
            object.__setattr__(self, "output_size", given)
        sides = self.covered[: len(size)]
        object.__setattr__(self, "overlap", _checked_overlap(self.overlap, sides))
        self._check_resolution()

    @property
    def fixed_size(self) -> Triple:
        """Size of each patch; one voxel deep for slides."""
        return _deep(self.size, 1)

    @property
    def covered(self) -> Triple:
        """What each patch covers: its size, or what a model gives of it."""
        return self.fixed_size if self.output_size is None else _deep(self.output_size, 1)

    def flat(self) -> GridPatches:
        """Return the same for slides: sizes along (y, x).

        Raises:
            OptionError: They are those of a volume.
        """
        if len(checked_sides(self.size)) == 2:
            return self
        shared: Any = self.overlap
        output = self.output_size
        return replace(
            self,
            size=flat_size(checked_sides(self.size)),
            overlap=flat_size(shared),
            output_size=None if output is None else flat_size(checked_sides(output)),
        )

    @property
    def _margin(self) -> Triple:
        pairs = zip(self.fixed_size, self.covered, strict=True)
        return triple((whole - part) // 2 for whole, part in pairs)

    @property
    def _steps(self) -> Triple:
        shared: Any = self.overlap  # voxels on each axis since it was checked
        pairs = zip(self.covered, _deep(shared, 0), strict=True)
        return triple(part - each for part, each in pairs)

    def counts(self, shapes: Integers) -> Integers:
        """Return how many patches each volume has."""
        beyond = np.maximum(np.asarray(shapes, np.int64) - self.covered, 0)
        along = 1 + -(-beyond // np.array(self._steps))
        found: Integers = along.prod(axis=1)
        return found

    def grid(self, shape: Sequence[int]) -> Grid:
        """Return where the patches of a volume are.

        Args:
            shape: Voxels along (i, j, k), or pixels along (y, x).
        """
        if len(shape) == 2 and len(checked_sides(self.size)) == 3:
            return self.flat().grid(shape)
        sides = _deep(checked_sides(tuple(shape), "shape"), 1)
        first, second, third = (
            places_along(n, p, step)
            for n, p, step in zip(sides, self.covered, self._steps, strict=True)
        )
        return Grid(
            shape=sides, starts=(first, second, third), size=self.covered, margin=self._margin
        )

    def start(self, shape: Triple, number: int) -> Triple:
        """Return where patch ``number`` of a volume begins."""
        covered, steps = self.covered, self._steps
        counts = [_places(*axis) for axis in zip(shape, covered, steps, strict=True)]
        rest, k = divmod(number, counts[2])
        i, j = divmod(rest, counts[1])
        return triple(
            _start(at, n, p, step) - margin
            for at, n, p, step, margin in zip(
                (i, j, k), shape, covered, steps, self._margin, strict=True
            )
        )

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where patch ``number`` of a case lies."""
        return [Location(start=self.start(case.shape, number), size=self.fixed_size)]


def _deep(sides: Any, depth: int) -> Triple:
    """Return three numbers, the last of which a slide has not."""
    found = sides if isinstance(sides, tuple) else (sides,) * 3
    return triple((*found, depth) if len(found) == 2 else found)


def places_along(n: int, p: int, step: int) -> tuple[int, ...]:
    """Return where the patches along an axis begin.

    Args:
        n: Of the volume.
        p: Of a patch.
        step: From one to the next.
    """
    return tuple(_start(at, n, p, step) for at in range(_places(n, p, step)))


def _places(n: int, p: int, step: int) -> int:
    """Return how many patches there are along an axis."""
    return 1 if p >= n else 1 + -(-(n - p) // step)


def _start(at: int, n: int, p: int, step: int) -> int:
    """Return where patch ``at`` of an axis begins."""
    return -((p - n) // 2) if p >= n else min(at * step, n - p)


def _checked_overlap(given: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the voxels that neighbours share along each axis."""
    parts = several(given) or (given,) * len(size)
    if len(parts) != len(size):
        axes = "(i, j, k)" if len(size) == 3 else "(y, x)"
        raise OptionError(f"overlap={given!r}: one value, or one for each of {axes}")
    return tuple(_shared(part, side, given) for part, side in zip(parts, size, strict=True))


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
