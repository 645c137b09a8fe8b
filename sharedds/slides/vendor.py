"""Slides in the formats of scanners' makers, through OpenSlide."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, MissingExtraError, SourceError
from sharedds.slides.limits import CACHED_BYTES, MAX_PICTURE_BYTES
from sharedds.slides.pixel_size import odd_size
from sharedds.slides.source import SlideHeader, SlideLevel

__all__ = ["VendorReader", "VendorSlide", "open_vendor", "vendor_of"]

_WHITE = (255, 255, 255)


def vendor_of(path: Path) -> str | None:
    """Return which maker's format a file is in, as OpenSlide calls it; None where it is in none.

    Raises:
        MissingExtraError: OpenSlide is not installed.
    """
    found: str | None = _load().OpenSlide.detect_format(str(path))
    return found


@dataclass(frozen=True, kw_only=True)
class VendorSlide:
    """A slide that OpenSlide reads.

    Attributes:
        header: What is known of it.
        identity: Bytes and time of change of the file that was looked at.
    """

    header: SlideHeader
    identity: tuple[int, int]

    @contextmanager
    def open(self) -> Iterator[VendorReader]:
        """Open the pixels; the handle is closed at the end.

        Raises:
            DecodeError: The file is damaged, or another one than the one that was looked at.
            SourceError: It cannot be read.
        """
        path = self.header.path
        if _identity(path) != self.identity:
            raise DecodeError(
                f"{path}: is another file than the one that was looked at (its size or time "
                "changed); start again",
                path=path,
            )
        slide = _opened(path)
        try:
            slide.set_cache(_load().OpenSlideCache(CACHED_BYTES))
            yield VendorReader(slide, self.header)
        finally:
            slide.close()


class VendorReader:
    """The pixels of an open slide. Threads may share one: OpenSlide's handles allow it."""

    def __init__(self, slide: Any, header: SlideHeader) -> None:
        self._slide = slide
        self._header = header
        self._background = np.array(header.background or _WHITE, np.uint16)

    def read(
        self, level: int, *, y: int, x: int, height: int, width: int, plane: int = 0
    ) -> npt.NDArray[np.uint8]:
        """Return a region inside a level, (height, width, 3).

        Raises:
            DecodeError: It is damaged; the text has level, row and column.
        """
        step = self._header.levels[level].downsample
        # Places are those of level 0; between pixels of a level OpenSlide would interpolate.
        at = round(x * step), round(y * step)
        try:
            region = self._slide.read_region(at, level, (width, height))
        except _load().OpenSlideError as error:
            path = self._header.path
            raise DecodeError(
                f"{path}: level {level}, rows {y:,} to {y + height - 1:,}, columns {x:,} to "
                f"{x + width - 1:,}: {error}",
                path=path,
            ) from error
        return self._composed(region)

    def rows(self, height: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield level 0 from top to bottom, (up to height, width, 3) each."""
        whole, width = self._header.levels[0].shape
        for top in range(0, whole, height):
            count = min(height, whole - top)
            yield self.read(0, y=top, x=0, height=count, width=width)

    def stream(self, level: int, *, row: int, column: int) -> bytes | None:
        """Return None: OpenSlide does not hand out tiles as they are stored."""
        return None

    def associated(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a picture that is no level, (height, width, 3).

        Raises:
            DecodeError: It is damaged, or takes more than 256 MiB.
            SourceError: There is none of this name.
        """
        path = self._header.path
        if name not in self._header.associated:
            raise SourceError(f"{path}: has no picture {name!r}", path=path)
        known = self._slide.properties
        sides = [known.get(f"openslide.associated.{name}.{side}") for side in ("width", "height")]
        if (_number(sides[0]) or 0) * (_number(sides[1]) or 0) * 4 > MAX_PICTURE_BYTES:
            raise DecodeError(f"{path}: picture {name!r} takes over 256 MiB", path=path)
        try:
            picture = self._slide.associated_images[name]
        except _load().OpenSlideError as error:
            raise DecodeError(f"{path}: picture {name!r}: {error}", path=path) from error
        if picture.width * picture.height * 4 > MAX_PICTURE_BYTES:
            raise DecodeError(f"{path}: picture {name!r} takes over 256 MiB", path=path)
        return self._composed(picture)

    def _composed(self, picture: Any) -> npt.NDArray[np.uint8]:
        """Put what is transparent, which was not scanned, onto the background."""
        values = np.asarray(picture)
        colours, alpha = values[..., :3], values[..., 3:]
        if alpha.min(initial=255) == 255:
            return np.ascontiguousarray(colours)
        share = alpha.astype(np.uint16)
        mixed = colours * share + self._background * (255 - share)
        return ((mixed + 127) // 255).astype(np.uint8)


def open_vendor(path: Path) -> VendorSlide:
    """Return the slide that a file of a scanner's maker holds; none of its pixels are read.

    Raises:
        DecodeError: It is damaged.
        SourceError: It cannot be read, or OpenSlide does not know its format.
        MissingExtraError: OpenSlide is not installed.
    """
    name = str(path)
    identity = _identity(name)
    slide = _opened(name)
    try:
        header = _header(slide, name, vendor_of(path) or "", identity[0])
    except _load().OpenSlideError as error:
        raise DecodeError(f"{name}: {error}", path=name) from error
    finally:
        slide.close()
    return VendorSlide(header=header, identity=identity)


def _header(slide: Any, path: str, vendor: str, nbytes: int) -> SlideHeader:
    levels = tuple(
        SlideLevel(shape=(height, width), downsample=float(step) if number else 1.0)
        for number, ((width, height), step) in enumerate(
            zip(slide.level_dimensions, slide.level_downsamples, strict=True)
        )
    )
    known: Mapping[str, str] = slide.properties
    sizes = [_number(known.get(f"openslide.mpp-{axis}")) for axis in "yx"]
    mpp = (sizes[0], sizes[1]) if sizes[0] and sizes[1] else None
    colour = known.get("openslide.background-color", "")
    remark = odd_size(mpp) if mpp is not None else ""
    return SlideHeader(
        path=path,
        format=vendor,
        dtype=np.dtype(np.uint8),
        levels=levels,
        mpp=mpp,
        magnification=_number(known.get("openslide.objective-power")),
        background=tuple(bytes.fromhex(colour)) if len(colour) == 6 else None,
        associated=tuple(sorted(slide.associated_images)),
        remarks=(remark,) if remark else (),
        nbytes=nbytes,
    )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _identity(path: str) -> tuple[int, int]:
    try:
        info = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=path) from error
    return info.st_size, info.st_mtime_ns


def _opened(path: str) -> Any:
    library = _load()
    try:
        return library.OpenSlide(path)
    except library.OpenSlideUnsupportedFormatError as error:
        raise SourceError(f"{path}: OpenSlide does not know its format", path=path) from error
    except library.OpenSlideError as error:
        raise DecodeError(f"{path}: {error}", path=path) from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error})", path=path) from error


def _load() -> Any:
    try:
        import openslide  # noqa: PLC0415 - an extra
    except (ImportError, OSError) as error:
        raise MissingExtraError(
            "slides of scanners' makers need OpenSlide: pip install 'sharedds[slides]'"
        ) from error
    return openslide
