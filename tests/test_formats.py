"""What files are and what their headers say."""

from __future__ import annotations

import gzip
import io
import mmap
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import chunk, orientation_block, save, with_segment
from PIL import Image

from sharedds.codecs import IMAGE_FORMATS, ImageHeader, probe, sniff
from sharedds.codecs.header import exif_orientation
from sharedds.codecs.png import read_pixels, write_png16
from sharedds.errors import DecodeError, ImageTooLargeError, OptionError

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real files is not here")

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def picture(width: int = 6, height: int = 4, mode: str = "RGB") -> Image.Image:
    """Return a picture of this mode without symmetry."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 40 % 256, y * 60 % 256, (x + 2 * y) * 9 % 256], -1).astype(np.uint8)
    return Image.fromarray(rgb).convert(mode)


def png(width: int, height: int, bits: int = 8, colour: int = 2, *extra: bytes) -> bytes:
    """Return a black PNG made row by row, so that huge ones stay cheap."""
    stream = zlib.compressobj(9)
    line = bytes(1 + (width * {0: 1, 2: 3, 3: 1, 6: 4}[colour] * bits + 7) // 8)
    body = b"".join(stream.compress(line) for _ in range(height)) + stream.flush()
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    middle = b"".join(extra)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + middle
        + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )  # fmt: skip


FOREIGN = {
    "empty": b"",
    "zero bytes": bytes(4096),
    "gzip": gzip.compress(b"anything"),
    "pdf": b"%PDF-1.7\n%\xe2\xe3",
    "zip": b"PK\x03\x04" + bytes(20),
    "AppleDouble": b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ",
    "svg": b"<?xml version='1.0'?>\n<!-- drawn -->\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "heif": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(8),
    "avif": b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf" + bytes(8),
    "video (MP4)": b"\0\0\0\x18ftypisom\0\0\0\0isomiso2" + bytes(8),
    "jpeg2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(20),
    "jxl": b"\xff\x0a" + bytes(20),
    "dicom": bytes(128) + b"DICM" + bytes(8),
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
    "unknown": bytes(range(256)),
}
TEXTS = {
    "a page": b"\n  <!DOCTYPE html><html><head>",
    "a page after a byte order mark": b"\xef\xbb\xbf<html>",
    "UTF-16": "<html>Größe</html>".encode("utf-16"),
    "JSON": b'{"error": "not found"}',
    "BM at the start of words": b"BMW is a car maker; this is text, not a bitmap",
}


@pytest.mark.parametrize("format", FORMATS)
def test_each_image_format_is_named_by_its_content(format: str) -> None:
    """Every decoded format is recognised from bytes alone."""
    assert sniff(save(picture(), format)) == format.lower()
    assert format.lower() in IMAGE_FORMATS


@pytest.mark.parametrize("name", FOREIGN)
def test_other_content_gets_its_own_name(name: str) -> None:
    """Files that only pretend to be pictures are named for what they are."""
    assert sniff(FOREIGN[name]) == name


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_any_kind_is_called_text(name: str) -> None:
    """Error pages saved as pictures are reported as text."""
    assert sniff(TEXTS[name]) == "HTML/text"


@pytest.mark.parametrize("name", FOREIGN)
def test_probe_says_what_the_content_is(name: str) -> None:
    """The error names the content, so that nobody takes it for a truncated picture."""
    expected = "begins with the bytes 00 01 02" if name == "unknown" else name
    with pytest.raises(DecodeError) as caught:
        probe(FOREIGN[name], max_pixels=None)
    assert expected in str(caught.value)
    assert "truncated" not in str(caught.value)


@pytest.mark.parametrize(
    ("format", "mode", "expected"),
    [
        ("JPEG", "RGB", ("jpeg", 3, 8, "RGB")),
        ("JPEG", "L", ("jpeg", 1, 8, "L")),
        ("JPEG", "CMYK", ("jpeg", 4, 8, "CMYK")),
        ("PNG", "1", ("png", 1, 1, "1")),
        ("PNG", "L", ("png", 1, 8, "L")),
        ("PNG", "LA", ("png", 2, 8, "LA")),
        ("PNG", "I;16", ("png", 1, 16, "I;16")),
        ("PNG", "RGBA", ("png", 4, 8, "RGBA")),
        ("WEBP", "RGB", ("webp", 3, 8, "RGB")),
        ("GIF", "P", ("gif", 1, 8, "P")),
        ("BMP", "1", ("bmp", 1, 1, "1")),
        ("BMP", "L", ("bmp", 1, 8, "L")),
        ("BMP", "RGB", ("bmp", 3, 8, "RGB")),
        ("TIFF", "1", ("tiff", 1, 1, "1")),
        ("TIFF", "I;16", ("tiff", 1, 16, "I;16")),
        ("TIFF", "F", ("tiff", 1, 32, "F")),
        ("TIFF", "CMYK", ("tiff", 4, 8, "CMYK")),
    ],
)
def test_headers_say_channels_bits_and_mode(
    format: str, mode: str, expected: tuple[str, int, int, str]
) -> None:
    """The facts of a header are those of the file."""
    source = picture(mode="L").convert("I;16") if mode == "I;16" else picture(mode=mode)
    header = probe(save(source, format), max_pixels=None)
    assert (header.format, header.channels, header.bits, header.mode) == expected
    assert (header.width, header.height, header.frames) == (6, 4, 1)


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_webp_headers_agree_with_pillow(mode: str, lossless: bool) -> None:
    """The simple and the extended WebP layouts give the same facts as a full parser."""
    source = picture(37, 21, mode)
    if mode == "RGBA":
        source.putalpha(100)
    data = save(source, "WEBP", lossless=lossless)
    header = probe(data, max_pixels=None)
    with Image.open(io.BytesIO(data)) as image:
        assert ((header.width, header.height), header.mode) == (image.size, image.mode)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(wrap: Any) -> None:
    """Bytes, bytearray and memoryview give the same header."""
    data = save(picture(), "JPEG")
    assert probe(wrap(data), max_pixels=None) == probe(data, max_pixels=None)


def test_maps_and_arrays_are_read() -> None:
    """Buffers that are not made of plain bytes are read as their bytes."""
    data = save(picture(), "PNG")
    expected = probe(data, max_pixels=None)
    assert probe(memoryview(np.frombuffer(data, np.int8).data), max_pixels=None) == expected
    with mmap.mmap(-1, len(data)) as mapped:
        mapped[:] = data
        assert probe(memoryview(mapped).toreadonly(), max_pixels=None) == expected


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_found(format: str, value: int) -> None:
    """All eight orientations are read; width and height stay as stored."""
    header = probe(save(picture(), format, exif=orientation_block(value)), max_pixels=None)
    assert (header.orientation, header.width, header.height) == (value, 6, 4)


def test_big_endian_tiff_orientation_is_found() -> None:
    """The orientation is read in the byte order of the file."""
    fields = [(256, 4, 6), (257, 4, 4), (258, 3, 8), (262, 3, 1), (273, 4, 0), (274, 3, 6)]
    assert probe(tiff(fields, bytes(24), ">"), max_pixels=None).orientation == 6


def test_orientation_in_png_text_is_found() -> None:
    """ImageMagick keeps EXIF of a PNG as hexadecimal text; it counts as well."""
    block = orientation_block(8)
    text = b"\nexif\n%8d\n" % len(block) + block.hex().encode() + b"\n"
    plain = chunk(b"tEXt", b"Raw profile type exif\0" + text)
    packed = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))
    for extra in (plain, packed):
        assert probe(png(6, 4, 8, 2, extra), max_pixels=None).orientation == 8


def broken_exif() -> dict[str, bytes]:
    """Return EXIF blocks that break readers in the wild."""
    entry = struct.pack("<HHLL", 0x0112, 3, 1, 6)
    return {
        "size past the end": b"Exif\0\0II*\0\x08\0\0\0"
        + struct.pack("<HHHLL", 1, 0x010F, 2, 1_000_000, 0x7FFFFFFF)
        + bytes(4),
        "garbage": b"Exif\0\0garbage!",
        "empty": b"Exif\0\0",
        "directory past the end": b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(8),
        "count past the end": b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + bytes(30),
        "value 0": b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHLL", 0x0112, 3, 1, 0),
        "value 9": b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHLL", 0x0112, 3, 1, 9),
        "a text": b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHLL", 0x0112, 2, 1, 6),
        "cut entry": b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry[:-1],
    }


@pytest.mark.parametrize("name", broken_exif())
def test_broken_exif_means_upright(name: str) -> None:
    """A damaged EXIF block neither warns nor fails, and turns nothing."""
    plain = save(picture(), "JPEG")
    damaged = with_segment(plain, 0xE1, broken_exif()[name])
    assert probe(damaged, max_pixels=None) == probe(plain, max_pixels=None)


def test_exif_may_have_bytes_before_its_entries() -> None:
    """The directory is found by its offset, and other entries are passed over."""
    block = b"MM\0*" + struct.pack(">I", 12) + b"\xff" * 4
    block += struct.pack(">HHHIHH", 2, 0x010F, 2, 1, 0, 0) + struct.pack(
        ">HHIHH", 0x0112, 3, 1, 5, 0
    )
    assert exif_orientation(block) == 5


def test_jpeg_with_fill_bytes_and_later_orientation_block() -> None:
    """Fill bytes before markers are allowed, and the first EXIF block counts."""
    data = with_segment(save(picture(), "JPEG"), 0xE1, orientation_block(6))
    data = with_segment(data, 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")
    filled = data[:2] + b"\xff" * 5 + data[2:]
    assert probe(filled, max_pixels=None).orientation == 6


def test_jpeg_headers_that_end_early_are_truncated() -> None:
    """A JPEG cut anywhere in its headers is called truncated, with its length."""
    data = save(picture(), "JPEG")
    for cut in (3, 20, 100, data.index(b"\xff\xda")):
        with pytest.raises(DecodeError, match=rf"JPEG is truncated: .*{cut}"):
            probe(data[:cut], max_pixels=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:20] + b"zz" + d[20:], "no marker at byte 20"),
        (lambda d: d[:2] + b"\xff\xd9" + d[2:], "holds no picture"),
        (lambda d: d[:2] + b"\xff\xe5\0\1" + d[2:], "length 1"),
        (lambda d: d.replace(b"\xff\xc0", b"\xff\xe9"), "without a frame header"),
    ],
)
def test_damaged_jpeg_headers_say_what_is_wrong(change: Any, message: str) -> None:
    """Each kind of damage has its own words."""
    with pytest.raises(DecodeError, match=message):
        probe(change(save(picture(), "JPEG")), max_pixels=None)


def test_progressive_jpeg_with_thousands_of_scans_is_refused() -> None:
    """A small file cannot keep a core busy for minutes."""
    data = save(picture(), "JPEG", progressive=True)
    probe(data, max_pixels=None)
    with pytest.raises(DecodeError, match="scans"):
        probe(data[:-2] + b"\xff\xda" * 2000 + data[-2:], max_pixels=None)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_frames_are_counted(format: str) -> None:
    """Animations and pages are counted without decoding them."""
    frames = [Image.new("RGB", (6, 4), (70 * k, 0, 0)) for k in range(3)]
    data = save(frames[0], format, save_all=True, append_images=frames[1:])
    assert probe(data, max_pixels=None).frames == 3


def tiff(
    fields: list[tuple[int, int, int]], pixels: bytes, order: str = "<", big: bool = False
) -> bytes:
    """Return a TIFF with these (tag, type, value) entries and one strip."""
    start = 16 if big else 8
    head = (b"II" if order == "<" else b"MM") + (
        struct.pack(order + "HHHQ", 43, 8, 0, start + len(pixels)) if big
        else struct.pack(order + "HI", 42, start + len(pixels))
    )  # fmt: skip
    table = struct.pack(order + ("Q" if big else "H"), len(fields))
    for tag, kind, value in fields:
        if tag in (273, 324):
            value = start
        code = order + {3: "H", 4: "I", 16: "Q"}[kind]
        table += struct.pack(order + ("HHQ" if big else "HHI"), tag, kind, 1)
        table += struct.pack(code, value).ljust(8 if big else 4, b"\0")
    return head + pixels + table + bytes(8 if big else 4)


def test_big_tiff_is_read() -> None:
    """TIFF with 64-bit offsets has the same header."""
    fields = [(256, 4, 6), (257, 4, 4), (258, 3, 16), (262, 3, 1), (273, 16, 0), (279, 16, 48)]
    header = probe(tiff(fields, bytes(48), big=True), max_pixels=None)
    assert (header.width, header.height, header.bits, header.mode) == (6, 4, 16, "I;16")


def test_pages_of_a_tiff_that_form_a_ring_are_counted_once() -> None:
    """A chain of pages that leads back to itself ends."""
    data = bytearray(tiff([(256, 4, 6), (257, 4, 4), (273, 4, 0)], bytes(24)))
    data[-4:] = struct.pack("<I", 8 + 24)
    assert probe(data, max_pixels=None).frames == 1


def test_damaged_metadata_of_a_tiff_does_not_matter() -> None:
    """Entries that describe no pixels may point anywhere."""
    fields = [(256, 4, 6), (257, 4, 4), (258, 3, 8), (262, 3, 1), (273, 4, 0), (279, 4, 24)]
    plain = tiff(fields, bytes(24))
    at = plain.index(struct.pack("<HHI", 258, 3, 1))
    entry = struct.pack("<HHII", 270, 2, 1_000_000, 0x7FFFFFFF)
    damaged = bytearray(plain[:at] + entry + plain[at:])
    struct.pack_into("<H", damaged, 8 + 24, 7)
    with pytest.warns(UserWarning, match="larger than file"):  # what Pillow alone says
        Image.open(io.BytesIO(damaged)).close()
    assert probe(damaged, max_pixels=None) == probe(plain, max_pixels=None)


def test_bomb_is_refused_at_once_with_its_size() -> None:
    """A tiny file that claims ten thousand megapixels is refused before anything is allocated."""
    data = png(8, 8)
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = data[:8] + chunk(b"IHDR", head) + data[33:]
    start = time.perf_counter()
    with pytest.raises(ImageTooLargeError) as caught:
        probe(bomb, max_pixels=200_000_000)
    assert time.perf_counter() - start < 0.5
    for part in ("100000 x 100000", "10,000,000,000", "200,000,000", "max_pixels", "--max-pixels"):
        assert part in str(caught.value)


@pytest.mark.parametrize("format", FORMATS)
def test_the_limit_of_pixels_holds_for_every_format(format: str) -> None:
    """One pixel over the limit is refused, the limit itself is not."""
    data = save(picture(), format)
    assert probe(data, max_pixels=24).width == 6
    with pytest.raises(ImageTooLargeError):
        probe(data, max_pixels=23)


def test_pillows_guard_is_neither_asked_nor_changed() -> None:
    """A picture of 108 megapixels passes without a warning, and Pillow's limit stays."""
    before = Image.MAX_IMAGE_PIXELS
    header = probe(png(12_000, 9_000, 1, 0), max_pixels=200_000_000)
    assert (header.width, header.height) == (12_000, 9_000)
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("format", FORMATS)
def test_a_header_without_pixels_is_damaged(format: str) -> None:
    """Cut to their first bytes, files of every format are refused."""
    data = save(picture(), format)
    for size in (4, 8, 12, 18):
        with pytest.raises(DecodeError):
            probe(data[:size], max_pixels=None)


def test_wrong_checksum_of_a_png_header_is_damage() -> None:
    """The size of a PNG is believed only with its checksum."""
    data = bytearray(png(8, 8))
    data[19] = 200
    with pytest.raises(DecodeError, match="checksum of chunk IHDR"):
        probe(data, max_pixels=None)


def test_impossible_png_header_is_damage() -> None:
    """Bit depths that do not exist are refused."""
    head = struct.pack(">IIBBBBB", 8, 8, 3, 2, 0, 0, 0)
    data = png(8, 8)
    with pytest.raises(DecodeError, match="bit depth 3"):
        probe(data[:8] + chunk(b"IHDR", head) + data[33:], max_pixels=None)


def test_headers_are_immutable() -> None:
    """A header can be shared between threads."""
    header = probe(save(picture(), "PNG"), max_pixels=None)
    with pytest.raises(AttributeError):
        header.width = 1  # type: ignore[misc]
    assert isinstance(header, ImageHeader)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_of_16_bits_round_trips(channels: int) -> None:
    """The writer and the reader of 16-bit PNG keep every bit."""
    shape = (5, 7, channels)
    array = np.random.default_rng(channels).integers(0, 65536, shape, dtype=np.uint16)
    np.testing.assert_array_equal(read_pixels(write_png16(array), None).samples, array)


@needs_data
def test_photos_have_the_headers_that_pillow_reads() -> None:
    """Real photographs: size and mode agree with an independent reader."""
    for path in sorted((DATA / "photos").glob("*/*"))[::20]:
        header = probe(path.read_bytes(), max_pixels=None)
        with Image.open(path) as image:
            assert ((header.width, header.height), header.mode) == (image.size, image.mode)


@needs_data
def test_real_odd_files_are_probed_or_refused() -> None:
    """Files that break other readers give a header or one clear error."""
    for path in sorted((DATA / "odd").iterdir()):
        data = path.read_bytes()
        if sniff(data) in IMAGE_FORMATS:
            assert probe(data, max_pixels=None).width > 0
        else:
            with pytest.raises(DecodeError, match="not a"):
                probe(data, max_pixels=None)


def test_errors_are_the_built_in_ones_as_well() -> None:
    """Ordinary except clauses catch what the codecs raise."""
    assert issubclass(ImageTooLargeError, DecodeError)
    assert issubclass(DecodeError, ValueError)
    assert issubclass(OptionError, ValueError)
