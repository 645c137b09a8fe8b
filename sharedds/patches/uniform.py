"""Patches at places that are all equally likely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sharedds.patches.location import (
    Location,
    Triple,
    checked_count,
    checked_size,
    free_start,
    triple,
)
from sharedds.patches.planar import Pair, Planar, checked_sides, flat_size
from sharedds.patches.sampler import Case, Floats, Patches

__all__ = ["Drawn", "UniformPatches"]


@dataclass(frozen=True, kw_only=True)
class Drawn(Patches):
    """Patches of one size that are drawn by chance, some for each case."""

    size: int | Triple = field(kw_only=False)

    uniforms: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size))
        object.__setattr__(self, "per_case", checked_count(self.per_case, "per_case"))

    @property
    def fixed_size(self) -> Triple:
        """Size of each patch."""
        return checked_size(self.size)

    def _anywhere(self, case: Case, uniforms: Floats, *, is_fallback: bool = False) -> Location:
        size = self.fixed_size
        start = free_start(case.shape, size, uniforms.tolist())
        return Location(start=start, size=size, is_fallback=is_fallback)


@dataclass(frozen=True, kw_only=True, repr=False)
class UniformPatches(Planar, Drawn):
    """Patches at random, each place inside the volume or the slide equally likely.

    Along an axis where the patch is larger it is put around the volume and padded.

    Args:
        size: Voxels along (i, j, k), or one number for all axes. For slides pixels along (y, x).
        per_case: Patches for each visit of a case; of a slide so many items.
        level: For slides: the level they are cut from.
        mpp: For slides: micrometres for each pixel, instead of a level.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> UniformPatches((96, 96, 32), per_case=4).fixed_size
        (96, 96, 32)
    """

    size: int | Triple | Pair = field(kw_only=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_sides(self.size))
        object.__setattr__(self, "per_case", checked_count(self.per_case, "per_case"))
        self._check_resolution()

    @property
    def fixed_size(self) -> Triple:
        """Size of each patch; one voxel deep for slides."""
        sides: Any = self.size
        return triple((*sides, 1) if len(sides) == 2 else sides)

    def flat(self) -> UniformPatches:
        """Return the same for slides: a size along (y, x).

        Raises:
            OptionError: The size is that of a volume.
        """
        return replace(self, size=flat_size(checked_sides(self.size)))

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where the patches of a case lie."""
        return [self._anywhere(case, row) for row in uniforms]
