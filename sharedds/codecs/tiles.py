"""Tiles of large pictures as JPEG, PNG or WebP files, both ways.

The size that a file claims is compared with that of the block before anything is allocated by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sharedds.codecs.encoding import encode_image
from sharedds.codecs.formats import probe
from sharedds.codecs.header import BytesLike, as_bytes_like
from sharedds.codecs.images import decode
from sharedds.codecs.jpeg import encode_jpeg
from sharedds.codecs.jpeg_tiles import JpegTiles
from sharedds.codecs.scratch import Scratch
from sharedds.errors import DecodeError, OptionError

__all__ = ["TILE_CODECS", "TileDecoder", "encode_tile", "tile_problem"]

TILE_CODECS = ("jpeg", "png", "webp")
LARGEST = 4096  # pixels along a side: a tile may be larger than its block, up to this
MOST_PIXELS = 1 << 26  # of a tile: what a few bytes can make a decoder fill

_CHANNELS = {"jpeg": (1, 3), "png": (1, 3, 4), "webp": (3, 4)}
_DTYPES = {"jpeg": ("uint8",), "png": ("uint8", "uint16"), "webp": ("uint8",)}
_SIDES = {"jpeg": 65_500, "png": 65_535, "webp": 16_383}


def tile_problem(codec: str, dtype: DTypeLike, shape: Sequence[int]) -> str | None:
    """Return why blocks of this shape cannot be tiles of a codec, or None.

    Args:
        codec: One of ``TILE_CODECS``.
        dtype: Of the numbers.
        shape: Of a block: leading axes of 1, then (y, x, channels).
    """
    element = np.dtype(dtype)
    if element.name not in _DTYPES[codec]:
        return f"{codec} tiles hold {' or '.join(_DTYPES[codec])}, not {element}"
    channels = " or ".join(map(str, _CHANNELS[codec]))
    if len(shape) < 3 or shape[-1] not in _CHANNELS[codec]:
        return f"{codec} tiles are (y, x, {channels} channels), not {tuple(shape)}"
    if any(n != 1 for n in shape[:-3]):
        return f"axes before (y, x, channels) have tiles of 1, not {tuple(shape)}"
    if not 1 <= min(shape[-3:-1]) <= max(shape[-3:-1]) <= _SIDES[codec]:
        return f"sides of {codec} tiles are 1 to {_SIDES[codec]:,} pixels, not {tuple(shape)}"
    if shape[-3] * shape[-2] > MOST_PIXELS:
        return f"tiles have up to {MOST_PIXELS:,} pixels, not {tuple(shape)}"
    return None


def encode_tile(
    array: NDArray[Any], codec: str, *, quality: int | None = 90, chroma: str = "auto"
) -> bytes:
    """Encode a tile.

    Args:
        array: (y, x, channels), leading axes of 1 are allowed: uint8 with 1 or 3 channels for
            ``"jpeg"``, with 3 or 4 for ``"webp"``; uint8 or uint16 with 1, 3 or 4 for ``"png"``.
        codec: One of ``"jpeg"``, ``"png"``, ``"webp"``.
        quality: 1 to 100, of ``"jpeg"`` and ``"webp"``; None: ``"webp"`` without loss.
        chroma: Of ``"jpeg"``, see :func:`encode_jpeg`.

    Raises:
        OptionError: Another codec, or an array that it does not hold.
    """
    _require_codec(codec)
    problem = tile_problem(codec, array.dtype, array.shape)
    if problem is not None:
        raise OptionError(problem)
    picture = array.reshape(array.shape[-3:])
    if codec == "jpeg":
        return encode_jpeg(picture, quality=90 if quality is None else quality, chroma=chroma)
    return encode_image(picture, codec, quality=quality if codec == "webp" else None)


def _require_codec(codec: str) -> None:
    if codec not in TILE_CODECS:
        raise OptionError(f"codec={codec!r}: tiles are coded as {', '.join(TILE_CODECS)}")


class TileDecoder:
    """Decodes the tiles of one array; threads may share it.

    Args:
        codec: One of ``"jpeg"``, ``"png"``, ``"webp"``.
        dtype: Of the pixels.
        tables: Of JPEG: the stream of the tables that all tiles share.
        colour: Of JPEG: ``"rgb"``, ``"ycc"`` or ``"grey"``, for tiles that have no JFIF marker.
        scratch: Memory for what is decoded beyond what is wanted; by default some of its own.

    Raises:
        OptionError: Another codec or colour.
        DecodeError: The tables are damaged.
    """

    def __init__(
        self,
        codec: str,
        dtype: DTypeLike,
        *,
        tables: bytes = b"",
        colour: str = "",
        scratch: Scratch | None = None,
    ) -> None:
        _require_codec(codec)
        self._codec = codec
        self._dtype = np.dtype(dtype)
        room = Scratch() if scratch is None else scratch
        self._jpeg = JpegTiles(tables, colour, room) if codec == "jpeg" else None

    def read(
        self,
        data: BytesLike,
        shape: tuple[int, ...],
        part: tuple[slice, ...],
        out: NDArray[Any],
    ) -> None:
        """Decode a part of a tile, of which no more is decoded than has to be.

        Args:
            data: The tile: a file of at least the size of its block.
            shape: Of the block: leading axes of 1, then (y, x, channels).
            part: Which part of the block, a slice for each axis.
            out: Where it goes, of its shape, in the dtype of the pixels.

        Raises:
            DecodeError: The tile is damaged, of another kind, smaller than its block, or more than
                that and 4,096 pixels along a side.
        """
        data = as_bytes_like(data)
        shape, part, out = shape[-3:], part[-3:], out[(0,) * (out.ndim - 3)]
        if self._jpeg is not None:
            if data[:2] != b"\xff\xd8":
                raise DecodeError(
                    f"{len(data):,} bytes that are no JPEG, they begin {_begin(data)}"
                )
            layout = self._jpeg.layout(data)
            header = layout.header
            _require_fitting((header.height, header.width, header.channels), shape)
            self._jpeg.read(data, layout, part, out)
        else:
            out[...] = self._picture(data, shape)[part]

    def decode_all(
        self, stored: Iterable[BytesLike], shapes: Sequence[tuple[int, ...]]
    ) -> Iterator[NDArray[Any]]:
        """Yield tiles, each a new array of the shape of its block.

        Args:
            stored: What :func:`encode_tile` returned, or tiles of a file.
            shapes: Of the blocks.

        Raises:
            DecodeError: See :meth:`read`.
        """
        for data, shape in zip(stored, shapes, strict=True):
            yield self.decode(data, shape)

    def decode(self, data: BytesLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a tile as a new array of the shape of its block.

        Raises:
            DecodeError: See :meth:`read`.
        """
        out = np.empty(shape, self._dtype)
        self.read(data, shape, tuple(slice(0, n) for n in shape), out)
        return out

    def _picture(self, data: BytesLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Decode a PNG or WebP."""
        header = probe(data, max_pixels=None)
        if header.format != self._codec:
            raise DecodeError(f"a tile of format {header.format}, expected {self._codec}")
        channels = shape[-1]
        _require_fitting((header.height, header.width, channels), shape)
        # A WebP leaves out an alpha channel that is opaque everywhere.
        mode = "RGBA" if self._codec == "webp" and channels == 4 else "keep"
        picture = decode(data, mode=mode, header=header, orientation=1, max_pixels=None)
        if picture.shape[2] != channels or picture.dtype != self._dtype:
            raise DecodeError(
                f"a tile of {picture.shape[2]} channels of {picture.dtype}, expected {channels} of "
                f"{self._dtype}"
            )
        return picture


def _begin(data: BytesLike) -> str:
    return repr(bytes(data[:8]))


def _require_fitting(found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuse a tile that is smaller than its block, much larger, or has other channels."""
    if found[2] != shape[2]:
        raise DecodeError(f"a tile of {found[2]} channels, its block has {shape[2]}")
    for claimed, wanted in zip(found[:2], shape[:2], strict=True):
        if not wanted <= claimed <= max(wanted, LARGEST):
            raise DecodeError(
                f"a tile of {found[1]} x {found[0]} pixels, its block has {shape[1]} x {shape[0]}"
            )
