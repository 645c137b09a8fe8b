"""GIF and WebP: sizes, frames and orientation from their blocks, without decoding.

Pillow would allocate the whole canvas to answer these questions for WebP, and seek through every
frame for GIF. The first frame of a GIF is handed to Pillow as a file of its own, so that what
stands before and after it (comments, later frames, disposal rules) cannot matter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sharedds.codecs.header import BytesLike, ImageHeader, exif_orientation
from sharedds.errors import DecodeError

__all__ = ["first_gif_frame", "read_gif_header", "read_webp_header"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gif:
    width: int
    height: int
    frames: int
    colours: int  # end of the header with its global palette
    control: bytes  # graphic control extension of the first frame, or nothing
    frame: tuple[int, int]  # where the first frame begins and ends


def _skip(data: BytesLike, at: int) -> int:
    """Return where a chain of sub-blocks ends, or the length of ``data`` if it is cut."""
    size = len(data)
    while at < size:
        length = data[at]
        at += 1 + length
        if length == 0:
            return at
    return size


def _walk_gif(data: BytesLike) -> _Gif:
    size = len(data)
    if size < 13:
        raise DecodeError(f"GIF is truncated: {size} bytes, too short for a header")
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = colours = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    frames, control, frame = 0, b"", (0, 0)
    while at < size:
        kind = data[at]
        if kind == 0x21:
            end = _skip(data, at + 2)
            if not frames and bytes(data[at + 1 : at + 3]) == b"\xf9\x04" and at + 8 <= end:
                control = bytes(data[at : at + 8])
            at = end
        elif kind == 0x2C:
            if at + 11 > size:
                break
            left, top, wide, high, flags = struct.unpack_from("<HHHHB", data, at + 1)
            begin = at
            at = _skip(data, at + 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0))
            if not frames:
                # Frames that reach over the screen enlarge it, as in Pillow and in browsers.
                width, height = max(width, left + wide), max(height, top + high)
                frame = (begin, at)
            frames += 1
        elif kind == 0x00:  # some writers leave a stray terminator between blocks
            at += 1
        else:  # the trailer, or bytes that mean nothing: what follows is not part of the file
            break
    if not frames:
        raise DecodeError(f"GIF holds no picture in its {size} bytes")
    return _Gif(
        width=width, height=height, frames=frames, colours=colours, control=control, frame=frame
    )


def read_gif_header(data: BytesLike) -> ImageHeader:
    """Read the size and count the frames of a GIF by its blocks.

    Raises:
        DecodeError: The file holds no picture.
    """
    gif = _walk_gif(data)
    return ImageHeader(
        format="gif",
        width=gif.width,
        height=gif.height,
        channels=1,
        bits=8,
        mode="P",
        frames=gif.frames,
    )


def first_gif_frame(data: BytesLike) -> bytes:
    """Return a GIF that holds the first frame of ``data`` and nothing else."""
    gif = _walk_gif(data)
    head = bytearray(data[: gif.colours])
    struct.pack_into("<HH", head, 6, min(gif.width, 0xFFFF), min(gif.height, 0xFFFF))
    control = bytearray(gif.control)
    if control:
        control[3] &= 0x01  # keep the transparency, drop what happens after the frame
        control[7] = 0
    start, end = gif.frame
    return b"".join((head, control, data[start:end], b"" if end >= len(data) else b";"))


def read_webp_header(data: BytesLike) -> ImageHeader:
    """Read size, alpha, orientation and number of frames of a WebP by its chunks.

    Raises:
        DecodeError: The header is damaged or cut.
    """
    if len(data) < 30:
        raise DecodeError(f"WebP is truncated: {len(data)} bytes, too short for a header")
    kind = bytes(data[12:16])
    alpha = False
    orientation, frames = 1, 0
    if kind == b"VP8 ":
        if bytes(data[23:26]) != b"\x9d\x01\x2a":
            raise DecodeError("WebP is damaged: no start code in its frame header")
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    elif kind == b"VP8L":
        if data[20] != 0x2F:
            raise DecodeError("WebP is damaged: no signature in its lossless header")
        (packed,) = struct.unpack_from("<I", data, 21)
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
        alpha = bool(packed >> 28 & 1)
    elif kind == b"VP8X":
        alpha = bool(data[20] & 0x10)
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        at = 12
        while at + 8 <= len(data):
            name = bytes(data[at : at + 4])
            (length,) = struct.unpack_from("<I", data, at + 4)
            if name == b"ANMF":
                frames += 1
            elif name == b"EXIF":
                orientation = exif_orientation(data[at + 8 : at + 8 + length])
            at += 8 + length + (length & 1)
    else:
        raise DecodeError(f"WebP is damaged: it begins with a chunk named {kind!r}")
    return ImageHeader(
        format="webp",
        width=width,
        height=height,
        channels=4 if alpha else 3,
        bits=8,
        mode="RGBA" if alpha else "RGB",
        orientation=orientation,
        frames=max(1, frames),
    )
