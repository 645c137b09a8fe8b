"""The chunks of a PNG, and what its header says."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from sharedds.codecs.header import BytesLike, ImageHeader, exif_orientation
from sharedds.errors import DecodeError

__all__ = ["COLOUR", "MAGIC", "Head", "make_chunk", "read_head", "read_header", "verify", "walk"]

MAGIC = b"\x89PNG\r\n\x1a\n"

# colour type -> (channels, Pillow's mode, allowed bits)
COLOUR = {
    0: (1, "L", (1, 2, 4, 8, 16)),
    2: (3, "RGB", (8, 16)),
    3: (1, "P", (1, 2, 4, 8)),
    4: (2, "LA", (8, 16)),
    6: (4, "RGBA", (8, 16)),
}
_EXIF_TEXT = b"Raw profile type exif\0"
_MAX_EXIF = 1 << 17


def walk(data: BytesLike) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, start, end) of the content of each chunk; ``end`` may lie past the data."""
    at, size = 8, len(data)
    while at + 8 <= size:
        (length,) = struct.unpack_from(">I", data, at)
        kind = bytes(data[at + 4 : at + 8])
        yield kind, at + 8, at + 8 + length
        at += 12 + length


def verify(data: BytesLike, kind: bytes, start: int, end: int) -> None:
    """Compare a chunk with its checksum.

    Raises:
        DecodeError: They differ, or the data end before the chunk.
    """
    if end + 4 > len(data):
        raise DecodeError(
            f"PNG is truncated: chunk {kind.decode('latin-1')} ends at byte {end + 4}, "
            f"there are {len(data)}"
        )
    (stored,) = struct.unpack_from(">I", data, end)
    if zlib.crc32(data[start - 4 : end]) != stored:
        raise DecodeError(f"PNG is damaged: wrong checksum of chunk {kind.decode('latin-1')}")


class Head(NamedTuple):
    """The header chunk: a size, bits of a sample, colour type, and whether it is interlaced."""

    width: int
    height: int
    bits: int
    colour: int
    interlace: int


def read_head(data: BytesLike) -> Head:
    """Return the header chunk, its values checked."""
    if len(data) < 33:
        raise DecodeError(f"PNG is truncated: {len(data)} bytes, too short for a header")
    if bytes(data[8:16]) != b"\0\0\0\x0dIHDR":
        raise DecodeError("PNG is damaged: it does not begin with its header (IHDR)")
    verify(data, b"IHDR", 16, 29)
    width, height, bits, colour, method, filters, interlace = struct.unpack_from(
        ">IIBBBBB", data, 16
    )
    if (
        colour not in COLOUR
        or bits not in COLOUR[colour][2]
        or method
        or filters
        or interlace > 1
        or max(width, height) >= 2**31
    ):
        raise DecodeError(
            f"PNG is damaged: {width} x {height}, bit depth {bits}, colour type {colour}, "
            f"interlace {interlace}"
        )
    return Head(width, height, bits, colour, interlace)


def read_header(data: BytesLike) -> ImageHeader:
    """Read the header, orientation and number of frames from the chunks of a PNG.

    Raises:
        DecodeError: The header chunk is damaged, or its values do not exist.
    """
    width, height, bits, colour, _ = read_head(data)
    channels, mode, _ = COLOUR[colour]
    if colour == 0 and bits in (1, 16):
        mode = "1" if bits == 1 else "I;16"
    orientation, frames = 0, 1
    for kind, start, end in walk(data):
        if end > len(data) or kind == b"IEND":
            break
        if kind == b"eXIf":
            orientation = exif_orientation(data[start:end])
        elif kind in (b"tEXt", b"zTXt") and not orientation:
            orientation = _text_orientation(kind, bytes(data[start : min(end, start + _MAX_EXIF)]))
        elif kind == b"acTL" and end - start == 8:
            frames = max(1, struct.unpack_from(">I", data, start)[0] & 0x7FFFFFFF)
    return ImageHeader(
        format="png",
        width=width,
        height=height,
        channels=channels,
        bits=bits,
        mode=mode,
        orientation=orientation or 1,
        frames=frames,
    )


def _text_orientation(kind: bytes, content: bytes) -> int:
    """Read the orientation from the EXIF block that ImageMagick keeps as hexadecimal text."""
    if not content.startswith(_EXIF_TEXT):
        return 0
    text = content[len(_EXIF_TEXT) :]
    try:
        if kind == b"zTXt":
            text = zlib.decompressobj().decompress(text[1:], _MAX_EXIF)
        # A line break, the name, the length, then lines of hexadecimal digits.
        return exif_orientation(bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii")))
    except (zlib.error, ValueError):
        return 0


def make_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk with its length and checksum around it."""
    return b"".join(
        (
            struct.pack(">I", len(content)),
            kind,
            content,
            struct.pack(">I", zlib.crc32(content, zlib.crc32(kind))),
        )
    )
