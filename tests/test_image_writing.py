"""Arrays to picture files, and resizing."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import simplejpeg
from pictures import (
    Array,
    noise,
    opened,
    save,
    smooth,
)
from PIL import Image
from processes import python

from sharedds.codecs import decode, encode_image, encode_jpeg, png_writer, probe, resize
from sharedds.codecs.tiff_plain import plain_pixels
from sharedds.errors import DecodeError, ImageTooLargeError, OptionError


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_round_trip_is_close(channels: int) -> None:
    """Encoded pictures look as before; quality 95 keeps the full resolution of colour."""
    array = np.asarray(smooth())[..., :channels]
    for quality in (90, 95):
        again = decode(encode_jpeg(array, quality=quality), mode="keep")
        assert again.shape == array.shape
        assert np.abs(again.astype(int) - array).mean() < 4


@pytest.mark.parametrize(
    ("quality", "chroma", "halved"),
    [(90, "auto", True), (95, "auto", False), (95, "420", True), (50, "444", False)],
)
def test_jpeg_stores_colour_at_half_or_full_resolution(
    quality: int, chroma: str, halved: bool
) -> None:
    """As asked, or by the quality; stripes of colour survive only at full resolution."""
    stripes = np.full((64, 64, 3), 100, np.uint8)
    stripes[:, ::2] = (200, 60, 100)  # nearly the same luma
    data = encode_jpeg(stripes, quality=quality, chroma=chroma)
    assert simplejpeg.decode_jpeg_header(data)[3] == ("420" if halved else "444")
    error = np.abs(decode(data).astype(int) - stripes).mean()
    assert (error > 20) == halved


def test_jpeg_refuses_another_chroma() -> None:
    """Also for grey pictures, which have none."""
    with pytest.raises(OptionError, match="chroma='422': choose one of auto, 444, 420"):
        encode_jpeg(np.zeros((4, 4), np.uint8), chroma="422")


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_as_they_are_make_a_tiff_that_any_program_reads(channels: int) -> None:
    """Pillow finds the same pixels, and it is not compressed."""
    array = noise(13, 9, channels)
    data = encode_image(array, "tiff")
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        assert image.mode == ("L" if channels == 1 else "RGB")
        assert image.info["compression"] == "raw"
        np.testing.assert_array_equal(np.asarray(image).reshape(array.shape), array)
    header = probe(data, max_pixels=None)
    assert (header.height, header.width, header.channels, header.bits) == (13, 9, channels, 8)
    assert (header.format, header.orientation, header.frames) == ("tiff", 1, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "keep"])
def test_pixels_as_they_are_read_like_any_other_tiff(channels: int, mode: str) -> None:
    """The short way gives what the long one gives: here the same file with a byte after it."""
    data = encode_image(noise(13, 9, channels), "tiff")
    assert plain_pixels(data) is not None
    assert plain_pixels(data + b"\0") is None
    long, short = decode(data + b"\0", mode=mode), decode(data, mode=mode)
    np.testing.assert_array_equal(short, long)
    assert short.flags.writeable
    assert probe(data, max_pixels=None) == probe(data + b"\0", max_pixels=None)


@pytest.mark.parametrize("at", range(0, 192, 2))
def test_any_other_beginning_is_not_taken_for_pixels_as_they_are(at: int) -> None:
    """Each byte of the directory counts; what differs goes the long way, which checks it."""
    data = bytearray(encode_image(noise(13, 9, 3), "tiff"))
    data[at] ^= 1
    assert plain_pixels(bytes(data)) is None


def test_pixels_as_they_are_are_refused_by_their_number() -> None:
    """Before anything is done with them."""
    data = encode_image(noise(40, 30, 3), "tiff")
    with pytest.raises(ImageTooLargeError, match="1,200 pixels"):
        decode(data, max_pixels=1199)
    with pytest.raises(DecodeError, match="truncated: its pixels end at byte 3792, there are 3791"):
        decode(data[:-1])
    with Image.open(io.BytesIO(data[:-1])) as image, pytest.raises(OSError, match="truncated"):
        image.load()


def test_jpeg_names_its_longest_side() -> None:
    """Over 65,500 pixels a side JPEG is refused with its limit."""
    with pytest.raises(OptionError, match=r"70000 x 4 .* 65,500"):
        encode_jpeg(np.zeros((4, 70_000, 3), np.uint8))
    assert decode(encode_jpeg(np.zeros((1, 65_500, 1), np.uint8))).shape == (1, 65_500, 3)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.uint16),
        np.zeros((4,), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_jpeg_refuses_what_it_cannot_hold(array: Array) -> None:
    """Alpha, 16 bits and empty pictures do not go into a JPEG."""
    with pytest.raises(OptionError):
        encode_jpeg(array)
    with pytest.raises(OptionError, match="quality=0"):
        encode_jpeg(np.zeros((4, 4), np.uint8), quality=0)


@pytest.mark.parametrize("dtype", ["u1", "u2"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_keeps_everything(dtype: str, channels: int) -> None:
    """PNG is exact for 8 and 16 bits and one to four channels."""
    array = noise(9, 7, channels, dtype=dtype)
    np.testing.assert_array_equal(decode(encode_image(array, "png"), mode="keep"), array)


@pytest.mark.parametrize("dtype", ["u1", "u2"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_in_strips_is_the_same_picture(
    dtype: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are filtered by the row above, across the edges of strips of any height."""
    steps = noise(67, 53, channels, dtype=dtype, seed=3) % 7
    array = np.cumsum(np.cumsum(steps, axis=0), axis=1).astype(dtype)
    for strip in (1, 1000, 1 << 20):
        monkeypatch.setattr(png_writer, "_STRIP", strip)
        data = encode_image(array, "png")
        np.testing.assert_array_equal(decode(data, mode="keep"), array)
        if dtype == "u1" or channels == 1:  # more bits of colours are more than Pillow reads
            np.testing.assert_array_equal(opened(data), array.squeeze())


def test_png_is_as_small_as_the_one_of_pillow() -> None:
    """Within 5 %, for a picture with gradients and grain."""
    grain = noise(480, 640, 3) % 8
    array = (np.asarray(smooth(640, 480)) // 2 + grain).astype(np.uint8)
    assert len(encode_image(array, "png")) < 1.05 * len(save(Image.fromarray(array), "PNG"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_png_is_written_in_hardly_more_memory_than_it_has_bytes() -> None:
    """Of 36 MB that do not compress; Pillow alone takes its own copy of the pixels as well."""
    code = """
        import io, sys
        import numpy as np
        from PIL import Image
        from sharedds.codecs import encode_image
        def peak():
            lines = open("/proc/self/status").read().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        def pillow(array, _):
            file = io.BytesIO()
            Image.fromarray(array).save(file, "PNG")
            return file.getvalue()
        write = pillow if sys.argv[1] == "pillow" else encode_image
        pixels = np.random.default_rng(0).integers(0, 256, (3000, 4000, 3), dtype=np.uint8)
        write(pixels[:100], "png")
        before = peak()
        write(pixels, "png")
        print(peak() - before)
    """
    alone, strips = (int(python(code, way).stdout) << 10 for way in ("pillow", "strips"))
    assert alone > 70_000_000
    assert strips < 55_000_000


def test_png_stores_truth_in_one_bit() -> None:
    """Boolean masks become 1-bit pictures and come back as 0 and 1."""
    array = noise(9, 13) > 128
    data = encode_image(array, "png")
    assert probe(data, max_pixels=None).bits == 1
    np.testing.assert_array_equal(decode(data, mode="index")[..., 0], array)


@pytest.mark.parametrize("channels", [3, 4])
def test_webp_is_lossless_unless_a_quality_is_given(channels: int) -> None:
    """Without a quality every value survives, colours under alpha 0 too."""
    array = noise(9, 7, channels)
    np.testing.assert_array_equal(decode(encode_image(array, "webp"), mode="keep"), array)
    assert len(encode_image(np.asarray(smooth()), "webp", quality=30)) < 1000


@pytest.mark.parametrize(
    ("shape", "format", "words"),
    [
        ((4, 4, 3), "bmp", "png, webp, jpeg or tiff"),
        ((4, 4, 2), "tiff", "1 or 3 channels"),
        ((4, 20_000, 3), "webp", "16,383"),
        ((4, 4, 1), "webp", "3 or 4 channels"),
        ((4, 4, 5), "png", "1 to 4 channels"),
        ((4, 0, 3), "png", "not a picture"),
    ],
)
def test_encoders_say_what_they_hold(shape: tuple[int, ...], format: str, words: str) -> None:
    """Each refusal names the limit of the format."""
    with pytest.raises(OptionError, match=words):
        encode_image(np.zeros(shape, np.uint8), format)


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_resize_treats_each_channel_by_itself(dtype: str, channels: int) -> None:
    """Any number of channels is resized as if each were alone; alpha weighs nothing."""
    array = noise(40, 30, channels, dtype="u2" if dtype == "f4" else dtype).astype(dtype)
    result = resize(array, height=13, width=50)
    assert (result.shape, result.dtype) == ((13, 50, channels), array.dtype)
    for channel in range(channels):
        alone = resize(array[..., channel : channel + 1], height=13, width=50)
        np.testing.assert_array_equal(result[..., channel], alone[..., 0])


def test_shrinking_is_antialiased() -> None:
    """Fine stripes become grey, not one of the two colours."""
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[:, ::2] = 255
    shrunk = resize(stripes, height=16, width=16)
    assert np.abs(shrunk.astype(int) - 128).max() <= 10


def test_resize_keeps_the_range_of_16_bits() -> None:
    """A constant stays itself at both ends of the range."""
    for value in (0, 65535):
        array = np.full((9, 9, 1), value, np.uint16)
        assert (resize(array, height=5, width=20) == value).all()


def test_resize_refuses_what_it_cannot_do() -> None:
    """Other dtypes and sides below one pixel are named."""
    with pytest.raises(OptionError, match="int32"):
        resize(np.zeros((4, 4, 1), np.int32), height=2, width=2)
    with pytest.raises(OptionError, match="0 x 2"):
        resize(np.zeros((4, 4, 1), np.uint8), height=2, width=0)
