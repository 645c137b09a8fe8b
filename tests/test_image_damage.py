"""Damaged, hostile and very large files."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import (
    Array,
    black,
    chunk,
    noise,
    opened,
    png,
    save,
    smooth,
    tiff,
)
from PIL import Image, ImageFile, PngImagePlugin

from sharedds.codecs import check, decode, encode_image, probe, sniff
from sharedds.codecs.images import DEFAULT_MAX_PIXELS
from sharedds.errors import DecodeError, ImageTooLargeError


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("use", [check, decode])
def test_truncated_jpeg_is_an_error(use: Callable[[bytes], object], progressive: bool) -> None:
    """A JPEG that lacks data is refused; nothing is filled with grey."""
    data = save(Image.fromarray(noise(256, 256, 3)), "JPEG", quality=95, progressive=progressive)
    use(data)
    for cut in (len(data) * 6 // 10, 100, len(data) - 100, len(data) - 2):
        with pytest.raises(DecodeError, match="JPEG is truncated"):
            use(data[:cut])


def test_a_flipped_bit_in_a_jpeg_is_found_or_harmless() -> None:
    """After any flipped bit in its data a JPEG is refused or decodes to its size."""
    data = save(Image.fromarray(noise(48, 64, 3)), "JPEG", quality=90)
    start = data.index(b"\xff\xda") + 14
    found = 0
    for bit in range(8 * start, 8 * (len(data) - 2), 137):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert decode(changed).shape == (48, 64, 3)
        except DecodeError:
            found += 1
    assert found > 10


def test_check_and_decode_agree_about_jpeg() -> None:
    """What passes the quick check decodes, and what fails it does not."""
    data = save(smooth(), "JPEG", quality=90)
    for at in range(20, len(data) - 2, 61):
        changed = bytearray(data)
        changed[at] ^= 0x10
        outcomes = []
        for use in (check, decode):
            try:
                use(changed)
                outcomes.append(True)
            except DecodeError:
                outcomes.append(False)
        assert outcomes[0] == outcomes[1], at


@pytest.mark.parametrize(("old", "new"), [(b"JFIF\0\x01", b"JFIF\0\x09"), (b"", b"Adobe")])
def test_harmless_complaints_about_jpeg_headers_are_no_damage(old: bytes, new: bytes) -> None:
    """An unknown JFIF revision or Adobe transform leaves the pixels, and finds truncation."""
    plain = save(smooth(), "JPEG")
    if old:
        odd = plain.replace(old, new)
    else:
        odd = plain[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x07" + plain[20:]
    np.testing.assert_array_equal(decode(odd), decode(plain))
    check(odd)
    with pytest.raises(DecodeError, match="truncated"):
        decode(odd[:-200])


def separate_scans(planes: Array, sampling: int) -> bytes:
    """Return a JPEG with one scan for each channel, all of them with these sampling factors."""
    files = [save(Image.fromarray(planes[..., channel]), "JPEG") for channel in range(3)]
    height, width = planes.shape[:2]
    start, scan = files[0].index(b"\xff\xdb"), files[0].index(b"\xff\xc0")
    tables, codes = files[0][start:scan], files[0].index(b"\xff\xc4")
    frame = struct.pack(">HHBHHB", 0xFFC0, 17, 8, height, width, 3)
    frame += b"".join(bytes((number, sampling, 0)) for number in (1, 2, 3))
    data = b"\xff\xd8" + tables + frame + files[0][codes : files[0].index(b"\xff\xda")]
    for number, file in enumerate(files, 1):
        data += b"\xff\xda\0\x08\x01" + bytes((number, 0, 0, 63, 0))
        data += file[file.index(b"\xff\xda") + 10 : -2]
    return data + b"\xff\xd9"


def test_unusual_sampling_of_a_jpeg_is_decoded() -> None:
    """Sampling factors that TurboJPEG does not list fall back to another reader."""
    planes = np.asarray(smooth().convert("YCbCr"))
    plain, unusual = separate_scans(planes, 0x11), separate_scans(planes, 0x22)
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg(unusual)
    check(unusual)
    for mode in ("RGB", "L", "RGBA"):
        np.testing.assert_array_equal(decode(unusual, mode=mode), decode(plain, mode=mode))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_files_of_every_format_are_errors(format: str) -> None:
    """Files cut in their pixel data are refused by the check and by decoding."""
    options = {"lossless": True} if format == "WEBP" else {}
    data = save(Image.fromarray(noise(40, 40, 3)), format, **options)
    if format == "TIFF":  # its directory stands at the end; put it first
        data = tiff_first(data)
    check(data)
    for use in (check, decode):
        for part in (0.5, 0.9):
            with pytest.raises(DecodeError):
                use(data[: int(len(data) * part)])


def tiff_first(data: bytes) -> bytes:
    """Return an uncompressed little-endian TIFF with its directory before the pixels."""
    array = opened(data)
    entries = [(256, 4, array.shape[1]), (257, 4, array.shape[0]), (258, 3, 8), (262, 3, 1),
               (273, 4, 512), (277, 3, 1), (278, 4, array.shape[0]),
               (279, 4, array[..., 0].size)]  # fmt: skip
    table = struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    for tag, kind, value in entries:
        table += struct.pack("<HHII", tag, kind, 1, value)
    return table.ljust(512, b"\0") + array[..., 0].tobytes()


def test_png_with_too_few_rows_is_an_error() -> None:
    """Pixel data that ends early is refused, where Pillow alone leaves the rest black."""
    data = png(8, 16, 8, 2, [b"\x09" * 24] * 8)
    assert (opened(data)[8:] == 0).all()
    for use in (check, decode):
        with pytest.raises(DecodeError, match=r"PNG is truncated: .* 200 of 400 bytes"):
            use(data)


def test_png_with_a_wrong_checksum_is_an_error() -> None:
    """A changed byte in the pixel data is found by its checksum."""
    data = bytearray(save(smooth(), "PNG", compress_level=0))
    data[data.index(b"IDAT") + 1000] ^= 1
    with pytest.raises(DecodeError, match="wrong checksum of chunk IDAT"):
        check(data)


def test_damaged_text_of_a_png_does_not_matter() -> None:
    """Chunks that carry no pixels are not looked at: no warning, no error, no memory."""
    rows = [b"\x11" * 24] * 8
    bomb = zlib.compress(bytes(100_000_000), 9)
    odd = (chunk(b"zTXt", b"Comment\0\0" + bomb), chunk(b"acTL", bytes(8)), chunk(b"iCCP", b"x"))
    plain = png(8, 8, 8, 2, rows)
    np.testing.assert_array_equal(decode(png(8, 8, 8, 2, rows, *odd)), decode(plain))


def test_tiff_with_missing_strips_is_an_error() -> None:
    """Strips that are not listed are refused, where Pillow alone leaves them black."""
    data = tiff(b"\x09" * 64, 8, 16, bits=8, rows=8)
    assert (opened(data)[8:] == 0).all()
    with pytest.raises(DecodeError, match="1 of 2 strips"):
        decode(data)


def test_corrupt_exif_changes_nothing() -> None:
    """JPEG files with broken EXIF blocks decode without a warning, upright."""
    plain = save(smooth(), "JPEG")
    broken = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHLL", 1, 0x010F, 2, 10**6, 0x7FFFFFFF)
    for block in (broken + bytes(4), b"Exif\0\0garbage!"):
        odd = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]
        np.testing.assert_array_equal(decode(odd), decode(plain))


# --- limits ---------------------------------------------------------------------------------------


def test_large_pictures_within_the_limit_are_decoded() -> None:
    """108 megapixels of one bit pass, and Pillow's guard is neither asked nor changed."""
    before = Image.MAX_IMAGE_PIXELS
    data = black(12_000, 9_000, 1, 0)
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(data)).close()
    assert check(data).width == 12_000
    assert decode(data, mode="index").shape == (9_000, 12_000, 1)
    assert before == Image.MAX_IMAGE_PIXELS
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_large_tiff_passes_without_a_warning() -> None:
    """The guard inside Pillow's TIFF reader is not asked either."""
    image = Image.new("1", (10_000, 9_500))
    assert decode(save(image, "TIFF", compression="group4"), mode="L").shape == (9_500, 10_000, 1)


def test_long_pictures_are_decoded() -> None:
    """A side of 70,000 pixels is no reason to refuse."""
    array = decode(black(70_000, 4, 8, 2))
    assert array.shape == (4, 70_000, 3)


def test_bomb_is_refused_before_decoding() -> None:
    """A file that claims ten thousand megapixels is refused at once by both functions."""
    data = black(8, 8, 8, 2)
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = data[:8] + chunk(b"IHDR", head) + data[33:]
    start = time.perf_counter()
    for use in (check, decode):
        with pytest.raises(ImageTooLargeError, match="10,000,000,000"):
            use(bomb)
    assert time.perf_counter() - start < 0.5
    assert DEFAULT_MAX_PIXELS == 200_000_000


def test_the_limit_holds_for_a_given_header_too() -> None:
    """A header from elsewhere saves the search, not the guard."""
    data = save(smooth(), "JPEG")
    header = probe(data, max_pixels=None)
    np.testing.assert_array_equal(decode(data, header=header), decode(data))
    with pytest.raises(ImageTooLargeError):
        decode(data, header=header, max_pixels=10)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("size", [(64, 47), (63, 48), (1, 1), (640, 480)])
def test_a_header_of_another_picture_is_found_out(format: str, size: tuple[int, int]) -> None:
    """A wrong header gives an error, or for some formats is simply not needed."""
    header = probe(save(smooth(*size), format), max_pixels=None)
    try:
        assert decode(save(smooth(), format), header=header).shape == (48, 64, 3)
        assert format in ("PNG", "TIFF")
    except DecodeError:
        pass


# --- anything at all ------------------------------------------------------------------------------


def samples() -> list[bytes]:
    """Return small valid files of every format and many layouts."""
    image = smooth(17, 9)
    rgba = image.copy()
    rgba.putalpha(90)
    frames = {"save_all": True, "append_images": [image.rotate(180)]}
    block = Image.Exif()
    block[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "words", zip=True)
    return [
        save(image, "JPEG", exif=block),
        save(image, "JPEG", progressive=True),
        save(image.convert("L"), "JPEG"),
        save(image.convert("CMYK"), "JPEG"),
        save(image, "PNG", pnginfo=text, exif=block),
        save(image.convert("P"), "PNG", transparency=bytes(range(99))),
        encode_image(noise(5, 7, 3, dtype="u2"), "png"),
        save(image, "PNG", **frames),
        save(rgba, "WEBP", exif=block),
        save(image, "WEBP", lossless=True),
        save(image, "WEBP", **frames),
        save(image.convert("P"), "GIF", transparency=3),
        save(image, "GIF", **frames),
        save(image, "BMP"),
        save(image.convert("P"), "BMP"),
        save(image.convert("1"), "BMP"),
        save(image, "TIFF", exif=block),
        save(image, "TIFF", compression="tiff_lzw"),
        save(image, "TIFF", compression="jpeg"),
        save(image.convert("1"), "TIFF", compression="group4"),
        save(image.convert("P"), "TIFF", **frames),
        tiff(noise(9, 17, 3, dtype="u2").tobytes(), 17, 9, bits=16, samples=3, photometric=2),
    ]


SAMPLES = samples()


def survive(data: bytes) -> None:
    """Run every reader; only DecodeError may leave, and nothing may warn."""
    sniff(data)
    uses: tuple[Callable[[], object], ...] = (
        lambda: probe(data, max_pixels=10**6),
        lambda: check(data, max_pixels=10**6),
        lambda: decode(memoryview(data), max_pixels=10**6),
        lambda: decode(data, mode="keep", max_pixels=10**6),
        lambda: decode(data, mode="index", max_pixels=10**6),
    )
    for use in uses:
        with contextlib.suppress(DecodeError):
            use()


@given(
    which=st.integers(0, len(SAMPLES) - 1),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
    head=st.booleans(),
    cut=st.one_of(st.none(), st.integers(0, 10**6)),
)
@settings(max_examples=600, deadline=None)
def test_damaged_files_raise_only_decode_errors(
    which: int, changes: list[tuple[int, int]], head: bool, cut: int | None
) -> None:
    """However a file is damaged, it decodes or is refused with a DecodeError; nothing warns."""
    data = bytearray(SAMPLES[which])
    for at, value in changes:
        data[at % (min(len(data), 64) if head else len(data))] = value
    survive(bytes(data if cut is None else data[: cut % len(data)]))


@given(
    start=st.sampled_from([b"", *(data[:40] for data in SAMPLES)]),
    length=st.integers(0, 40),
    rest=st.binary(max_size=300),
)
@settings(max_examples=400, deadline=None)
def test_garbage_raises_only_decode_errors(start: bytes, length: int, rest: bytes) -> None:
    """Random bytes after a believable beginning are refused the same way."""
    survive(start[:length] + rest)


def test_many_threads_get_the_same_pixels() -> None:
    """Nothing is shared between calls: threads decode at once what one decodes alone."""
    expected = [decode(data) for data in SAMPLES]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for one, other in zip(pool.map(decode, SAMPLES), expected, strict=True):
                np.testing.assert_array_equal(one, other)
