"""Small pictures as arrays and as files, made here so that tests need no data."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

__all__ = [
    "Array",
    "black",
    "chunk",
    "noise",
    "opened",
    "orientation_block",
    "over",
    "png",
    "save",
    "smooth",
    "tiff",
    "with_segment",
]

Array = np.ndarray[Any, np.dtype[Any]]


def save(image: Image.Image, format: str, **options: Any) -> bytes:
    """Return the picture as a file."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def smooth(width: int = 64, height: int = 48) -> Image.Image:
    """Return a picture that survives JPEG and has no symmetry."""
    y, x = np.mgrid[0:height, 0:width]
    array = np.stack([x * 255 // width, y * 255 // height, (x + 2 * y) % 200], -1)
    return Image.fromarray(array.astype(np.uint8))


def noise(*shape: int, dtype: str = "u1", seed: int = 0) -> Array:
    """Return random samples over the whole range of the dtype."""
    top = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, top, shape, dtype=dtype, endpoint=True)


def opened(data: bytes) -> Array:
    """Return what Pillow alone makes of a file."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a PNG chunk with its checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(width: int, height: int, bits: int, colour: int, rows: list[bytes], *extra: bytes) -> bytes:
    """Return a PNG of these unfiltered rows."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = (chunk(b"IHDR", head), *extra, chunk(b"IDAT", body), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def black(width: int, height: int, bits: int, colour: int) -> bytes:
    """Return a black PNG of any size."""
    line = bytes((width * {0: 1, 2: 3}[colour] * bits + 7) // 8)
    return png(width, height, bits, colour, [line] * height)


def tiff(
    pixels: bytes, width: int, height: int, *, bits: int, order: str = "<", **fields: int
) -> bytes:
    """Return an uncompressed TIFF of one strip."""
    samples = fields.pop("samples", 1)
    entries = [(256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 1),
               (262, 3, fields.pop("photometric", 1)), (273, 4, 8), (277, 3, samples),
               (278, 4, fields.pop("rows", height)), (279, 4, len(pixels))]  # fmt: skip
    if samples > 1:
        at = 8 + len(pixels)
        pixels += struct.pack(order + "H", bits) * samples
        entries[2] = (258, 3, at)
    entries += [(int(tag[1:]), 3, value) for tag, value in sorted(fields.items())]
    table = struct.pack(order + "H", len(entries))
    for tag, kind, value in entries:
        count = samples if tag == 258 else 1
        wide = kind == 4 or count > 1
        table += struct.pack(order + "HHI", tag, kind, count)
        table += struct.pack(order + ("I" if wide else "HH"), *((value,) if wide else (value, 0)))
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8 + len(pixels))
    return head + pixels + table + bytes(4)


def orientation_block(value: int) -> bytes:
    """Return an EXIF block with this orientation."""
    block = Image.Exif()
    block[0x0112] = value
    return block.tobytes()


def with_segment(jpeg: bytes, marker: int, payload: bytes) -> bytes:
    """Return the JPEG with one more segment at its beginning."""
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + jpeg[2:]


def over(colour: Array, alpha: Array, background: Array) -> Array:
    """Return colour over background, computed in floating point."""
    share = alpha.astype(float) / np.iinfo(alpha.dtype).max
    return np.rint(colour * share + background * (1 - share)).astype(colour.dtype)
