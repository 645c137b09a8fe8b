"""What is stored of a picture: found, then decoded, in the channels and the depth asked for."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sharedds.codecs import ImageHeader, Scratch, decode, probe
from sharedds.datasets.sources import ImageSource
from sharedds.errors import DecodeError, SharedDSError
from sharedds.handles import per_process

__all__ = ["Found", "Options", "PictureCache", "Pixels", "StoredPictures", "as_mode"]

Pixels: TypeAlias = npt.NDArray[Any]

_LOOKED_AT = 100  # pictures that may be bad before the first good one decides the depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How pictures are decoded; see :class:`sharedds.ImageDataset`."""

    mode: Literal["RGB", "L", "RGBA", "keep", "index"]
    depth: Literal["auto", "keep", "8", "16"]
    background: tuple[int, int, int]
    max_pixels: int | None


@dataclass(frozen=True, slots=True)
class Found:
    """A picture that was read and not yet decoded, or one whose pixels are at hand.

    Attributes:
        position: Its number.
        size: Height and width, upright.
        data: Its file.
        header: What its file says; None without a file.
        orientation: What to undo.
        pixels: The whole picture (H, W, C), upright, instead of a file.
        stamp: What told its file from later ones, asked for before it was read.
    """

    position: int
    size: tuple[int, int]
    data: memoryview | bytes = b""
    header: ImageHeader | None = None
    orientation: int = 1
    pixels: Pixels | None = None
    stamp: int = 0


class PictureCache(Protocol):
    """Keeps whole pictures that were decoded: (H, W, C), upright."""

    def get(self, index: int, /, *, stamp: int) -> Pixels | None:
        """Return a picture that was put with this stamp, perhaps read-only, or None."""

    def put(self, index: int, array: Pixels, /, *, stamp: int) -> bool:
        """Keep a picture, if there is room."""


class StoredPictures:
    """The pictures of a source, each with the channels and the depth that were asked for.

    Args:
        source: Where they are.
        options: How they are decoded.

    Attributes:
        cache: Keeps whole pictures; with one no picture is decoded at a smaller scale.
    """

    def __init__(self, source: ImageSource, options: Options) -> None:
        self.source = source
        self.options = options
        self.cache: PictureCache | None = None

    @per_process
    def depth(self) -> Literal["keep", "8", "16"]:
        """The depth of all pictures: what was asked for, or that of the first good one."""
        if self.options.depth != "auto":
            return self.options.depth
        if self.options.mode in ("keep", "index") or len(self.source) == 0:
            return "keep"
        bits = self.first_bits()
        return "8" if bits <= 8 else "16" if bits <= 16 else "keep"

    def first_bits(self) -> int:
        """Return the bits of each channel of the first good picture; 8 where there is none."""
        for position in range(min(len(self.source), _LOOKED_AT)):
            try:
                stored = self.source.stored(position)
                if isinstance(stored, np.ndarray):
                    return 8
                header = probe(stored, max_pixels=None)
                # Signed numbers are widened when they are decoded, however few bits they have.
                return 32 if header.mode in ("I", "F") else header.bits
            except SharedDSError:  # a bad file decides nothing; it is reported when it is read
                continue
        return 8

    @per_process
    def _warned(self) -> list[bool]:
        return []

    def find(self, position: int) -> Found:
        """Read a picture: its file and what that says, or its pixels where they are at hand.

        Raises:
            DecodeError, SourceError, CorruptDataError: It cannot be read.
        """
        stamp = 0
        if self.cache is not None:
            # Before the file is read: what is decoded may belong to an older one than is there
            # when it is put. At worst it is decoded once more.
            stamp = self.source.stamp(position)
            pixels = self.cache.get(position, stamp=stamp)
            if pixels is not None:
                return Found(position, pixels.shape[:2], pixels=pixels)
        stored = self.source.stored(position)
        try:
            if isinstance(stored, np.ndarray):
                pixels = as_mode(stored, self.options.mode)
                return Found(position, pixels.shape[:2], pixels=pixels)
            header = probe(stored, max_pixels=self.options.max_pixels)
        except DecodeError as error:
            raise self._named(error, position) from error
        turned = self.source.orientation(position) or header.orientation
        height, width = header.height, header.width
        size = (height, width) if turned < 5 else (width, height)
        return Found(position, size, stored, header, turned, stamp=stamp)

    def whole(self, found: Found) -> Pixels:
        """Return all of a picture, upright. Here, and nowhere else, is it decoded to be kept."""
        if found.pixels is not None:
            return found.pixels
        pixels = self.decoded(found, orientation=found.orientation)
        if self.cache is not None:
            self.cache.put(found.position, pixels, stamp=found.stamp)
        return pixels

    def decoded(
        self,
        found: Found,
        *,
        orientation: int,
        factor: int = 1,
        rows: int | None = None,
        scratch: Scratch | None = None,
    ) -> Pixels:
        """Decode the file of a picture; see :func:`sharedds.codecs.decode`.

        Raises:
            DecodeError: It cannot be decoded; the text names it.
        """
        wanted, depth = self.options, self.depth
        try:
            pixels = decode(
                found.data,
                mode=wanted.mode,
                depth="keep" if depth == "8" and wanted.depth == "auto" else depth,
                background=wanted.background,
                orientation=orientation,
                max_pixels=wanted.max_pixels,
                header=found.header,
                factor=factor,
                rows=rows,
                scratch=scratch,
            )
        except DecodeError as error:
            raise self._named(error, found.position) from error
        if depth == "8" and pixels.dtype == np.uint16:
            return self._scaled_down(pixels, found.position)
        return pixels

    def _scaled_down(self, pixels: npt.NDArray[np.uint16], position: int) -> npt.NDArray[np.uint8]:
        if not self._warned:
            self._warned.append(True)
            warnings.warn(
                f"{self.source.name(position)!r} has 16 bits where the first has 8: scaled "
                "over 0..65535 to 8 bits; choose depth='16', 'keep' or '8' to decide yourself",
                stacklevel=6,
            )
        return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)

    def _named(self, error: DecodeError, position: int) -> DecodeError:
        name = os.path.join(self.source.path, self.source.name(position))
        return type(error)(
            f"{name}: sample {position}: {error}", path=name, sample=position, field="image"
        )


def as_mode(pixels: Pixels, mode: str) -> Pixels:
    """Give stored pixels the channels of a mode where nothing has to be computed.

    Raises:
        DecodeError: Something would have to be.
    """
    channels = pixels.shape[2]
    if mode == "keep" or (mode in ("L", "index") and channels == 1):
        return pixels
    if channels == {"RGB": 3, "RGBA": 4}.get(mode):
        return pixels
    if mode == "RGB" and channels == 1:
        return np.repeat(pixels, 3, axis=2)
    raise DecodeError(f"raw pixels with {channels} channels cannot be read as mode {mode!r}")
