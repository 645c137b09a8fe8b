"""Which kind of slide a file is, by its content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sharedds.errors import DecodeError, MissingExtraError, SharedDSError, SourceError
from sharedds.slides.flat import open_flat, streams_jpeg2000
from sharedds.slides.jpeg2000 import open_jpeg2000
from sharedds.slides.source import SlideFile
from sharedds.slides.tiff import open_tiff
from sharedds.slides.vendor import open_vendor, vendor_of

__all__ = ["is_slide", "recognise"]

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG_2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", *_JPEG_2000)
#: Names of formats that OpenSlide knows and that do not begin as a TIFF or a picture would.
_VENDORS = (".mrxs", ".vms", ".vmu", ".svslide", ".zvi", ".czi", ".dcm")
_SLIDES = (".svs", ".ndpi", ".scn", ".bif", ".ome.tif", ".ome.tiff", *_VENDORS[:-1])
_OURS = ("aperio", "generic-tiff")  # what the reader of TIFF files reads by itself
_HEAD = 132


def recognise(path: Path, *, max_pixels: int | None = None) -> SlideFile | None:
    """Return a file as a slide, whose header is read; its name decides nothing.

    Args:
        path: The file.
        max_pixels: More are refused where a picture is streamed; 100 gigapixels by default.

    Returns:
        None for what is no picture at all, or one of a format that is not read here.

    Raises:
        DecodeError: It is damaged, or claims more than it can hold.
        ImageTooLargeError: It is over a limit, which the text names.
        SourceError: It cannot be read.
        MissingExtraError: A library that reads it is not installed.
    """
    head = _head(path)
    if head[:4] in _TIFF:
        return _of_tiff(path, max_pixels)
    if _may_be_of_vendor(path, head) and vendor_of(path) is not None:
        return open_vendor(path)
    if head.startswith(_JPEG_2000) and not streams_jpeg2000():
        return open_jpeg2000(path, max_pixels=max_pixels)
    if head.startswith(_PICTURES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return open_flat(path, max_pixels=max_pixels)
    return None


def _of_tiff(path: Path, max_pixels: int | None) -> SlideFile | None:
    failure: SharedDSError | None = None
    try:
        found: SlideFile | None = open_tiff(path)
    except DecodeError as error:  # slides of some makers over 4 GB break the rules of TIFF
        found, failure = None, error
    if found is not None:
        return found
    try:
        vendor = vendor_of(path)
    except MissingExtraError:
        if failure is not None:
            raise failure from None
        raise
    if vendor is not None and vendor not in _OURS:
        return open_vendor(path)
    if failure is not None:
        raise failure
    return open_flat(path, max_pixels=max_pixels)


def is_slide(path: Path) -> bool:
    """Return whether a file is a slide and no ordinary picture: a vendor's, or with levels.

    Damaged files count by their names.
    """
    if path.name.lower().endswith(_SLIDES):
        return True
    try:
        head = _head(path)
        if head[:4] in _TIFF:
            found = open_tiff(path)
            return found is None or len(found.header.levels) > 1
        return _may_be_of_vendor(path, head) and vendor_of(path) is not None
    except SharedDSError:
        return False


def _may_be_of_vendor(path: Path, head: bytes) -> bool:
    return path.suffix.lower() in _VENDORS or head[128:132] == b"DICM"


def _head(path: Path) -> bytes:
    """Return the first bytes of a file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # asked before open(), which waits on a pipe
            raise SourceError(f"{path}: is no ordinary file", path=str(path))
        with open(path, "rb") as file:
            return file.read(_HEAD)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
