"""Views of the whole picture."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sharedds.errors import OptionError
from sharedds.views.view import Floats, Integers, View, checked_sides, whole

__all__ = ["Full", "Resize"]


@dataclass(frozen=True, kw_only=True)
class Full(View):
    """The whole picture, pixel by pixel.

    Args:
        flip: How often it is mirrored left to right.
        flip_vertical: How often it is mirrored top to bottom.

    Raises:
        OptionError: A value is out of range.
    """

    def _choose(self, sizes: Integers, uniforms: Floats) -> tuple[Integers, Integers]:
        return whole(sizes), sizes


@dataclass(frozen=True, kw_only=True)
class Resize(View):
    """The whole picture, scaled.

    Args:
        size: One number: the short side; the long one follows, ``int(size * long / short)`` as in
            torchvision. Or (height, width): exactly these, whatever becomes of the aspect.
        flip: How often it is mirrored left to right.
        flip_vertical: How often it is mirrored top to bottom.
        antialias: Whether a picture that shrinks is averaged over all of its pixels.

    Raises:
        OptionError: A value is out of range.
    """

    size: int | tuple[int, int] = field(kw_only=False)
    antialias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sides = checked_sides(self.size)
        both = isinstance(self.size, tuple | list)
        object.__setattr__(self, "size", sides if both else sides[0])
        if not isinstance(self.antialias, bool):
            raise OptionError(f"antialias={self.antialias!r}: True or False is expected")

    @property
    def output(self) -> tuple[int, int] | None:
        """(height, width) of all that is shown; None where it follows the short side."""
        return self.size if isinstance(self.size, tuple) else None

    def _choose(self, sizes: Integers, uniforms: Floats) -> tuple[Integers, Integers]:
        if isinstance(self.size, tuple):
            return whole(sizes), np.full(sizes.shape, self.size, np.int64)
        # In whole numbers, so that the short side is met exactly and no rounding is in the way.
        return whole(sizes), self.size * sizes // sizes.min(axis=1, keepdims=True)
