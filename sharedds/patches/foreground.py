"""Patches around voxels that are drawn by their class.

A class is drawn, then the number of one of its voxels; the case finds where that voxel is. All
voxels are equally likely, those at the border too: a patch there is moved inside, not left out.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sharedds.errors import OptionError
from sharedds.patches.location import Location, several, window_around
from sharedds.patches.sampler import Case, Floats
from sharedds.patches.uniform import Drawn

__all__ = ["ForegroundPatches", "WeightedPatches"]

_Odds = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class _ByClass(Drawn):
    """Patches of which some are cut around a voxel of a class."""

    uniforms: ClassVar[int] = 6  # whether, which class, which voxel; or where, if not
    needs_label: ClassVar[bool] = True

    def _odds(self, case: Case) -> _Odds:
        """Return the classes of the case that may be drawn, and how often each is."""
        raise NotImplementedError

    def _around(self, case: Case, odds: _Odds, uniforms: Floats) -> Location:
        """Return the patch around a voxel; anywhere if there is none to draw."""
        if not odds:
            return self._anywhere(case, uniforms[3:], is_fallback=True)
        of_class, of_voxel = uniforms[1:3].tolist()
        class_id = _drawn_class(odds, of_class)
        count = case.voxels(class_id)
        voxel = case.locate(class_id, min(int(of_voxel * count), count - 1))
        size = self.fixed_size
        return Location(start=window_around(voxel, case.shape, size), size=size, drawn=voxel)


@dataclass(frozen=True, kw_only=True)
class ForegroundPatches(_ByClass):
    """Patches of which a share holds foreground for certain; the others lie anywhere.

    For such a patch a class is drawn, then one of its voxels, each equally likely. The patch has
    that voxel in its middle, or off it where the patch would leave the volume.

    Of ``per_case`` patches the share is met as closely as whole numbers allow: with four of them
    and a half, two hold foreground at every visit.

    A case without any voxel of the classes asked for gives patches from anywhere instead; that is
    counted and told.

    Args:
        size: Voxels along (i, j, k), or one number for all axes.
        fraction: The share of patches that hold foreground for certain, 0 to 1.
        classes: Which voxels count. None: every class of the case, whatever its size, is equally
            likely; 0 and negative ones are no foreground. ``"any"``: every voxel of foreground is
            equally likely. A list of classes: those, equally likely. A mapping of classes to odds.
        per_case: Patches for each visit of a case.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> ForegroundPatches((96, 96, 96), fraction=0.5, classes={1: 1, 2: 3}, per_case=4).per_case
        4
    """

    fraction: float = 1 / 3
    classes: Literal["any"] | Sequence[int] | Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        share = _number(self.fraction)
        if share is None or not 0 <= share <= 1:
            raise OptionError(f"fraction={self.fraction!r}: a share from 0 to 1 is expected")
        object.__setattr__(self, "fraction", share)
        wanted: Any = self.classes
        if isinstance(wanted, Mapping):
            wanted = _checked_odds(wanted, "classes")
        elif wanted is not None and not (isinstance(wanted, str) and wanted == "any"):
            wanted = several(wanted)
            if not wanted:
                raise OptionError(
                    f"classes={self.classes!r}: None, 'any', a list of classes, or a mapping of "
                    "classes to odds is expected"
                )
            wanted = tuple(dict.fromkeys(_checked_class(number, "classes") for number in wanted))
        object.__setattr__(self, "classes", wanted)

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where the patches of a case lie."""
        # Steps of the share from a random point: whole numbers that are passed are hit.
        begin = float(uniforms[0, 0])
        steps = [math.floor(begin + self.fraction * at) for at in range(self.per_case + 1)]
        odds = self._odds(case) if steps[-1] > steps[0] else []
        return [
            self._around(case, odds, row) if after > before else self._anywhere(case, row[3:])
            for row, (before, after) in zip(uniforms, itertools.pairwise(steps), strict=True)
        ]

    def _odds(self, case: Case) -> _Odds:
        wanted = self.classes
        if wanted is None:
            return [(number, 1.0) for number in case.classes]
        if wanted == "any":
            return [(number, float(case.voxels(number))) for number in case.classes]
        pairs = wanted.items() if isinstance(wanted, Mapping) else ((each, 1.0) for each in wanted)
        return [
            (int(number), float(odd)) for number, odd in pairs if odd > 0 and case.voxels(number)
        ]


@dataclass(frozen=True, kw_only=True)
class WeightedPatches(_ByClass):
    """Patches around voxels that are drawn by weight: each voxel has that of its class.

    A case without any voxel that has a weight gives patches from anywhere instead; that is counted
    and told.

    Args:
        size: Voxels along (i, j, k), or one number for all axes.
        weights: The weight of one voxel of each class, of any scale; classes that are not named
            have none. 0, the background, is a class here.
        per_case: Patches for each visit of a case.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> WeightedPatches((64, 64, 64), weights={0: 1, 1: 10, 2: 50}).size
        (64, 64, 64)
    """

    weights: Mapping[int, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.weights, Mapping):
            raise OptionError(f"weights={self.weights!r}: a mapping of classes to weights")
        object.__setattr__(self, "weights", _checked_odds(self.weights, "weights"))

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return where the patches of a case lie."""
        odds = self._odds(case)
        return [self._around(case, odds, row) for row in uniforms]

    def _odds(self, case: Case) -> _Odds:
        counted = ((number, weight * case.voxels(number)) for number, weight in self._pairs())
        return [(number, odd) for number, odd in counted if odd > 0]

    def _pairs(self) -> list[tuple[int, float]]:
        return [(int(number), float(weight)) for number, weight in self.weights.items()]


def _drawn_class(odds: _Odds, uniform: float) -> int:
    """Return the class that a number in [0, 1) stands for."""
    left = uniform * math.fsum(odd for _, odd in odds)
    for number, odd in odds:
        left -= odd
        if left < 0:
            return number
    return odds[-1][0]  # by rounding


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # an array, or a tensor of several
        return None


def _checked_class(value: Any, name: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise OptionError(f"{name}: {value!r} is no class; whole numbers are expected")


def _checked_odds(given: Mapping[Any, Any], name: str) -> dict[int, float]:
    odds: dict[int, float] = {}
    for number, value in given.items():
        odd = _number(value)
        if odd is None or not 0 <= odd < math.inf:
            raise OptionError(f"{name}[{number!r}]={value!r}: a number, 0 or more, is expected")
        odds[_checked_class(number, name)] = odd
    if not any(odds.values()):
        raise OptionError(f"{name}={given!r}: nothing could be drawn; one has to be above 0")
    return odds
