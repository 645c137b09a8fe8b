"""Slide files for tests, byte by byte: directories are exactly as given, nothing is repaired."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from sharedds.slides.tiff import TiffSlide, open_tiff

__all__ = [
    "APERIO_HEAD",
    "YCBCR_HALF",
    "Page",
    "aperio_page",
    "bare_jpeg",
    "jpeg_bytes",
    "jpeg_segments",
    "level",
    "page",
    "picture",
    "pyramid",
    "slide",
    "split_jpeg",
    "strips",
    "tiles",
    "write_slide",
    "write_tiff",
]

Array = npt.NDArray[Any]
Encode = Callable[[Array], bytes]

APERIO_HEAD = "Aperio Image Library v12.0.15\r\n"
NONE, JPEG, DEFLATE = 1, 7, 8
YCBCR_HALF: Mapping[int, tuple[int, Any]] = {530: (3, [2, 2])}  # colour at half resolution

_LETTERS = {1: "B", 3: "H", 4: "I", 5: "I", 6: "b", 8: "h", 9: "i", 11: "f", 12: "d", 16: "Q"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 11: 4, 12: 8, 16: 8}


@dataclass(frozen=True, kw_only=True)
class Page:
    """One directory and its data.

    Attributes:
        width: As the tag says.
        height: As the tag says.
        data: Tiles or strips as stored, in order; None becomes offset 0 and length 0; one bytes
            object given several times is written once.
        tile: (y, x), or None for strips.
        rows: Of a strip; None: one strip.
        bits: Of a sample.
        channels: Samples of a pixel.
        compression: As a number of TIFF.
        photometric: As a number of TIFF.
        planar: 1, or 2 for channels apart.
        subfile: NewSubfileType.
        tags: {number: (type, value)}; they replace the ones above. A value is bytes for types 2 and
            7, else a list of numbers (two for a fraction); None takes the tag out.
        below: Directories for SubIFDs.
    """

    width: int
    height: int
    data: Sequence[bytes | None]
    tile: tuple[int, int] | None = None
    rows: int | None = None
    bits: int = 8
    channels: int = 3
    compression: int = NONE
    photometric: int = 2
    planar: int = 1
    subfile: int = 0
    tags: Mapping[int, tuple[int, Any] | None] = field(default_factory=dict)
    below: Sequence[Page] = ()


def picture(width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return a smooth, colourful picture without symmetry, (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    both = (x + 2 * y) * 120 // (width + 2 * height)
    return np.stack([40 + x * 180 // width, 220 - y * 150 // height, 60 + both], -1).astype("u1")


def tiles(
    array: Array, tile: int | tuple[int, int] = 256, encode: Encode = np.ndarray.tobytes
) -> list[bytes]:
    """Cut (h, w, ...) into whole tiles, row after row; what is over the edge is 0."""
    high, wide = (tile, tile) if isinstance(tile, int) else tile
    found = []
    for y in range(0, array.shape[0], high):
        for x in range(0, array.shape[1], wide):
            part = array[y : y + high, x : x + wide]
            whole = np.zeros((high, wide, *array.shape[2:]), array.dtype)
            whole[: part.shape[0], : part.shape[1]] = part
            found.append(encode(whole))
    return found


def strips(array: Array, rows: int, encode: Encode = np.ndarray.tobytes) -> list[bytes]:
    """Cut (h, w, ...) into strips; the last one may have fewer rows."""
    return [encode(array[y : y + rows]) for y in range(0, array.shape[0], rows)]


def jpeg_bytes(array: Array, *, quality: int = 95, **options: Any) -> bytes:
    """Encode with Pillow: a JFIF marker and YCbCr, or with ``keep_rgb=True`` an Adobe marker."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def jpeg_segments(data: bytes) -> list[tuple[int | None, bytes]]:
    """Return [(marker, its segment)]; the last is (None, the picture data with the end marker)."""
    found: list[tuple[int | None, bytes]] = []
    at = 2
    while not found or found[-1][0] != 0xDA:
        (length,) = struct.unpack_from(">H", data, at + 2)
        found.append((data[at + 1], data[at : at + 2 + length]))
        at += 2 + length
    return [*found, (None, data[at:])]


def bare_jpeg(array: Array, *, quality: int = 95) -> bytes:
    """Encode RGB samples as some scanners do: components 1, 2, 3, and no marker that says so."""
    parts = [b"\xff\xd8"]
    for marker, segment in jpeg_segments(jpeg_bytes(array, quality=quality, keep_rgb=True)):
        if marker is not None and 0xE0 <= marker <= 0xEF:
            continue
        changed = bytearray(segment)
        for component in range(3):
            if marker == 0xC0:
                changed[10 + 3 * component] = component + 1
            if marker == 0xDA:
                changed[5 + 2 * component] = component + 1
        parts.append(bytes(changed))
    return b"".join(parts)


def split_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """Return a JPEG as (tables in a stream of their own, stream without tables)."""
    tables: list[bytes] = []
    rest: list[bytes] = []
    for marker, segment in jpeg_segments(data):
        (tables if marker in (0xDB, 0xC4) else rest).append(segment)
    start = b"\xff\xd8"
    return b"".join((start, *tables, b"\xff\xd9")), b"".join((start, *rest))


def page(
    array: Array,
    *,
    tile: int | tuple[int, int] | None = None,
    rows: int | None = None,
    compression: Literal["none", "deflate", "jpeg"] = "none",
    encode: Encode | None = None,
    photometric: int | None = None,
    planar: int = 1,
    **more: Any,
) -> Page:
    """Return the page of (h, w) or (h, w, c), its numbers in the byte order they have.

    Args:
        array: The picture.
        tile: Side, or (y, x); None: strips.
        rows: Of a strip; None: one strip.
        compression: ``"jpeg"`` is YCbCr with a JFIF marker, tables in each tile.
        encode: Another encoder for a tile; ``compression`` is then only what the tag says.
        photometric: None: RGB for three channels or more (YCbCr for JPEG), else 0 is black.
        planar: 2 writes channel after channel.
        more: Further fields of :class:`Page`.
    """
    samples = array.reshape(*array.shape[:2], -1)
    channels = samples.shape[2]
    jpeg = compression == "jpeg"
    if photometric is None:
        photometric = (6 if jpeg else 2) if channels >= 3 else 1
    coders: dict[str, Encode] = {
        "none": np.ndarray.tobytes,
        "deflate": lambda part: zlib.compress(part.tobytes(), 1),
        "jpeg": lambda part: jpeg_bytes(part.squeeze(-1) if part.shape[-1] == 1 else part),
    }
    coder = encode or coders[compression]
    side = (tile, tile) if isinstance(tile, int) else tile
    parts = [samples] if planar == 1 else [samples[..., n : n + 1] for n in range(channels)]
    data: list[bytes] = []
    for part in parts:
        data += tiles(part, side, coder) if side else strips(part, rows or part.shape[0], coder)
    kind = {"u": 1, "b": 1, "i": 2, "f": 3}[array.dtype.kind]
    tags: dict[int, Any] = {} if kind == 1 else {339: (3, [kind] * channels)}
    if jpeg and photometric == 6 and encode is None:
        tags.update(YCBCR_HALF)
    return Page(
        width=array.shape[1],
        height=array.shape[0],
        data=data,
        tile=side,
        rows=rows,
        **{
            "bits": array.dtype.itemsize * 8,
            "channels": channels,
            "compression": {"none": NONE, "deflate": DEFLATE, "jpeg": JPEG}[compression],
            "photometric": photometric,
            "planar": planar,
            **more,
            "tags": {**tags, **more.get("tags", {})},
        },
    )


def aperio_page(array: Array, text: str, **options: Any) -> Page:
    """Return a page whose description is one of Aperio's: its first line, then ``text``."""
    tags = {270: (2, (APERIO_HEAD + text).encode() + b"\0"), **options.pop("tags", {})}
    return page(array, tags=tags, **options)


def pyramid(array: Array, steps: Sequence[int] = (1, 2, 4), **options: Any) -> list[Page]:
    """Return pages of a picture and of every so many-th of its pixels."""
    return [page(array[::step, ::step], subfile=int(step > 1), **options) for step in steps]


def write_tiff(
    path: Path, pages: Sequence[Page], *, big: bool = False, order: Literal["<", ">"] = "<"
) -> Path:
    """Write pages as a TIFF; numbers inside of ``data`` are the caller's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w+b") as file:
        mark = b"II" if order == "<" else b"MM"
        head = struct.pack(order + "HHHQ", 43, 8, 0, 0) if big else struct.pack(order + "HI", 42, 0)
        file.write(mark + head)
        link = 8 if big else 4
        for one in pages:
            link = _write_page(file, one, link, big=big, order=order)
    return path


def write_slide(path: Path, array: Array | None = None, **options: Any) -> Path:
    """Write an ordinary pyramid with JPEG tiles of 256 pixels: 1024 x 768 pixels, 0.5 micrometres.

    Args:
        path: Where.
        array: Another picture, (h, w, 3) uint8.
        options: Of :func:`page`, instead of the ordinary ones.
    """
    resolution = {282: (5, [20000, 1]), 283: (5, [20000, 1]), 296: (3, [3])}
    ways = {"tile": 256, "compression": "jpeg", "tags": resolution, **options}
    return write_tiff(path, pyramid(picture(1024, 768) if array is None else array, **ways))


def _entries(one: Page, offsets: list[int], lengths: list[int], *, big: bool) -> dict[int, Any]:
    where = 16 if big else 4
    tags: dict[int, Any] = {
        254: (4, [one.subfile]),
        256: (4, [one.width]),
        257: (4, [one.height]),
        258: (3, [one.bits] * one.channels),
        259: (3, [one.compression]),
        262: (3, [one.photometric]),
        277: (3, [one.channels]),
        284: (3, [one.planar]),
    }
    if one.tile:
        tags |= {322: (4, [one.tile[1]]), 323: (4, [one.tile[0]])}
        tags |= {324: (where, offsets), 325: (where, lengths)}
    else:
        tags |= {273: (where, offsets), 278: (4, [one.rows or one.height]), 279: (where, lengths)}
    tags |= one.tags
    return {number: entry for number, entry in tags.items() if entry is not None}


def _write_page(file: Any, one: Page, link: int, *, big: bool, order: str) -> int:
    """Append a page, put its place where ``link`` is, and return where the next one's goes."""
    written: dict[int, int] = {}
    offsets, lengths = [], []
    for data in one.data:
        if data is not None and id(data) not in written:
            written[id(data)] = _end(file)
            file.write(data)
        offsets.append(0 if data is None else written[id(data)])
        lengths.append(0 if data is None else len(data))
    pointer = "Q" if big else "I"
    below = list(_below(file, one.below, big=big, order=order))
    tags = _entries(one, offsets, lengths, big=big)
    if below:
        tags[330] = (16 if big else 4, below)
    at = _end(file)
    inline, step, start = (8, 20, 8) if big else (4, 12, 2)
    after = at + start + step * len(tags) + inline
    table = struct.pack(order + ("Q" if big else "H"), len(tags))
    far = b""
    for number in sorted(tags):
        kind, value = tags[number]
        raw = (
            bytes(value)
            if kind in (2, 7)
            else struct.pack(f"{order}{len(value)}{_LETTERS[kind]}", *value)
        )
        table += struct.pack(order + "HH" + pointer, number, kind, len(raw) // _SIZES[kind])
        if len(raw) <= inline:
            table += raw.ljust(inline, b"\0")
        else:
            table += struct.pack(order + pointer, after + len(far))
            far += raw + bytes(len(raw) % 2)
    file.write(table + bytes(inline) + far)
    file.seek(link)
    file.write(struct.pack(order + pointer, at))
    return at + start + step * len(tags)


def _below(file: Any, pages: Sequence[Page], *, big: bool, order: str) -> Iterator[int]:
    pointer = "Q" if big else "I"
    for one in pages:
        spare = _end(file)  # the place of a directory is told here, and read back at once
        file.write(bytes(8))
        _write_page(file, one, spare, big=big, order=order)
        file.seek(spare)
        (at,) = struct.unpack(order + pointer, file.read(struct.calcsize(order + pointer)))
        yield at


def _end(file: Any) -> int:
    """Go to the end of the file, at an even byte."""
    at = int(file.seek(0, io.SEEK_END))
    if at % 2:
        file.write(b"\0")
    return at + at % 2


def slide(path: Path) -> TiffSlide:
    """Return a slide that has to be read here."""
    found = open_tiff(path)
    assert found is not None
    return found


def level(file: TiffSlide, number: int = 0, plane: int = 0) -> npt.NDArray[Any]:
    """Return a whole level."""
    height, width = file.header.levels[number].shape
    with file.open() as reader:
        return reader.read(number, y=0, x=0, height=height, width=width, plane=plane)
