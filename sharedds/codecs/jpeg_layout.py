"""What the headers of a JPEG tile say, and what has to be put into them before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from sharedds.codecs import jpeg
from sharedds.codecs.header import BytesLike, ImageHeader
from sharedds.errors import DecodeError

__all__ = ["COLOURS", "MAX_TABLES", "Layout", "look_at", "shared_tables"]

COLOURS = ("", "rgb", "ycc", "grey")
MAX_TABLES = 1 << 16  # bytes; all tables that can be told apart take a few thousand

_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_TABLES = frozenset({0xDB, 0xC4, 0xCC})  # quantisation, Huffman codes, arithmetic coding
_PLAIN = frozenset({0xC0, 0xC1})  # sequential, Huffman codes
_ADOBE = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"  # the transform follows
_TRANSFORM = {"rgb": b"\0", "ycc": b"\1"}


def shared_tables(stream: bytes) -> bytes:
    """Return the tables of an abbreviated stream (SOI, tables, EOI) as they go into a tile.

    What else stands there says nothing about the tiles and is left out.

    Raises:
        DecodeError: It is no such stream, or over 64 KiB.
    """
    if not stream:
        return b""
    if len(stream) > MAX_TABLES or stream[:2] != b"\xff\xd8":
        raise DecodeError(f"shared tables of {len(stream):,} bytes are no JPEG stream up to 64 KiB")
    kept: list[bytes] = []
    at = 2
    while at + 2 <= len(stream) and stream[at] == 0xFF:
        marker = stream[at + 1]
        if marker == 0xD9:
            return b"".join(kept)
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
        if end < at + 4 or end > len(stream) or marker in _FRAMES or marker == 0xDA:
            break
        if marker in _TABLES:
            kept.append(stream[at:end])
        at = end
    raise DecodeError(f"shared tables are damaged at byte {at} of {len(stream)}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The headers of a tile.

    Attributes:
        prefix: As they lie in the tile, up to the coded data.
        ready: The same, with what is spliced in.
        header: Size and channels.
        plain: Whether rows come one after the other, in one scan that all channels share.
        height_at: Where in ``ready`` the height is stated, the width behind it.
        interval: Units of the grid between restart markers; 0 without such markers.
        unit: Pixels (y, x) of a unit of the grid in which channels are coded.
        mixed: Whether colours have a lower resolution: pixels take part of those of other units.
    """

    prefix: bytes
    ready: bytes
    header: ImageHeader
    plain: bool
    height_at: int
    interval: int
    unit: tuple[int, int]
    mixed: bool


def look_at(data: BytesLike, tables: bytes, colour: str) -> Layout:
    """Walk over the headers of a tile.

    A JFIF marker says that three channels are YCbCr, whatever else is said. Without one the colour
    decides, by an Adobe marker that is the last one to be read.

    Args:
        data: The tile.
        tables: What :func:`shared_tables` returned.
        colour: One of ``COLOURS``; ``""`` leaves it to what the tile says.

    Raises:
        DecodeError: The headers are damaged, or the kind of JPEG is not supported.
    """
    header = jpeg.read_header(data)
    at, frame, interval, jfif = 2, 0, 0, False
    while (marker := data[at + 1]) != 0xDA:
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if marker in _FRAMES and not frame:
            frame = at
        elif marker == 0xDD and length == 4:
            interval = data[at + 4] << 8 | data[at + 5]
        elif marker == 0xE0 and length >= 16 and data[at + 4 : at + 9] == b"JFIF\0":
            jfif = True
        at += 2 + length
    end = at + 2 + (data[at + 2] << 8 | data[at + 3])
    if end > len(data) or end < at + 8:
        raise DecodeError(f"JPEG is truncated: {len(data)} bytes, the picture data never begins")
    prefix = bytes(data[:end])
    channels = header.channels
    factors = [prefix[frame + 11 + 3 * n] for n in range(channels)]
    if frame + 10 + 3 * channels > at:
        raise DecodeError("JPEG is damaged: a frame header without its channels")
    across, down = max(f >> 4 for f in factors), max(f & 15 for f in factors)
    spliced = b""
    if channels == 3 and not jfif and colour in _TRANSFORM:
        spliced = _ADOBE + _TRANSFORM[colour]
    return Layout(
        prefix=prefix,
        ready=b"".join((prefix[:2], tables, prefix[2:at], spliced, prefix[at:])),
        header=header,
        plain=prefix[frame + 1] in _PLAIN and prefix[at + 4] == channels and header.bits == 8,
        height_at=frame + 5 + len(tables),
        interval=interval,
        unit=(8, 8) if channels == 1 else (8 * max(down, 1), 8 * max(across, 1)),
        mixed=channels > 1 and len(set(factors)) > 1,
    )
