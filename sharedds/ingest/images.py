"""What happens to one image file on its way into a store: read, proved, and re-encoded where asked."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.codecs import (
    DEFAULT_MAX_PIXELS,
    IMAGE_FORMATS,
    ImageHeader,
    check,
    decode,
    encode_image,
    encode_jpeg,
    probe,
    resize,
    sniff,
)
from sharedds.errors import DecodeError, OptionError

__all__ = ["CODECS", "FORMATS", "MODES", "ImageRecipe", "ImageResult", "Ingester"]

CODECS = ("keep", "jpeg", "png", "webp", "raw")
FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")
MODES = ("other", "1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I;16", "I", "F")
_LONGEST = {"jpeg": 65_500, "webp": 16_383}  # pixels of a side that the format can hold
_LARGE = 32_000_000  # pixels; larger pictures are decoded one at a time, to bound the memory
_MAX_FILE = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """How images are stored.

    Args:
        codec: ``keep`` stores the bytes of the file; ``jpeg``, ``png``, ``webp`` encode anew; ``raw``
            stores pixels of one ``size`` as a column.
        quality: Of ``jpeg``, 1 to 100. (``webp`` is lossless.)
        max_side: Shrink so that the longer side is at most this; never enlarges.
        short_side: Shrink so that the shorter side is at most this; never enlarges.
        size: (height, width): scale until it is covered, keep the aspect, cut the middle.
        check: ``decode`` proves that every picture decodes whole; ``header`` trusts beyond the header.
        depth: ``keep``, or ``8`` to scale 16-bit values over 0..65535 to 8 bits.
        background: What shows through transparent pixels when a codec has no alpha.
        orientation: ``apply`` turns pictures upright on reading; ``ignore`` leaves them as stored.
        max_pixels: Larger pictures are refused before they are decoded; None for no limit.

    Raises:
        OptionError: Options that are out of range or exclude each other.
    """

    codec: str = "keep"
    quality: int = 90
    max_side: int | None = None
    short_side: int | None = None
    size: tuple[int, int] | None = None
    check: str = "decode"
    depth: str = "keep"
    background: tuple[int, int, int] = (255, 255, 255)
    orientation: str = "apply"
    max_pixels: int | None = DEFAULT_MAX_PIXELS

    def __post_init__(self) -> None:
        _one_of("codec", self.codec, CODECS)
        _one_of("check", self.check, ("decode", "header"))
        _one_of("depth", self.depth, ("keep", "8"))
        _one_of("orientation", self.orientation, ("apply", "ignore"))
        sizes = [n for n in ("max_side", "short_side", "size") if getattr(self, n) is not None]
        if len(sizes) > 1:
            raise OptionError(f"{' and '.join(sizes)} exclude each other; give one")
        if self.codec == "keep" and (sizes or self.depth != "keep"):
            raise OptionError(
                f"{(sizes or ['depth'])[0]} needs pictures to be encoded anew; add codec='jpeg' (--codec jpeg)"
            )
        if (self.codec == "raw") != (self.size is not None):
            raise OptionError("codec 'raw' and size=(height, width) (--size HxW) go together")
        if not 1 <= self.quality <= 100:
            raise OptionError(f"quality {self.quality} is not in 1..100")
        for name, value in (("max_side", self.max_side), ("short_side", self.short_side)):
            if value is not None and value < 1:
                raise OptionError(f"{name} {value}: at least 1 pixel")
        if self.size is not None and not all(1 <= n <= 65_535 for n in self.size):
            raise OptionError(f"size {self.size}: both sides from 1 to 65,535 pixels")

    @property
    def schema(self) -> str:
        """Kind of the image field in the store."""
        return f"uint8[{self.size[0]},{self.size[1]},3]" if self.size else "keep"


@dataclass(frozen=True, slots=True)
class ImageResult:
    """One image ready to be stored, or the reason why not.

    ``value`` is bytes, or an array (height, width, 3) for raw columns; ``row`` its columns. ``foreign``
    says that the file is not an image by content.
    """

    value: bytes | npt.NDArray[np.uint8] | None
    row: dict[str, int]
    source_bytes: int
    reason: str = ""
    foreign: bool = False


class Ingester:
    """Turns files into :class:`ImageResult`; one object serves many threads.

    Large pictures pass one at a time, so the memory does not multiply with the threads.
    """

    def __init__(self, recipe: ImageRecipe) -> None:
        self.recipe = recipe
        self._large = threading.Lock()

    def __call__(self, path: bytes) -> ImageResult:
        """Read and prepare one file; a bad one is a result, not an error."""
        size = 0
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size > _MAX_FILE:
                    return _refused(size, f"{size:,} bytes; 4 GiB is the limit of one value")
                data = file.read() if size else b""
        except OSError as error:
            return _refused(size, f"cannot be read ({error.strerror})")
        try:
            found = sniff(data)
            if found not in IMAGE_FORMATS:
                return _refused(size, f"not an image that is supported: its content is {found}", foreign=True)
            return self._prepare(data)
        except DecodeError as error:
            return _refused(size, str(error))
        except MemoryError:
            return _refused(size, "not enough memory to decode it")

    def _prepare(self, data: bytes) -> ImageResult:
        recipe = self.recipe
        header = probe(data, max_pixels=recipe.max_pixels)
        if recipe.codec == "keep":
            if recipe.check == "decode":
                if header.format != "jpeg" and header.width * header.height > _LARGE:
                    with self._large:
                        check(data, max_pixels=recipe.max_pixels)
                else:
                    check(data, max_pixels=recipe.max_pixels)
            return ImageResult(data, _row(header), len(data))
        if header.width * header.height > _LARGE:
            with self._large:
                return self._encode(data, header)
        return self._encode(data, header)

    def _encode(self, data: bytes, header: ImageHeader) -> ImageResult:
        recipe = self.recipe
        orientation = 1 if recipe.orientation == "ignore" else header.orientation
        mode = "RGB" if recipe.codec in ("raw", "jpeg") else "keep"
        if recipe.codec == "jpeg" and header.mode in ("1", "L", "LA", "I;16") and header.channels <= 2:
            mode = "L"
        pixels = decode(
            data,
            mode=mode,
            depth=recipe.depth,
            background=recipe.background,
            orientation=orientation,
            max_pixels=recipe.max_pixels,
            header=header,
        )
        pixels = self._sized(pixels)
        height, width = pixels.shape[:2]
        row = {**_row(header), "height": height, "width": width, "orientation": 1}
        if recipe.codec == "raw":
            if pixels.dtype != np.uint8:
                raise DecodeError(
                    f"{pixels.dtype} pixels do not fit a raw column of uint8 without loss; "
                    "scale them with depth='8' (--depth 8)"
                )
            return ImageResult(np.ascontiguousarray(pixels), row, len(data))
        codec = recipe.codec
        if pixels.dtype != np.uint8 or max(height, width) > _LONGEST.get(codec, 1 << 31):
            codec = "png"  # holds 16 bits and any side, without loss; the report counts these
        if codec == "jpeg":
            value = encode_jpeg(pixels, quality=recipe.quality)
        else:
            value = encode_image(pixels, codec, quality=recipe.quality)
        row["format"] = FORMATS.index(codec)
        return ImageResult(value, row, len(data))

    def _sized(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        height, width = pixels.shape[:2]
        recipe = self.recipe
        if recipe.size is not None:
            target_height, target_width = recipe.size
            scale = max(target_height / height, target_width / width)
            new = max(target_height, round(height * scale)), max(target_width, round(width * scale))
            if new != (height, width):
                pixels = resize(pixels, height=new[0], width=new[1])
            top, left = (new[0] - target_height) // 2, (new[1] - target_width) // 2
            return pixels[top : top + target_height, left : left + target_width]
        side = max(height, width) if recipe.max_side else min(height, width)
        limit = recipe.max_side or recipe.short_side
        if limit is None or side <= limit:
            return pixels
        scale = limit / side
        return resize(pixels, height=max(1, round(height * scale)), width=max(1, round(width * scale)))


def _refused(size: int, reason: str, *, foreign: bool = False) -> ImageResult:
    return ImageResult(None, {}, size, reason, foreign)


def _row(header: ImageHeader) -> dict[str, int]:
    return {
        "height": header.height,
        "width": header.width,
        "orientation": header.orientation,
        "format": FORMATS.index(header.format),
        "mode": MODES.index(header.mode) if header.mode in MODES else 0,
        "bits": header.bits,
        "frames": header.frames,
    }


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{name} {value!r}: one of {', '.join(allowed)}")
