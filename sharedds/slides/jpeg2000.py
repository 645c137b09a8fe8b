"""JPEG 2000 pictures where libvips cannot stream them: decoded as a whole, within a bound."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.codecs.pixels import Samples, finish
from sharedds.errors import DecodeError, ImageTooLargeError, SourceError
from sharedds.slides.flat import MAX_PIXELS, MAX_WHOLE, FlatReader, FlatSlide, identity_of
from sharedds.slides.source import SlideHeader, SlideLevel

__all__ = ["Jpeg2000Slide", "open_jpeg2000"]

_HEAD = 64 << 10  # bytes in which the codestream begins: only descriptions lie before it
_START = b"\xff\x4f\xff\x51"  # SOC and SIZ, ISO/IEC 15444-1, A.4.1 and A.5.1
_SIZE = struct.Struct(">HHIIIIIIIIH")
_WORK = 5  # bytes that OpenJPEG and Pillow hold for each sample of 8 bits: one of 32 bits beside it
_PIXELS_A_BYTE = 8192  # more are no picture: even an empty block of code takes some bits
_MODES = {"L": (1, "u1"), "I;16": (1, "<u2"), "RGB": (3, "u1"), "LA": (1, "u1"), "RGBA": (3, "u1")}


class Jpeg2000Slide(FlatSlide):
    """A picture whose header is read."""

    @contextmanager
    def open(self) -> Iterator[FlatReader]:
        """Open the pixels.

        Raises:
            DecodeError: The file is another one than the one that was looked at.
            SourceError: It cannot be read.
        """
        self.identity.require(self.header.path)
        yield _Reader(self.header)


class _Reader(FlatReader):
    """The pixels, from top to bottom."""

    def rows(self, height: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the picture from top to bottom, (up to height, width, channels) each.

        Raises:
            DecodeError: It is damaged.
        """
        values = _decoded(self.header)
        for top in range(0, len(values), height):
            yield values[top : top + height]


def open_jpeg2000(path: Path, *, max_pixels: int | None = None) -> Jpeg2000Slide:
    """Return a JPEG 2000 picture; its header is read, none of its pixels.

    Args:
        path: A file that begins as one.
        max_pixels: More are refused.

    Raises:
        DecodeError: It is damaged, claims more than its bytes can hold, or would lose something.
        ImageTooLargeError: It has more pixels, or more than can be held in memory as a whole.
        SourceError: It cannot be read.
    """
    name = str(path)
    identity = identity_of(name)
    try:
        with open(name, "rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise SourceError(f"{name}: cannot be read ({error.strerror})", path=name) from error
    height, width, depths = _size(head, name)
    _check(
        name, height * width, f"{width:,} x {height:,} pixels", depths, identity.nbytes, max_pixels
    )
    channels, dtype, has_alpha = _form(head, name)
    if max(depths) > 8 * np.dtype(dtype).itemsize:
        raise DecodeError(
            f"{name}: colours of {max(depths)} bits cannot be read without loss here; write them "
            "as PNG or TIFF",
            path=name,
        )
    header = SlideHeader(
        path=name,
        format="JPEG 2000",
        dtype=np.dtype(dtype),
        levels=(SlideLevel(shape=(height, width), downsample=1.0),),
        channels=channels,
        is_rgb=channels == 3,
        is_sequential=True,
        remarks=("transparent pixels lie on white",) if has_alpha else (),
        nbytes=identity.nbytes,
    )
    return Jpeg2000Slide(header=header, identity=identity)


def _size(head: bytes, path: str) -> tuple[int, int, list[int]]:
    """Return height, width, and the bits of each component."""
    at = head.find(_START)
    fields = head[at + 4 : at + 4 + _SIZE.size]
    if at < 0 or len(fields) < _SIZE.size:
        raise DecodeError(f"{path}: is no whole JPEG 2000, its sizes are missing", path=path)
    _, _, right, bottom, left, top, *_, count = _SIZE.unpack(fields)
    listed = head[at + 4 + _SIZE.size :][: 3 * count : 3]
    if not (right > left and bottom > top and 0 < count == len(listed)):
        raise DecodeError(f"{path}: its JPEG 2000 header claims an impossible size", path=path)
    return bottom - top, right - left, [1 + (depth & 0x7F) for depth in listed]


def _check(
    path: str, pixels: int, size: str, depths: list[int], nbytes: int, most: int | None
) -> None:
    """Refuse what is too large, or what the file cannot hold."""
    limit = MAX_PIXELS if most is None else most
    if pixels > limit:
        raise ImageTooLargeError(
            f"{path}: {size} are over the limit of {limit:,} (max_pixels)", path=path
        )
    if pixels > nbytes * _PIXELS_A_BYTE:
        raise DecodeError(f"{path}: claims {size}, more than {nbytes:,} bytes can hold", path=path)
    whole = pixels * len(depths) * _WORK
    if whole > MAX_WHOLE:
        raise ImageTooLargeError(
            f"{path}: a JPEG 2000 of {size} has to be held in memory as a whole, "
            f"{whole / 1e9:.1f} GB; {MAX_WHOLE >> 20:,} MiB is the limit. Convert it, to a tiled "
            "TIFF for example",
            path=path,
        )


def _form(head: bytes, path: str) -> tuple[int, str, bool]:
    """Return channels, dtype, and whether there is alpha, as Pillow will give them."""
    from PIL import Jpeg2KImagePlugin  # noqa: PLC0415 - seldom needed

    try:
        with Jpeg2KImagePlugin.Jpeg2KImageFile(io.BytesIO(head)) as image:
            mode = image.mode
    except Exception as error:  # whatever a damaged header makes the library raise
        raise DecodeError(f"{path}: its JPEG 2000 header is damaged", path=path) from error
    if mode not in _MODES:
        raise DecodeError(
            f"{path}: a JPEG 2000 of kind {mode} is not read; write it as grey or RGB", path=path
        )
    return *_MODES[mode], mode in ("LA", "RGBA")


def _decoded(header: SlideHeader) -> npt.NDArray[Any]:
    from PIL import Jpeg2KImagePlugin  # noqa: PLC0415 - seldom needed

    height, width = header.levels[0].shape
    try:
        with Jpeg2KImagePlugin.Jpeg2KImageFile(header.path) as image:
            if image.size != (width, height):
                raise DecodeError("is another picture by now")
            image.load()
            values = np.asarray(image).reshape(height, width, -1)
    except Exception as error:  # whatever a damaged stream makes the library raise
        reason = str(error).strip() or type(error).__name__
        raise DecodeError(
            f"{header.path}: its JPEG 2000 data cannot be decoded ({reason})", path=header.path
        ) from error
    if values.shape[2] > header.channels:
        samples = Samples(colour=values[..., :-1], alpha=values[..., -1:])
        mode = "RGB" if header.channels == 3 else "L"
        values = finish(samples, mode=mode, depth="keep", background=(255, 255, 255))
    return values.astype(header.dtype, copy=False)
