"""What the headers of a picture say, and the rules all readers of this package share."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from PIL import Image

from sharedds.errors import DecodeError, ImageTooLargeError

__all__ = [
    "BytesLike",
    "ImageHeader",
    "as_bytes_like",
    "exif_orientation",
    "limit_pixels",
    "reading",
]

BytesLike: TypeAlias = bytes | bytearray | memoryview

# BYTE, SHORT and LONG: the ways in which real writers store the orientation.
_ORIENTATION_TYPES = {1: "B", 3: "H", 4: "I"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """What a picture says about itself before a pixel is decoded.

    Attributes:
        format: Name of the format as :func:`sharedds.codecs.formats.sniff` gives it.
        width: Stored width in pixels, before the orientation is applied.
        height: Stored height in pixels, before the orientation is applied.
        channels: Number of stored channels; a palette picture has one.
        bits: Bits per channel in the file: 1, 2, 4, 8, 12 (JPEG, TIFF), 16 or 32.
        mode: Pillow's name of the stored picture (``"RGB"``, ``"L"``, ``"P"``, ``"I;16"``, ...).
        orientation: EXIF orientation 1..8; 1 when there is none or it is broken.
        frames: Number of frames or pages, at least 1. Only the first is ever decoded.
    """

    format: str
    width: int
    height: int
    channels: int
    bits: int
    mode: str
    orientation: int = 1
    frames: int = 1


def as_bytes_like(data: object) -> BytesLike:
    """Return ``data`` itself, or a view of its bytes for mmap, arrays and other buffers."""
    if isinstance(data, bytes | bytearray):
        return data
    view = memoryview(data)  # type: ignore[arg-type]
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def limit_pixels(width: int, height: int, max_pixels: int | None) -> None:
    """Refuse a picture without pixels, or with more than ``max_pixels`` (None: any number).

    Raises:
        DecodeError: The width or the height is zero.
        ImageTooLargeError: There are more pixels than allowed.
    """
    if width < 1 or height < 1:
        raise DecodeError(f"the picture is damaged: its size is {width} x {height} pixels")
    if max_pixels is not None and width * height > max_pixels:
        raise ImageTooLargeError(
            f"{width} x {height} = {width * height:,} pixels, over the limit of {max_pixels:,}; "
            "if the picture is genuine, raise max_pixels (--max-pixels)"
        )


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn every error of a library that reads ``what`` into a :class:`DecodeError`.

    Damaged files make image libraries raise almost anything (OSError, SyntaxError, struct.error,
    KeyError, OverflowError, ...), so no list of types would be complete.
    """
    try:
        yield
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        # Only Pillow's WebP reader asks the global limit where ours has already been applied.
        raise ImageTooLargeError(
            f"{what} is over the limit of pixels set in Pillow (Image.MAX_IMAGE_PIXELS): {error}"
        ) from error
    except MemoryError as error:
        raise DecodeError(f"{what} cannot be decoded: out of memory ({error})") from error
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        truncated = "truncat" in reason.lower()
        raise DecodeError(
            f"{what} is {'truncated' if truncated else 'damaged'}: {reason}"
        ) from error


def exif_orientation(block: BytesLike) -> int:
    """Return the orientation 1..8 in an EXIF block (a small TIFF), or 1 if it is missing or broken.

    Every offset is checked against the block, nothing else in it is looked at, and nothing is
    raised: pixels are fine when the EXIF block is not.
    """
    if block[:6] == b"Exif\0\0":
        block = block[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(block[:4]))
    if order is None or len(block) < 14:
        return 1
    (at,) = struct.unpack_from(order + "I", block, 4)
    if at + 2 > len(block):
        return 1
    (count,) = struct.unpack_from(order + "H", block, at)
    for entry in range(at + 2, min(at + 2 + 12 * count, len(block) - 11), 12):
        tag, kind, number = struct.unpack_from(order + "HHI", block, entry)
        if tag == 0x0112:
            code = _ORIENTATION_TYPES.get(kind)
            if code is None or number != 1:
                return 1
            (value,) = struct.unpack_from(order + code, block, entry + 8)
            return int(value) if 1 <= value <= 8 else 1
    return 1
