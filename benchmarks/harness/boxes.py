"""Random parts of a picture, as rivals and limits take them where they have no way of their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["cut", "random_box"]

_SIDE = 224
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def random_box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a part, as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = height * width * rng.uniform(*_SCALE)
        ratio = np.exp(rng.uniform(*np.log(_RATIO)))
        high, wide = round(float(np.sqrt(area / ratio))), round(float(np.sqrt(area * ratio)))
        if 0 < high <= height and 0 < wide <= width:
            top, left = rng.integers(0, height - high + 1), rng.integers(0, width - wide + 1)
            return int(top), int(left), high, wide
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def cut(image: npt.NDArray[np.uint8], rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return a part (224, 224, 3) of an image, flipped half of the time: a view."""
    top, left = (int(rng.integers(0, side - _SIDE + 1)) for side in image.shape[:2])
    part = image[top : top + _SIDE, left : left + _SIDE]
    return part[:, ::-1] if rng.random() < 0.5 else part
