"""What kinds of patches have for slides: how fine they are, and their sizes along (y, x)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from sharedds.errors import OptionError
from sharedds.patches.location import Triple, checked_count, several, triple

__all__ = ["Pair", "Planar", "checked_pair", "checked_sides", "flat_size"]

Pair = tuple[int, int]

_PLAIN = {"level": 0, "mpp": None}  # not shown, as they say nothing


def checked_pair(size: Any, name: str = "size") -> Pair:
    """Return a size as two numbers; one number stands for both axes.

    Raises:
        OptionError: Not that many whole numbers from 1.
    """
    sides = several(size) or (size,) * 2
    if len(sides) != 2:
        raise OptionError(f"{name}={size!r}: pixels along (y, x), or one number for both axes")
    return checked_count(sides[0], name), checked_count(sides[1], name)


def checked_sides(size: Any, name: str = "size") -> Triple | Pair:
    """Return a size as three numbers for volumes, or as two for slides; one stands for three.

    Raises:
        OptionError: Not that many whole numbers from 1.
    """
    sides = several(size) or (size,) * 3
    if len(sides) not in (2, 3):
        raise OptionError(
            f"{name}={size!r}: voxels along (i, j, k), pixels along (y, x), or one number for all "
            "axes"
        )
    checked = tuple(checked_count(side, name) for side in sides)
    return (checked[0], checked[1]) if len(checked) == 2 else triple(checked)


@dataclass(frozen=True, kw_only=True)
class Planar:
    """How fine the patches of a slide are.

    Attributes:
        level: The level they are cut from; their size counts its pixels.
        mpp: Micrometres for each pixel, instead of a level: patches are scaled to it.
    """

    level: int = 0
    mpp: float | None = None

    def _check_resolution(self) -> None:
        """Turn level and pixel size into plain numbers.

        Raises:
            OptionError: One is out of range, or both are given.
        """
        level: Any = self.level
        if isinstance(level, bool) or not hasattr(level, "__index__") or level.__index__() < 0:
            raise OptionError(f"level={level!r}: a whole number, 0 (the finest) or more")
        object.__setattr__(self, "level", int(level.__index__()))
        mpp: Any = self.mpp
        if mpp is None:
            return
        is_number = hasattr(mpp, "__float__") and not isinstance(mpp, bool)
        if not is_number or not 0 < float(mpp) < math.inf:
            raise OptionError(f"mpp={mpp!r}: micrometres for each pixel, above 0")
        if self.level:
            raise OptionError(f"level={self.level} and mpp={mpp}: one of them says how fine")
        object.__setattr__(self, "mpp", float(mpp))

    @property
    def is_for_slides(self) -> bool:
        """Whether volumes have no such patches."""
        sides = several(getattr(self, "size", None))
        is_flat = sides is not None and len(sides) == 2
        return is_flat or self.level != 0 or self.mpp is not None

    def __repr__(self) -> str:
        shown = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in dataclasses.fields(self)
            if each.name not in _PLAIN or getattr(self, each.name) != _PLAIN[each.name]
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def flat_size(size: Triple | Pair) -> Pair:
    """Return the size of a patch of a slide; that of a cube is a square.

    Raises:
        OptionError: Three sides that differ.
    """
    if len(size) == 3 and len(set(size)) > 1:
        raise OptionError(f"size={size}: a slide has two axes, (y, x)")
    return size[0], size[1]
