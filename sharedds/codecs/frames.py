"""Blosc 1 frames: blocks as they are stored, and containers that are put together in memory.

A frame says how long it and its parts are. Nothing of that is trusted: it is compared with what is
there and what is expected before Blosc, which checks every offset and length inside, reads it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray

from sharedds.codecs.header import BytesLike
from sharedds.errors import DecodeError, OptionError

__all__ = [
    "COPIED",
    "FORMATS",
    "HEADER",
    "ONE_THREAD",
    "SHUFFLED",
    "WHOLE",
    "FrameRoom",
    "address_of",
    "compressed",
    "decode_frame",
    "encode_frame",
    "find_decompress",
    "hidden",
    "require_frame",
    "typesize_of",
]

HEADER = struct.Struct("<BBBBIII")  # versions, flags, itemsize, bytes: all, of a block, stored
SHUFFLED, COPIED, BITS, WHOLE = 1, 2, 4, 16  # flags
FORMATS = {"lz4": 1 << 5, "zstd": 4 << 5}
_FORMAT = 7 << 5
_VERSIONS = (2, 1)  # of the frame, and of LZ4 in it
ONE_THREAD = ctypes.c_int(1)  # as Blosc takes it
_START = struct.Struct("<QII")  # the same header: what frames of one kind share, and the rest
_INNER = 256 << 10  # bytes that Blosc decodes at once: more would leave the processor's cache


def hidden(_packed: bytes | int, _out: int, _size: int, _threads: int) -> int:
    """Stand for a function that a build of numcodecs does not show."""
    return -1


def find_decompress() -> Callable[..., int]:
    """Return Blosc's own function, which needs no lock and starts no thread.

    It takes the frame (bytes, or the address of a frame that was checked), the address and the size
    of the result and how many threads, and returns how many bytes it wrote. numcodecs' way to it
    takes as long as decoding a small block, and uses threads in some places.
    """
    found: Any = getattr(_library(), "blosc_decompress_ctx", None)
    if found is None:
        return hidden
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.restype = ctypes.c_int
    function: Callable[..., int] = found
    return function


def _find_compress() -> Callable[..., int] | None:
    found: Any = getattr(_library(), "blosc_compress_ctx", None)
    if found is None:
        return None
    integer, size, place = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    found.argtypes = (*(integer, integer, size, size, place, place, size), ctypes.c_char_p)
    found.argtypes += (size, integer)
    found.restype = integer
    function: Callable[..., int] = found
    return function


def _library() -> Any:
    try:
        return ctypes.CDLL(blosc.__file__)
    except OSError:
        return None


_compress = _find_compress()


def compressed(
    data: NDArray[np.uint8], codec: bytes, level: int, *, part: int, typesize: int
) -> bytes:
    """Return a frame: the same bytes for the same numbers, whoever makes it.

    numcodecs' function lets variables of the environment (BLOSC_SHUFFLE, BLOSC_COMPRESSOR, ...)
    overrule what it is told, and lets threads put the parts of a frame in any order; where there is
    no other, a frame that came out as another kind is refused.

    Args:
        data: The bytes.
        codec: ``b"lz4"`` or ``b"lz4hc"``.
        level: How hard to search.
        part: Bytes that are coded by themselves.
        typesize: Of the elements whose bytes are shuffled; 1 for no shuffle.

    Raises:
        OptionError: The environment overrules this.
    """
    how = blosc.SHUFFLE if typesize > 1 else blosc.NOSHUFFLE
    if _compress is not None:
        room = np.empty(len(data) + HEADER.size, np.uint8)
        given = (data.ctypes.data, room.ctypes.data, len(room))
        length = _compress(level, how, typesize, len(data), *given, codec, part, 1)
        if length > 0:
            return room[:length].tobytes()
    made = bytes(blosc.compress(data, codec, level, how, part, typesize))
    try:
        require_frame(made, len(data), typesize)
    except DecodeError as error:
        raise OptionError(
            "Blosc codes blocks otherwise than it is told: unset the variables BLOSC_... of the "
            "environment"
        ) from error
    return made


def typesize_of(itemsize: int, *, shuffle: bool) -> int:
    """Return what a frame says of its elements: their size where their bytes are shuffled."""
    return itemsize if shuffle and itemsize < 256 else 1


def encode_frame(data: NDArray[np.uint8], typesize: int, effort: int) -> bytes:
    """Return a frame of LZ4 blocks; with effort, 1 to 9, of its HC encoder."""
    name, level = (b"lz4hc", effort) if effort else (b"lz4", 5)
    return compressed(data, name, level, part=min(len(data), _INNER), typesize=typesize)


def require_frame(data: BytesLike, size: int, typesize: int) -> None:
    """Refuse what is no frame of LZ4 blocks with ``size`` bytes of elements of this size.

    Raises:
        DecodeError: It is none.
    """
    length = len(data)
    if length < HEADER.size:
        raise DecodeError(f"a blosc block is truncated: {length} bytes")
    version, inner, flags, itemsize, claimed, part, stored = HEADER.unpack_from(data)
    if claimed != size:
        raise DecodeError(f"a blosc block claims {claimed:,} bytes, expected {size:,}")
    if stored != length:
        raise DecodeError(f"a blosc block of {length:,} bytes claims to be {stored:,} long")
    sound = 0 < part <= size
    if flags & COPIED:
        sound = sound and stored == size + HEADER.size
    else:
        sound = sound and HEADER.size + 4 * -(-size // part) <= stored
    if (
        not sound
        or itemsize != typesize
        or flags & _FORMAT != FORMATS["lz4"]
        or flags & BITS
        or (version, inner) != _VERSIONS
    ):
        raise DecodeError(f"a blosc block of {length:,} bytes is damaged: its header")


def address_of(data: BytesLike) -> int:
    """Return where bytes lie; 0 where there are none."""
    return int(np.frombuffer(data, np.uint8).ctypes.data) if len(data) else 0


class FrameRoom:
    """Memory for decoded blocks of one shape, one after another.

    Attributes:
        array: The block.
        place: Its address, as Blosc takes it.
        size: Its bytes, as Blosc takes them.
        nbytes: Its bytes.
    """

    __slots__ = ("_least", "_part", "_start", "_typesize", "array", "nbytes", "place", "size")

    def __init__(self, shape: tuple[int, ...], element: np.dtype[Any], typesize: int) -> None:
        self.array: NDArray[Any] = np.empty(shape, element)
        self.nbytes = self.array.nbytes
        self.place = ctypes.c_void_p(self.array.ctypes.data)
        self.size = ctypes.c_size_t(self.nbytes)
        self._typesize = typesize
        self._start = self._part = self._least = -1

    def fits(self, data: BytesLike) -> bool:
        """Whether it is a frame for this room by its header, which mostly is that of the last."""
        length = len(data)
        if length < HEADER.size:
            return False
        start, part, stored = _START.unpack_from(data)
        if start == self._start and part == self._part and stored == length >= self._least:
            return True
        try:
            require_frame(data, self.nbytes, self._typesize)
        except DecodeError:
            return False
        if stored < self.nbytes:  # not one that is copied: its length is fixed too
            self._start, self._part = start, part
            self._least = HEADER.size + 4 * -(-self.nbytes // part)
        return True


def decode_frame(
    data: BytesLike, out: NDArray[np.uint8], typesize: int, decompress: Callable[..., int]
) -> None:
    """Decode a frame.

    Args:
        data: The frame.
        out: Where to; of the size it must have.
        typesize: What the frame must say of its elements.
        decompress: What :func:`find_decompress` returned.

    Raises:
        DecodeError: It is damaged, or holds another number of bytes.
    """
    require_frame(data, len(out), typesize)
    problem: Any = "its blocks"
    if decompress is hidden:
        try:
            blosc.decompress(np.frombuffer(data, np.uint8), out)
        except Exception as error:  # RuntimeError or ValueError, as the library likes
            problem = error
        else:
            return
    else:
        given = np.frombuffer(data, np.uint8)
        if decompress(given.ctypes.data, out.ctypes.data, len(out), 1) == len(out):
            return
    raise DecodeError(f"a blosc block of {len(data):,} bytes is damaged: {problem}")
