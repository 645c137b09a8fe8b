"""Writes slides of a store back to files: whole as pyramids of tiles, or a region as a picture."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import secrets
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharedds.codecs import encode_image, encode_jpeg, probe
from sharedds.codecs.tiles import TileDecoder
from sharedds.errors import (
    OptionError,
    SampleIndexError,
    SharedDSError,
    SourceError,
    StoreExistsError,
)
from sharedds.handles import absolute_path, storage_errors
from sharedds.ingest.exports.folder import ExportReport, Names, NewFolder, inside, with_suffix
from sharedds.ingest.exports.tiff import (
    DEFLATE,
    JPEG,
    LARGEST_CLASSIC,
    TiffLevel,
    TiffPyramid,
)
from sharedds.progress import Progress
from sharedds.store import ChunkedArray, Store
from sharedds.text import printable

__all__ = ["Region", "export_region", "export_slides"]

_QUALITY = 95  # of tiles at the edges that have to be made whole
_MOST = 1 << 30  # bytes of a region that is written as one picture
_TILE = 256  # of a region that is written as TIFF
_SIDE = 16  # sides of tiles of a TIFF are multiples of it


class Region(NamedTuple):
    """A part of a slide, in pixels of its level."""

    x: int
    y: int
    width: int
    height: int


def export_slides(
    source: Store,
    path: str,
    *,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write each slide to ``KEY.tif`` of a new folder: a tiled TIFF with all its levels.

    JPEG tiles are copied as they are stored; those at the right and lower edge that are smaller
    than a tile are filled up and encoded anew. Everything else is compressed with deflate, without
    loss. The size of pixels is kept. Of a focus stack the middle plane is written. The folder
    appears when it is whole.

    Memory: a tile at a time.

    Args:
        source: A store of slides.
        path: The folder to make, which does not exist or is empty.
        dry_run: Read and check everything; nothing is written.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        CorruptDataError: A tile fails its checksum; nothing appears under the final name.
        StorageFullError: No room.
        StoreFormatError: A key would lead out of the folder, or two cannot both be files.
    """
    names, total = Names(), 0
    with contextlib.ExitStack() as stack:
        out = None if dry_run else stack.enter_context(NewFolder(path))
        bar = stack.enter_context(
            Progress("exporting", total=len(source), unit="slides", enabled=progress)
        )
        for index in range(len(source)):
            name = with_suffix(inside(source, index), b".tif")
            names.add(name, index)
            image = source.array(index, "image")
            with contextlib.nullcontext(_Nowhere()) if out is None else out.create(name) as file:
                _write(file, image)
                written = file.tell()
            source.release()  # what was read would count as memory of this process
            total += written
            bar.advance(1, nbytes=written)
        names.require_room_for_all(source)
    return ExportReport(path=path, files=len(source), empty=0, bytes=total, dry_run=dry_run)


class _Nowhere:
    """A file that is not there: it knows how long it would be."""

    def __init__(self) -> None:
        self._at = self._end = 0

    def write(self, data: bytes | memoryview) -> int:
        self._at += len(data)
        self._end = max(self._end, self._at)
        return len(data)

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = place + (self._end if whence == 2 else 0)
        return self._at


def _write(file: Any, image: ChunkedArray) -> None:
    raw = sum(int(np.prod(shape, dtype=object)) for shape in image.levels) * image.dtype.itemsize
    pyramid = TiffPyramid(file, big=raw > LARGEST_CLASSIC)
    for number in range(len(image.levels)):
        level = image.level(number)
        side = _side_of_jpeg(level)
        described = _described(level, number, side=side)
        pyramid.add(
            described,
            _deflated(level, described.tile) if side is None else _kept(level, side),
        )


def _side_of_jpeg(level: ChunkedArray) -> tuple[int, int] | None:
    """Return the side (y, x) of tiles that can be copied; None where tiles are made anew.

    It is that of the pictures: a block of a level smaller than a tile is smaller than they are.
    """
    if level.codec != "jpeg":
        return None
    chunk, shape = level.chunk[-3:-1], level.shape[-3:-1]
    first = next((data for data in level.stored(_numbers(level)) if len(data)), None)
    if first is None:
        side = chunk
    else:
        found = probe(first, max_pixels=None)
        side = (found.height, found.width)
    for picture, block, whole in zip(side, chunk, shape, strict=True):
        if picture % _SIDE or picture < block or (picture > block and block < whole):
            return None
    return side[0], side[1]


def _described(
    level: ChunkedArray, number: int, *, side: tuple[int, int] | None = None
) -> TiffLevel:
    height, width, channels = level.shape[-3:]
    attrs = level.attrs
    step = attrs.get("downsamples", [1.0])
    factor = float(step[number]) if number < len(step) else 1.0
    mpp = attrs.get("mpp")
    power = attrs.get("magnification")
    kept = side is not None
    high, wide = side or tuple(-(-n // _SIDE) * _SIDE for n in level.chunk[-3:-1])
    return TiffLevel(
        shape=(height, width),
        tile=(high, wide),
        channels=channels,
        bits=level.dtype.itemsize * 8,
        kind=level.dtype.kind,
        compression=JPEG if kept else DEFLATE,
        is_rgb=channels == 3 and bool(attrs.get("is_rgb", True)),
        subsampling=_subsampling(level) if kept and channels == 3 else None,
        tables=level.tables if kept else b"",
        mpp=(mpp[0] * factor, mpp[1] * factor) if mpp else None,
        description=f"magnification = {power:g}" if power and not number else "",
    )


def _subsampling(level: ChunkedArray) -> tuple[int, int] | None:
    """Return how many pixels share a colour (across, down); None where samples are RGB."""
    if level.colour == "rgb":
        return None
    for data in level.stored(_numbers(level)):
        if len(data):
            return _sampling_of(bytes(data))
    return 1, 1


def _sampling_of(data: bytes) -> tuple[int, int]:
    """Return the factors of the first component of a JPEG over those of the second."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in (0xC0, 0xC1, 0xC2):
            first, second = data[at + 11], data[at + 14]
            return max(1, (first >> 4) // max(1, second >> 4)), max(
                1, (first & 15) // max(1, second & 15)
            )
        at += 2 + length
    return 1, 1


def _tiles(level: ChunkedArray) -> int:
    """Return how many tiles one plane of a level has."""
    rows, columns = (
        -(-n // c) for n, c in zip(level.shape[-3:-1], level.chunk[-3:-1], strict=True)
    )
    return rows * columns


def _numbers(level: ChunkedArray) -> range:
    """Return the numbers of the tiles of the plane that is written."""
    count = _tiles(level)
    plane = level.shape[0] // 2 if level.ndim == 4 else 0
    return range(plane * count, (plane + 1) * count)


def _kept(level: ChunkedArray, side: tuple[int, int]) -> Iterator[bytes | memoryview]:
    """Yield the tiles of a level as they are stored, those that are no whole tile made one."""
    height, width, channels = level.chunk[-3:]
    columns = -(-level.shape[-2] // width)
    decoder = TileDecoder("jpeg", level.dtype, tables=level.tables, colour=level.colour)
    for number, data in enumerate(level.stored(_numbers(level))):
        row, column = divmod(number, columns)
        shape = (
            min(height, level.shape[-3] - row * height),
            min(width, level.shape[-2] - column * width),
            channels,
        )
        if not len(data) or shape[:2] == side:
            yield data
            continue
        found = probe(data, max_pixels=None)
        if (found.height, found.width) == side:
            yield data
            continue
        (tile,) = decoder.decode_all([data], [shape])
        yield encode_jpeg(_filled(tile, side), quality=_QUALITY)


def _deflated(level: ChunkedArray, side: tuple[int, int]) -> Iterator[bytes]:
    """Yield the tiles of a level, decoded and compressed without loss."""
    for y in range(0, level.shape[-3], side[0]):
        for x in range(0, level.shape[-2], side[1]):
            part: Any = (slice(y, y + side[0]), slice(x, x + side[1]))
            if level.ndim == 4:
                part = (level.shape[0] // 2, *part)
            tile = np.ascontiguousarray(_filled(level[part], side))
            yield zlib.compress(tile.astype(tile.dtype.newbyteorder("<"), copy=False).tobytes(), 6)


def _filled(tile: npt.NDArray[Any], side: tuple[int, int]) -> npt.NDArray[Any]:
    """Return a tile of full size, its last row and column repeated."""
    more = [(0, whole - n) for whole, n in zip(side, tile.shape, strict=False)]
    return np.pad(tile, (*more, (0, 0)), mode="edge") if any(n for _, n in more) else tile


def export_region(
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    region: Sequence[int] | None = None,
    level: int = 0,
    force: bool = False,
) -> ExportReport:
    """Write a region of a slide, or a whole level, as one picture.

    Args:
        store: A store of slides.
        path: The file; ``.png`` and ``.tif`` hold any region of 8 or 16 bits without loss, ``.jpg``
            8 bits.
        key: The slide; may be left out where there is one.
        region: (x, y, width, height) in pixels of the level; by default all of it.
        level: 0 is the finest.
        force: Replace a file.

    Raises:
        OptionError: Another ending, no key where there are several, or over 1 GiB of pixels.
        SampleIndexError: The region is not inside.
        StoreExistsError: The file exists, and ``force`` is not set.
        SourceError: It cannot be written there.
        StorageFullError: No room.
    """
    source, target = Store(store), absolute_path(path)
    ending = os.path.splitext(target)[1].lower()
    codec = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".tif": "tiff", ".tiff": "tiff"}.get(
        ending
    )
    if codec is None:
        raise OptionError(
            f"{printable(target)}: a region is written as .png, .jpg or .tif", path=target
        )
    if key is None and len(source) != 1:
        raise OptionError(f"{source.path}: has {len(source):,} slides; name one (key=, --sample)")
    if os.path.lexists(target) and not force:
        raise StoreExistsError(
            f"{printable(target)} exists; force=True (--force) replaces it", path=target
        )
    image = source.array(0 if key is None else source.index_of(key), "image").level(level)
    height, width, channels = image.shape[-3:]
    part = Region(0, 0, width, height) if region is None else _region(region)
    if not (
        0 <= part.x < part.x + part.width <= width and 0 <= part.y < part.y + part.height <= height
    ):
        raise SampleIndexError(
            f"{source.path}: x={part.x}, y={part.y}, {part.width} x {part.height} pixels are not "
            f"inside of level {level}, which has {width} x {height}",
            path=source.path,
        )
    if part.width * part.height * channels * image.dtype.itemsize > _MOST:
        raise OptionError(
            f"{part.width:,} x {part.height:,} pixels take over 1 GiB as one picture; export the "
            "store, which writes tiles, or choose another level"
        )
    rows, columns = slice(part.y, part.y + part.height), slice(part.x, part.x + part.width)
    index: Any = (rows, columns) if image.ndim == 3 else (image.shape[0] // 2, rows, columns)
    values = image[index]
    written = _write_picture(target, values, codec, image, level)
    return ExportReport(path=target, files=1, empty=0, bytes=written, dry_run=False)


def _region(given: Sequence[int]) -> Region:
    try:
        return Region(*map(operator.index, given))
    except TypeError:
        raise OptionError(f"region={given!r}: four whole numbers, x, y, width and height") from None


def _write_picture(
    target: str, values: npt.NDArray[Any], codec: str, image: ChunkedArray, level: int
) -> int:
    """Write the file under another name, and give it its own when it is whole."""
    work = f"{target}.{secrets.token_hex(4)}"
    try:
        with storage_errors(target):
            with open(work, "wb") as file:
                if codec == "tiff":
                    described = dataclasses.replace(
                        _described(image, level),
                        shape=(values.shape[0], values.shape[1]),
                        tile=(_TILE, _TILE),
                    )
                    TiffPyramid(file, big=False).add(described, _tiles_of(values))
                else:
                    file.write(encode_image(values, codec))
                written = file.tell()
                file.flush()
                os.fsync(file.fileno())
            os.replace(work, target)
    except OSError as error:
        if isinstance(error, SharedDSError):
            raise
        raise SourceError(
            f"{printable(target)}: cannot be written ({error.strerror or error})", path=target
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(work)
    return written


def _tiles_of(values: npt.NDArray[Any]) -> Iterator[bytes]:
    for y in range(0, values.shape[0], _TILE):
        for x in range(0, values.shape[1], _TILE):
            tile = _filled(values[y : y + _TILE, x : x + _TILE], (_TILE, _TILE))
            yield zlib.compress(tile.tobytes(), 6)
