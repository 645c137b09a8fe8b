"""Where a patch lies in its volume, and how sizes and starts along an axis are reckoned."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sharedds.errors import OptionError

__all__ = [
    "Location",
    "Triple",
    "checked_count",
    "checked_size",
    "free_start",
    "several",
    "triple",
    "window_around",
]

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A patch of a volume, in voxels.

    Attributes:
        start: The voxel of its first element; negative where the patch begins before the volume.
        size: Voxels along each axis.
        drawn: The voxel that was drawn and that it was cut around; None if there is none.
        is_fallback: Whether a voxel was to be drawn and the case has none of that kind.
    """

    start: Triple
    size: Triple
    drawn: Triple | None = None
    is_fallback: bool = False


def triple(values: Iterable[int]) -> Triple:
    """Return three plain integers."""
    i, j, k = (int(value) for value in values)
    return i, j, k


def checked_count(value: Any, name: str) -> int:
    """Return a whole number from 1.

    Raises:
        OptionError: It is none.
    """
    try:
        found = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:  # an array, too, says that it has an index
        found = 0
    if found < 1:
        raise OptionError(f"{name}={value!r}: a whole number, 1 or more, is expected")
    return found


def several(value: Any) -> tuple[Any, ...] | None:
    """Return the values of a sequence or an array of one axis; None of anything else."""
    if getattr(value, "ndim", 0) == 1:
        return tuple(value.tolist())
    is_plain = isinstance(value, Sequence) and not isinstance(value, str)
    return tuple(value) if is_plain else None


def checked_size(size: Any, name: str = "size") -> Triple:
    """Return a size as three numbers; one number stands for all axes.

    Raises:
        OptionError: Not that many whole numbers from 1.
    """
    sides = several(size) or (size,) * 3
    if len(sides) != 3:
        raise OptionError(f"{name}={size!r}: voxels along (i, j, k), or one number for all axes")
    return triple(checked_count(side, name) for side in sides)


def free_start(shape: Triple, size: Triple, numbers: Sequence[float]) -> Triple:
    """Return a start at which all places inside the volume are equally likely.

    Args:
        shape: Of the volume.
        size: Of the patch.
        numbers: Three from [0, 1).

    Returns:
        The start; where the patch is larger than the volume, the one that puts it around it.
    """
    return triple(
        # A number below 1 times a whole one may round up to the whole one.
        min(int(number * (n - p + 1)), n - p) if p <= n else -((p - n) // 2)
        for n, p, number in zip(shape, size, numbers, strict=True)
    )


def window_around(voxel: Triple, shape: Triple, size: Triple) -> Triple:
    """Return the start of the patch around a voxel, moved so that it stays inside the volume.

    Where the patch is larger than the volume it is put around it, as :func:`free_start` does.
    """
    return triple(
        min(max(at - p // 2, 0), n - p) if p <= n else -((p - n) // 2)
        for at, n, p in zip(voxel, shape, size, strict=True)
    )
