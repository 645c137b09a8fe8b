"""Pyramids of tiles written as TIFF, tile by tile: TIFF 6.0, and BigTIFF where it may pass 4 GiB.

Tiles are handed over as they are to lie in the file. Offsets are all that is held in memory.
"""

from __future__ import annotations

import array
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import IO, Any

__all__ = ["DEFLATE", "JPEG", "LARGEST_CLASSIC", "TiffLevel", "TiffPyramid"]

DEFLATE, JPEG = 8, 7
LARGEST_CLASSIC = 4_000_000_000  # bytes, with room for directories
_SHORT, _LONG, _RATIONAL, _ASCII, _UNDEFINED, _LONG8 = 3, 4, 5, 2, 7, 16
_SIZES = {_SHORT: 2, _LONG: 4, _RATIONAL: 8, _ASCII: 1, _UNDEFINED: 1, _LONG8: 8}
_CODES = {_SHORT: "H", _LONG: "I", _LONG8: "Q"}
_RGB, _GREY, _YCC = 2, 1, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TiffLevel:
    """One resolution.

    Attributes:
        shape: Pixels (y, x).
        tile: Of a tile (y, x); multiples of 16, as TIFF wants.
        channels: Numbers of a pixel.
        bits: Of a number.
        kind: ``"u"``, ``"i"`` or ``"f"``.
        compression: ``DEFLATE`` or ``JPEG``.
        is_rgb: Whether channels are red, green and blue.
        subsampling: Of JPEG whose samples are YCbCr, (across, down); None for other samples.
        tables: Of JPEG tiles that share them.
        mpp: Micrometres for each pixel, (y, x).
        description: Of the whole picture.
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    channels: int
    bits: int
    kind: str
    compression: int
    is_rgb: bool
    subsampling: tuple[int, int] | None = None
    tables: bytes = b""
    mpp: tuple[float, float] | None = None
    description: str = ""


@dataclass(slots=True)
class TiffPyramid:
    """Writes levels one after another, finest first.

    Args:
        file: An empty file that can be sought.
        big: Whether it may pass 4 GiB.
    """

    file: IO[bytes]
    big: bool
    _link: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.big:
            self.file.write(b"II" + struct.pack("<HHHQ", 43, 8, 0, 0))
            self._link = 8
        else:
            self.file.write(b"II" + struct.pack("<HI", 42, 0))
            self._link = 4

    def add(self, level: TiffLevel, tiles: Iterable[bytes | memoryview]) -> None:
        """Write a level.

        Args:
            level: What it is.
            tiles: From left to right and top to bottom; no bytes for one that is not there.
        """
        offsets, lengths = array.array("Q"), array.array("Q")
        at = self.file.tell()
        for data in tiles:
            offsets.append(at if len(data) else 0)
            lengths.append(len(data))
            self.file.write(data)
            at += len(data)
            if at % 2:  # directories and values begin at even places
                self.file.write(b"\0")
                at += 1
        entries = self._entries(level, offsets, lengths)
        place = self._write_directory(entries)
        self.file.seek(self._link)
        self.file.write(struct.pack("<Q" if self.big else "<I", place))
        self.file.seek(0, 2)
        self._link = place + self._size(len(entries)) - (8 if self.big else 4)

    def _entries(
        self, level: TiffLevel, offsets: array.array[int], lengths: array.array[int]
    ) -> dict[int, tuple[int, bytes]]:
        wide = _LONG8 if self.big else _LONG
        first = self._link in (4, 8)
        photometric = _RGB if level.is_rgb else _GREY
        if level.compression == JPEG and level.subsampling is not None:
            photometric = _YCC
        extra = level.channels - (3 if photometric in (_RGB, _YCC) else 1)
        values: Mapping[int, tuple[int, Any]] = {
            254: (_LONG, [0 if first else 1]),
            256: (_LONG, [level.shape[1]]),
            257: (_LONG, [level.shape[0]]),
            258: (_SHORT, [level.bits] * level.channels),
            259: (_SHORT, [level.compression]),
            262: (_SHORT, [photometric]),
            277: (_SHORT, [level.channels]),
            284: (_SHORT, [1]),
            322: (_LONG, [level.tile[1]]),
            323: (_LONG, [level.tile[0]]),
            324: (wide, offsets),
            325: (wide, lengths),
            339: (_SHORT, [{"u": 1, "i": 2, "f": 3}[level.kind]] * level.channels),
            **({338: (_SHORT, [0] * extra)} if extra else {}),
            **({347: (_UNDEFINED, level.tables)} if level.tables else {}),
            **({530: (_SHORT, level.subsampling)} if photometric == _YCC else {}),
            **_resolution(level.mpp),
            **_text(level.description),
        }
        return {tag: (kind, _packed(kind, given)) for tag, (kind, given) in sorted(values.items())}

    def _size(self, entries: int) -> int:
        return 8 + 20 * entries + 8 if self.big else 2 + 12 * entries + 4

    def _write_directory(self, entries: dict[int, tuple[int, bytes]]) -> int:
        """Write a directory and what does not fit into it; return where it begins."""
        inside, number = (8, "<HHQ") if self.big else (4, "<HHI")
        place = self.file.tell()
        after = place + self._size(len(entries))
        made, far = bytearray(struct.pack("<Q" if self.big else "<H", len(entries))), bytearray()
        for tag, (kind, data) in entries.items():
            made += struct.pack(number, tag, kind, len(data) // _SIZES[kind])
            if len(data) <= inside:
                made += data.ljust(inside, b"\0")
                continue
            made += struct.pack("<Q" if self.big else "<I", after + len(far))
            far += data + bytes(len(data) % 2)
        made += bytes(8 if self.big else 4)
        self.file.write(made)
        self.file.write(far)
        return place


def _packed(kind: int, values: Any) -> bytes:
    if isinstance(values, bytes):
        return values
    if kind == _RATIONAL:
        return struct.pack(f"<{len(values)}I", *values)
    return struct.pack(f"<{len(values)}{_CODES[kind]}", *values)


def _resolution(mpp: tuple[float, float] | None) -> dict[int, tuple[int, Any]]:
    """Return pixels for each centimetre, as fractions."""
    if mpp is None:
        return {}
    found: dict[int, tuple[int, Any]] = {296: (_SHORT, [3])}
    for tag, size in ((282, mpp[1]), (283, mpp[0])):
        share = Fraction(10_000 / size).limit_denominator(10_000)
        found[tag] = (_RATIONAL, [min(share.numerator, 0xFFFFFFFF), share.denominator])
    return found


def _text(text: str) -> dict[int, tuple[int, Any]]:
    return {270: (_ASCII, text.encode("ascii", "replace") + b"\0")} if text else {}
