"""Blocks of arrays as bytes: raw, LZ4 or Zstandard, with or without byte shuffling.

Stored lengths are not trusted. A block is decoded into a buffer of the size that its dtype and
shape ask for, after the length it claims for itself has been compared with that size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numcodecs import LZ4, Zstd
from numpy.typing import DTypeLike, NDArray

from sharedds.codecs.header import BytesLike, as_bytes_like
from sharedds.errors import DecodeError, OptionError

__all__ = ["BLOCK_CODECS", "decode_block", "encode_block"]

BLOCK_CODECS = ("raw", "lz4", "zstd")

_MAX_BLOCK = 0x7E00_0000  # LZ4's own limit of input, just under 2 GiB
_ZSTD_MAGIC = 0xFD2F_B528
_ZSTD_LEVEL = 3
_coders: dict[str, Any] = {"lz4": LZ4(), "zstd": Zstd(level=_ZSTD_LEVEL)}  # without state


def _require_codec(codec: str) -> None:
    if codec not in BLOCK_CODECS:
        raise OptionError(f"codec={codec!r}: blocks are coded as {', '.join(BLOCK_CODECS)}")


def _plain(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype, refusing those whose bytes are not their values."""
    plain = np.dtype(dtype)
    if plain.hasobject or plain.itemsize == 0:
        raise OptionError(f"arrays of {plain} cannot be stored as blocks; use numbers")
    return plain


def encode_block(array: NDArray[Any], codec: str, *, shuffle: bool) -> bytes:
    """Encode an array of numbers in C order.

    Args:
        array: Any shape; its dtype (byte order included) and shape are needed for decoding.
        codec: ``"raw"``, ``"lz4"`` or ``"zstd"``.
        shuffle: Group the bytes of all elements by significance first, which helps compression of
            elements of several bytes.

    Raises:
        OptionError: Another codec, a dtype of objects, or an array over 1.97 GiB.
    """
    _require_codec(codec)
    itemsize = _plain(array.dtype).itemsize
    if array.nbytes > _MAX_BLOCK:
        raise OptionError(f"a block of {array.nbytes:,} bytes; cut it below {_MAX_BLOCK:,}")
    if array.nbytes == 0:
        return b""
    data: NDArray[np.uint8] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    if shuffle and itemsize > 1:
        data = _shuffled(data, itemsize)
    if codec == "raw":
        return data.tobytes()
    return bytes(_coders[codec].encode(data))


def decode_block(
    data: BytesLike, codec: str, *, dtype: DTypeLike, shape: Sequence[int], shuffle: bool
) -> NDArray[Any]:
    """Decode a block to an array of exactly this dtype and shape.

    Args:
        data: What :func:`encode_block` returned.
        codec: The codec it was encoded with.
        dtype: Dtype of the elements, byte order included.
        shape: Shape of the array.
        shuffle: Whether it was encoded with ``shuffle``.

    Returns:
        A raw block without shuffle is a read-only view of ``data`` (a copy if ``data`` does not lie
        where its dtype may lie); anything else is a new array. Never more is allocated than the
        shape asks for (twice, with shuffle).

    Raises:
        DecodeError: The block is damaged, or holds another number of bytes.
        OptionError: Another codec, or a dtype of objects.
    """
    _require_codec(codec)
    element = _plain(dtype)
    data = as_bytes_like(data)
    shape = tuple(shape)
    if any(side < 0 for side in shape):
        raise OptionError(f"shape={shape}: sides cannot be negative")
    expected = math.prod(shape) * element.itemsize
    if expected == 0:
        if len(data):
            raise DecodeError(f"a block of shape {shape} holds {len(data)} bytes, expected none")
        return np.empty(shape, element)
    shuffled = shuffle and element.itemsize > 1
    if codec == "raw":
        if len(data) != expected:
            raise DecodeError(f"a raw block holds {len(data):,} bytes, expected {expected:,}")
        flat = np.frombuffer(data, np.uint8)
        if not shuffled:
            return _view(flat, element, shape)
    else:
        flat = _decompress(data, codec, expected)
    if shuffled:
        flat = _unshuffled(flat, element.itemsize)
    return flat.view(element).reshape(shape)


def _shuffled(flat: NDArray[np.uint8], itemsize: int) -> NDArray[np.uint8]:
    """Put the first bytes of all elements first, then all second ones, and so on.

    This is the order of Blosc and of numcodecs' Shuffle, which holds the interpreter while it
    works; NumPy copies a plane at a time just as fast and lets other threads run.
    """
    elements = flat.reshape(-1, itemsize)
    planes = np.empty((itemsize, len(elements)), np.uint8)
    for byte in range(itemsize):
        planes[byte] = elements[:, byte]
    return planes.reshape(-1)


def _unshuffled(flat: NDArray[np.uint8], itemsize: int) -> NDArray[np.uint8]:
    planes = flat.reshape(itemsize, -1)
    elements = np.empty((planes.shape[1], itemsize), np.uint8)
    for byte in range(itemsize):
        elements[:, byte] = planes[byte]
    return elements.reshape(-1)


def _view(flat: NDArray[np.uint8], element: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if flat.__array_interface__["data"][0] % element.alignment:
        flat = flat.copy()
    array = flat.view(element).reshape(shape)
    array.flags.writeable = False
    return array


def _decompress(data: BytesLike, codec: str, expected: int) -> NDArray[np.uint8]:
    claimed = _lz4_size(data) if codec == "lz4" else _zstd_size(data)
    if claimed != expected:
        raise DecodeError(f"a {codec} block claims {claimed:,} bytes, expected {expected:,}")
    out = np.empty(expected, np.uint8)
    try:
        _coders[codec].decode(np.frombuffer(data, np.uint8), out=out)
    except Exception as error:  # RuntimeError, ValueError or OverflowError, as the library likes
        raise DecodeError(f"a {codec} block of {len(data):,} bytes is damaged: {error}") from error
    return out


def _lz4_size(data: BytesLike) -> int:
    """Return the length that numcodecs writes before an LZ4 block."""
    if len(data) < 5:
        raise DecodeError(f"an lz4 block is truncated: {len(data)} bytes")
    (size,) = struct.unpack_from("<I", data)
    return int(size)


def _zstd_size(data: BytesLike) -> int:
    """Return the content size in the header of a Zstandard frame (RFC 8878, section 3.1.1)."""
    if len(data) < 6 or struct.unpack_from("<I", data)[0] != _ZSTD_MAGIC:
        raise DecodeError(f"a zstd block of {len(data)} bytes does not begin with a frame")
    descriptor = data[4]
    single, dictionary = descriptor >> 5 & 1, (0, 1, 2, 4)[descriptor & 3]
    length = (single, 2, 4, 8)[descriptor >> 6]
    at = 5 + (1 - single) + dictionary
    if length == 0 or at + length > len(data):
        raise DecodeError("a zstd block does not say how many bytes it holds")
    size = int.from_bytes(data[at : at + length], "little")
    return size + 256 if length == 2 else size
