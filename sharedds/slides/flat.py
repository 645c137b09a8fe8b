"""Pictures without tiles or levels, of any size: libvips reads them from top to bottom.

Pixels come as they are stored, in 8 or 16 bits or as floats; palettes become colours, one bit
becomes 0 and 255, CMYK becomes RGB, and transparent pixels lie on white, by the rules for ordinary
pictures. Orientations that need another order of rows are applied to pictures of up to 512 MiB,
which are held in memory for it.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from sharedds.codecs.pixels import Samples, finish
from sharedds.errors import DecodeError, ImageTooLargeError, SourceError
from sharedds.slides.libvips import load_libvips, quiet
from sharedds.slides.source import SlideHeader, SlideLevel

__all__ = [
    "MAX_PIXELS",
    "MAX_WHOLE",
    "FileIdentity",
    "FlatReader",
    "FlatSlide",
    "identity_of",
    "open_flat",
    "streams_jpeg2000",
]

MAX_PIXELS = 100_000_000_000
MAX_WHOLE = 1 << 30  # bytes of what libvips holds as a whole: WebP, interlaced, progressive
MAX_TURNED = 512 << 20
_BAND = 256 << 10  # bytes asked of libvips at once: what it frees in small pieces is used again
_FORMATS = {
    "jpegload": "JPEG",
    "pngload": "PNG",
    "webpload": "WebP",
    "jp2kload": "JPEG 2000",
    "tiffload": "TIFF",
}
_WHOLE = ("WebP", "JPEG 2000")
_WEBP_PIXEL = 8  # bytes that libwebp and libvips hold for each, of any WebP
_PIXELS_A_BYTE = {"JPEG": 512, "PNG": 8448}  # no file holds more: two codes a block; 1032 x 8 bits
_DTYPES = {
    "uchar": "u1",
    "char": "i1",
    "ushort": "<u2",
    "short": "<i2",
    "uint": "<u4",
    "int": "<i4",
    "float": "<f4",
    "double": "<f8",
}
_FINE = 20.0  # micrometres: coarser sizes are the resolution of a screen or a printer
_MIRRORED = 2  # the one orientation that leaves rows where they are
_COLOURS = ("srgb", "rgb", "rgb16", "scrgb")


class FileIdentity(NamedTuple):
    """What tells a file from another one in its place."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int

    def require(self, path: str) -> None:
        """Raise :class:`DecodeError` unless the file is still the same."""
        if identity_of(path) != self:
            raise DecodeError(
                f"{path}: is another file than the one that was looked at (its size, time or place "
                "on the disk changed); start again",
                path=path,
            )


@dataclass(frozen=True, kw_only=True)
class FlatSlide:
    """A picture whose header is read.

    Attributes:
        header: What is known of it.
        identity: Of the file that was looked at.
    """

    header: SlideHeader
    identity: FileIdentity

    @contextmanager
    def open(self) -> Iterator[FlatReader]:
        """Open the pixels.

        Raises:
            DecodeError: The file is another one than the one that was looked at, or damaged.
            SourceError: It cannot be read.
        """
        self.identity.require(self.header.path)
        yield FlatReader(self.header)


class FlatReader:
    """The pixels of a picture, from top to bottom."""

    def __init__(self, header: SlideHeader) -> None:
        self.header = header

    def rows(self, height: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the picture from top to bottom, (up to height, width, channels) each.

        Raises:
            DecodeError: It is damaged or cut short; the text has the row.
        """
        header = self.header
        vips = load_libvips(header.format)
        whole, width = header.levels[0].shape
        with quiet():
            image = _upright(vips, _loaded(vips, header.path), header.path)
            region = vips.Region.new(image)
            at_once = max(1, _BAND // (width * image.bands * header.dtype.itemsize))
            for top in range(0, whole, height):
                values = np.empty((min(height, whole - top), width, header.channels), header.dtype)
                for start in range(0, len(values), at_once):
                    count = min(at_once, len(values) - start)
                    try:
                        data = region.fetch(0, top + start, width, count)
                    except vips.Error as error:
                        raise DecodeError(
                            f"{header.path}: rows {top + start:,} to {top + start + count - 1:,} "
                            f"cannot be decoded: {_told(error)}",
                            path=header.path,
                        ) from error
                    stored = np.frombuffer(data, header.dtype).reshape(count, width, -1)
                    values[start : start + count] = _as_meant(image, stored)
                yield values

    def read(
        self, level: int, *, y: int, x: int, height: int, width: int, plane: int = 0
    ) -> npt.NDArray[Any]:
        """Refuse: a picture without tiles is read from top to bottom.

        Raises:
            SourceError: Always.
        """
        raise SourceError(
            f"{self.header.path}: a {self.header.format} without tiles is read from top to "
            "bottom; pack it to read regions",
            path=self.header.path,
        )

    def stream(self, level: int, *, row: int, column: int) -> bytes | None:
        """Return None: there are no tiles."""
        return None

    def associated(self, name: str) -> npt.NDArray[Any]:
        """Refuse: there are no other pictures.

        Raises:
            SourceError: Always.
        """
        raise SourceError(f"{self.header.path}: has no picture {name!r}", path=self.header.path)


def open_flat(path: Path, *, max_pixels: int | None = None) -> FlatSlide | None:
    """Return a picture that libvips streams; its header is read, none of its pixels.

    Args:
        path: A file.
        max_pixels: More are refused; 100 gigapixels by default.

    Returns:
        None for a format that is not streamed.

    Raises:
        DecodeError: It is damaged, or its bytes cannot hold what it claims.
        ImageTooLargeError: It has more pixels, or would have to be held in memory as a whole.
        SourceError: It cannot be read.
        MissingExtraError: libvips is not installed.
    """
    name = str(path)
    identity = identity_of(name)
    vips = load_libvips(name)
    with quiet():
        image = _loaded(vips, name)
        form = _FORMATS.get(_text(image, "vips-loader").removesuffix("_source"))
        if form is None:
            return None
        _check_size(
            image,
            name,
            form,
            nbytes=identity.nbytes,
            most=MAX_PIXELS if max_pixels is None else max_pixels,
        )
        shown = _upright(vips, image, name, check=True)
    remarks, channels = [], image.bands
    if _is_cmyk(image):
        remarks.append("CMYK became RGB")
        channels = 3
    elif _is_transparent(image):
        remarks.append("transparent pixels lie on white")
        channels -= 1
    if remarks and image.format not in ("uchar", "ushort"):
        raise DecodeError(
            f"{name}: alpha or CMYK of {_DTYPES[image.format]} numbers has no full scale; write "
            "it as colours of 8 or 16 bits",
            path=name,
        )
    if _is_cmyk(image) and (image.format, image.bands) != ("uchar", 4):
        raise DecodeError(
            f"{name}: CMYK of 16 bits or with more channels would lose something; write it as RGB",
            path=name,
        )
    header = SlideHeader(
        path=name,
        format=form,
        dtype=np.dtype(_DTYPES[shown.format]),
        levels=(SlideLevel(shape=(shown.height, shown.width), downsample=1.0),),
        channels=channels,
        is_rgb=channels == 3 and (_is_cmyk(image) or image.interpretation in _COLOURS),
        mpp=_pixel_size(image),
        is_sequential=True,
        remarks=tuple(remarks),
        nbytes=identity.nbytes,
    )
    return FlatSlide(header=header, identity=identity)


def identity_of(path: str) -> FileIdentity:
    """Return which file is at a path.

    Raises:
        SourceError: It cannot be read, or is no ordinary file.
    """
    try:
        info = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=path) from error
    if not stat.S_ISREG(info.st_mode):
        raise SourceError(f"{path}: is no ordinary file", path=path)
    return FileIdentity(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def streams_jpeg2000() -> bool:
    """Return whether this libvips was built with JPEG 2000; that of the wheels is not."""
    vips = load_libvips("JPEG 2000")
    return bool(vips.type_find("VipsOperation", "jp2kload_source"))


def _loaded(vips: Any, path: str) -> Any:
    # A name may hold brackets, which libvips takes for options: the loader is asked for by itself.
    try:
        image = _source(vips, path, "error")
        if "jpegload" in _text(image, "vips-loader"):
            # Data that ends too early is only a warning there, and the rest would be grey.
            return _source(vips, path, "warning")
        return image
    except vips.Error as error:
        raise DecodeError(f"{path}: {_told(error)}", path=path) from error


def _source(vips: Any, path: str, fail_on: str) -> Any:
    source = vips.Source.new_from_file(path)
    return vips.Image.new_from_source(source, "", access="sequential", fail_on=fail_on)


def _told(error: Any) -> str:
    """Return what libvips says, on one line."""
    text = str(getattr(error, "detail", "") or error)
    lines = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    return "; ".join(lines) or "it cannot be decoded"


def _text(image: Any, name: str) -> str:
    return str(image.get(name)) if image.get_typeof(name) else ""


def _check_size(image: Any, path: str, form: str, *, nbytes: int, most: int) -> None:
    """Refuse a size that is too large, or that the file cannot hold."""
    pixels = image.width * image.height
    size = f"{image.width:,} x {image.height:,} pixels"
    if pixels > most:
        raise ImageTooLargeError(
            f"{path}: {size} are over the limit of {most:,} (max_pixels)", path=path
        )
    if image.format not in _DTYPES:
        raise DecodeError(f"{path}: its pixels are {image.format}, not numbers", path=path)
    if pixels > max(nbytes * _PIXELS_A_BYTE.get(form, pixels), 1):
        raise DecodeError(f"{path}: claims {size}, more than {nbytes:,} bytes can hold", path=path)
    itemsize = np.dtype(_DTYPES[image.format]).itemsize
    whole = pixels * image.bands * itemsize
    kind = form if form in _WHOLE else ""
    if form == "WebP":
        whole = pixels * _WEBP_PIXEL
    if _text(image, "interlaced") not in ("", "0"):
        kind = "a progressive JPEG" if form == "JPEG" else f"an interlaced {form}"
        whole *= 2 if form == "JPEG" else 1
    if kind and whole > MAX_WHOLE:
        raise ImageTooLargeError(
            f"{path}: {kind} of {size} has to be held in memory as a whole, {whole / 1e9:.1f} GB; "
            f"{MAX_WHOLE >> 20:,} MiB is the limit. Convert it, to a tiled TIFF for example",
            path=path,
        )


def _is_cmyk(image: Any) -> bool:
    return bool(image.interpretation == "cmyk")


def _is_transparent(image: Any) -> bool:
    return bool(image.hasalpha()) and image.bands in (2, 4)


def _as_meant(image: Any, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows as colours or grey values: without alpha, and CMYK as RGB."""
    if _is_cmyk(image):
        size = stored.shape[1], stored.shape[0]
        return np.asarray(Image.frombytes("CMYK", size, stored.tobytes()).convert("RGB"))
    if not _is_transparent(image):
        return stored
    samples = Samples(colour=stored[..., :-1], alpha=stored[..., -1:])
    mode = "RGB" if stored.shape[2] == 4 else "L"
    return finish(samples, mode=mode, depth="keep", background=(255, 255, 255))


def _upright(vips: Any, image: Any, path: str, *, check: bool = False) -> Any:
    """Return the picture turned as it is meant; nothing is decoded where ``check`` is set."""
    turn = int(image.get("orientation")) if image.get_typeof("orientation") else 1
    if turn not in range(2, 9):
        return image
    if turn != _MIRRORED:
        itemsize = np.dtype(_DTYPES[image.format]).itemsize
        whole = math.prod((image.width, image.height, image.bands, itemsize))
        if whole > MAX_TURNED:
            raise ImageTooLargeError(
                f"{path}: is to be turned (EXIF orientation {turn}), for which it has to be held "
                f"in memory, {whole / 1e6:,.0f} MB; {MAX_TURNED >> 20} MiB is the limit. Turn it "
                "beforehand, with jpegtran for example",
                path=path,
            )
        if not check:
            try:
                image = image.copy_memory()
            except vips.Error as error:
                raise DecodeError(f"{path}: {_told(error)}", path=path) from error
    return image.autorot()


def _pixel_size(image: Any) -> tuple[float, float] | None:
    """Return micrometres along (y, x), where the file says something that a scanner would."""
    if not image.get_typeof("resolution-unit") or min(image.xres, image.yres) <= 0:
        return None
    size = 1000 / image.yres, 1000 / image.xres
    return size if max(size) < _FINE else None
