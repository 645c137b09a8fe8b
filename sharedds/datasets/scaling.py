"""Parts of pictures into their places in a batch: scaled and mirrored, and copied no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from sharedds.codecs import Scratch

__all__ = ["Canvas", "empty_pictures"]

Pixels = npt.NDArray[Any]
Size = tuple[int, int]

# The operator behind torch.nn.functional.interpolate, which itself cannot write into a place.
_antialiased = torch.ops.aten._upsample_bilinear2d_aa.out


def empty_pictures(shape: tuple[int, int, int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return uninitialised memory for pictures (n, C, H, W), channels last."""
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


class Canvas:
    """The pictures of a batch, to be written one by one.

    Bytes are scaled as by ``torch.nn.functional.interpolate(part, size, mode="bilinear",
    antialias=antialias)``, to the bit; other numbers in float32 (int32 in float64), whole ones
    rounded to nearest.

    Args:
        images: (n, C, H, W), channels last.
        blend: Whether pixels may be mixed; if not, the one at the centre of a new one is taken.
        antialias: Whether all pixels count where a part shrinks.
        scratch: Memory for what lies between.
    """

    def __init__(
        self, images: torch.Tensor, *, blend: bool, antialias: bool, scratch: Scratch
    ) -> None:
        self._images = images
        self._pixels: Pixels = images.permute(0, 2, 3, 1).numpy()
        self._size: Size = (images.shape[2], images.shape[3])
        self._blend = blend
        self._antialias = antialias
        self._scratch = scratch
        self._mirrored: torch.Tensor | None = None

    def show(self, at: int, part: Pixels, flips: Sequence[bool]) -> None:
        """Scale a part of a picture to its place, and mirror it.

        Args:
            at: Which of the places.
            part: (h, w, C) of the same dtype, any strides, perhaps read-only; not in the scratch.
            flips: Whether it is mirrored left to right, and top to bottom.
        """
        is_whole = part.shape[:2] == self._size
        if not is_whole and not self._blend:
            part, is_whole = _nearest(part, self._size), True
        place = self._pixels[at]
        if is_whole and not flips[0]:  # rows may come in any order, they are copied as they are
            np.copyto(place, part[::-1] if flips[1] else part)
        elif part.dtype == np.uint8:
            self._show_bytes(self._images[at : at + 1], part, flips, is_whole)
        else:
            scaled = part if is_whole else _in_floats(part, self._size, self._antialias)
            np.copyto(place, scaled[:: -1 if flips[1] else 1, :: -1 if flips[0] else 1])

    def _show_bytes(
        self, place: torch.Tensor, part: Pixels, flips: Sequence[bool], is_whole: bool
    ) -> None:
        pixels = self._tensor(part)
        dims = [dim for dim, flip in ((-1, flips[0]), (-2, flips[1])) if flip]
        if not is_whole:
            target = self._beside(place) if dims else place
            if self._antialias:
                _antialiased(pixels, self._size, False, None, None, out=target)
            else:
                target.copy_(F.interpolate(pixels, self._size, mode="bilinear"))
            pixels = target
        if dims:
            # NumPy mirrors pixels of three bytes ten times slower.
            place.copy_(pixels.flip(dims))

    def _tensor(self, part: Pixels) -> torch.Tensor:
        """The same pixels as (1, C, h, w), channels last, copied unless they lie together."""
        if not part.flags.c_contiguous or not part.flags.writeable:
            copy = self._scratch.array(part.shape)
            np.copyto(copy, part)
            part = copy
        return torch.from_numpy(part[None]).permute(0, 3, 1, 2)

    def _beside(self, place: torch.Tensor) -> torch.Tensor:
        """Memory like that of a place, used for all that are mirrored after they are scaled."""
        if self._mirrored is None:
            self._mirrored = torch.empty_like(place)
        return self._mirrored


def _in_floats(part: Pixels, size: Size, antialias: bool) -> Pixels:
    floats: Any = np.float64 if part.dtype == np.int32 else np.float32
    pixels = torch.from_numpy(part.astype(floats)[None]).permute(0, 3, 1, 2)
    scaled = F.interpolate(pixels, size, mode="bilinear", antialias=antialias)
    found: Pixels = scaled[0].permute(1, 2, 0).numpy()
    if part.dtype.kind not in "iu":
        return found
    limits = np.iinfo(part.dtype)
    return np.clip(np.rint(found), limits.min, limits.max).astype(part.dtype)


def _nearest(part: Pixels, size: Size) -> Pixels:
    """Take the pixel in which each new one has its centre, in whole numbers."""
    rows, columns = (
        (2 * np.arange(new) + 1) * old // (2 * new)
        for new, old in zip(size, part.shape[:2], strict=True)
    )
    nearest: Pixels = part[rows[:, None], columns]
    return nearest
