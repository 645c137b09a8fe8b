"""How a page of a TIFF is laid out: checked against what the file can hold, before it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sharedds.errors import DecodeError, ImageTooLargeError
from sharedds.slides.limits import MAX_TILE_BYTES
from sharedds.slides.tiff_directory import Directory, Numbers

__all__ = ["COMPRESSIONS", "JPEG", "TiffPage", "read_page"]

JPEG = 7
COMPRESSIONS = {
    1: "none", 2: "CCITT RLE", 3: "CCITT group 3", 4: "CCITT group 4", 5: "LZW",
    6: "old-style JPEG", 7: "JPEG", 8: "deflate", 9: "JBIG", 10: "JBIG", 32766: "NeXT",
    32773: "PackBits", 32809: "ThunderScan", 32946: "deflate", 33003: "JPEG 2000",
    33004: "JPEG 2000", 33005: "JPEG 2000", 34661: "JBIG", 34676: "SGI LogLuv", 34677: "SGI LogLuv",
    34712: "JPEG 2000", 34887: "LERC", 34892: "lossy JPEG of DNG", 34925: "LZMA",
    34933: "PNG", 34934: "JPEG XR", 22610: "JPEG XR", 50000: "Zstandard", 50001: "WebP",
    50002: "JPEG XL", 52546: "JPEG XL",
}  # fmt: skip
_READ = {1, 5, 7, 8, 32773, 32946, 33003, 33004, 33005, 34712, 34925, 50000, 50001}
_PICTURES = {7, 33003, 33004, 33005, 34712, 50001}  # formats of their own, with 8 bits here
_LIBVIPS = {2, 3, 4}  # that only libvips reads, from top to bottom
_MOST_GROWN = {5: 2731, 8: 1032, 32773: 64, 32946: 1032}  # by how much each can grow at most
_PHOTOMETRIC = {0: "grey, 0 is white", 1: "grey", 2: "RGB", 3: "palette", 4: "mask", 5: "CMYK",
                6: "YCbCr", 8: "CIELab", 9: "ICCLab", 10: "ITULab", 32803: "colour filter array",
                32844: "LogL", 32845: "LogLuv", 34892: "linear raw"}  # fmt: skip
_JPEG_SIDE = 65_535
_JPEG_TABLES = 1 << 16  # bytes; four tables of each kind take less than 3 KiB
_PIECE = 1 << 20  # bytes of a part of a huge strip that is not compressed


@dataclass(frozen=True, kw_only=True)
class TiffPage:
    """A page, as far as its pixels go. Its places are read when it is opened.

    Attributes:
        number: Of the page, for errors.
        width: Pixels along x.
        height: Pixels along y.
        unit: Shape (y, x) of a tile, or of a strip, or of the part of a huge strip that is read.
        tiled: Whether it is cut into tiles.
        bits: Of a sample.
        kind: Of a sample: ``"u"``, ``"i"`` or ``"f"``.
        samples: Of a pixel, in the file.
        apart: Whether each sample has tiles of its own.
        order: ``"<"`` or ``">"``.
        compression: Number of TIFF.
        predictor: 1, 2 or 3.
        photometric: Number of TIFF.
        reversed_bits: Whether the lowest bit of a byte is its first.
        subsampling: (x, y): pixels that share a colour.
        luma: Weights of red, green, blue, for YCbCr.
        levels: Of black and white of each sample, for YCbCr.
        palette: Red, green, blue of each value as uint16, native, one after another.
        extra: What the samples beyond colour are; 1 and 2 is alpha.
        tables: What the JPEG tiles share.
        offsets: Where tiles or strips lie.
        lengths: Their stored bytes; None where the file does not say.
        split: Parts that each stored strip is read in.
        subfile: NewSubfileType.
        orientation: 1 to 8.
    """

    number: int
    width: int
    height: int
    unit: tuple[int, int]
    tiled: bool
    bits: int
    kind: str
    samples: int
    apart: bool
    order: str
    compression: int
    predictor: int
    photometric: int
    reversed_bits: bool
    subsampling: tuple[int, int]
    luma: tuple[float, ...]
    levels: tuple[float, ...]
    palette: bytes
    extra: tuple[int, ...]
    tables: bytes
    offsets: Numbers
    lengths: Numbers | None
    split: int
    subfile: int
    orientation: int

    @property
    def shape(self) -> tuple[int, int]:
        """Pixels along (y, x)."""
        return self.height, self.width

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of units."""
        return -(-self.height // self.unit[0]), -(-self.width // self.unit[1])

    @property
    def stored_units(self) -> int:
        """How many tiles or strips the file has to name."""
        rows, columns = self.grid
        return -(-rows // self.split) * columns * (self.samples if self.apart else 1)

    @property
    def unit_samples(self) -> int:
        """Samples of a pixel in one stored unit."""
        return 1 if self.apart else self.samples

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Of the pixels that are handed out, native."""
        if self.photometric == 3:
            return np.dtype(np.uint8)
        whole = next(size for size in (8, 16, 32, 64) if size >= self.bits)
        return np.dtype(f"{self.kind}{whole // 8}")

    @property
    def has_alpha(self) -> bool:
        """Whether its last sample is alpha beside grey or colour."""
        colours = 3 if self.photometric in (2, 6) else 1
        return self.samples == colours + 1 and self.extra[-1:] in ((1,), (2,))

    @property
    def channels(self) -> int:
        """Numbers of a pixel that is handed out: colours of the palette, and no alpha."""
        return 3 if self.photometric == 3 else self.samples - self.has_alpha

    @property
    def is_rgb(self) -> bool:
        """Whether these are red, green and blue."""
        return self.photometric in (2, 3, 6) and self.channels == 3

    @property
    def is_subsampled(self) -> bool:
        """Whether pixels share colours in numbers that are no JPEG."""
        return (
            self.photometric == 6
            and self.compression not in _PICTURES
            and not self.apart
            and self.samples == 3
        )

    @property
    def decoded_bytes(self) -> int:
        """Bytes that a whole unit takes at most on its way to pixels, all samples of it."""
        samples = max(self.channels, self.samples)
        decoded = math.prod(self.unit) * samples * self.dtype.itemsize
        return max(decoded, self.unit_bytes(self.unit[0]))

    def stored_rows(self, rows: int) -> tuple[int, int]:
        """Return how so many rows of a unit are stored: rows of bytes, and bytes of each."""
        if self.is_subsampled:
            wide, high = self.subsampling
            return -(-rows // high), -(-self.unit[1] // wide) * (wide * high + 2)
        return rows, (self.unit[1] * self.unit_samples * self.bits + 7) // 8

    def unit_bytes(self, rows: int) -> int:
        """Return the bytes of so many rows of a unit, decompressed."""
        return math.prod(self.stored_rows(rows))


def read_page(directory: Directory, path: str, size: int) -> TiffPage | None:
    """Return the layout of a page; None where only libvips can read it, from top to bottom.

    Args:
        directory: The page.
        path: Of the file, for errors.
        size: Of the file in bytes.

    Raises:
        DecodeError: Its tags contradict each other or the file, or nothing here reads such pixels;
            the text says which.
        ImageTooLargeError: A single tile would take more than 256 MiB.
    """
    try:
        return _checked(_read(directory), size)
    except ImageTooLargeError as error:
        raise ImageTooLargeError(f"{path}: page {directory.index}: {error}", path=path) from error
    except DecodeError as error:
        if error.path is not None:
            raise
        raise DecodeError(f"{path}: page {directory.index}: {error}", path=path) from error


def _read(of: Directory) -> TiffPage:
    width, height = of.number(256), of.number(257)
    if width < 1 or height < 1:
        raise DecodeError(f"TIFF is damaged: its size is {width} x {height} pixels")
    tiled = 322 in of or 324 in of
    if tiled:
        unit = of.number(323), of.number(322)
    else:
        unit = min(of.number(278) or height, height), width
    if min(unit) < 1:
        raise DecodeError(f"TIFF is damaged: tiles of {unit[1]} x {unit[0]} pixels")
    # Some writers of tiles use the numbers of strips for their places.
    offsets = of.where(324) or of.where(273) if tiled else of.where(273)
    lengths = of.where(325) or of.where(279) if tiled else of.where(279)
    if offsets is None:
        raise DecodeError("TIFF is damaged: it does not say where its pixels are")
    if of.number(32997, 1) > 1:
        raise DecodeError("TIFF whose tiles have a depth is not supported; store its planes apart")
    samples = of.number(277, 1)
    bits = set(of.numbers(258, samples) or (1,))
    formats = set(of.numbers(339, samples) or (1,))
    if len(bits) > 1 or len(formats) > 1:
        raise DecodeError(f"TIFF whose samples differ in bits {bits} or format is not supported")
    kind = {1: "u", 2: "i", 3: "f", 4: "u"}.get(formats.pop(), "")
    subsampling = of.numbers(530, 2) if of.number(262) == 6 else ()
    return TiffPage(
        number=of.index,
        width=width,
        height=height,
        unit=unit,
        tiled=tiled,
        bits=bits.pop(),
        kind=kind,
        samples=samples,
        apart=of.number(284, 1) == 2 and samples > 1,
        order=of.order,
        compression=of.number(259, 1),
        predictor=of.number(317, 1),
        photometric=of.number(262, 1),
        reversed_bits=of.number(266, 1) == 2,
        subsampling=(subsampling[0], subsampling[1]) if len(subsampling) == 2 else (2, 2),
        luma=of.reals(529),
        levels=of.reals(532),
        palette=np.array(of.numbers(320), np.uint16).tobytes(),
        extra=of.numbers(338, samples),
        tables=of.data(347),
        offsets=offsets,
        lengths=lengths,
        split=1,
        subfile=of.number(254),
        orientation=of.number(274, 1),
    )


def _checked(page: TiffPage, size: int) -> TiffPage | None:
    if page.compression in _LIBVIPS:
        return None
    _require_read(page)
    page = _in_parts(page)
    rows, columns = page.grid
    if page.decoded_bytes > MAX_TILE_BYTES:
        if page.tiled:
            raise ImageTooLargeError(
                f"a single tile of {page.unit[1]} x {page.unit[0]} pixels takes "
                f"{page.decoded_bytes:,} bytes; {MAX_TILE_BYTES:,} is the most"
            )
        if page.compression == JPEG and max(page.unit) > _JPEG_SIDE:
            raise DecodeError(
                f"TIFF is damaged: a JPEG strip of {page.unit[1]} x {page.unit[0]} pixels; "
                f"{_JPEG_SIDE:,} is the longest side of a JPEG"
            )
        most = size * _MOST_GROWN.get(page.compression, 1 << 20)
        if page.unit_bytes(page.height) > most:
            raise DecodeError(
                f"TIFF cannot hold what it promises: {page.width} x {page.height} pixels, while "
                f"{size:,} compressed bytes unpack to {most:,} at most"
            )
        return None
    if page.offsets.count < page.stored_units:
        what = "tiles" if page.tiled else "strips"
        raise DecodeError(
            f"TIFF is damaged: {page.width} x {page.height} pixels are {page.stored_units:,} "
            f"{what}, it names the places of {page.offsets.count:,}"
        )
    if page.lengths is not None and page.lengths.count < page.stored_units:
        raise DecodeError(
            f"TIFF is damaged: of {page.stored_units:,} tiles or strips it names the lengths of "
            f"{page.lengths.count:,}"
        )
    if page.lengths is None and page.compression != 1 and rows * columns > 1:
        raise DecodeError("TIFF is damaged: it does not say how long its compressed tiles are")
    return page


def _require_read(page: TiffPage) -> None:
    name = COMPRESSIONS.get(page.compression, f"number {page.compression}")
    if page.compression not in _READ:
        raise DecodeError(
            f"TIFF with compression {name} is not supported; write it anew with JPEG, deflate or "
            "none"
        )
    if page.photometric not in (0, 1, 2, 3, 4, 5, 6):
        colours = _PHOTOMETRIC.get(page.photometric, f"number {page.photometric}")
        raise DecodeError(f"TIFF of {colours} pixels is not supported; convert it to RGB")
    allowed = {"u": range(1, 17), "i": (8, 16, 32, 64), "f": (16, 32, 64)}.get(page.kind, ())
    if page.bits not in allowed and (page.kind, page.bits) not in (("u", 32), ("u", 64)):
        raise DecodeError(
            f"TIFF with samples of {page.bits} bits"
            f"{'' if page.kind else ' that are complex numbers'} is not supported"
        )
    if len(page.tables) > _JPEG_TABLES:
        raise DecodeError(f"TIFF is damaged: JPEG tables of {len(page.tables):,} bytes")
    if page.samples < 1 or page.samples > 4096:
        raise DecodeError(f"TIFF is damaged: {page.samples} samples in each pixel")
    if page.photometric in (2, 6) and page.samples < 3:
        raise DecodeError(f"TIFF is damaged: colour of {page.samples} samples")
    if page.photometric == 3 and (
        page.samples != 1 or page.bits > 8 or len(page.palette) != 6 << page.bits
    ):
        raise DecodeError("TIFF is damaged: its palette does not fit its samples")
    if page.compression in _PICTURES and (page.bits != 8 or page.kind != "u"):
        raise DecodeError(f"TIFF with {name} of {page.bits} bits is not supported")
    if page.compression in _PICTURES and page.unit_samples not in (1, 3):
        raise DecodeError(f"TIFF with {name} of {page.unit_samples} samples is not supported")
    if page.predictor not in (1, 2, 3) or (page.predictor == 3) > (page.kind == "f"):
        raise DecodeError(f"TIFF with predictor {page.predictor} is not supported")
    if page.predictor == 2 and (page.bits not in (8, 16, 32, 64) or page.kind == "f"):
        raise DecodeError(f"TIFF with predictor 2 and {page.bits} bits is not supported")
    if page.is_subsampled and (
        page.bits != 8 or not set(page.subsampling) <= {1, 2, 4} or page.predictor != 1
    ):
        raise DecodeError(f"TIFF of YCbCr with subsampling {page.subsampling} is not supported")
    if page.photometric == 6 and page.apart:
        raise DecodeError("TIFF of YCbCr with its samples apart is not supported")


def _in_parts(page: TiffPage) -> TiffPage:
    """Cut huge strips that are not compressed: any of their rows can be read."""
    high = page.unit[0]
    most = max(1, _PIECE // page.stored_rows(1)[1])
    if page.tiled or page.compression != 1 or page.is_subsampled or high <= most:
        return page
    if high < page.height:  # parts of all strips have to be equal
        most = next(rows for rows in range(most, 0, -1) if high % rows == 0)
    return replace(page, unit=(most, page.unit[1]), split=-(-high // most))
