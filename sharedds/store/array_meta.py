"""What is stored about an array: its dtype, its levels, and how they are cut into blocks.

The blocks of an array are numbered in C order of the grid. Blocks at the far edges are as small as
what is left there; nothing is padded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from sharedds.errors import StoreFormatError
from sharedds.store.layout import DTYPE, MAX_DIMENSIONS
from sharedds.store.regions import Owner, Region

__all__ = [
    "MAX_BLOCK",
    "ArrayMeta",
    "LevelMeta",
    "block_slices",
    "default_chunk",
    "parse_meta",
]

MAX_BLOCK = 0x7E00_0000  # bytes of a block before coding: what LZ4 takes
_TARGET = 128 << 10  # bytes of a block: small enough for patches, large enough for codecs
_WHOLE = 256 << 10  # an array up to this size is one block


class LevelMeta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One resolution of an array: its shape and the shape of its blocks.

    ``tables`` and ``colour`` are of JPEG tiles: the stream of tables that they share, and what
    their samples are (``"rgb"``, ``"ycc"``, ``"grey"``) where they have no JFIF marker.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    tables: bytes = b""
    colour: str = ""

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(self.grid)


class ArrayMeta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of one stored array; kept as JSON beside it."""

    dtype: str
    levels: tuple[LevelMeta, ...]
    shuffle: bool = False
    attrs: dict[str, Any] = {}


def parse_meta(data: bytes, owner: Owner) -> ArrayMeta:
    """Parse and check the JSON record of an array.

    Raises:
        StoreFormatError: It is damaged.
    """
    try:
        meta = msgspec.json.decode(data, type=ArrayMeta)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise owner.error(StoreFormatError, f"its description is damaged ({error})") from error
    if not meta.levels or len(meta.levels) > 255 or not DTYPE.match(meta.dtype):
        raise owner.error(StoreFormatError, f"its description is damaged (dtype {meta.dtype!r})")
    itemsize = np.dtype(meta.dtype).itemsize
    for level in meta.levels:
        shape, chunk = level.shape, level.chunk
        sizes_fit = len(shape) == len(chunk) <= MAX_DIMENSIONS and min(shape, default=0) >= 0
        if not sizes_fit or min(chunk, default=1) < 1 or math.prod(shape) >= 1 << 56:
            raise owner.error(StoreFormatError, f"its description is damaged ({shape} in {chunk})")
        if math.prod(min(c, n) for c, n in zip(chunk, shape, strict=True)) * itemsize > MAX_BLOCK:
            raise owner.error(StoreFormatError, f"blocks of {chunk} are over {MAX_BLOCK:,} bytes")
    return meta


def default_chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the block shape for an array: whole up to 256 KiB, else about cubic near 128 KiB.

    The longest edge of the block is halved until the block is small enough; edges stay powers of
    two.
    """
    if math.prod(shape) * itemsize <= _WHOLE:
        return tuple(max(1, n) for n in shape)
    chunk = [1 << (max(1, n) - 1).bit_length() for n in shape]
    while math.prod(chunk) * itemsize > _TARGET:
        chunk[chunk.index(max(chunk))] //= 2
    return tuple(min(c, max(1, n)) for c, n in zip(chunk, shape, strict=True))


def block_slices(level: LevelMeta) -> Iterator[Region]:
    """Yield the region of each block, in C order of the grid."""
    for position in itertools.product(*(range(n) for n in level.grid)):
        yield tuple(
            slice(p * c, min((p + 1) * c, n))
            for p, c, n in zip(position, level.chunk, level.shape, strict=True)
        )
