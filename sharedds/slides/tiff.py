"""TIFF, BigTIFF, Aperio SVS and OME-TIFF as slides: levels, pixel size, and tiles as they lie."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedds.codecs.jpeg import read_header
from sharedds.errors import DecodeError, SourceError
from sharedds.slides.aperio import aperio_plan, is_aperio
from sharedds.slides.limits import MAX_PICTURE_BYTES
from sharedds.slides.ome import is_ome, ome_plan
from sharedds.slides.pixel_size import odd_size
from sharedds.slides.source import Colour, SlideHeader, SlideLevel
from sharedds.slides.tiff_directory import Directory, TiffSource, read_directories
from sharedds.slides.tiff_page import COMPRESSIONS, JPEG, TiffPage
from sharedds.slides.tiff_pyramid import Pages, Plan, downsample_of, plain_plan
from sharedds.slides.tiff_reader import TiffReader
from sharedds.slides.tiff_tiles import PageTiles, jpeg_colour

__all__ = ["TiffSlide", "open_tiff"]

_DESCRIPTION, _SOFTWARE, _XMP, _NO_DATA, _HAMAMATSU = 270, 305, 700, 42113, 65420
_Level = tuple[tuple[TiffPage, ...], ...]


@dataclass(frozen=True, kw_only=True)
class TiffSlide:
    """A TIFF slide whose directories are read and checked.

    Attributes:
        header: What is known of it.
        levels: Of each level, the pages of each plane.
        pictures: Pages of the pictures that are no level.
        identity: Device, inode, bytes and time of change of the file that was looked at.
    """

    header: SlideHeader
    levels: tuple[_Level, ...]
    pictures: tuple[tuple[str, TiffPage], ...]
    identity: tuple[int, int, int, int]

    @contextmanager
    def open(self) -> Iterator[TiffReader]:
        """Open the pixels; the file is closed at the end.

        Raises:
            DecodeError: The file is another one than the one that was looked at.
            SourceError: It cannot be read.
        """
        path = self.header.path
        source, identity = _opened(path)
        reader = TiffReader(source, self.header, self.levels, dict(self.pictures))
        try:
            if identity != self.identity:
                raise DecodeError(
                    f"{path}: is another file than the one that was looked at (its size, time or "
                    "place on the disk changed); start again",
                    path=path,
                )
            yield reader
        finally:
            reader.close()


def open_tiff(path: Path) -> TiffSlide | None:
    """Return the slide that a TIFF holds; its directories are read, none of its pixels.

    Aperio and OME-TIFF are told by their descriptions. Anything else is a pyramid where its pages
    are one, or its first page.

    Args:
        path: A file that begins as TIFF or BigTIFF.

    Returns:
        None for what another reader has to read: files of Hamamatsu, Leica, Philips, Trestle and
        Ventana, whose pages are arranged by rules of their own (OpenSlide knows them), and pictures
        that can only be had from top to bottom (libvips): CCITT, and compressed strips of more than
        64 MiB each (of OME-TIFF: 256 MiB).

    Raises:
        DecodeError: It is damaged, claims more than it can hold, has pixels that nothing here
            reads, or pages of which nothing says what they are; the text says which.
        ImageTooLargeError: A single tile would take more than 256 MiB.
        SourceError: It cannot be read.
    """
    source, identity = _opened(str(path))
    try:
        pages = Pages(read_directories(source), source.path, source.size)
        first = pages.directories[0]
        description = first.text(_DESCRIPTION)
        if _is_of_another_vendor(first, description):
            return None
        if is_aperio(description):
            plan = aperio_plan(pages)
        elif is_ome(description):
            plan = ome_plan(pages)
        else:
            plan = plain_plan(pages)
        if plan is None:
            return None
        header, levels, pictures = _described(source, plan, first.text(_NO_DATA))
    finally:
        os.close(source.descriptor)
    return TiffSlide(header=header, levels=levels, pictures=pictures, identity=identity)


def _is_of_another_vendor(first: Directory, description: str) -> bool:
    software = first.text(_SOFTWARE)
    return (
        _HAMAMATSU in first
        or "leica-microsystems.com/scn" in description[:4096]
        or software.startswith(("MedScan", "Philips"))
        or b"iScan" in first.data(_XMP)
    )


def _opened(path: str) -> tuple[TiffSource, tuple[int, int, int, int]]:
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):  # asked before open(), which waits on a pipe
            raise SourceError(f"{path}: is no ordinary file", path=path)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=path) from error
    info = os.fstat(descriptor)
    identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    return TiffSource(path, descriptor, info.st_size), identity


def _described(
    source: TiffSource, plan: Plan, no_data: str
) -> tuple[SlideHeader, tuple[_Level, ...], tuple[tuple[str, TiffPage], ...]]:
    base = plan.levels[0][0][0]
    remarks = list(plan.remarks)
    missing: dict[str, int] = {}
    kept: list[_Level] = []
    levels: list[SlideLevel] = []
    for pages in plan.levels:
        try:
            survey = _surveyed(source, pages, len(kept))
        except DecodeError as error:
            if not kept:
                raise
            why = str(error).removeprefix(f"{source.path}: ")
            remarks.append(f"left out: a level of {pages[0][0].width} pixels: {why}")
            continue
        if survey.problem and kept:
            remarks.append(f"left out: page {pages[0][0].number}, a level which {survey.problem}")
            continue
        if survey.missing:
            missing[str(len(kept))] = survey.missing
        remarks += [one for one in survey.remarks if one not in remarks]
        levels.append(_level(pages, base.shape, survey.colour))
        kept.append(pages)
    pictures = _pictures(plan, remarks)
    channels = sum(page.channels for page in plan.levels[0][0])
    odd = None if plan.mpp is None else odd_size(plan.mpp)
    attrs: dict[str, Any] = {"compression": COMPRESSIONS[base.compression].lower()}
    if base.bits != base.dtype.itemsize * 8:
        attrs["bits"] = base.bits
    if missing:
        attrs["missing"] = missing
    header = SlideHeader(
        path=source.path,
        format=plan.format,
        dtype=base.dtype.newbyteorder("<"),
        levels=tuple(levels),
        channels=channels,
        channel_names=plan.channel_names,
        is_rgb=len(plan.levels[0][0]) == 1 and base.is_rgb,
        planes=len(plan.levels[0]),
        mpp=plan.mpp,
        magnification=plan.magnification,
        background=_background(no_data, base, channels),
        associated=tuple(pictures),
        attrs=attrs,
        remarks=(*remarks, *([odd] if odd else []), *_told_of(base)),
        nbytes=source.size,
    )
    return header, tuple(kept), tuple(pictures.items())


def _pictures(plan: Plan, remarks: list[str]) -> dict[str, TiffPage]:
    """Return the other pictures, but for those that are too large to be read as a whole."""
    found = {}
    for name, page in plan.associated.items():
        size = page.width * page.height * page.samples * page.dtype.itemsize
        if size <= MAX_PICTURE_BYTES:
            found[name] = page
        else:
            remarks.append(
                f"left out: its {name} of {page.width} x {page.height} pixels takes {size:,} "
                f"bytes; {MAX_PICTURE_BYTES:,} is the most"
            )
    return found


def _level(pages: _Level, base: tuple[int, int], colour: Colour) -> SlideLevel:
    page = pages[0][0]
    units = {one.unit for plane in pages for one in plane}
    copied = (
        len(pages) == len(pages[0]) == 1
        and page.compression == JPEG
        and page.tiled
        and not page.apart
        and page.photometric in (1, 2, 6)
        and page.samples in (1, 3)
    )
    return SlideLevel(
        shape=page.shape,
        downsample=downsample_of(base, page.shape),
        tile=page.unit if page.tiled and len(units) == 1 else None,
        stream="jpeg" if copied else None,
        tables=page.tables if copied else b"",
        colour=colour,
    )


@dataclass(frozen=True, kw_only=True)
class _Survey:
    """What a look at the places of a level's tiles, and at its first tile, has shown."""

    colour: Colour
    missing: int
    problem: str
    remarks: tuple[str, ...]


def _surveyed(source: TiffSource, level: _Level, number: int) -> _Survey:
    colour: Colour = "as it says"
    missing, past, total, problem = 0, 0, 0, ""
    remarks: list[str] = []
    for page in (page for plane in level for page in plane):
        tiles = PageTiles(source, page, number)
        gone, cut = tiles.counts()
        missing, past, total = missing + gone, past + cut, total + page.stored_units
        if page.compression != JPEG:
            continue
        number_of_tile, stream = tiles.first()
        colour, contradicts = jpeg_colour(page, stream)
        if contradicts:
            remarks.append(
                "its tag says that pixels are RGB, while its JPEG tiles have a JFIF marker, which "
                "means YCbCr: they are read as YCbCr"
            )
        if number_of_tile == 0:
            problem = problem or _lie(page, stream)
    if missing:
        remarks.append(f"level {number}: {missing:,} of {total:,} tiles are not in the file")
    if past:
        remarks.append(
            f"level {number}: {past:,} of {total:,} tiles reach past the end of the file, which "
            "is cut short"
        )
    return _Survey(colour=colour, missing=missing, problem=problem, remarks=tuple(remarks))


def _lie(page: TiffPage, stream: bytes) -> str:
    """Return what the first JPEG tile contradicts about a page; empty where nothing."""
    try:
        found = read_header(stream)
    except DecodeError:
        return ""  # a damaged tile is told where it is read
    if not page.tiled or (
        found.height >= min(page.unit[0], page.height)
        and found.width >= min(page.unit[1], page.width)
    ):
        return ""
    return (
        f"says {page.width} x {page.height} pixels in tiles of {page.unit[1]} x {page.unit[0]}, "
        f"while a tile has {found.width} x {found.height}"
    )


def _background(text: str, page: TiffPage, channels: int) -> tuple[float, ...] | None:
    """Return the value of pixels without data, which geographic files state."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or page.photometric not in (1, 2) or page.bits < 8:
        return None
    if page.dtype.kind != "f":
        limits = np.iinfo(page.dtype)
        if not (value.is_integer() and limits.min <= value <= limits.max):
            return None
    return (value,) * channels


def _told_of(page: TiffPage) -> Iterator[str]:
    if page.has_alpha:
        yield "its alpha channel is left out"
    if page.bits < 8 and page.photometric != 3:
        yield f"its samples of {page.bits} bits are stretched to 0 ... 255"
    if page.orientation not in (0, 1):
        yield f"it asks to be turned (orientation {page.orientation}); it is read as it is stored"
    if page.photometric == 5:
        yield "its pixels are CMYK; the four channels are read as they are stored"
