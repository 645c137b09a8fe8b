"""Arrays to picture files, and resizing."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sharedds.codecs import png
from sharedds.codecs.jpeg import encode_jpeg
from sharedds.codecs.tiff_plain import write_plain
from sharedds.errors import OptionError

__all__ = ["encode_image", "resize"]

_MAX_WEBP_SIDE = 16_383
_PNG_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def encode_image(array: NDArray[Any], format: str, *, quality: int | None = None) -> bytes:
    """Encode an array (H, W) or (H, W, C) as a picture file.

    Args:
        array: PNG takes uint8 and uint16 with 1 to 4 channels, and bool with one (as 1-bit); WebP
            takes uint8 with 3 or 4 channels; JPEG and TIFF take uint8 with 1 or 3.
        format: ``"png"``, ``"webp"``, ``"jpeg"``, or ``"tiff"``: the pixels as they are, which are
            read several times faster and take several times the room.
        quality: 1..100 of lossy coding. None means 90 for JPEG and lossless for WebP.

    Raises:
        OptionError: The format does not hold such an array, or does not exist.
    """
    if format == "jpeg":
        return encode_jpeg(array, quality=90 if quality is None else quality)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or 0 in array.shape:
        raise OptionError(f"an array of shape {array.shape} is not a picture (H, W, C)")
    channels = array.shape[2]
    if format == "png":
        return _encode_png(array, channels)
    if format == "tiff":
        return write_plain(array)
    if format != "webp":
        raise OptionError(f"format={format!r}: pictures are written as png, webp, jpeg or tiff")
    if array.dtype != np.uint8 or channels not in (3, 4):
        raise OptionError(
            f"WebP holds uint8 arrays with 3 or 4 channels, not {array.dtype} {array.shape}; "
            "use PNG"
        )
    if max(array.shape[:2]) > _MAX_WEBP_SIDE:
        raise OptionError(
            f"a picture of {array.shape[1]} x {array.shape[0]} pixels does not fit in a WebP, "
            f"whose sides end at {_MAX_WEBP_SIDE:,} pixels; use PNG"
        )
    if quality is not None and not 1 <= quality <= 100:
        raise OptionError(f"quality={quality!r}: WebP quality is 1 to 100, or None for lossless")
    return _save(_as_pillow(array, _PNG_MODES[channels]), "WEBP", lossless=quality is None,
                 quality=80 if quality is None else quality, exact=True)  # fmt: skip


def _encode_png(array: NDArray[Any], channels: int) -> bytes:
    if channels not in _PNG_MODES or array.dtype not in (np.uint8, np.uint16, np.bool_):
        raise OptionError(
            f"PNG holds uint8 and uint16 arrays with 1 to 4 channels, and bool with one, not "
            f"{array.dtype} {array.shape}"
        )
    if array.dtype == np.uint16:
        return png.write_png16(array)
    if array.dtype == np.uint8:
        return png.write_png(array)
    if channels != 1:
        raise OptionError(f"PNG holds bool arrays with one channel, not {array.shape}")
    height, width = array.shape[:2]
    return _save(Image.frombytes("1", (width, height), np.packbits(array[..., 0], axis=1)), "PNG")


def _as_pillow(array: NDArray[Any], mode: str) -> Image.Image:
    height, width = array.shape[:2]
    # Flat, and not copied once more: Pillow's own copy of a large picture is large enough.
    return Image.frombytes(mode, (width, height), np.ascontiguousarray(array).reshape(-1).data)


def _save(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def resize(array: NDArray[Any], *, height: int, width: int) -> NDArray[Any]:
    """Resize (H, W, C) linearly, antialiased where it shrinks, each channel by itself.

    Args:
        array: uint8, uint16 or float32 with any number of channels.
        height: New height in pixels.
        width: New width in pixels.

    Returns:
        (height, width, C) of the same dtype, contiguous; whole numbers are rounded to nearest.

    Raises:
        OptionError: Another dtype or shape, or a side below 1.
    """
    if array.ndim != 3 or 0 in array.shape or array.dtype not in (np.uint8, np.uint16, np.float32):
        raise OptionError(
            f"only uint8, uint16 and float32 pictures (H, W, C) are resized, not {array.dtype} "
            f"{array.shape}"
        )
    if height < 1 or width < 1:
        raise OptionError(f"a picture cannot be resized to {width} x {height} pixels")
    if array.shape[:2] == (height, width):
        return np.array(array, order="C")
    result = np.empty((height, width, array.shape[2]), array.dtype)
    # Three or four bytes go together; RGBX because Pillow would weight RGBA by its alpha.
    if array.dtype == np.uint8 and array.shape[2] in (3, 4):
        image = _as_pillow(array, "RGB" if array.shape[2] == 3 else "RGBX")
        result[...] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        return result
    for channel in range(array.shape[2]):
        plane = array[..., channel]
        image = _as_pillow(plane, "L") if plane.dtype == np.uint8 else _as_pillow(
            plane.astype(np.float32), "F"
        )  # fmt: skip
        resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        if plane.dtype == np.uint16:
            resized = np.clip(np.rint(resized), 0, 65535)
        result[..., channel] = resized
    return result
