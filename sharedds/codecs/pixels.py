"""The rules of channels, depth and orientation, on arrays; nothing here knows a file format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sharedds.errors import DecodeError, OptionError

__all__ = [
    "DEPTHS",
    "MODES",
    "Background",
    "Box",
    "Samples",
    "change_depth",
    "finish",
    "luma",
    "orient",
    "require_options",
    "stored_box",
]

Background: TypeAlias = tuple[int, int, int]
Box: TypeAlias = tuple[int, int, int, int]

MODES = ("RGB", "L", "RGBA", "keep", "index")
DEPTHS = ("keep", "8", "16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The pixels of a picture as its file means them.

    Attributes:
        colour: (H, W, 1 or 3) of uint8, uint16, int32 or float32; None when a palette has it.
        alpha: (H, W, 1) of the dtype of ``colour``, or None when every pixel is opaque.
        indices: (H, W, 1) integers exactly as stored, for palette and grey pictures, else None.
        palette: (256, 4) uint8 RGBA that ``indices`` point into, for palette pictures, else None.
        palette_alpha: Whether the palette declares transparency.
    """

    colour: NDArray[Any] | None = None
    alpha: NDArray[Any] | None = None
    indices: NDArray[Any] | None = None
    palette: NDArray[np.uint8] | None = None
    palette_alpha: bool = False


def _is_level(level: int) -> bool:
    return 0 <= level <= 255


def require_options(mode: str, depth: str, background: Background, orientation: int | None) -> None:
    """Raise :class:`OptionError` unless each option has a value that exists."""
    if mode not in MODES:
        raise OptionError(f"mode={mode!r}: choose one of {', '.join(MODES)}")
    if depth not in DEPTHS:
        raise OptionError(f"depth={depth!r}: choose one of {', '.join(DEPTHS)}")
    if mode == "index" and depth != "keep":
        raise OptionError(f"mode='index' keeps every value, so depth={depth!r} cannot be combined")
    if tuple(map(_is_level, background)) != (True, True, True):
        raise OptionError(f"background={background!r}: give red, green and blue from 0 to 255")
    if orientation is not None and orientation not in range(1, 9):
        raise OptionError(
            f"orientation={orientation!r}: EXIF knows 1 to 8, and None reads the file"
        )


def orient(array: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn a stored picture (H, W, C) upright; contiguous, and the same object for 1."""
    if orientation == 1:
        return np.ascontiguousarray(array)
    if orientation >= 5:
        array = array.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    # Channel by channel NumPy copies with one long inner loop, not with many of three steps.
    upright = np.empty(array.shape, array.dtype)
    for channel in range(array.shape[2]):
        upright[..., channel] = array[..., channel]
    return upright


def stored_box(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Return where a part of an upright picture lies in the stored one; see :func:`orient`.

    Args:
        box: Top, left, height and width, upright.
        size: (height, width), upright.
        orientation: EXIF orientation 1..8.
    """
    top, left, height, width = box
    if orientation in (3, 4, 7, 8):
        top = size[0] - top - height
    if orientation in (2, 3, 6, 7):
        left = size[1] - left - width
    return (left, top, width, height) if orientation >= 5 else (top, left, height, width)


def luma(colour: NDArray[Any]) -> NDArray[Any]:
    """Reduce uint8 or uint16 RGB to grey (H, W, 1) by ITU-R 601, rounded as Pillow rounds it."""
    weights = np.array([19595, 38470, 7471], np.uint32)  # their sum is 65536, so uint32 is enough
    wide: NDArray[np.uint32] = colour.astype(np.uint32) * weights
    total = wide[..., 0] + wide[..., 1] + wide[..., 2]
    total += 0x8000
    total >>= 16
    return total.astype(colour.dtype)[..., None]


def _composite(colour: NDArray[Any], alpha: NDArray[Any], background: Background) -> NDArray[Any]:
    """Lay ``colour`` over ``background``, rounded to nearest; grey stays grey on a grey one."""
    top = 255 if colour.dtype == np.uint8 else 65535
    wide: Any = np.uint16 if top == 255 else np.uint32
    levels = background if colour.shape[2] == 3 or len(set(background)) > 1 else background[:1]
    below = np.array([level * (top // 255) for level in levels], wide)
    # top * top fits in the wide type with room for the half that rounds: both are odd squares.
    total: NDArray[Any] = colour.astype(wide) * alpha + (top - alpha.astype(wide)) * below
    total += top // 2
    total //= top
    return total.astype(colour.dtype)


def _opaque(colour: NDArray[Any]) -> NDArray[Any]:
    if colour.dtype not in (np.uint8, np.uint16):
        raise DecodeError(
            f"a picture of {colour.dtype} values has no full scale that alpha could mean; "
            "use mode='keep', 'L' or 'RGB'"
        )
    return np.full((*colour.shape[:2], 1), np.iinfo(colour.dtype).max, colour.dtype)


def _split(samples: Samples) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return colour and alpha, looked up in the palette where there is one."""
    if samples.palette is not None and samples.indices is not None:
        # Four bytes are taken at once, which is several times faster than four columns.
        table = np.ascontiguousarray(samples.palette).view(np.uint32)[:, 0]
        rgba = table[samples.indices[..., 0]].view(np.uint8).reshape(*samples.indices.shape[:2], 4)
        return rgba[..., :3], rgba[..., 3:] if samples.palette_alpha else None
    if samples.colour is None:
        raise DecodeError("the picture holds no colours")
    return samples.colour, samples.alpha


def change_depth(array: NDArray[Any], depth: str) -> NDArray[Any]:
    """Bring values to 8 or 16 bits, linearly over the whole range, or keep them.

    Raises:
        DecodeError: The values are 32-bit, which have no full scale.
    """
    if depth == "keep" or array.dtype == (np.uint8 if depth == "8" else np.uint16):
        return array
    if array.dtype not in (np.uint8, np.uint16):
        raise DecodeError(
            f"a picture of {array.dtype} values has no full scale to bring to {depth} bits; "
            "use depth='keep' and scale it by what its values mean"
        )
    if depth == "16":
        return array.astype(np.uint16) * np.uint16(257)
    # 65535 = 255 * 257, and no value lies halfway between two levels: 257 is odd.
    return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)


def finish(samples: Samples, *, mode: str, depth: str, background: Background) -> NDArray[Any]:
    """Bring samples to the wanted channels and depth.

    Returns:
        (H, W, C): C is 3 for ``"RGB"``, 1 for ``"L"`` and ``"index"``, 4 for ``"RGBA"``, and 1 to 4
        for ``"keep"``.

    Raises:
        DecodeError: The picture has no such form (indices of an RGB picture, alpha or 8 bits of a
            32-bit one).
    """
    if mode == "index":
        if samples.indices is None:
            raise DecodeError(
                "mode='index' needs a palette or grey picture of whole numbers without alpha; "
                "this one stores colours, alpha or fractions"
            )
        return samples.indices
    colour, alpha = _split(samples)
    if mode in ("RGB", "L"):
        if alpha is not None:
            colour = _composite(colour, alpha, background)
        if mode == "RGB" and colour.shape[2] == 1:
            colour = np.repeat(colour, 3, axis=2)
        elif mode == "L" and colour.shape[2] == 3:
            colour = luma(colour)
        return change_depth(colour, depth)
    if mode == "RGBA":
        if alpha is None:
            alpha = _opaque(colour)
        if colour.shape[2] == 1:
            colour = np.repeat(colour, 3, axis=2)
    if alpha is not None:
        colour = np.concatenate((colour, alpha), axis=2)
    return change_depth(colour, depth)
