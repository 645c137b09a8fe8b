"""Where everything is in the file of a cache, and what stands there.

::

    head      who made it, for what; the end of what is handed out
    index     8 bytes a sample: where its record is, 0 for none
    records   one after the other, at multiples of 64: 64 bytes that describe an array, its bytes

All numbers are little-endian. A record is written before the index says where it is, and says
itself whose it is: what the index says is only believed if the record agrees.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from sharedds.errors import OptionError, SchemaError
from sharedds.text import decimal_size

__all__ = ["HEAD", "NEXT", "RECORD", "WORD", "Layout", "Record", "identity_of"]

#: Bytes that describe the file, and those that describe an array.
HEAD, RECORD = 4096, 64
#: A number: an entry of the index, or the end of what is handed out, which stands at ``NEXT``.
WORD = struct.Struct("<Q")
NEXT = 128

_HEAD = struct.Struct("<16s16sQQ")
_MAGIC = b"sharedds-cache-1"
# Sample, stamp, type, dimensions, sizes of up to six of them, unused, check of all before it.
_RECORD = struct.Struct("<QQ8sI6I8xI")
_MOST_DIMENSIONS, _LARGEST = 6, 0xFFFFFFFF
_KINDS = "biufc"
_ALIGN = 64
# An entry: where the record begins, in units of 64 bytes, and above that its size in pages, so that
# a disk can be asked for it before any of it is read.
_OFFSET_BITS, _PAGE = 40, 4096
_MOST_PAGES = (1 << 64 - _OFFSET_BITS) - 1


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def identity_of(text: str) -> bytes:
    """Return 16 bytes that stand for a text."""
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is.

    Args:
        count: Samples there are.
        nbytes: Bytes of the file.

    Raises:
        OptionError: The index alone takes more than that, or it is over 64 TiB.
    """

    count: int
    nbytes: int

    def __post_init__(self) -> None:
        least = self.begin + RECORD
        if self.nbytes > _ALIGN << _OFFSET_BITS:
            raise OptionError(f"a cache of {self.nbytes:,} bytes is too large: 64 TiB is the most")
        if self.count < 0 or self.nbytes < least:
            raise OptionError(
                f"a cache of {self.nbytes:,} bytes is too small: the index of {self.count:,} "
                f"samples alone takes {decimal_size(least)}; give more, or leave it out"
            )

    @property
    def begin(self) -> int:
        """Where the records begin: at a page, so that what is before it has pages of its own."""
        return _up(HEAD + self.count * WORD.size, max(HEAD, mmap.ALLOCATIONGRANULARITY))

    def entry(self, position: int) -> int:
        """Where the index has a sample."""
        return HEAD + position * WORD.size

    def pack_place(self, offset: int, size: int) -> bytes:
        """Return the entry of a record."""
        pages = min(-(-size // _PAGE), _MOST_PAGES)
        return WORD.pack(offset // _ALIGN | pages << _OFFSET_BITS)

    def unpack_place(self, data: memoryview, position: int) -> tuple[int, int] | None:
        """Return where the record of a sample begins and about how long it is; None without one."""
        (entry,) = WORD.unpack_from(data, self.entry(position))
        offset = (entry & (1 << _OFFSET_BITS) - 1) * _ALIGN
        return (offset, (entry >> _OFFSET_BITS) * _PAGE) if self.may_begin(offset) else None

    def room_for(self, nbytes: int) -> int:
        """Bytes that the record of an array takes."""
        return RECORD + _up(nbytes, _ALIGN)

    def head(self, identity: bytes) -> bytes:
        """The first bytes of a new file."""
        words = _HEAD.pack(_MAGIC, identity, self.count, self.nbytes)
        return words.ljust(NEXT, b"\0") + WORD.pack(self.begin)

    def is_head(self, data: bytes | memoryview, identity: bytes) -> bool:
        """Whether a file begins as one of this layout and identity does."""
        return bytes(data[: _HEAD.size]) == self.head(identity)[: _HEAD.size]

    def may_begin(self, offset: int) -> bool:
        """Whether a record could be there."""
        return self.begin <= offset <= self.nbytes - RECORD and offset % _ALIGN == 0


@dataclass(frozen=True, slots=True)
class Record:
    """What describes an array.

    Attributes:
        position: The sample.
        stamp: What the caller compares, 0 to 2**64 - 1.
        dtype: Type of the numbers.
        shape: Sizes.
    """

    position: int
    stamp: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.dtype.itemsize * math.prod(self.shape)

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], position: int, stamp: int) -> Record:
        """Describe an array.

        Raises:
            SchemaError: It holds anything but numbers, or has more than six dimensions.
        """
        is_large = any(size > _LARGEST for size in array.shape)
        if array.dtype.kind not in _KINDS or array.ndim > _MOST_DIMENSIONS or is_large:
            raise SchemaError(
                f"sample {position}: an array of {array.dtype} with shape {array.shape} cannot be "
                f"kept in a cache: numbers in up to {_MOST_DIMENSIONS} dimensions can",
                sample=position,
            )
        return cls(position, stamp, array.dtype, array.shape)

    def pack(self) -> bytes:
        """Return the bytes that describe it."""
        kind, sizes = self.dtype.str.encode(), (*self.shape, 0, 0, 0, 0, 0, 0)[:_MOST_DIMENSIONS]
        parts = (self.position, self.stamp, kind, len(self.shape), *sizes)
        data = _RECORD.pack(*parts, 0)[:-4]
        return data + xxhash.xxh32_intdigest(data).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: memoryview) -> Record | None:
        """Return what bytes describe; None if they are no record."""
        *parts, check = _RECORD.unpack(data)
        if xxhash.xxh32_intdigest(data[:-4]) != check:
            return None
        position, stamp, kind, dimensions, *sizes = parts
        dtype = np.dtype(kind.rstrip(b"\0").decode())
        return cls(position, stamp, dtype, tuple(sizes[:dimensions]))
