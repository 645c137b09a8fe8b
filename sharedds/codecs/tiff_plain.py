"""Pixels as they are, in a file that every program reads: TIFF without compression.

What is written here always begins with the same 192 bytes but for the size of the picture, so it is
known again by comparing them, and its pixels are a view of the file. They say no more than what the
rules of baseline TIFF ask for (TIFF 6.0, sections 4 and 6): one page, one strip, top row first.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharedds.codecs.header import BytesLike
from sharedds.errors import OptionError

__all__ = ["PLAIN_HEAD", "plain_pixels", "plain_size", "write_plain"]

PLAIN_HEAD = 192
"""Bytes before the pixels."""

_LARGEST = (1 << 32) - 1
_SHORT, _LONG, _RATIONAL = 3, 4, 5
_entry = struct.Struct("<HHII")
_ENTRIES = 13
_BITS_AT = 8 + 2 + _entry.size * _ENTRIES + 4  # after the directory, which follows the first 8
_WIDTH_AT, _HEIGHT_AT = (8 + 2 + _entry.size * row + 8 for row in (0, 1))
_CHANNELS_AT = 8 + 2 + _entry.size * 6 + 8


def plain_size(height: int, width: int, channels: int) -> int | None:
    """Return how many bytes such a file takes; None where TIFF's 32-bit offsets do not reach."""
    size = PLAIN_HEAD + height * width * channels
    return size if size <= _LARGEST else None


def _head(height: int, width: int, channels: int) -> bytes:
    grey = channels == 1
    entries = (
        (256, _LONG, 1, width),
        (257, _LONG, 1, height),
        (258, _SHORT, channels, 8 if grey else _BITS_AT),  # bits per sample
        (259, _SHORT, 1, 1),  # no compression
        (262, _SHORT, 1, 1 if grey else 2),  # 0 is black, or RGB
        (273, _LONG, 1, PLAIN_HEAD),  # the strip
        (277, _SHORT, 1, channels),
        (278, _LONG, 1, height),  # its rows
        (279, _LONG, 1, height * width * channels),
        (282, _RATIONAL, 1, _BITS_AT + 6),  # resolution: square pixels, of no unit
        (283, _RATIONAL, 1, _BITS_AT + 14),
        (284, _SHORT, 1, 1),  # the channels of a pixel together
        (296, _SHORT, 1, 1),
    )
    table = b"".join(_entry.pack(*entry) for entry in entries)
    values = struct.pack("<3H4I", 8, 8, 8, 1, 1, 1, 1)
    return struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + table + bytes(4) + values


def write_plain(array: NDArray[Any]) -> bytes:
    """Return a TIFF that holds the pixels of (H, W, 1 or 3), uint8, as they are.

    Raises:
        OptionError: Another dtype or shape, or one of 4 GiB.
    """
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise OptionError(
            f"pixels are stored as they are with 1 or 3 channels of uint8, not {array.dtype} "
            f"{array.shape}; use PNG"
        )
    if 0 in array.shape or plain_size(*array.shape) is None:
        raise OptionError(f"an array of shape {array.shape} does not fit in a TIFF; use raw blocks")
    return b"".join((_head(*array.shape), np.ascontiguousarray(array).data))


def plain_pixels(data: BytesLike) -> NDArray[np.uint8] | None:
    """Return the pixels (H, W, C) of what :func:`write_plain` made, a read-only view; else None."""
    if len(data) <= PLAIN_HEAD:
        return None
    head = bytes(data[:PLAIN_HEAD])
    (width,) = struct.unpack_from("<I", head, _WIDTH_AT)
    (height,) = struct.unpack_from("<I", head, _HEIGHT_AT)
    (channels,) = struct.unpack_from("<I", head, _CHANNELS_AT)
    # The length first: numbers of any other file may be too large for a directory.
    if PLAIN_HEAD + height * width * channels != len(data) or channels not in (1, 3):
        return None
    if head != _head(height, width, channels):
        return None
    pixels = np.frombuffer(data, np.uint8, offset=PLAIN_HEAD).reshape(height, width, channels)
    pixels.flags.writeable = False
    return pixels
