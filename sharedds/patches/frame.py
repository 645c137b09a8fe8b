"""A slide as it looks at one resolution: how large it is there, and where its pixels lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from sharedds.errors import OptionError
from sharedds.patches.planar import Pair

__all__ = ["Frame", "checked_factors", "to_level_0"]

_NEAR = 1e-6  # what rounding may do to a ratio of pixel sizes
_FINE_ENOUGH = 1 + 1e-3  # as of Store.read_mpp: levels are rarely whole parts of the finest
_LONGEST = 2.0**53  # of a side, where a file claims pixels of no size


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A slide at one resolution.

    Attributes:
        shape: Its pixels along (y, x).
        factor: Pixels of level 0 for each of them, along (y, x).
        level: The level it is read from.
        downsample: Pixels of level 0 for each pixel of that level.
        mpp: Micrometres for each pixel; NaN where not known.
    """

    shape: Pair
    factor: tuple[float, float]
    level: int
    downsample: float
    mpp: float

    @classmethod
    def at_level(
        cls,
        level: int,
        shapes: Sequence[Pair],
        downsamples: Sequence[float],
        mpp: tuple[float, float] | None,
    ) -> Frame:
        """Return the frame of a level.

        Args:
            level: Its number.
            shapes: Of all levels.
            downsamples: Of all levels.
            mpp: Of level 0, along (y, x).
        """
        down = downsamples[level]
        size = math.nan if mpp is None else mpp[0] * down
        return cls(shape=shapes[level], factor=(down, down), level=level, downsample=down, mpp=size)

    @classmethod
    def at_mpp(
        cls,
        wanted: float,
        shapes: Sequence[Pair],
        downsamples: Sequence[float],
        mpp: tuple[float, float],
    ) -> Frame:
        """Return the frame of a pixel size: read from the coarsest level that is fine enough.

        Args:
            wanted: Micrometres for each pixel.
            shapes: Of all levels.
            downsamples: Of all levels.
            mpp: Of level 0, along (y, x).
        """
        factor = wanted / mpp[0], wanted / mpp[1]
        fine = [at for at, down in enumerate(downsamples) if down <= min(factor) * _FINE_ENOUGH]
        level = max(fine, key=lambda at: downsamples[at], default=0)
        height, width = (
            max(1, int(min(side / each, _LONGEST) + _NEAR))
            for side, each in zip(shapes[0], factor, strict=True)
        )
        return cls(
            shape=(height, width),
            factor=factor,
            level=level,
            downsample=downsamples[level],
            mpp=wanted,
        )


def to_level_0(at: int, factor: float) -> int:
    """Return the pixel of level 0 in which a pixel of a frame begins.

    Rounded down: what a patch at the far border shows then ends inside of the slide.
    """
    return math.floor(at * factor + _NEAR)


def checked_factors(downsample: Any) -> tuple[float, float]:
    """Return pixels of level 0 for each pixel along (y, x).

    Raises:
        OptionError: No numbers above 0.
    """
    factors = downsample if isinstance(downsample, tuple | list) else (downsample,) * 2
    if len(factors) != 2 or not all(
        isinstance(each, Real) and 0 < float(each) < math.inf for each in factors
    ):
        raise OptionError(f"downsample={downsample!r}: a number above 0, or one for each of (y, x)")
    return float(factors[0]), float(factors[1])
