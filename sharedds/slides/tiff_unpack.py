"""What one tile or strip of a TIFF stores, decompressed; never more bytes than its layout asks for.

Deflate, LZMA and Zstandard are decoded here. For LZW and PackBits, which compress plain bytes too,
libvips gets a grey picture that is made of those bytes; predictors and depths stay our business.
"""

from __future__ import annotations

import io
import lzma
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError
from sharedds.slides.libvips import load_libvips, quiet

__all__ = ["jpeg_2000_pixels", "unpacked"]

_LZW, _PACKBITS, _ZSTD, _LZMA = 5, 32773, 50000, 34925
_DEFLATE = (8, 32946)
_TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_YCC_2000 = 33003
_entry = struct.Struct("<HHII")
_ENTRIES = 9


def unpacked(
    stored: bytes,
    compression: int,
    *,
    rows: int,
    row_bytes: int,
    reversed_bits: bool = False,
) -> bytes | bytearray | memoryview:
    """Return the bytes of a tile or strip.

    Args:
        stored: As it lies in the file.
        compression: Number of TIFF.
        rows: Rows wanted; what comes after them is left.
        row_bytes: Bytes of each.
        reversed_bits: Whether the lowest bit of each byte is its first.

    Raises:
        DecodeError: It is damaged, or holds fewer bytes.
        MissingExtraError: It needs libvips, which is not installed.
    """
    size = rows * row_bytes
    if reversed_bits:
        stored = stored.translate(_TURNED)
    if compression == 1:
        found: bytes | bytearray | memoryview = stored
    elif compression in _DEFLATE:
        found = _inflated(stored, size)
    elif compression == _LZMA:
        found = _from_lzma(stored, size)
    elif compression == _ZSTD:
        found = _from_zstd(stored, size)
    else:
        found = _by_libvips(stored, compression, rows, row_bytes)
    if len(found) < size:
        raise DecodeError(f"holds {len(found):,} bytes of {size:,}")
    return found if len(found) == size else memoryview(found)[:size]


def _inflated(stored: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(stored, size)
    except zlib.error as error:
        raise DecodeError(f"its deflate data is damaged ({error})") from error


def _from_lzma(stored: bytes, size: int) -> bytes:
    try:
        return lzma.LZMADecompressor(memlimit=1 << 28).decompress(stored, size)
    except (lzma.LZMAError, EOFError) as error:
        raise DecodeError(f"its LZMA data is damaged ({error})") from error


def _from_zstd(stored: bytes, size: int) -> bytearray:
    from numcodecs import zstd  # noqa: PLC0415 - seldom needed

    room = bytearray(size)
    try:
        zstd.decompress(stored, room)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise DecodeError(f"its Zstandard data is damaged ({error})") from error
    return room


def _by_libvips(stored: bytes, compression: int, rows: int, row_bytes: int) -> bytes:
    pyvips = load_libvips("TIFF with " + ("LZW" if compression == _LZW else "PackBits"))
    file = _grey(stored, compression, row_bytes, rows)
    try:
        with quiet():
            image = pyvips.Image.tiffload_buffer(file, fail_on="error", access="sequential")
            return bytes(image.write_to_memory())
    except pyvips.Error as error:
        reason = error.detail.strip().splitlines()[-1:] or ["no reason given"]
        raise DecodeError(f"its compressed data is damaged or cut short ({reason[0]})") from error


def _grey(stored: bytes, compression: int, width: int, height: int) -> bytes:
    """Return a TIFF of one strip whose pixels are the bytes."""
    start = 8 + 2 + _ENTRIES * _entry.size + 4
    entries = (
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, compression),
        (262, 3, 1, 1),
        (273, 4, 1, start),
        (277, 3, 1, 1),
        (278, 4, 1, height),
        (279, 4, 1, len(stored)),
    )
    table = b"".join(_entry.pack(*entry) for entry in entries)
    return struct.pack("<2sHIH", b"II", 42, 8, _ENTRIES) + table + bytes(4) + stored


def jpeg_2000_pixels(
    stored: bytes, compression: int, shape: tuple[int, int, int]
) -> npt.NDArray[Any]:
    """Decode a JPEG 2000 tile, uint8, which may be larger than ``shape``: it is cut.

    Raises:
        DecodeError: It is damaged, or of another kind.
    """
    from PIL import Image, Jpeg2KImagePlugin  # noqa: PLC0415 - seldom needed

    height, width, channels = shape
    try:
        with Jpeg2KImagePlugin.Jpeg2KImageFile(io.BytesIO(stored)) as image:
            size, mode = image.size, image.mode
            fits = width <= size[0] <= 2 * width + 64 and height <= size[1] <= 2 * height + 64
            if mode != ("L" if channels == 1 else "RGB") or not fits:
                raise DecodeError(
                    f"is a JPEG 2000 of {size[0]} x {size[1]} pixels ({mode}), expected "
                    f"{width} x {height} with {channels} channels"
                )
            image.load()
            plain: Image.Image = image
            if compression == _YCC_2000 and channels == 3:
                parts = image.split()
                plain = Image.merge("YCbCr", parts).convert("RGB")
            pixels = np.asarray(plain).reshape(size[1], size[0], channels)
    except DecodeError:
        raise
    except Exception as error:  # whatever a damaged stream makes the library raise
        reason = str(error).strip() or type(error).__name__
        raise DecodeError(f"its JPEG 2000 data is damaged ({reason})") from error
    return pixels[:height, :width]
