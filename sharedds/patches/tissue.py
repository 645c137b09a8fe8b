"""Patches of slides where there is tissue, found without reading a pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np

from sharedds.errors import OptionError
from sharedds.patches.grid import Grid, GridPatches
from sharedds.patches.planar import Pair, Planar, checked_pair

__all__ = ["Balance", "TissuePatches", "nearer", "shifts"]

Balance = Literal["slides", "labels"]


@dataclass(frozen=True, kw_only=True, repr=False)
class TissuePatches(Planar):
    """The patches of a grid over a slide that show enough tissue, each of them once an epoch.

    How much tissue there is was counted when the slide was packed, in small cells; a patch that
    covers a part of a cell gets that part of its tissue. What of a patch lies outside of the slide
    does not count: a slide smaller than a patch may have one, padded.

    Args:
        size: Pixels along (y, x), or one number for both.
        level: The level they are cut from.
        mpp: Micrometres for each pixel, instead of a level.
        min_tissue: The least share of tissue, 0 to 1.
        overlap: What neighbours on the grid share: pixels, or a share of the size below 1.
        jitter: Whether a patch is moved, along each axis by up to half of what lies between
            neighbours, by another random distance each time. It stays inside the slide. One that
            would show less than half of ``min_tissue`` (or of ``min_label`` of the class asked for)
            is moved half as far, again and again; not at all, if need be.
        balance: None: each patch once. ``"slides"``: an epoch is as long, and has as many patches
            of each slide; which, is drawn. ``"labels"``: as many of each class, drawn as well. The
            class of a patch is the one with the largest share, from ``min_label`` on; patches
            without make one more class, and slides without polygons have none at all.
        label: A class, by name or number: only patches with ``min_label`` of it.
        min_label: The least share of a class, above 0 to 1.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> TissuePatches(256, mpp=0.5, overlap=0.25).step
        (192, 192)
    """

    size: int | Pair = field(kw_only=False)
    min_tissue: float = 0.5
    overlap: float | tuple[float, float] = 0
    jitter: bool = False
    balance: Balance | None = None
    label: str | int | None = None
    min_label: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_pair(self.size))
        self._check_resolution()
        shared = GridPatches(self.sides, self.overlap).overlap
        object.__setattr__(self, "overlap", shared)
        object.__setattr__(self, "min_tissue", _share(self.min_tissue, "min_tissue"))
        object.__setattr__(self, "min_label", _share(self.min_label, "min_label"))
        if not self.min_label:
            raise OptionError("min_label=0: every patch would be of every class; above 0")
        if self.balance is not None and self.balance not in get_args(Balance):
            raise OptionError(f"balance={self.balance!r}: None, 'slides' or 'labels'")
        label: Any = self.label
        if label is not None and not isinstance(label, str):
            if isinstance(label, bool) or not hasattr(label, "__index__") or label.__index__() < 0:
                raise OptionError(f"label={label!r}: the name of a class, or its number from 0")
            object.__setattr__(self, "label", int(label.__index__()))
        object.__setattr__(self, "jitter", bool(self.jitter))

    @property
    def sides(self) -> Pair:
        """Pixels along (y, x)."""
        return cast("Pair", self.size)

    @property
    def step(self) -> Pair:
        """From one place of the grid to the next."""
        shared = cast("Pair", self.overlap)
        return self.sides[0] - shared[0], self.sides[1] - shared[1]

    def grid(self, shape: Sequence[int]) -> Grid:
        """Return where the places of the grid are, those without tissue as well.

        Args:
            shape: Of the slide, (y, x) pixels of the level, or of ``mpp`` micrometres.
        """
        return GridPatches(self.sides, cast("Pair", self.overlap)).grid(shape)


def shifts(step: Pair, numbers: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[int, int]:
    """Return how far a patch is moved, each distance up to half a step equally likely.

    Args:
        step: From one place of the grid to the next.
        numbers: Two from [0, 1).
    """
    y, x = (
        min(int(number * side), side - 1) - side // 2
        for number, side in zip(numbers.tolist(), step, strict=True)
    )
    return y, x


def nearer(shift: tuple[int, int]) -> tuple[int, int]:
    """Return half of a shift, rounded towards none."""
    return int(shift[0] / 2), int(shift[1] / 2)


def _share(value: Any, name: str) -> float:
    is_number = hasattr(value, "__float__") and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) <= 1:
        raise OptionError(f"{name}={value!r}: a share from 0 to 1 is expected")
    return float(value)
