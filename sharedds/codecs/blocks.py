"""Blocks of arrays as bytes: raw, LZ4, Zstandard or Blosc, with or without byte shuffling.

Stored lengths are not trusted. A block is decoded into a buffer of the size that its dtype and
shape ask for, after the length it claims for itself has been compared with that size.

How hard an encoder searches is nobody's business but the writer's: any decoder reads the result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numcodecs import LZ4, Zstd, lz4, zstd
from numpy.typing import DTypeLike, NDArray

from sharedds.codecs.frames import (
    COPIED,
    FORMATS,
    HEADER,
    ONE_THREAD,
    SHUFFLED,
    WHOLE,
    FrameRoom,
    address_of,
    compressed,
    decode_frame,
    encode_frame,
    find_decompress,
    hidden,
    typesize_of,
)
from sharedds.codecs.header import BytesLike, as_bytes_like
from sharedds.errors import DecodeError, OptionError

__all__ = ["BLOCK_CODECS", "MAX_EFFORT", "BlockDecoder", "decode_block", "encode_block"]

BLOCK_CODECS = ("raw", "lz4", "zstd", "blosc")
MAX_EFFORT = {"raw": 0, "lz4": 9, "zstd": 19, "blosc": 9}  # the most that each encoder can be told

_MAX_BLOCK = 0x7E00_0000  # LZ4's own limit of input, just under 2 GiB
_ZSTD_MAGIC = 0xFD2F_B528
_ZSTD_LEVEL = 3
_coders: dict[str, Any] = {"lz4": LZ4(), "zstd": Zstd(level=_ZSTD_LEVEL)}  # without state

_decoders: dict[str, Any] = {"lz4": lz4.decompress, "zstd": zstd.decompress}

# Blosc 1, which comes with numcodecs, wraps LZ4 and Zstandard blocks in a container, its frame.
# Taken out of one, its LZ4 HC blocks are ours; put into one, several plain blocks are decoded and
# unshuffled by one call, in half the time. A "blosc" block is stored as such a frame: it is decoded
# where it lies, without the copy that makes a container.
_NUMBER = struct.Struct("<I")
_AHEAD = {"lz4": 4, "zstd": 0}  # bytes before what the container takes: a length
_MIN_CONTAINER, _MAX_CONTAINER = 1 << 10, 0x2A00_0000  # bytes that are surely allowed, and worth it
_RUN = 384 << 10  # bytes that are decoded at once, so that the processor has them at hand


_decompress_all = find_decompress()


def _require_codec(codec: str) -> None:
    if codec not in BLOCK_CODECS:
        raise OptionError(f"codec={codec!r}: blocks are coded as {', '.join(BLOCK_CODECS)}")


def _plain(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype, refusing those whose bytes are not their values."""
    plain = np.dtype(dtype)
    if plain.hasobject or plain.itemsize == 0:
        raise OptionError(f"arrays of {plain} cannot be stored as blocks; use numbers")
    return plain


def encode_block(array: NDArray[Any], codec: str, *, shuffle: bool, effort: int = 0) -> bytes:
    """Encode an array of numbers in C order.

    Args:
        array: Any shape; its dtype (byte order included) and shape are needed for decoding.
        codec: ``"raw"``, ``"lz4"``, ``"zstd"`` or ``"blosc"``, LZ4 in a frame.
        shuffle: Group the bytes of all elements by significance first, which helps compression of
            elements of several bytes.
        effort: 0 is fast. More makes blocks smaller, and those of LZ4 faster to decode: 1 to 9 for
            ``"lz4"`` and ``"blosc"`` (the HC encoder), 1 to 19 for ``"zstd"`` (its level; 0 is
            level 3).

    Raises:
        OptionError: Another codec or effort, a dtype of objects, or an array over 1.97 GiB.
    """
    _require_codec(codec)
    if not 0 <= effort <= MAX_EFFORT[codec]:
        raise OptionError(f"effort={effort}: 0 to {MAX_EFFORT[codec]} for {codec!r}")
    itemsize = _plain(array.dtype).itemsize
    if array.nbytes > _MAX_BLOCK:
        raise OptionError(f"a block of {array.nbytes:,} bytes; cut it below {_MAX_BLOCK:,}")
    if array.nbytes == 0:
        return b""
    data: NDArray[np.uint8] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    if codec == "blosc":
        return encode_frame(data, typesize_of(itemsize, shuffle=shuffle), effort)
    if shuffle and itemsize > 1:
        data = _shuffled(data, itemsize)
    if codec == "raw":
        return data.tobytes()
    if effort and codec == "lz4":
        return _lz4_hc(data, effort)
    coder = Zstd(level=effort) if effort else _coders[codec]
    return bytes(coder.encode(data))


def _lz4_hc(data: NDArray[np.uint8], effort: int) -> bytes:
    """Return an LZ4 block of the HC encoder, as numcodecs' own LZ4 writes it: its length first."""
    if len(data) <= _MAX_CONTAINER:
        coded = compressed(data, b"lz4hc", effort, part=len(data), typesize=1)
        _, _, flags, _, _, part, _ = HEADER.unpack_from(coded)
        if part == len(data) and not flags & COPIED:  # some versions cut what is over 256 KiB
            (start,) = _NUMBER.unpack_from(coded, HEADER.size)
            (length,) = _NUMBER.unpack_from(coded, start)
            if length < len(data):  # else that is a copy too
                return _NUMBER.pack(len(data)) + bytes(coded[start + 4 : start + 4 + length])
    return bytes(_coders["lz4"].encode(data))


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
    if codec == "blosc":
        flat = np.empty(expected, np.uint8)
        typesize = typesize_of(element.itemsize, shuffle=shuffle)
        decode_frame(data, flat, typesize, _decompress_all)
        return flat.view(element).reshape(shape)
    if codec == "raw":
        if len(data) != expected:
            raise DecodeError(f"a raw block holds {len(data):,} bytes, expected {expected:,}")
        flat = np.frombuffer(data, np.uint8)
        if not shuffled:
            return _view(flat, element, shape)
    else:
        flat = np.empty(expected, np.uint8)
        _decompress(data, codec, flat)
    if shuffled:
        planes, flat = flat, np.empty(expected, np.uint8)
        _unshuffle(planes, flat, element.itemsize)
    return flat.view(element).reshape(shape)


class BlockDecoder:
    """Decodes blocks of one array one after another, in memory that is used again and again.

    Blocks lie where others lay before them: copy what you keep. One thread at a time.

    Args:
        codec: The codec they were encoded with.
        dtype: Dtype of the elements, byte order included.
        shuffle: Whether they were encoded with ``shuffle``.
        blank: Gives what a block of no bytes shows, of a shape that can be spread over that of the
            block; without it such a block is damaged.

    Raises:
        OptionError: Another codec, or a dtype of objects.
    """

    def __init__(
        self,
        codec: str,
        dtype: DTypeLike,
        *,
        shuffle: bool,
        blank: Callable[[], NDArray[Any]] | None = None,
    ) -> None:
        _require_codec(codec)
        self._blank = blank
        self._codec = codec
        self._element = _plain(dtype)
        self._shuffled = shuffle and self._element.itemsize > 1
        self._rooms: dict[int, NDArray[np.uint8]] = {}
        self._typesize = typesize_of(self._element.itemsize, shuffle=shuffle)

    def decode_found(
        self, found: Iterable[tuple[BytesLike, int]], shapes: Sequence[tuple[int, ...]]
    ) -> Iterator[NDArray[Any]]:
        """Yield ``"blosc"`` blocks, as :meth:`decode_all`, decoded where they are stored.

        Args:
            found: Blocks, and the address of each: to ask a view for it takes longer than all else
                here. What lies there must stay until the next block is asked for.
            shapes: The shape of each block.

        Raises:
            DecodeError: A block is damaged, or holds another number of bytes.
        """
        rooms: dict[tuple[int, ...], FrameRoom] = {}
        decompress = _decompress_all
        for (data, address), shape in zip(found, shapes, strict=True):
            room = rooms.get(shape)
            if room is None:  # blocks at the edges are smaller: there are few shapes
                if not len(data) or 0 in shape:
                    yield self._decode_alone(data, shape)
                    continue
                room = rooms[shape] = FrameRoom(shape, self._element, self._typesize)
            if (
                room.fits(data)
                and decompress(address, room.place, room.size, ONE_THREAD) == room.nbytes
            ):
                yield room.array
            else:  # it says what is wrong
                yield self._decode_alone(data, shape)

    def decode_all(
        self, stored: Iterable[BytesLike], shapes: Sequence[tuple[int, ...]]
    ) -> Iterator[NDArray[Any]]:
        """Yield blocks, each to be read before the next one; as :func:`decode_block` otherwise.

        Those of no bytes are views of what they show, which take no memory.

        Args:
            stored: What :func:`encode_block` returned; taken a few at a time.
            shapes: The shape of each block; neighbours of one shape are decoded together.

        Raises:
            DecodeError: A block is damaged, or holds another number of bytes.
        """
        if self._codec == "blosc":
            places = ((data, address_of(data)) for data in map(as_bytes_like, stored))
            yield from self.decode_found(places, shapes)
            return
        run: list[BytesLike] = []
        for at, (data, shape) in enumerate(zip(stored, shapes, strict=True), 1):
            if self._blank is not None and not len(data) and 0 not in shape:
                if run:
                    yield from self._decode_run(run, shapes[at - 2])
                    run = []
                yield np.broadcast_to(self._blank(), shape)
                continue
            run.append(data)
            full = (len(run) + 1) * math.prod(shape) * self._element.itemsize > _RUN
            if full or at == len(shapes) or shapes[at] != shape:
                yield from self._decode_run(run, shape)
                run = []

    def _decode_run(self, run: list[BytesLike], shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
        size = math.prod(shape) * self._element.itemsize
        if self._codec == "raw" and not self._shuffled and all(len(data) == size for data in run):
            for data in run:  # as decode_block, without a second look at what does not change
                yield _view(np.frombuffer(data, np.uint8), self._element, shape)
            return
        if self._codec == "raw" or not self._together(run, size):
            yield from (self._decode_alone(data, shape) for data in run)
            return
        room = self._room(len(run) * size)
        packed = _contained(run, self._codec, size, self._element.itemsize if self._shuffled else 1)
        if _decompress_all(packed, room.ctypes.data, len(room), 1) == len(room):
            yield from room.view(self._element).reshape(-1, *shape)
        else:  # one of them says what is wrong
            yield from (self._decode_alone(data, shape) for data in run)

    def _together(self, run: list[BytesLike], size: int) -> bool:
        """Whether a container can hold these blocks."""
        if not _MIN_CONTAINER <= size <= _MAX_CONTAINER or _decompress_all is hidden:
            return False
        ahead = _AHEAD[self._codec]
        return all(len(data) - ahead < size and _claims(data, self._codec) == size for data in run)

    def _room(self, size: int) -> NDArray[np.uint8]:
        room = self._rooms.get(size)
        if room is None:  # blocks at the edges are smaller: there are few sizes
            room = self._rooms[size] = np.empty(size, np.uint8)
        return room

    def _decode_alone(self, data: BytesLike, shape: tuple[int, ...]) -> NDArray[Any]:
        if self._blank is not None and not len(data) and 0 not in shape:
            return np.broadcast_to(self._blank(), shape)
        return decode_block(
            data, self._codec, dtype=self._element, shape=shape, shuffle=self._shuffled
        )


def _contained(run: list[BytesLike], codec: str, size: int, itemsize: int) -> bytes:
    """Return a container of blocks that are all shorter than ``size``, their decoded length."""
    ahead = _AHEAD[codec]
    at = HEADER.size + 4 * len(run)
    starts: list[int] = []
    parts: list[bytes | memoryview] = [b"", b""]
    for data in run:
        length = len(data) - ahead
        starts.append(at)
        parts += (_NUMBER.pack(length), memoryview(data)[ahead:])
        at += 4 + length
    flags = FORMATS[codec] | WHOLE | (SHUFFLED if itemsize > 1 else 0)
    parts[0] = HEADER.pack(2, 1, flags, itemsize, size * len(run), size, at)
    parts[1] = struct.pack(f"<{len(run)}I", *starts)
    return b"".join(parts)


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


def _unshuffle(flat: NDArray[np.uint8], out: NDArray[np.uint8], itemsize: int) -> None:
    planes, elements = flat.reshape(itemsize, -1), out.reshape(-1, itemsize)
    for byte in range(itemsize):
        elements[:, byte] = planes[byte]


def _view(flat: NDArray[np.uint8], element: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if flat.__array_interface__["data"][0] % element.alignment:
        flat = flat.copy()
    array = flat.view(element).reshape(shape)
    array.flags.writeable = False
    return array


def _decompress(data: BytesLike, codec: str, out: NDArray[np.uint8]) -> None:
    _require_size(data, codec, len(out))
    try:
        _decoders[codec](np.frombuffer(data, np.uint8), out)
    except Exception as error:  # RuntimeError, ValueError or OverflowError, as the library likes
        raise DecodeError(f"a {codec} block of {len(data):,} bytes is damaged: {error}") from error


def _require_size(data: BytesLike, codec: str, expected: int) -> None:
    claimed = _lz4_size(data) if codec == "lz4" else _zstd_size(data)
    if claimed != expected:
        raise DecodeError(f"a {codec} block claims {claimed:,} bytes, expected {expected:,}")


def _claims(data: BytesLike, codec: str) -> int:
    """Return how many bytes a block says it holds; -1 where it does not."""
    try:
        return _lz4_size(data) if codec == "lz4" else _zstd_size(data)
    except DecodeError:
        return -1


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
