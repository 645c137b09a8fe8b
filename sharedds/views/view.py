"""What all views share: their options, and the places they choose."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError

__all__ = ["Floats", "Integers", "Places", "View", "checked_range", "checked_sides", "whole"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """Which part of each of n pictures to show, and how; all in pixels, upright.

    Attributes:
        boxes: (n, 4) int64: top, left, height and width of the part.
        flips: (n, 2) bool: whether it is mirrored left to right, and top to bottom.
        outputs: (n, 2) int64: the height and width that the part is scaled to.
    """

    boxes: Integers
    flips: npt.NDArray[np.bool_]
    outputs: Integers


@dataclass(frozen=True, kw_only=True)
class View:
    """The part of a picture that is shown, chosen by its size before anything is decoded.

    Args:
        flip: How often (0 to 1) it is mirrored left to right.
        flip_vertical: How often it is mirrored top to bottom.
    """

    flip: float = 0.0
    flip_vertical: float = 0.0

    #: How many numbers in [0, 1) the choice of a part takes, apart from flips.
    _choices: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("flip", "flip_vertical"):
            if not _is_number(chance := getattr(self, name)) or not 0 <= chance <= 1:
                raise OptionError(f"{name}={chance!r}: a probability from 0 to 1 is expected")

    @property
    def uniforms(self) -> int:
        """How many numbers in [0, 1) each sample needs."""
        return 2 + self._choices

    @property
    def antialias(self) -> bool:
        """Whether a part that shrinks is averaged over all of its pixels."""
        return True

    @property
    def output(self) -> tuple[int, int] | None:
        """(height, width) of all that is shown; None where it depends on the picture."""
        return None

    def places(self, sizes: Integers, uniforms: Floats) -> Places:
        """Choose the part of each of n pictures.

        Args:
            sizes: (n, 2) int64: height and width of each, upright, in pixels.
            uniforms: (n, :attr:`uniforms`) float64 in [0, 1).
        """
        boxes, outputs = self._choose(sizes, uniforms[:, 2:])
        flips = uniforms[:, :2] < (self.flip, self.flip_vertical)
        return Places(boxes, flips, outputs)

    def _choose(self, sizes: Integers, uniforms: Floats) -> tuple[Integers, Integers]:
        """Return boxes (n, 4) and outputs (n, 2)."""
        raise OptionError(f"{type(self).__name__} does not say which part of a picture it shows")


def whole(sizes: Integers) -> Integers:
    """Return the boxes of whole pictures."""
    return np.concatenate((np.zeros_like(sizes), sizes), axis=1)


def checked_sides(size: Any, name: str = "size") -> tuple[int, int]:
    """Return (height, width) of one number for both, or of two.

    Raises:
        OptionError: Anything else, or a side below 1.
    """
    sides = size if isinstance(size, tuple | list) else (size, size)
    try:
        if len(sides) != 2 or any(isinstance(side, bool) for side in sides):
            raise TypeError
        height, width = map(operator.index, sides)
    except TypeError:
        raise OptionError(
            f"{name}={size!r}: one whole number, or (height, width), is expected"
        ) from None
    if min(height, width) < 1:
        raise OptionError(f"{name}={size!r}: a side has 1 pixel or more")
    return height, width


def checked_range(bounds: Any, name: str, top: float = math.inf) -> tuple[float, float]:
    """Return the bounds of a range above 0.

    Raises:
        OptionError: Not two numbers, or not 0 < lowest <= highest <= top.
    """
    pair = tuple(bounds) if isinstance(bounds, tuple | list) else ()
    if len(pair) != 2 or not all(map(_is_number, pair)):
        raise OptionError(f"{name}={bounds!r}: (lowest, highest) is expected")
    low, high = map(float, pair)
    if not 0 < low <= high <= top or math.isinf(high):
        limit = "" if math.isinf(top) else f" <= {top:g}"
        raise OptionError(f"{name}={bounds!r}: 0 < lowest <= highest{limit} is expected")
    return low, high


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
