"""What a reader of slide files gives: a description first, then pixels by region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Colour", "SlideFile", "SlideHeader", "SlideLevel", "SlideReader"]

Colour = Literal["rgb", "ycc", "grey", "as it says"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlideLevel:
    """One resolution of a slide.

    Attributes:
        shape: Pixels along (y, x).
        downsample: Pixels of level 0 for each pixel of this one, along an axis: 1.0 for level 0;
            need not be whole.
        tile: Shape (y, x) of the tiles in the file; None where it is not cut into tiles.
        stream: ``"jpeg"`` where tiles are JPEG streams that can be copied as they are; else None.
        tables: For such tiles: the abbreviated JPEG stream (SOI ... EOI) with the tables that the
            tiles share; empty where each has its own.
        colour: For such tiles: what their samples are, whatever their markers say.
    """

    shape: tuple[int, int]
    downsample: float
    tile: tuple[int, int] | None = None
    stream: Literal["jpeg"] | None = None
    tables: bytes = b""
    colour: Colour = "as it says"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlideHeader:
    """What is known of a slide before any pixel is read.

    Attributes:
        path: The file, for errors; never stored.
        format: ``"TIFF"``, ``"Aperio"``, ``"OME-TIFF"``, ``"JPEG"``, ``"PNG"``, the vendor's name
            as OpenSlide gives it, ...
        dtype: Of the pixels, little-endian: uint8, uint16, int16, float32, ...
        levels: Finest first; at least one.
        channels: Numbers of a pixel: 3 for colour, 1 for grey, or as many as there are.
        channel_names: One for each channel where known, else empty.
        is_rgb: Whether the channels are red, green and blue.
        planes: Of a focus stack; 1 for a plain slide.
        mpp: Micrometres for each pixel of level 0, along (y, x); None where not known.
        magnification: Of the objective, where known.
        background: What lies where nothing was scanned, one number for each channel; None where the
            file says nothing.
        associated: Names of pictures that belong to the slide and are no level of it: ``"label"``,
            ``"macro"``, ``"thumbnail"``.
        is_sequential: Whether pixels can only be had from top to bottom (:meth:`SlideReader.rows`).
        attrs: What else is worth keeping, as JSON. Nothing that could identify a patient, no path.
        remarks: What a person should be told; each is one sentence.
        nbytes: Of the file, for progress.
    """

    path: str
    format: str
    dtype: np.dtype[Any]
    levels: tuple[SlideLevel, ...]
    channels: int = 3
    channel_names: tuple[str, ...] = ()
    is_rgb: bool = True
    planes: int = 1
    mpp: tuple[float, float] | None = None
    magnification: float | None = None
    background: tuple[float, ...] | None = None
    associated: tuple[str, ...] = ()
    is_sequential: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    nbytes: int = 0


class SlideReader(Protocol):
    """The pixels of an open slide. Threads may share one."""

    def read(
        self, level: int, *, y: int, x: int, height: int, width: int, plane: int = 0
    ) -> npt.NDArray[Any]:
        """Return a region inside a level, (height, width, channels), in the slide's dtype.

        What the file does not hold is the background (0 where there is none).

        Raises:
            DecodeError: A tile is damaged or not whole; the text has level, row and column.
            SourceError: The file cannot be read, or is another one by now.
        """

    def rows(self, height: int) -> Iterator[npt.NDArray[Any]]:
        """Yield level 0 from top to bottom, (up to height, width, channels) each.

        The only way to read where the header says ``is_sequential``, and allowed everywhere.
        """

    def stream(self, level: int, *, row: int, column: int) -> bytes | None:
        """Return a tile's JPEG stream as it lies in the file; None where the file has no tile.

        Only for levels with ``stream == "jpeg"``.
        """

    def associated(self, name: str) -> npt.NDArray[Any]:
        """Return a picture that is no level, (height, width, channels)."""


class SlideFile(Protocol):
    """A slide that was recognised: its header is read and checked, its pixels are not."""

    @property
    def header(self) -> SlideHeader:
        """What the file says of itself."""

    def open(self) -> AbstractContextManager[SlideReader]:
        """Open the pixels.

        Raises:
            DecodeError: The file is damaged, or is another one by now.
            SourceError: It cannot be read.
        """
