"""Views of a part of the picture, brought to one size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sharedds.errors import OptionError
from sharedds.views.view import Floats, Integers, View, checked_range, checked_sides

__all__ = ["CenterCrop", "RandomCrop", "RandomResizedCrop"]


@dataclass(frozen=True, kw_only=True)
class _Crop(View):
    """A part that is brought to one size."""

    size: int | tuple[int, int] = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", checked_sides(self.size))

    @property
    def output(self) -> tuple[int, int]:
        """(height, width) of all that is shown."""
        return checked_sides(self.size)

    def _outputs(self, count: int) -> Integers:
        return np.full((count, 2), self.output, np.int64)


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(_Crop):
    """A part of random area and shape, scaled to one size: the usual view for training.

    The rule is that of Szegedy et al. (Going deeper with convolutions, 2015, section 6), in the
    form of torchvision's ``RandomResizedCrop.get_params``. Of a picture of area A, up to ten times:

        area = A * uniform(scale),  aspect = exp(uniform(log ratio))
        height = round(sqrt(area / aspect)),  width = round(sqrt(area * aspect))

    and the first that fits into the picture is taken, at a place where all are equally likely. If
    none fits, it is the largest part in the middle whose aspect is in ``ratio``.

    Args:
        size: Height and width shown: one number, or (height, width).
        scale: Lowest and highest share of the area, above 0 and up to 1.
        ratio: Lowest and highest width / height.
        flip: How often it is mirrored left to right.
        flip_vertical: How often it is mirrored top to bottom.
        antialias: Whether a part that shrinks is averaged over all of its pixels.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> RandomResizedCrop(224, flip=0.5).output
        (224, 224)
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = True

    _attempts: ClassVar[int] = 10
    _choices: ClassVar[int] = 2 * _attempts + 2

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", checked_range(self.scale, "scale", top=1.0))
        object.__setattr__(self, "ratio", checked_range(self.ratio, "ratio"))
        if not isinstance(self.antialias, bool):
            raise OptionError(f"antialias={self.antialias!r}: True or False is expected")

    def _choose(self, sizes: Integers, uniforms: Floats) -> tuple[Integers, Integers]:
        narrow, wide = map(math.log, self.ratio)
        exponents = narrow + (wide - narrow) * uniforms[:, self._attempts : 2 * self._attempts]
        # Only this is worth NumPy: of the attempts, the first or second one mostly fits.
        aspects = np.exp(exponents).tolist()
        boxes = map(self._box, sizes.tolist(), uniforms.tolist(), aspects)
        return np.array([*boxes], np.int64).reshape(-1, 4), self._outputs(len(sizes))

    def _box(
        self, size: tuple[int, int], numbers: list[float], aspects: list[float]
    ) -> tuple[int, int, int, int]:
        """Return top, left, height and width; shares of the area come first in the numbers."""
        height, width = size
        low, high = self.scale
        for share, aspect in zip(numbers, aspects, strict=False):
            area = height * width * (low + (high - low) * share)
            tall, broad = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < tall <= height and 0 < broad <= width:
                top = int(numbers[-2] * (height - tall + 1))
                return top, int(numbers[-1] * (width - broad + 1)), tall, broad
        return self._central(height, width)

    def _central(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the largest part in the middle whose aspect is allowed."""
        narrowest, widest = self.ratio
        tall, broad = height, width
        if width < narrowest * height:
            tall = max(1, min(round(width / narrowest), height))
        elif width > widest * height:
            broad = max(1, min(round(height * widest), width))
        return (height - tall) // 2, (width - broad) // 2, tall, broad


@dataclass(frozen=True, kw_only=True)
class RandomCrop(_Crop):
    """A part of one size at a random place, pixel by pixel as stored.

    A picture that is smaller than the part in a direction is scaled up, its aspect kept, until it
    covers the part. (torchvision refuses such a picture, or pads it with black.)

    Args:
        size: Height and width shown: one number, or (height, width).
        flip: How often it is mirrored left to right.
        flip_vertical: How often it is mirrored top to bottom.

    Raises:
        OptionError: A value is out of range.
    """

    _choices: ClassVar[int] = 2

    def _choose(self, sizes: Integers, uniforms: Floats) -> tuple[Integers, Integers]:
        part = _covered(sizes, self.output, np.ones(len(sizes)))
        tops_lefts = np.floor(uniforms * (sizes - part + 1)).astype(np.int64)
        return np.concatenate((tops_lefts, part), axis=1), self._outputs(len(sizes))


@dataclass(frozen=True, kw_only=True)
class CenterCrop(_Crop):
    """The middle of a picture: the usual view for evaluation.

    A picture that is smaller than the part in a direction is scaled up, its aspect kept, until it
    covers the part. (torchvision pads it with black.)

    Args:
        size: Height and width shown: one number, or (height, width).
        resize: Scale the short side of the picture to this first, as in ``CenterCrop(224,
            resize=256)``; None takes pixels as stored. Done in one step: the part is cut from the
            stored picture, at whole pixels, and scaled once.
        flip: How often it is mirrored left to right.
        flip_vertical: How often it is mirrored top to bottom.

    Raises:
        OptionError: A value is out of range.
    """

    resize: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.resize, tuple | list):
            raise OptionError(f"resize={self.resize!r}: one number is expected, the short side")
        if self.resize is not None:
            object.__setattr__(self, "resize", checked_sides(self.resize, "resize")[0])

    def _choose(self, sizes: Integers, uniforms: Floats) -> tuple[Integers, Integers]:
        scales = np.ones(len(sizes)) if self.resize is None else self.resize / sizes.min(axis=1)
        part = _covered(sizes, self.output, scales)
        tops_lefts = np.rint((sizes - part) / 2).astype(np.int64)
        return np.concatenate((tops_lefts, part), axis=1), self._outputs(len(sizes))


def _covered(sizes: Integers, output: tuple[int, int], scales: Floats) -> Integers:
    """Return how much of each picture an output covers, (n, 2).

    Args:
        sizes: Of the pictures.
        output: Height and width.
        scales: What each picture is scaled by; more where it would not cover the output.
    """
    scales = np.maximum(scales, (output / sizes).max(axis=1))
    return np.clip(np.rint(output / scales[:, None]).astype(np.int64), 1, sizes)
