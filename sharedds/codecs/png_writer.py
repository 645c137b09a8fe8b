"""Writes a PNG strip by strip: beside the result it takes a few MB, however large the picture.

Each row is stored as differences to its neighbours, by one of five filters. Pillow tries them all
for 8-bit samples and takes the one with the smallest sum, at the speed of C; here it does so for a
strip at a time, which is compressed by itself into the same stream.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sharedds.codecs.png_chunks import MAGIC, make_chunk, walk

__all__ = ["write_png", "write_png16"]

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_SUB = 1  # the filter that stores the difference to the pixel on the left
_PHOTOGRAPHS = (5, zlib.Z_FILTERED)  # 1 % larger than level 6, in two thirds of the time
_STRIP = 1 << 20  # bytes that are filtered together


def write_png(array: NDArray[np.uint8]) -> bytes:
    """Encode a uint8 array (H, W, 1..4 channels) as PNG."""
    return _file(array, 8, _filtered_by_pillow(array))


def write_png16(array: NDArray[np.uint16]) -> bytes:
    """Encode a uint16 array (H, W, 1..4 channels) as PNG with all its bits."""
    return _file(array, 16, _filtered_by_sub(array))


def _file(array: NDArray[Any], bits: int, filtered: Iterable[bytes]) -> bytes:
    height, width, channels = array.shape
    head = struct.pack(">IIBBBBB", width, height, bits, _COLOUR_TYPES[channels], 0, 0, 0)
    # Unlike a list of parts that are joined, a BytesIO never holds the result twice.
    file = io.BytesIO()
    file.write(MAGIC)
    file.write(make_chunk(b"IHDR", head))
    # The high bytes of 16-bit samples repeat: as filtered data they are up to a sixth larger.
    level, strategy = _PHOTOGRAPHS if bits == 8 else (6, zlib.Z_DEFAULT_STRATEGY)
    stream = zlib.compressobj(level, strategy=strategy)
    for strip in filtered:
        piece = stream.compress(strip)
        if piece:
            file.write(make_chunk(b"IDAT", piece))
    file.write(make_chunk(b"IDAT", stream.flush()))
    file.write(make_chunk(b"IEND", b""))
    return file.getvalue()


def _starts(array: NDArray[Any]) -> range:
    """Return the first row of each strip."""
    return range(0, len(array), max(1, _STRIP // array[0].nbytes))


def _filtered_by_pillow(array: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the strips, each row filtered by the filter that Pillow finds best for it."""
    starts = _starts(array)
    size = 1 + array[0].nbytes
    for start in starts:
        # A filter looks at the row above, so the strip is given it too, and it is cut off again.
        above = min(start, 1)
        strip = np.ascontiguousarray(array[start - above : start + starts.step])
        image = Image.frombytes(
            _MODES[array.shape[2]], (array.shape[1], len(strip)), strip.reshape(-1).data
        )
        stored = io.BytesIO()
        image.save(stored, "PNG", compress_level=0)
        data = stored.getbuffer()
        body = b"".join(data[at:end] for kind, at, end in walk(data) if kind == b"IDAT")
        yield zlib.decompress(body)[above * size :]


def _filtered_by_sub(array: NDArray[np.uint16]) -> Iterator[bytes]:
    """Yield the strips, each sample as the difference to the one on its left, byte by byte."""
    starts = _starts(array)
    step = 2 * array.shape[2]
    for start in starts:
        strip = np.ascontiguousarray(array[start : start + starts.step].astype(">u2"))
        rows = strip.view(np.uint8).reshape(len(strip), -1)
        filtered = np.empty((len(rows), 1 + rows.shape[1]), np.uint8)
        filtered[:, 0] = _SUB
        filtered[:, 1 : 1 + step] = rows[:, :step]
        np.subtract(rows[:, step:], rows[:, :-step], out=filtered[:, 1 + step :])
        yield filtered.tobytes()
