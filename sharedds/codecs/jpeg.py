"""JPEG: our own walk over the headers, and libjpeg-turbo (through simplejpeg) for the pixels.

Decoding is strict: whatever libjpeg-turbo would only warn about in the picture data (missing bytes,
bad codes, bytes left over) is an error here. Two complaints about the *headers* are harmless and
common in the wild, an unknown JFIF revision and an unknown Adobe transform: those two bytes are put
right in a copy and the picture is decoded strictly as before.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from sharedds.codecs.header import BytesLike, ImageHeader, exif_orientation, reading
from sharedds.codecs.scratch import Scratch
from sharedds.errors import DecodeError, OptionError

__all__ = ["CHROMA", "MAX_SIDE", "check_pixels", "decode_pixels", "encode_jpeg", "read_header"]

MAX_SIDE = 65_500  # libjpeg's own limit (JPEG_MAX_DIMENSION), below the 65,535 of the format
CHROMA = ("auto", "444", "420")
MAX_SCANS = 500  # honest progressive files have about ten

_SOF = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_SEQUENTIAL = frozenset({0xC0, 0xC1})
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_CHANNELS = {"GRAY": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}
_WORTH_WHILE = 16  # to leave out this part of the rows pays for the copy of the file
_LEFT_OVER = re.compile("extraneous bytes before marker 0xd9")


def read_header(data: BytesLike) -> ImageHeader:
    """Walk over the markers up to the picture data; takes about 10 microseconds.

    Raises:
        DecodeError: The headers are damaged or end early, or the kind of JPEG is not supported.
    """
    size = len(data)
    at = 2
    frame: tuple[int, int, int, int, bool] | None = None
    orientation = 0
    while True:
        if at + 4 > size:
            raise DecodeError(f"JPEG is truncated: {size} bytes, and the picture data never begins")
        if data[at] != 0xFF:
            raise DecodeError(f"JPEG is damaged: no marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # any number of fill bytes may stand before a marker
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker == 0xD9:
            raise DecodeError(f"JPEG holds no picture: the end marker stands at byte {at}")
        length = data[at + 2] << 8 | data[at + 3]
        end = at + 2 + length
        if marker == 0xDA:
            break
        if length < 2:
            raise DecodeError(f"JPEG is damaged: segment of length {length} at byte {at}")
        if end > size:
            raise DecodeError(
                f"JPEG is truncated: the segment at byte {at} needs {end} bytes, there are {size}"
            )
        if marker == 0xE1:
            if not orientation and data[at + 4 : at + 10] == b"Exif\0\0":
                orientation = exif_orientation(data[at + 10 : end])
        elif marker in _SOF and frame is None:
            if length < 8:
                raise DecodeError(f"JPEG is damaged: frame header of {length} bytes")
            frame = (
                data[at + 4],
                data[at + 5] << 8 | data[at + 6],
                data[at + 7] << 8 | data[at + 8],
                data[at + 9],
                marker in (0xC2, 0xCA),
            )
        at = end
    if frame is None:
        raise DecodeError("JPEG is damaged: picture data without a frame header")
    bits, height, width, channels, progressive = frame
    mode = _MODES.get(channels)
    if mode is None:
        raise DecodeError(f"JPEG with {channels} channels is not supported (1, 3 or 4 are)")
    if height == 0:
        raise DecodeError("JPEG that states its height after the picture (DNL) is not supported")
    # Every scan of a progressive file visits every block, so a small file with thousands of empty
    # scans would keep a core busy for minutes.
    if progressive and bytes(data[at:]).count(b"\xff\xda") > MAX_SCANS:
        raise DecodeError(f"JPEG has more than {MAX_SCANS} scans, which only a crafted file has")
    return ImageHeader(
        format="jpeg",
        width=width,
        height=height,
        channels=channels,
        bits=bits,
        mode=mode,
        orientation=orientation or 1,
    )


def _repaired(data: BytesLike) -> bytes:
    """Copy ``data`` with a known JFIF revision and Adobe transform in its headers."""
    copy = bytearray(data)
    at, adobe, channels = 2, 0, 3
    while copy[at + 1] != 0xDA:
        if copy[at + 1] == 0xFF or copy[at + 1] in _ALONE:
            at += 1 if copy[at + 1] == 0xFF else 2
            continue
        length = copy[at + 2] << 8 | copy[at + 3]
        if copy[at + 1] == 0xE0 and length >= 16 and copy[at + 4 : at + 9] == b"JFIF\0":
            copy[at + 9] = 1
        elif copy[at + 1] == 0xEE and length >= 14 and copy[at + 4 : at + 9] == b"Adobe":
            adobe = at + 15
        elif copy[at + 1] in _SOF:
            channels = copy[at + 9]
        at += 2 + length
    if adobe and copy[adobe] > 2:
        copy[adobe] = 2 if channels == 4 else 1  # what libjpeg assumes after its warning
    return bytes(copy)


def _run(
    data: BytesLike, header: ImageHeader, colorspace: str, **options: Any
) -> NDArray[np.uint8]:
    if header.bits != 8:
        raise DecodeError(
            f"{header.bits}-bit JPEG is not supported; convert it to a 16-bit PNG or TIFF first"
        )
    try:
        try:
            return simplejpeg.decode_jpeg(data, colorspace=colorspace, **options)  # type: ignore[no-any-return]
        except ValueError as error:
            reason = str(error)
            if "JFIF revision" not in reason and "Adobe color" not in reason:
                raise
            data = _repaired(data)
            return simplejpeg.decode_jpeg(data, colorspace=colorspace, **options)  # type: ignore[no-any-return]
    except ValueError as error:
        reason = str(error)
        if "subsampling" in reason:
            return _unusual(data, header, colorspace)
        if "Premature end of JPEG file" in reason:
            raise DecodeError(f"JPEG is truncated: {reason} ({len(data)} bytes)") from error
        if "too small to decode" in reason:
            raise DecodeError(f"JPEG does not fit its header: {reason}") from error
        raise DecodeError(f"JPEG is damaged: {reason}") from error
    except Exception as error:  # anything else a damaged file may make the library raise
        raise DecodeError(f"JPEG is damaged: {str(error) or type(error).__name__}") from error


def _unusual(data: BytesLike, header: ImageHeader, colorspace: str) -> NDArray[np.uint8]:
    """Decode sampling factors outside TurboJPEG's list with Pillow's plain libjpeg."""
    with reading("JPEG"), JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
        if image.size != (header.width, header.height) or image.mode != header.mode:
            raise DecodeError("JPEG is damaged: two frame headers that do not agree")
        if colorspace == "GRAY":
            image.draft("L", image.size)  # the stored luma, not a grey made of RGB
        image.load()
        if colorspace == "CMYK":
            # Pillow has undone Adobe's inversion; hand out what the file stores.
            return 255 - np.asarray(image)
        wanted = image.convert("L" if colorspace == "GRAY" else colorspace)
        return np.asarray(wanted).reshape(header.height, header.width, -1).copy()


def decode_pixels(
    data: BytesLike,
    header: ImageHeader,
    colorspace: str,
    at_least: tuple[int, int] | None = None,
    *,
    factor: int = 1,
    rows: int | None = None,
    scratch: Scratch | None = None,
) -> NDArray[np.uint8]:
    """Decode to ``colorspace``: ``"RGB"``, ``"GRAY"`` (the stored luma) or ``"RGBA"`` (opaque).

    Args:
        data: The file; a memoryview is read in place, without a copy.
        header: What :func:`read_header` said, which bounds what is allocated.
        colorspace: Channels wanted.
        at_least: (height, width): a picture of a half, a quarter or an eighth of the size will do
            if it is not smaller than this. The transform of JPEG shrinks by itself, antialiased.
        factor: 2, 4 or 8: the picture shrinks by this (its sides are rounded up). Sampling factors
            that only Pillow decodes, and CMYK, come in full size all the same.
        rows: The first so many rows, counted before shrinking, are enough: where it can be done
            those below are not decoded. Only for files that are known to be sound: most damage
            shows at the end of the data only, where bytes are left over or missing.
        scratch: Where the pixels go; the array returned is good until it is lent again.

    Returns:
        uint8 array (height, width, channels), not rotated.

    Raises:
        DecodeError: The file is damaged, truncated or does not fit ``header``.
    """
    if header.mode == "CMYK":
        return _decode_cmyk(data, header, colorspace)
    factor = max(factor, _shrinking(header, at_least))
    if rows is not None:
        first = _first_rows(data, header, colorspace, factor, rows, scratch)
        if first is not None:
            return first
    shape, options = _shrunk(header, colorspace, factor)
    buffer = np.empty(shape, np.uint8) if scratch is None else scratch.array(shape)
    pixels = _run(data, header, colorspace, buffer=buffer, **options)
    full = (header.height, header.width, _CHANNELS[colorspace])  # of sampling that Pillow decodes
    if pixels.shape not in (shape, full):
        raise DecodeError(f"JPEG does not fit its header: {pixels.shape}, expected {shape}")
    return pixels


def _shrunk(
    header: ImageHeader, colorspace: str, factor: int
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the shape of a picture that shrinks by a factor, and how to ask for it."""
    shape = (-(-header.height // factor), -(-header.width // factor), _CHANNELS[colorspace])
    if factor == 1:
        return shape, {}
    return shape, {"min_height": shape[0], "min_width": shape[1], "min_factor": factor}


def _first_rows(
    data: BytesLike,
    header: ImageHeader,
    colorspace: str,
    factor: int,
    rows: int,
    scratch: Scratch | None,
) -> NDArray[np.uint8] | None:
    """Decode the upper part of a picture: a copy of the file says that it ends there.

    libjpeg-turbo then passes over what follows and complains of it. Its message is about the first
    thing that it complains of, so with this one there was nothing to complain of before.

    Returns:
        None where that is not worth while, or the message is another one.
    """
    # The colours of a row are mixed from those of the rows beside it, which lie two rows apart.
    height = rows + 4 * factor
    if height > header.height - header.height // _WORTH_WHILE:
        return None
    at = _height_at(data)
    if at is None:
        return None
    shorter = bytearray(data)
    shorter[at : at + 2] = height.to_bytes(2, "big")
    shape, options = _shrunk(replace(header, height=height), colorspace, factor)
    buffer = np.empty(shape, np.uint8) if scratch is None else scratch.array(shape)
    try:
        found = simplejpeg.decode_jpeg(shorter, colorspace=colorspace, buffer=buffer, **options)
    except ValueError as error:
        return buffer if _LEFT_OVER.search(str(error)) else None
    return buffer if found.shape == shape else None


def _height_at(data: BytesLike) -> int | None:
    """Return where a picture states its height, if its rows come one after the other, in one scan.

    None for progressive files and others of several scans; and for those with restart markers,
    where the message about bytes that are left over may come from anywhere.
    """
    at, height_at, channels = 2, 0, 0
    while (marker := data[at + 1]) != 0xDA:
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _SOF:
            if marker not in _SEQUENTIAL or height_at:
                return None
            height_at, channels = at + 5, data[at + 9]
        elif marker == 0xDD and (data[at + 4] or data[at + 5]):
            return None
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return height_at if height_at and data[at + 4] == channels else None


def _shrinking(header: ImageHeader, at_least: tuple[int, int] | None) -> int:
    """Return by how much a picture may be shrunk while it is decoded: 1, 2, 4 or 8."""
    if at_least is None:
        return 1
    fits = (header.height // max(1, at_least[0]), header.width // max(1, at_least[1]))
    return max(factor for factor in (1, 2, 4, 8) if factor == 1 or factor <= min(fits))


def _decode_cmyk(data: BytesLike, header: ImageHeader, colorspace: str) -> NDArray[np.uint8]:
    shape = (header.height, header.width, 4)
    stored = _run(data, header, "CMYK", buffer=np.empty(shape, np.uint8))
    if stored.shape != shape:
        raise DecodeError(f"JPEG does not fit its header: {stored.shape}, expected {shape}")
    # CMYK in JPEG is stored inverted (Adobe's convention, which everybody follows).
    image = Image.frombytes("CMYK", (header.width, header.height), (255 - stored).tobytes())
    image = image.convert("RGB")
    if colorspace != "RGB":
        image = image.convert("L" if colorspace == "GRAY" else colorspace)
    return np.asarray(image).reshape(header.height, header.width, -1).copy()


def check_pixels(data: BytesLike, header: ImageHeader) -> None:
    """Decode all entropy-coded data, but at 1/8 scale and grey, so that little is written.

    Raises:
        DecodeError: The file is damaged, truncated or does not fit ``header``.
    """
    small = ((header.height + 7) // 8, (header.width + 7) // 8, 1)
    got = _run(
        data, header, "GRAY", min_height=1, min_width=1, buffer=np.empty(small, np.uint8)
    ).shape
    if got not in (small, (header.height, header.width, 1)):
        raise DecodeError(f"JPEG does not fit its header: {got}, expected {small}")


def encode_jpeg(array: NDArray[Any], *, quality: int = 90, chroma: str = "auto") -> bytes:
    """Encode a uint8 array (H, W), (H, W, 1) or (H, W, 3) as baseline JPEG.

    Args:
        array: The picture.
        quality: 1 to 100.
        chroma: Colour at full (``"444"``) or half resolution (``"420"``); ``"auto"`` is half below
            quality 95.

    Raises:
        OptionError: Another dtype, shape, quality or resolution, or a side over 65,500 pixels.
    """
    if array.ndim == 2:
        array = array[:, :, None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise OptionError(
            f"JPEG holds uint8 arrays with 1 or 3 channels, not {array.dtype} {array.shape}; "
            "use PNG, or decode with mode='RGB' and depth='8'"
        )
    if not 1 <= quality <= 100:
        raise OptionError(f"quality={quality!r}: JPEG quality is 1 to 100")
    if chroma not in CHROMA:
        raise OptionError(f"chroma={chroma!r}: choose one of {', '.join(CHROMA)}")
    if min(array.shape) < 1 or max(array.shape[:2]) > MAX_SIDE:
        raise OptionError(
            f"a picture of {array.shape[1]} x {array.shape[0]} pixels does not fit in a JPEG, "
            f"whose sides are 1 to {MAX_SIDE:,} pixels; store it as PNG or as raw blocks"
        )
    grey = array.shape[2] == 1
    if chroma == "auto":
        chroma = "444" if quality >= 95 else "420"
    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(array),
        quality=quality,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else chroma,
    )
    return encoded
