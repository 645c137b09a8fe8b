"""Decompressed bytes of a TIFF tile as numbers: predictors, byte order, odd depths, YCbCr."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.slides.tiff_page import TiffPage

__all__ = ["finished", "samples_of"]

Array = npt.NDArray[Any]

_AT_ONCE = 1 << 20  # samples of an odd depth that are unpacked together: each takes 8 times as much
_REC_601 = (0.299, 0.587, 0.114)
_FULL_RANGE = (0.0, 255.0, 128.0, 255.0, 128.0, 255.0)


def samples_of(page: TiffPage, data: bytes | bytearray | memoryview, rows: int) -> Array:
    """Return the numbers of a stored unit, (rows, columns, samples), in native byte order.

    Args:
        page: Its layout.
        data: The decompressed bytes, ``page.unit_bytes(rows)`` of them.
        rows: Of this unit.
    """
    wide, samples = page.unit[1], page.unit_samples
    if page.is_subsampled:
        return _spread(page, data, rows)
    if page.bits % 8:
        return _odd_depth(page, data, rows)
    if page.predictor == 3:
        return _float_differences(page, data, rows)
    stored = np.dtype(f"{page.order}{page.kind}{page.bits // 8}")
    numbers = np.frombuffer(data, stored).reshape(rows, wide, samples)
    numbers = numbers.astype(stored.newbyteorder("="), copy=False)
    if page.predictor == 2:
        numbers = np.add.accumulate(numbers, axis=1, dtype=numbers.dtype)
    return numbers


def _odd_depth(page: TiffPage, data: bytes | bytearray | memoryview, rows: int) -> Array:
    """Unpack samples that are no whole bytes: the highest bit first, rows begin at a byte."""
    wide = page.unit[1] * page.unit_samples
    packed = np.frombuffer(data, np.uint8).reshape(rows, -1)
    kind = np.uint8 if page.bits < 8 else np.uint16
    numbers = np.empty((rows, wide), kind)
    step = max(1, _AT_ONCE // wide)
    for first in range(0, rows, step):
        bits = np.unpackbits(packed[first : first + step], axis=1)
        bits = bits[:, : wide * page.bits].reshape(-1, wide, page.bits)
        part = numbers[first : first + step]
        part[:] = 0
        for bit in range(page.bits):
            part <<= 1
            part |= bits[:, :, bit]
    return numbers.reshape(rows, page.unit[1], page.unit_samples)


def _float_differences(page: TiffPage, data: bytes | bytearray | memoryview, rows: int) -> Array:
    """Undo predictor 3: bytes of a row by significance, the highest first, as differences."""
    size = page.bits // 8
    bytes_ = np.frombuffer(data, np.uint8).reshape(rows, -1, page.unit_samples)
    planes = np.add.accumulate(bytes_, axis=1, dtype=np.uint8).reshape(rows, size, -1)
    numbers = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(f">f{size}")
    return numbers.astype(f"f{size}").reshape(rows, page.unit[1], page.unit_samples)


def _spread(page: TiffPage, data: bytes | bytearray | memoryview, rows: int) -> Array:
    """Return RGB of YCbCr where a block of pixels has one colour, stored after its greys."""
    wide, high = page.subsampling
    down, across = -(-rows // high), -(-page.unit[1] // wide)
    blocks = np.frombuffer(data, np.uint8).reshape(down, across, wide * high + 2)
    grey = blocks[..., :-2].reshape(down, across, high, wide).transpose(0, 2, 1, 3)
    parts = [grey.reshape(down * high, across * wide)]
    parts += [blocks[..., n].repeat(high, 0).repeat(wide, 1) for n in (-2, -1)]
    return _rgb(page, np.stack(parts, -1)[:rows, : page.unit[1]])


def _rgb(page: TiffPage, ycc: Array) -> Array:
    """Return RGB by the weights of the file, the usual ones where it has none."""
    usable = len(page.luma) == 3 and all(0.01 <= weight <= 1 for weight in page.luma)
    red, green, blue = page.luma if usable else _REC_601
    ends = page.levels if _are_levels(page.levels) else _FULL_RANGE
    black, white = ends[::2], ends[1::2]
    full = (255.0, 127.0, 127.0)
    y, cb, cr = (
        (ycc[..., n].astype(np.float32) - black[n]) * (full[n] / (white[n] - black[n]))
        for n in range(3)
    )
    r = cr * (2 - 2 * red) + y
    b = cb * (2 - 2 * blue) + y
    g = (y - blue * b - red * r) / green
    return np.stack([r, g, b], -1).round().clip(0, 255).astype(np.uint8)


def _are_levels(ends: tuple[float, ...]) -> bool:
    within = len(ends) == 6 and all(0 <= end <= 255 for end in ends)
    return within and all(
        white - black >= 1 for black, white in zip(ends[::2], ends[1::2], strict=True)
    )


def finished(page: TiffPage, samples: Array) -> Array:
    """Return what is handed out of all samples (h, w, samples): 0 is black, no palette, no alpha.

    Depths below 8 bits are stretched to 0 ... 255, as every viewer shows them; others are kept.
    """
    if page.photometric == 3:
        colours: Array = np.frombuffer(page.palette, np.uint16).reshape(3, -1).T
        if colours.max() > 255:  # some writers fill the lower byte only
            colours = colours >> 8
        return colours.astype(np.uint8)[samples[..., 0]]
    if page.has_alpha:
        samples = samples[..., :-1]
    if page.photometric == 0 and page.kind == "u":
        samples = samples.dtype.type((1 << page.bits) - 1) - samples
    if page.bits < 8:
        samples = (
            samples * np.uint8(255 // ((1 << page.bits) - 1))
            if 8 % page.bits == 0
            else (samples.astype(np.uint16) * 255 // ((1 << page.bits) - 1)).astype(np.uint8)
        )
    return samples
