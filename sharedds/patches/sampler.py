"""What all kinds of patches share, and what they need to know of a case.

A kind of patch is a few numbers. Where a patch lies follows from the case and from some random
numbers that are handed in, so that it is the same whoever asks, and in whatever order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sharedds.patches.location import Location, Triple

__all__ = ["Case", "Floats", "Integers", "Patches"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Values = npt.NDArray[Any]


class Case(Protocol):
    """A volume with its label, as far as a patch is drawn by it. Nothing of it was read yet."""

    @property
    def name(self) -> str:
        """What the case is called."""

    @property
    def shape(self) -> Triple:
        """Voxels along (i, j, k)."""

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes that occur, ascending, without 0 and negative ones."""

    def voxels(self, class_id: int, /) -> int:
        """Return how many voxels a class has, 0 for one that does not occur."""

    def locate(self, class_id: int, number: int, /) -> Triple:
        """Return voxel ``number`` of a class; the order is fixed, and each has one number."""


@dataclass(frozen=True, kw_only=True)
class Patches:
    """A kind of patch.

    Attributes:
        per_case: Patches that one item has.
        uniforms: Random numbers that each patch takes; 0 where nothing is random.
        is_indexed: Whether the items of a case are its patches, each of them once. If not, the
            items are the cases, and patches are drawn.
        needs_label: Whether a voxel may be drawn by its class.
    """

    per_case: int = 1

    uniforms: ClassVar[int] = 0
    is_indexed: ClassVar[bool] = False
    needs_label: ClassVar[bool] = False

    @property
    def is_for_slides(self) -> bool:
        """Whether volumes have no such patches."""
        return False

    @property
    def fixed_size(self) -> Triple | None:
        """Size of the part that is cut, where it is the same for all volumes; else None."""
        raise NotImplementedError

    def size_of(self, shape: Triple) -> Triple:
        """Return the size of the part that is cut of a volume of some shape."""
        return self.fixed_size or shape

    def counts(self, shapes: Integers) -> Integers:
        """Return how many items each case has, (n,).

        Args:
            shapes: (n, 3), of the volumes.
        """
        return np.ones(len(shapes), np.int64)

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where the patches of an item lie.

        Args:
            case: The volume.
            number: Of the item among those of the case.
            uniforms: (per_case, :attr:`uniforms`), from [0, 1).
        """
        raise NotImplementedError

    def image_shape(self, channels: int, size: Triple) -> tuple[int, ...]:
        """Return the shape in which the values of a part of this size are handed out."""
        return channels, *size

    def label_location(self, location: Location) -> Location:
        """Return the part of the label that belongs to a part of the image."""
        return location

    def as_cut(self, values: Values, channels: int, size: Triple) -> Values:
        """Return memory that is handed out, seen as the part that is cut: (channels, i, j, k).

        Args:
            values: Of :meth:`image_shape`.
            channels: Of the part.
            size: Of the part.
        """
        return values
