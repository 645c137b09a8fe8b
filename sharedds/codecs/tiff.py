"""TIFF: the directory is read and checked here, the pixels are decoded by Pillow.

Pillow gets a directory of its own, written after the data, with the entries that describe pixels
and nothing else. So damaged metadata cannot warn or fail, Pillow does not rotate by itself, and
strips that are missing (which it would leave black) are refused.
"""

from __future__ import annotations

import io
import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin

from sharedds.codecs.header import BytesLike, ImageHeader, limit_pixels, reading
from sharedds.codecs.tiff_plain import plain_pixels
from sharedds.errors import DecodeError

__all__ = ["TiffPicture", "read_header", "read_picture"]

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8,
          17: 8, 18: 8}  # fmt: skip
_CODES = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the types a number may have here

# Entries with one number, with several numbers, and with other content.
_ONE = {254, 256, 257, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 332, 512, 513, 514,
        515, 531}  # fmt: skip
_MANY = {258, 273, 279, 320, 324, 325, 338, 339, 519, 520, 521, 530}
_OTHER = {347: (1, 7), 529: (5,), 532: (5,)}
_ORIENTATION = 274
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIPS, _SAMPLES, _ROWS, _PLANAR, _TILE_WIDTH, _TILE_HEIGHT, _TILES = (
    273, 277, 278, 284, 322, 323, 324,
)  # fmt: skip
_STRIP_SIZES, _TILE_SIZES = 279, 325
_EXTRA, _SAMPLE_FORMAT = 338, 339
_OLD_JPEG = 6  # of compression
_YCBCR = 6  # of photometric: its colours may take fewer bytes
_MAX_PAGES = 65_536


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: int
    count: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Directory:
    order: str
    big: bool
    entries: dict[int, _Entry]
    orientation: int
    pages: int

    def numbers(self, tag: int) -> tuple[int, ...]:
        entry = self.entries.get(tag)
        if entry is None:
            return ()
        return struct.unpack(f"{self.order}{entry.count}{_CODES[entry.kind]}", entry.raw)

    def number(self, tag: int, default: int = 0) -> int:
        return (self.numbers(tag) or (default,))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiffPicture:
    """A decoded TIFF page.

    Attributes:
        image: The loaded picture, not rotated; None when ``samples`` holds it.
        samples: uint16 (H, W, 3 or 4) of a 16-bit colour picture, int32 (H, W, 1) of signed bytes,
            uint8 (H, W, 1 or 3), a view of the file, of one that is stored plainly.
        inverted: Whether 0 is white in the file (``image`` counts the usual way up to 8 bits).
        dropped: Number of samples per pixel that no mode of Pillow can hold.
    """

    image: Image.Image | None
    samples: NDArray[Any] | None
    inverted: bool
    dropped: int


def _parse(data: BytesLike) -> _Directory:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    head = "Q" if big else "I"
    try:
        (first,) = struct.unpack_from(order + head, data, 8 if big else 4)
        entries, orientation, following = _read_entries(data, order, big, first)
    except struct.error as error:
        raise DecodeError(
            f"TIFF is truncated: its directory lies past the end ({len(data)} bytes)"
        ) from error
    seen = {first}
    while following and following not in seen and len(seen) < _MAX_PAGES:
        seen.add(following)
        try:
            (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, following)
            at = following + (8 + 20 * count if big else 2 + 12 * count)
            (following,) = struct.unpack_from(order + head, data, at)
        except (struct.error, OverflowError):  # the chain of later pages is broken: not our page
            break
    return _Directory(order, big, entries, orientation, len(seen))


def _read_entries(
    data: BytesLike, order: str, big: bool, at: int
) -> tuple[dict[int, _Entry], int, int]:
    if at >= len(data):
        raise struct.error
    (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
    at += 8 if big else 2
    step, inline = (20, 8) if big else (12, 4)
    if at + count * step > len(data):
        raise struct.error
    entries: dict[int, _Entry] = {}
    orientation = 1
    for entry in range(at, at + count * step, step):
        tag, kind, number = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, entry)
        if tag == _ORIENTATION and kind == 3 and number == 1:
            (orientation,) = struct.unpack_from(order + "H", data, entry + step - inline)
        if (tag not in _ONE and tag not in _MANY and tag not in _OTHER) or number == 0:
            continue
        if tag in _ONE:
            number = 1
        if kind not in _OTHER.get(tag, _CODES):
            if tag in _OTHER:
                continue
            raise DecodeError(f"TIFF is damaged: entry {tag} has type {kind}")
        size = number * _SIZES[kind]
        where = entry + step - inline
        if size > inline:
            (where,) = struct.unpack_from(order + ("Q" if big else "I"), data, where)
        if where + size > len(data):
            raise DecodeError(
                f"TIFF is truncated: entry {tag} ends at byte {where + size}, there are {len(data)}"
            )
        entries.setdefault(tag, _Entry(kind, number, bytes(data[where : where + size])))
    end = at + count * step
    following = 0
    if end + inline <= len(data):
        (following,) = struct.unpack_from(order + ("Q" if big else "I"), data, end)
    return entries, orientation if 1 <= orientation <= 8 else 1, following


def _file(directory: _Directory, data: BytesLike | None) -> bytes:
    """Return a TIFF with our directory: at the end of ``data``, or alone for its headers."""
    order, big = directory.order, directory.big
    start = 16 if big else 8
    base = start if data is None else len(data) + len(data) % 2
    if not big and base > 2**32 - 2**24:
        raise DecodeError("TIFF of 4 GiB without 64-bit offsets is not supported")
    step, inline = (20, 8) if big else (12, 4)
    values = bytearray()
    after = base + (8 if big else 2) + step * len(directory.entries) + inline
    table = [struct.pack(order + ("Q" if big else "H"), len(directory.entries))]
    for tag, entry in sorted(directory.entries.items()):
        table.append(struct.pack(order + ("HHQ" if big else "HHI"), tag, entry.kind, entry.count))
        if len(entry.raw) <= inline:
            table.append(entry.raw.ljust(inline, b"\0"))
        else:
            table.append(struct.pack(order + ("Q" if big else "I"), after + len(values)))
            values += entry.raw + b"\0" * (len(entry.raw) % 2)
    table.append(bytes(inline))
    magic = struct.pack(
        order + "HHHQ" if big else order + "HI", *((43, 8, 0) if big else (42,)), base
    )
    head = (b"II" if order == "<" else b"MM") + magic
    if data is None:
        return b"".join((head, *table, values))
    body = memoryview(data)[start:]
    return b"".join((head, body, bytes(base - len(data)), *table, values))


def _open(directory: _Directory, data: BytesLike | None) -> TiffImagePlugin.TiffImageFile:
    compression = directory.number(_COMPRESSION, 1)
    if compression not in TiffImagePlugin.COMPRESSION_INFO:
        raise DecodeError(f"TIFF with compression number {compression} is not supported")
    with reading("TIFF"):
        try:
            return TiffImagePlugin.TiffImageFile(io.BytesIO(_file(directory, data)))
        except SyntaxError as error:
            raise DecodeError(
                f"TIFF with this layout of pixels is not supported: bits "
                f"{directory.numbers(_BITS) or (1,)}, sample format "
                f"{directory.numbers(_SAMPLE_FORMAT) or (1,)}, photometric "
                f"{directory.number(_PHOTOMETRIC)} ({error})"
            ) from error


def _signed_bytes(directory: _Directory) -> bool:
    return directory.numbers(_SAMPLE_FORMAT)[:1] == (2,) and directory.number(_BITS, 1) == 8


def read_header(data: BytesLike) -> ImageHeader:
    """Read the directory of the first page and count the pages.

    Raises:
        DecodeError: The directory is damaged or describes pixels that are not supported.
    """
    plain = plain_pixels(data)
    if plain is not None:
        height, width, channels = plain.shape
        return ImageHeader(
            format="tiff",
            width=width,
            height=height,
            channels=channels,
            bits=8,
            mode="L" if channels == 1 else "RGB",
        )
    directory = _parse(data)
    with _open(directory, None) as image:
        mode = "I" if _signed_bytes(directory) else image.mode
        return ImageHeader(
            format="tiff",
            width=directory.number(_WIDTH),
            height=directory.number(_HEIGHT),
            channels=len(image.getbands()),
            bits=directory.number(_BITS, 1),
            mode=mode,
            orientation=directory.orientation,
            frames=directory.pages,
        )


def _require_strips(directory: _Directory, length: int) -> None:
    """Refuse a page whose strips or tiles do not cover it; Pillow would leave the rest black."""
    width, height = directory.number(_WIDTH), directory.number(_HEIGHT)
    if directory.number(_COMPRESSION, 1) == _OLD_JPEG:
        return  # may hold its picture elsewhere
    planes = directory.number(_SAMPLES, 1) if directory.number(_PLANAR, 1) == 2 else 1
    if directory.numbers(_STRIPS):
        rows = max(1, min(directory.number(_ROWS, height), height))
        expected, got, kind = -(-height // rows), len(directory.numbers(_STRIPS)), "strips"
    else:
        wide, high = directory.number(_TILE_WIDTH), directory.number(_TILE_HEIGHT)
        # libtiff allocates a whole tile, however small the page is.
        if wide < 1 or high < 1 or wide * high > max(1 << 24, 4 * width * height):
            raise DecodeError(f"TIFF is damaged: tiles of {wide} x {high} pixels")
        expected = -(-height // high) * -(-width // wide)
        got, kind = len(directory.numbers(_TILES)), "tiles"
    if got < expected * planes:
        raise DecodeError(f"TIFF is truncated: {got} of {expected * planes} {kind} are there")
    _require_last_bytes(directory, length)


def _require_last_bytes(directory: _Directory, length: int) -> None:
    """Refuse strips that reach past the end of the file, where Pillow would read our directory."""
    starts = directory.numbers(_STRIPS)
    plain = directory.number(_COMPRESSION, 1) == 1 and directory.number(_PHOTOMETRIC) != _YCBCR
    if plain and starts:  # what they need is known, and counts of such strips are often wrong
        height = directory.number(_HEIGHT)
        rows = max(1, min(directory.number(_ROWS, height), height))
        bits = directory.numbers(_BITS) or (1,)
        apart = directory.number(_PLANAR, 1) == 2
        each = bits[0] if apart else sum(bits) if len(bits) > 1 else (
            bits[0] * directory.number(_SAMPLES, 1)
        )  # fmt: skip
        row = (directory.number(_WIDTH) * each + 7) // 8
        strips = -(-height // rows)
        sizes = [row * min(rows, height - n % strips * rows) for n in range(len(starts))]
    else:
        starts = starts or directory.numbers(_TILES)
        sizes = list(directory.numbers(_STRIP_SIZES) or directory.numbers(_TILE_SIZES))
    for start, size in zip(starts, sizes, strict=False):
        if start + size > length:
            raise DecodeError(
                f"TIFF is truncated: its pixels end at byte {start + size}, there are {length}"
            )


def read_picture(data: BytesLike, max_pixels: int | None) -> TiffPicture:
    """Decode the first page, each sample with all its bits, not rotated.

    Raises:
        DecodeError: The page is damaged, truncated or not supported.
        ImageTooLargeError: It has more than ``max_pixels`` pixels.
    """
    plain = plain_pixels(data)
    if plain is not None:
        limit_pixels(plain.shape[1], plain.shape[0], max_pixels)
        return TiffPicture(image=None, samples=plain, inverted=False, dropped=0)
    directory = _parse(data)
    limit_pixels(directory.number(_WIDTH), directory.number(_HEIGHT), max_pixels)
    _require_strips(directory, len(data))
    samples: NDArray[Any] | None = None
    bits = directory.number(_BITS, 1)
    image: Image.Image = _load(directory, data, swap=False)
    extra = directory.number(_SAMPLES, 1) - len(image.getbands())
    if bits == 16 and image.mode in ("RGB", "RGBA"):
        if directory.number(_PLANAR, 1) == 2 or directory.number(_EXTRA) == 1:
            raise DecodeError(
                "16-bit colour TIFF in separate planes or with premultiplied alpha would lose "
                "bits; convert it to a 16-bit PNG first"
            )
        samples = np.asarray(image).astype(np.uint16)
        samples <<= 8
        samples |= np.asarray(_load(directory, data, swap=True))
    elif bits > 8 and image.mode not in ("I;16", "I;16B", "I;16L", "I", "F"):
        raise DecodeError(f"{bits}-bit TIFF of mode {image.mode} would lose bits: not supported")
    elif _signed_bytes(directory):
        if image.mode != "L":
            raise DecodeError(f"TIFF of signed bytes in mode {image.mode} is not supported")
        samples = np.asarray(image).view(np.int8).astype(np.int32)[:, :, None]
    elif (
        image.mode == "I"
        and bits == 32
        and directory.number(_SAMPLE_FORMAT, 1) == 1
        and np.asarray(image).min() < 0
    ):
        raise DecodeError("TIFF of unsigned 32-bit numbers has values above 2,147,483,647")
    if samples is not None:
        image.close()
    return TiffPicture(
        image=image if samples is None else None,
        samples=samples,
        inverted=directory.number(_PHOTOMETRIC, 0) == 0,
        dropped=max(0, extra),
    )


def _load(directory: _Directory, data: BytesLike, *, swap: bool) -> Image.Image:
    image = _open(directory, data)
    with reading("TIFF"):
        size = (directory.number(_WIDTH), directory.number(_HEIGHT))
        if image.size != size:
            raise DecodeError(f"TIFF is damaged: {image.size} pixels, expected {size}")
        if swap:
            # Reading 16-bit samples in the wrong byte order gives their low bytes.
            image.tile = [
                tile._replace(args=(_swapped(str(tile.args[0])), *tile.args[1:]))
                for tile in image.tile
                if isinstance(tile.args, tuple)
            ]
        # Given its memory beforehand, Pillow does not ask its own global limit of pixels: ours has
        # been applied, and theirs warns.
        image.im = Image.new(image.mode, size).im
        image.load()
    return image


def _swapped(raw_mode: str) -> str:
    ending = raw_mode[-1]
    if ending == "N":
        ending = "L" if sys.byteorder == "little" else "B"
    return raw_mode[:-1] + ("B" if ending == "L" else "L")
