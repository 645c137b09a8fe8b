"""Reads the pixels of a PNG: chunks are walked here, rows are unfiltered by Pillow.

Pillow alone accepts pixel data that ends early (the missing rows stay black), never looks at most
checksums, and cuts 16-bit colour to 8 bits. So this module checks the critical chunks, inflates the
pixel data itself to prove its length, and hands Pillow a minimal file with nothing else in it.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import PngImagePlugin

from sharedds.codecs.header import BytesLike, limit_pixels, reading
from sharedds.codecs.png_chunks import (
    COLOUR,
    MAGIC,
    Head,
    make_chunk,
    read_head,
    read_header,
    verify,
    walk,
)
from sharedds.codecs.png_writer import write_png, write_png16
from sharedds.errors import DecodeError

__all__ = [
    "MAGIC",
    "PngPixels",
    "check_pixels",
    "read_header",
    "read_pixels",
    "write_png",
    "write_png16",
]

_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2))  # fmt: skip
_BLOCK = 1 << 20
_STRIP = 16 << 20  # bytes of larger pictures that are unfiltered together


@dataclass(frozen=True, slots=True, kw_only=True)
class PngPixels:
    """Decoded samples of a PNG, nothing converted.

    Attributes:
        samples: uint8 or uint16 array (H, W, channels); greys below 8 bits and palette indices are
            the stored numbers, not scaled.
        palette: uint8 array (256, 4) of RGBA for palette pictures, else None.
        key: The one sample value (a number per channel) that is transparent, or None.
        has_alpha: Whether a palette holds transparent entries.
    """

    samples: NDArray[Any]
    palette: NDArray[np.uint8] | None = None
    key: tuple[int, ...] | None = None
    has_alpha: bool = False


def _passes(head: Head) -> list[tuple[int, int]]:
    """Return (rows, bytes of a row) of the passes that the inflated pixel data consist of."""
    bits = head.bits * COLOUR[head.colour][0]
    if not head.interlace:
        return [(head.height, 1 + (head.width * bits + 7) // 8)]
    sizes = (
        ((head.width - x + dx - 1) // dx, (head.height - y + dy - 1) // dy)
        for x, y, dx, dy in _ADAM7
    )
    return [(rows, 1 + (columns * bits + 7) // 8) for columns, rows in sizes if columns and rows]


def check_pixels(data: BytesLike, max_pixels: int | None) -> None:
    """Prove that the pixels of a PNG decode whole, in constant memory.

    Once the checksums are right, the data inflate to their full length and each row names a filter
    that exists, nothing is left that could fail.

    Raises:
        DecodeError: The file is damaged or truncated.
        ImageTooLargeError: It has more than ``max_pixels`` pixels.
    """
    head, pieces, _ = _critical(data, max_pixels)
    passes = iter(_passes(head))
    expected = sum(rows * size for rows, size in _passes(head))
    inflated, rows, size, start = 0, 0, 1, 0  # of the current pass, and where its next row starts
    for block in _inflated(pieces, expected):
        inflated += len(block)
        while start < inflated:
            if not rows:
                rows, size = next(passes)
            count = min(rows, -(-(inflated - start) // size))
            filters = block[start - inflated + len(block) :: size][:count]
            if max(filters) > 4:
                raise DecodeError(f"PNG is damaged: a row has filter {max(filters)}")
            rows, start = rows - count, start + count * size


def _inflated(pieces: list[memoryview], expected: int) -> Iterator[bytes]:
    """Yield the inflated pixel data in blocks, exactly ``expected`` bytes of them."""
    stream = zlib.decompressobj()
    length = 0
    try:
        for piece in pieces:
            rest: bytes | memoryview = piece
            # One byte more than wanted makes zlib reach its own checksum at the end of the stream.
            while length <= expected and not stream.eof:
                block = stream.decompress(rest, min(_BLOCK, expected + 1 - length))
                rest = stream.unconsumed_tail
                length += len(block)
                if block:
                    yield block if length <= expected else block[: expected - length]
                elif not rest:
                    break
    except zlib.error as error:
        raise DecodeError(f"PNG is damaged: {error}") from error
    if length < expected or not (stream.eof or length > expected):
        raise DecodeError(f"PNG is truncated: its pixel data hold {length:,} of {expected:,} bytes")


def _minimal(width: int, height: int, bits: int, colour: int, interlace: int, raw: bytes) -> bytes:
    """Return a PNG of nothing but these pixels, stored without compression."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace)
    body = zlib.compress(raw, 0)
    # Chunks have lengths of 31 bits.
    step = 1 << 30
    parts = [make_chunk(b"IDAT", body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join((MAGIC, make_chunk(b"IHDR", head), *parts, make_chunk(b"IEND", b"")))


def _unfilter(file: bytes, raw_mode: str | None = None) -> NDArray[Any]:
    with PngImagePlugin.PngImageFile(io.BytesIO(file)) as image:
        if raw_mode is not None:
            image.tile = [tile._replace(args=raw_mode) for tile in image.tile]
        image.load()
        return np.asarray(image)


def _critical(
    data: BytesLike, max_pixels: int | None
) -> tuple[Head, list[memoryview], dict[bytes, bytes]]:
    """Return the header, the pieces of pixel data, and the palette chunks, checksums verified."""
    head = read_head(data)
    limit_pixels(head.width, head.height, max_pixels)
    view = memoryview(data)
    pieces: list[memoryview] = []
    table: dict[bytes, bytes] = {}
    ended = False
    for kind, start, end in walk(data):
        if kind == b"IEND":
            ended = True
            break
        if kind in (b"IDAT", b"PLTE", b"tRNS"):
            verify(data, kind, start, end)
            if kind == b"IDAT":
                pieces.append(view[start:end])
            else:
                table.setdefault(kind, bytes(view[start:end]))
        elif end > len(data):
            break
    if not pieces:
        raise DecodeError("PNG is truncated: it holds no pixel data (IDAT)")
    if not ended:
        raise DecodeError(f"PNG is truncated: no end chunk (IEND) in {len(data)} bytes")
    return head, pieces, table


def read_pixels(data: BytesLike, max_pixels: int | None) -> PngPixels:
    """Decode all samples of a PNG, each with all its bits.

    16-bit colour is unfiltered twice, once for the high and once for the low bytes: Pillow can read
    each half of such a sample, never both at once.

    Raises:
        DecodeError: The file is damaged or truncated.
        ImageTooLargeError: It has more than ``max_pixels`` pixels.
    """
    head, pieces, table = _critical(data, max_pixels)
    width, height, bits, colour, interlace = head
    channels = COLOUR[colour][0]
    expected = sum(rows * size for rows, size in _passes(head))
    with reading("PNG"):
        if bits == 8 and not interlace and expected > _STRIP:
            samples = _in_strips(head, _inflated(pieces, expected))
        else:
            raw = b"".join(_inflated(pieces, expected))
            samples = _samples(width, height, bits, colour, interlace, raw)
    if samples.shape != (height, width, channels):
        raise DecodeError(f"PNG is damaged: samples {samples.shape} in {width} x {height} pixels")
    transparent = table.get(b"tRNS", b"")
    if colour == 3:
        return PngPixels(
            samples=samples,
            palette=_palette(table.get(b"PLTE", b""), transparent),
            has_alpha=bool(transparent),
        )
    key = None
    if colour in (0, 2) and len(transparent) >= 2 * channels:
        key = struct.unpack_from(f">{channels}H", transparent)
    return PngPixels(samples=samples, key=key)


def _in_strips(head: Head, blocks: Iterator[bytes]) -> NDArray[np.uint8]:
    """Unfilter 8-bit samples strip by strip: hardly any memory but for the result.

    The filters of a row look at the row above, so each strip begins with the last row of the one
    before, stored as it is.
    """
    channels = COLOUR[head.colour][0]
    result = np.empty((head.height, head.width, channels), np.uint8)
    size = 1 + head.width * channels
    above = bytes(size)
    raw, done = bytearray(), 0
    for block in blocks:
        raw += block
        rows = len(raw) // size
        if not rows or (len(raw) < _STRIP and done + rows < head.height):
            continue
        strip = above + raw[: rows * size]
        del raw[: rows * size]
        file = _minimal(head.width, rows + 1, 8, head.colour, 0, strip)
        samples = _unfilter(file).reshape(rows + 1, head.width, channels)
        result[done : done + rows] = samples[1:]
        done += rows
        above = b"\0" + samples[-1].tobytes()
    return result


def _samples(
    width: int, height: int, bits: int, colour: int, interlace: int, raw: bytes
) -> NDArray[Any]:
    if bits == 16 and colour == 4:
        # Grey and alpha of 16 bits are laid out as four bytes: unfilter them as RGBA.
        halves = _unfilter(_minimal(width, height, 8, 6, interlace, raw)).astype(np.uint16)
        return np.stack(
            (halves[..., 0] << 8 | halves[..., 1], halves[..., 2] << 8 | halves[..., 3]), -1
        )
    file = _minimal(width, height, bits, colour, interlace, raw)
    if bits == 16 and colour in (2, 6):
        name = "RGB" if colour == 2 else "RGBA"
        samples = _unfilter(file, f"{name};16B").astype(np.uint16)
        samples <<= 8
        samples |= _unfilter(file, f"{name};16L")
        return samples
    samples = _unfilter(file)
    if bits == 16:
        samples = samples.astype(np.uint16)
    elif bits == 1 and samples.dtype == np.bool_:
        samples = (samples.view(np.uint8) != 0).view(np.uint8)  # Pillow's True is a byte of 255
    elif bits < 8 and colour == 0:
        samples = samples // (255 // (2**bits - 1))  # Pillow scales greys to 0..255
    return samples if samples.ndim == 3 else samples[:, :, None]


def _palette(colours: bytes, alpha: bytes) -> NDArray[np.uint8]:
    table = np.zeros((256, 4), np.uint8)
    table[:, 3] = 255
    count = min(len(colours) // 3, 256)
    table[:count, :3] = np.frombuffer(colours, np.uint8, 3 * count).reshape(count, 3)
    table[: len(alpha[:256]), 3] = np.frombuffer(alpha[:256], np.uint8)
    return table
