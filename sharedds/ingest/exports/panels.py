"""A small picture with some lines below it, of which a preview is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["Panel", "colour_of", "to_grey"]

_COLOURS = (
    (255, 84, 84), (84, 222, 104), (255, 222, 60), (84, 164, 255), (255, 150, 40), (200, 110, 255),
    (60, 232, 232), (255, 100, 220), (190, 240, 80), (255, 180, 190), (60, 180, 150),
    (190, 140, 90),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture and the lines below it.

    Attributes:
        picture: RGB.
        lines: Of text.
        classes: Ids of the labels that may be outlined in it.
    """

    picture: Image.Image
    lines: tuple[str, ...]
    classes: tuple[int, ...] = ()


def colour_of(class_id: int) -> tuple[int, int, int]:
    """Return the colour of a class, the same in all pictures."""
    return _COLOURS[(class_id - 1) % len(_COLOURS)]


def to_grey(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.uint8]:
    """Spread values from ``low`` to ``high`` over 0 to 255; NaN becomes 0."""
    spread = (values.astype(np.float64) - low) * (255.0 / max(high - low, 1e-30))
    known = np.nan_to_num(spread, nan=0.0, posinf=255.0, neginf=0.0)
    result: npt.NDArray[np.uint8] = known.clip(0, 255).astype(np.uint8)
    return result
