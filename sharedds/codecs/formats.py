"""What a file is, by its content alone, and what its headers say."""

from __future__ import annotations

import io
import struct

from PIL import BmpImagePlugin

from sharedds.codecs import jpeg, png, tiff
from sharedds.codecs.animated import read_gif_header, read_webp_header
from sharedds.codecs.header import (
    BytesLike,
    ImageHeader,
    as_bytes_like,
    limit_pixels,
    reading,
)
from sharedds.errors import DecodeError

__all__ = ["IMAGE_FORMATS", "BytesLike", "ImageHeader", "probe", "sniff"]

IMAGE_FORMATS = frozenset({"bmp", "gif", "jpeg", "png", "tiff", "webp"})

_HEAD = 1024

# First bytes and what they mean; the longest first where one begins with another.
_MAGIC = (
    (b"\xff\xd8\xff", "jpeg"),
    (png.MAGIC, "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\x1f\x8b", "gzip"),
    (b"%PDF", "pdf"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\0\x05\x16\x07", "AppleDouble"),
    (b"\0\x05\x16\0", "AppleDouble"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (b"\xff\x0a", "jxl"),
    (b"8BPS", "psd"),
    (b"v/1\x01", "exr"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"\0\0\x01\0", "ico"),
    (b"version https://git-lfs", "Git LFS pointer"),
)
_BRANDS = {
    b"avif": "avif", b"avis": "avif", b"heic": "heif", b"heix": "heif", b"hevc": "heif",
    b"hevx": "heif", b"heim": "heif", b"heis": "heif", b"mif1": "heif", b"msf1": "heif",
}  # fmt: skip
_DIB_SIZES = {12, 40, 52, 56, 64, 108, 124}
_ADVICE = {
    "gzip": "decompress it first",
    "zip": "unpack it first",
    "heif": "convert it to JPEG or PNG first",
    "avif": "convert it to JPEG or PNG first",
    "jpeg2000": "convert it to PNG or TIFF first",
    "jxl": "convert it to JPEG or PNG first",
    "svg": "draw it to a PNG first",
    "HTML/text": "probably an error page or a list, saved under a picture's name",
    "AppleDouble": "metadata that macOS keeps beside a file; delete it",
    "Git LFS pointer": "fetch the real file with git lfs pull",
    "empty": "an unfinished download or copy",
    "zero bytes": "an unfinished download or copy",
}
# Tabs, line ends, form feed, escape and everything that prints, in ASCII or any superset of it.
_TEXT = bytes([9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)])
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def sniff(data: BytesLike) -> str:
    """Name the format of ``data`` by its content; names and extensions play no part.

    Returns:
        One of :data:`IMAGE_FORMATS`, or the name of something that is recognised and not decoded
        (``"gzip"``, ``"HTML/text"``, ``"pdf"``, ``"svg"``, ``"heif"``, ``"avif"``, ``"jpeg2000"``,
        ``"jxl"``, ``"zip"``, ``"AppleDouble"``, ``"empty"``, ``"zero bytes"``, ...), or
        ``"unknown"``.
    """
    data = as_bytes_like(data)
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    head = bytes(data[:_HEAD])
    if not head:
        return "empty"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if (
        head[:2] == b"BM"
        and len(head) >= 18
        and struct.unpack_from("<I", head, 14)[0] in _DIB_SIZES
    ):
        return "bmp"
    if head[4:8] == b"ftyp":
        # The major brand may be a generic one ("mif1"), so the compatible ones are asked too.
        listed = head[8:12] + head[16 : min(len(head), int.from_bytes(head[:4], "big"))]
        names = [_BRANDS.get(listed[at : at + 4]) for at in range(0, len(listed), 4)]
        return "avif" if "avif" in names else "heif" if "heif" in names else "video (MP4)"
    if head[128:132] == b"DICM":
        return "dicom"
    return _sniff_text(head)


def _sniff_text(head: bytes) -> str:
    if not head.strip(b"\0"):
        return "zero bytes"
    text = head
    for bom in _BOMS:
        text = text.removeprefix(bom)
    start = text.replace(b"\0", b"").lstrip()[:600].lower()  # UTF-16 text has zeros between
    if start.startswith(b"<svg") or (start.startswith((b"<?xml", b"<!--")) and b"<svg" in start):
        return "svg"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")) or (
        len(text) < len(head) or not head.translate(None, _TEXT)
    ):
        return "HTML/text"
    return "unknown"


def probe(data: BytesLike, *, max_pixels: int | None) -> ImageHeader:
    """Read the headers of a picture; no pixel is decoded and nothing warns.

    Args:
        data: The whole file. Headers found in its beginning are enough, but frames that lie beyond
            the end of ``data`` are not counted.
        max_pixels: Largest width times height that is accepted; None accepts any.

    Returns:
        The size, mode, depth, orientation and number of frames as stored.

    Raises:
        DecodeError: ``data`` is not a supported picture, or its headers are damaged.
        ImageTooLargeError: The picture has more than ``max_pixels`` pixels.
    """
    data = as_bytes_like(data)
    name = sniff(data)
    if name == "jpeg":
        header = jpeg.read_header(data)
    elif name == "png":
        header = png.read_header(data)
    elif name == "webp":
        header = read_webp_header(data)
    elif name == "gif":
        header = read_gif_header(data)
    elif name == "tiff":
        header = tiff.read_header(data)
    elif name == "bmp":
        header = _read_bmp_header(data)
    else:
        raise DecodeError(_refusal(data, name))
    limit_pixels(header.width, header.height, max_pixels)
    return header


def _refusal(data: BytesLike, name: str) -> str:
    if name == "unknown":
        return (
            f"not a picture in a known format: it begins with the bytes {bytes(data[:8]).hex(' ')}"
        )
    advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
    return f"not a supported picture: the content is {name}{advice}"


def _read_bmp_header(data: BytesLike) -> ImageHeader:
    with reading("BMP"):
        # Headers and the largest palette; the pixels stay where they are.
        with BmpImagePlugin.BmpImageFile(io.BytesIO(data[:300_000])) as image:
            width, height = image.size
            mode, channels = image.mode, len(image.getbands())
        core = struct.unpack_from("<I", data, 14)[0] == 12
        (bits,) = struct.unpack_from("<H", data, 24 if core else 28)
    return ImageHeader(
        format="bmp", width=width, height=height, channels=channels, bits=min(bits, 8), mode=mode
    )
