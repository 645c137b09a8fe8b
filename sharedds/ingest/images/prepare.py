"""One image file on its way into a store: read, proved, and encoded anew where asked."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.codecs import (
    CHROMA,
    DEFAULT_MAX_PIXELS,
    IMAGE_FORMATS,
    ImageHeader,
    check,
    decode,
    encode_image,
    encode_jpeg,
    plain_size,
    probe,
    resize,
    sniff,
)
from sharedds.errors import DecodeError, OptionError
from sharedds.ingest.executor import MemoryBudget
from sharedds.ingest.options import color, pair, share, shown, whole

__all__ = ["CODECS", "FORMATS", "MODES", "Codec", "ImageRecipe", "ImageResult", "Ingester"]

Codec: TypeAlias = Literal["keep", "jpeg", "png", "webp", "raw"]
CODECS: tuple[Codec, ...] = get_args(Codec)

# The columns hold places in these lists, so they only ever grow at the end.
FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "raw")
MODES = (
    *("other", "1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"),
    *("I;16", "I", "F"),
)

_LONGEST = {"jpeg": 65_500, "webp": 16_383}  # pixels of a side that the format can hold
_MAX_WEBP_PIXELS = 20_000_000  # its encoder takes up to 43 bytes for each: 0.9 GB
_MAX_FILE = (1 << 32) - 1
# What encoding takes beside the pixels, in multiples of them; WebP's encoder keeps tables.
_COPIES = {"jpeg": 1, "raw": 1, "png": 2, "webp": 13}
_PNG_PROOF = 4 << 20
_STORED_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_COLUMNS = {
    "height": "int32",
    "width": "int32",
    "format": "uint8",
    "mode": "uint8",
    "bits": "uint8",
    "orientation": "uint8",
    "frames": "int32",
}
_SOURCE_COLUMNS = {"source_format": "uint8", "source_mode": "uint8", "source_bits": "uint8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """How images are stored.

    Args:
        codec: ``keep`` stores the bytes of the file; ``jpeg``, ``png``, ``webp`` encode anew;
            ``raw`` stores pixels of one ``size`` as a column.
        quality: Of ``jpeg``, 1 to 100. (``webp`` is lossless.)
        chroma: Of ``jpeg``: colour at full (``444``) or half resolution (``420``); ``auto`` is half
            below quality 95.
        raw_share: With ``jpeg``: this share of the pictures is stored as pixels, which are read
            faster and take more room. The bytes of a file decide, so that equal files stay equal.
        raw_below: With ``jpeg``: pictures whose pixels take fewer bytes are stored as pixels.
        max_side: Shrink so that the longer side is at most this; never enlarges.
        short_side: Shrink so that the shorter side is at most this; never enlarges.
        size: (height, width): scale until it is covered, keep the aspect, cut the middle.
        check: ``decode`` proves that every picture decodes whole; ``header`` trusts beyond the
            header.
        depth: ``keep``, or ``8`` to scale 16-bit values over 0..65535 to 8 bits.
        background: What shows through transparent pixels when a codec has no alpha: white, black,
            grey, hexadecimal, or red, green and blue.
        orientation: ``apply`` turns pictures upright on reading; ``ignore`` leaves them as stored.
        max_pixels: Larger pictures are refused before they are decoded; None for no limit.

    Raises:
        OptionError: Options that are out of range or exclude each other.
    """

    codec: Codec = "keep"
    quality: int = 90
    chroma: Literal["auto", "444", "420"] = "auto"
    raw_share: float = 0.0
    raw_below: int = 0
    max_side: int | None = None
    short_side: int | None = None
    size: tuple[int, int] | None = None
    check: Literal["decode", "header"] = "decode"
    depth: Literal["keep", "8"] = "keep"
    background: tuple[int, int, int] | str = (255, 255, 255)
    orientation: Literal["apply", "ignore"] = "apply"
    max_pixels: int | None = DEFAULT_MAX_PIXELS

    def __post_init__(self) -> None:
        _one_of("codec", self.codec, CODECS)
        _one_of("check", self.check, ("decode", "header"))
        _one_of("depth", self.depth, ("keep", "8"))
        _one_of("orientation", self.orientation, ("apply", "ignore"))
        _one_of("chroma", self.chroma, CHROMA)
        sizes = [n for n in ("max_side", "short_side", "size") if getattr(self, n) is not None]
        if len(sizes) > 1:
            raise OptionError(f"{' and '.join(sizes)} exclude each other; give one")
        if (self.codec == "raw") != (self.size is not None):
            raise OptionError("codec 'raw' and size=(height, width) (--size HxW) go together")
        if self.codec == "keep" and (sizes or self.depth != "keep"):
            raise OptionError(
                f"{(sizes or ['depth'])[0]} needs pictures to be encoded anew; choose how with "
                "codec='jpeg' (--codec jpeg), png or webp"
            )
        checked: dict[str, Any] = {
            "quality": whole("quality", self.quality, 1, 100),
            "raw_share": share("raw_share", self.raw_share),
            "raw_below": whole("raw_below", self.raw_below, 0),
            "max_side": whole("max_side", self.max_side, 1, optional=True),
            "short_side": whole("short_side", self.short_side, 1, optional=True),
            "size": None if self.size is None else pair("size", self.size),
            "background": color(self.background),
            "max_pixels": whole("max_pixels", self.max_pixels, 1, optional=True),
        }
        if self.codec != "jpeg" and (checked["raw_share"] or checked["raw_below"]):
            raise OptionError(
                "raw_share and raw_below (--raw-share, --raw-below) say which pictures of codec "
                "'jpeg' are stored as pixels; choose that codec"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # as plain numbers, whatever held them

    def schema(self, *, labels: bool) -> dict[str, str]:
        """Return the schema of the store.

        The columns describe what is stored; ``source_*`` is what the file was, where that may
        differ, and ``frames`` counts those of the file.
        """
        image = f"uint8[{self.size[0]},{self.size[1]},3]" if self.size else "keep"
        label = {"label": "int64"} if labels else {}
        source = {} if self.codec == "keep" else _SOURCE_COLUMNS
        return {"image": image, **label, **_COLUMNS, **source}


@dataclass(frozen=True, slots=True)
class _Source:
    """What is kept of a file once its pixels are there; ``draw``, in [0, 1), is that of its bytes.

    Drawn by content and not by name: the same picture twice is stored alike, and found.
    """

    header: ImageHeader
    size: int
    draw: float

    @classmethod
    def of(cls, data: bytes, header: ImageHeader) -> _Source:
        return cls(header, len(data), xxhash.xxh3_64_intdigest(data) / (1 << 64))


@dataclass(frozen=True, slots=True)
class ImageResult:
    """One image ready to be stored, or the reason why not.

    ``value`` is bytes, or an array (height, width, 3) for raw columns; ``row`` its columns.
    ``foreign`` says that the file is not an image by content.
    """

    value: bytes | npt.NDArray[np.uint8] | None
    row: dict[str, int]
    source_bytes: int
    reason: str = ""
    foreign: bool = False


class Ingester:
    """Turns files into :class:`ImageResult`; one object serves many threads.

    Args:
        recipe: What is asked for.
        workers: How many threads there will be; the pixels they hold together are bounded.
    """

    def __init__(self, recipe: ImageRecipe, *, workers: int = 1) -> None:
        self.recipe = recipe
        self._budget = MemoryBudget(max(512 << 20, workers * (24 << 20)))

    def __call__(self, path: bytes) -> ImageResult:
        """Read and prepare one file; a bad one is a result, not an error."""
        size = 0
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size > _MAX_FILE:
                    return _refused(size, f"{size:,} bytes; 4 GiB is the limit of one value")
                data = file.read()
        except OSError as error:
            return _refused(size, f"cannot be read ({error.strerror})")
        return self.of_bytes(data, os.fsdecode(path))

    def of_bytes(self, data: bytes, name: str) -> ImageResult:
        """Prepare the bytes of one file; ``name`` is only for what should not happen."""
        size = len(data)
        kind = sniff(data)
        try:
            if kind not in IMAGE_FORMATS:
                probe(data, max_pixels=None)  # its error says what the content is
                return _refused(size, "not a picture", foreign=True)
            header = probe(data, max_pixels=self.recipe.max_pixels)
            if self.recipe.codec == "keep":
                return self._kept(data, header)
            with self._budget.holding(_decoded_bytes(header) * (1 + _COPIES[self.recipe.codec])):
                pixels, source = self._pixels(data, header), _Source.of(data, header)
                data = b""  # of a large picture it may be as much as the pixels
                return self._encoded(pixels, source)
        except DecodeError as error:
            return _refused(size, str(error), foreign=kind not in IMAGE_FORMATS)
        except MemoryError:
            return _refused(size, "not enough memory to decode it")
        except Exception as error:
            error.add_note(f"while preparing {name!r}")
            raise

    def _kept(self, data: bytes, header: ImageHeader) -> ImageResult:
        if self.recipe.check == "decode":
            size = 2 * _decoded_bytes(header)
            # To prove a JPEG it is decoded at 1/8 of its size, a PNG is only inflated.
            if header.format in ("jpeg", "png"):
                size = size // 128 if header.format == "jpeg" else min(size, _PNG_PROOF)
            with self._budget.holding(size):
                check(data, max_pixels=self.recipe.max_pixels)
        return ImageResult(data, _row(header), len(data))

    def _pixels(self, data: bytes, header: ImageHeader) -> npt.NDArray[Any]:
        recipe = self.recipe
        mode: Literal["RGB", "L", "keep"] = "RGB" if recipe.codec in ("raw", "jpeg") else "keep"
        if recipe.codec == "jpeg" and header.channels <= 2 and header.mode not in ("P", "PA"):
            mode = "L"
        pixels = decode(
            data,
            mode=mode,
            depth=recipe.depth,
            background=color(recipe.background),
            orientation=1 if recipe.orientation == "ignore" else header.orientation,
            max_pixels=recipe.max_pixels,
            header=header,
            at_least=self._least(header),
        )
        if pixels.dtype not in (np.uint8, np.uint16):
            raise DecodeError(
                f"{pixels.dtype} pixels are only stored as they are, with codec='keep'"
            )
        return self._sized(pixels, header)

    def _encoded(self, pixels: npt.NDArray[Any], source: _Source) -> ImageResult:
        form = self._format(pixels, source)
        value: bytes | npt.NDArray[np.uint8]
        if form == "raw":
            value = np.ascontiguousarray(pixels)
        elif form == "jpeg":
            value = encode_jpeg(pixels, quality=self.recipe.quality, chroma=self.recipe.chroma)
        else:
            if form == "webp" and pixels.shape[2] < 3:  # it has no grey
                grey, alpha = pixels[..., :1], pixels[..., 1:]
                pixels = np.concatenate([grey, grey, grey, alpha], axis=2)
            value = encode_image(pixels, form)  # webp without loss
        return ImageResult(value, _encoded_row(source.header, pixels, form), source.size)

    def _format(self, pixels: npt.NDArray[Any], source: _Source) -> str:
        """Return the format that a picture is stored in; the report counts those of each."""
        recipe = self.recipe
        codec = recipe.codec
        if codec == "raw":
            if pixels.dtype == np.uint8:
                return codec
            raise DecodeError(
                "16-bit pixels do not fit raw pixels of 8 bits without loss; scale them with "
                "depth='8' (--depth 8)"
            )
        large = codec == "webp" and pixels.shape[0] * pixels.shape[1] > _MAX_WEBP_PIXELS
        if large or pixels.dtype != np.uint8 or max(pixels.shape) > _LONGEST.get(codec, 1 << 31):
            return "png"  # holds 16 bits and any side, without loss
        as_pixels = source.draw < recipe.raw_share or pixels.nbytes < recipe.raw_below
        if as_pixels and plain_size(*pixels.shape) is not None:
            return "tiff"  # without compression: any program reads it, and this one at once
        return codec

    def _least(self, header: ImageHeader) -> tuple[int, int] | None:
        """Return the stored (height, width) that is enough, None where all of it is needed."""
        scale = self._scale(header)
        if scale >= 1:
            return None
        return math.ceil(header.height * scale), math.ceil(header.width * scale)

    def _turned(self, header: ImageHeader) -> bool:
        """Whether width and height change places when the picture is turned upright."""
        return self.recipe.orientation == "apply" and header.orientation >= 5

    def _scale(self, header: ImageHeader) -> float:
        """Return by how much a picture is scaled; only for a given size it may be over 1."""
        recipe = self.recipe
        sides = (header.height, header.width)
        if recipe.size is not None:
            size = recipe.size[::-1] if self._turned(header) else recipe.size
            return max(size[0] / sides[0], size[1] / sides[1])
        if recipe.max_side is not None:
            return min(1.0, recipe.max_side / max(sides))
        return min(1.0, recipe.short_side / min(sides)) if recipe.short_side is not None else 1.0

    def _sized(self, pixels: npt.NDArray[Any], header: ImageHeader) -> npt.NDArray[Any]:
        height, width = pixels.shape[:2]
        recipe = self.recipe
        if recipe.size is not None:
            # Cut first: what covers a square may be a thousand times longer than it.
            scale = max(recipe.size[0] / height, recipe.size[1] / width)
            tall = min(height, max(1, round(recipe.size[0] / scale)))
            wide = min(width, max(1, round(recipe.size[1] / scale)))
            top, left = (height - tall) // 2, (width - wide) // 2
            pixels = pixels[top : top + tall, left : left + wide]
            return resize(pixels, height=recipe.size[0], width=recipe.size[1])
        scale = self._scale(header)
        if scale == 1:
            return pixels
        new = [max(1, round(n * scale)) for n in (header.height, header.width)]
        if self._turned(header):
            new.reverse()
        return resize(pixels, height=new[0], width=new[1])


def _refused(size: int, reason: str, *, foreign: bool = False) -> ImageResult:
    return ImageResult(None, {}, size, reason, foreign)


def _decoded_bytes(header: ImageHeader) -> int:
    """Return about how many bytes the decoded pixels take; palettes become colours."""
    channels = 4 if header.mode in ("P", "PA") else header.channels
    return header.width * header.height * channels * max(1, header.bits // 8)


def _row(header: ImageHeader) -> dict[str, int]:
    return {
        "height": header.height,
        "width": header.width,
        "orientation": header.orientation,
        "format": FORMATS.index(header.format),
        "mode": _mode(header),
        "bits": header.bits,
        "frames": header.frames,
    }


def _encoded_row(header: ImageHeader, pixels: npt.NDArray[Any], codec: str) -> dict[str, int]:
    height, width, channels = pixels.shape
    deep = pixels.dtype == np.uint16
    mode = "I;16" if deep and channels == 1 else _STORED_MODES[channels]
    return {
        "height": height,
        "width": width,
        "orientation": 1,
        "format": FORMATS.index(codec),
        "mode": MODES.index(mode),
        "bits": 16 if deep else 8,
        "frames": header.frames,
        "source_format": FORMATS.index(header.format),
        "source_mode": _mode(header),
        "source_bits": header.bits,
    }


def _mode(header: ImageHeader) -> int:
    return MODES.index(header.mode) if header.mode in MODES else 0


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(f"{name} {shown(value)}: one of {', '.join(allowed)}")
