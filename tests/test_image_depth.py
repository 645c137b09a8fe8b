"""Bits per value: nothing is lost, clipped or guessed."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from pictures import (
    Array,
    chunk,
    noise,
    opened,
    over,
    save,
    smooth,
    tiff,
)
from PIL import Image

from sharedds.codecs import check, decode, encode_image, probe
from sharedds.errors import DecodeError

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real files is not here")


@pytest.mark.parametrize("source", ["png", "tiff", "big-endian tiff", "deflated tiff"])
def test_sixteen_bits_of_grey_survive(source: str) -> None:
    """16-bit values come back exactly, where a plain conversion turns them white."""
    values = np.linspace(0, 65535, 4096).astype(np.uint16).reshape(64, 64)
    image = Image.fromarray(values)
    data = {
        "png": lambda: save(image, "PNG"),
        "tiff": lambda: save(image, "TIFF"),
        "big-endian tiff": lambda: tiff(values.astype(">u2").tobytes(), 64, 64, bits=16, order=">"),
        "deflated tiff": lambda: save(image, "TIFF", compression="tiff_adobe_deflate"),
    }[source]()
    for mode in ("keep", "L", "index"):
        np.testing.assert_array_equal(decode(data, mode=mode)[..., 0], values)
    assert decode(data).dtype == np.uint16
    assert probe(data, max_pixels=None).bits == 16


def test_eight_bits_are_scaled_not_clipped() -> None:
    """depth='8' maps 0..65535 linearly; almost no value is at the top."""
    values = np.linspace(0, 65535, 4096).astype(np.uint16).reshape(64, 64)
    array = decode(save(Image.fromarray(values), "PNG"), mode="L", depth="8")
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array[..., 0], np.rint(values / 257))
    assert len(np.unique(array)) == 256
    assert (array == 255).mean() < 0.02


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("interlaced", [False, True])
def test_sixteen_bits_of_colour_survive_in_png(channels: int, interlaced: bool) -> None:
    """16-bit colour keeps its low bytes, which Pillow drops without a word."""
    values = noise(13, 11, channels, dtype="u2")
    data = encode_image(values, "png")
    if interlaced:
        data = interlace(values)
    assert opened(data).dtype == np.uint8  # the naive reader has lost half of every value
    np.testing.assert_array_equal(decode(data, mode="keep"), values)
    assert probe(data, max_pixels=None).bits == 16


def interlace(values: Array) -> bytes:
    """Return a 16-bit PNG stored in the seven passes of Adam7."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
              (0, 1, 1, 2))  # fmt: skip
    body = b""
    for x, y, dx, dy in passes:
        for row in values[y::dy, x::dx]:
            if row.size:
                body += b"\0" + row.astype(">u2").tobytes()
    height, width, channels = values.shape
    colour = {2: 4, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 1)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(body)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("channels", [3, 4])
def test_sixteen_bits_of_colour_survive_in_tiff(channels: int, order: str) -> None:
    """16-bit colour TIFF of both byte orders keeps every bit."""
    values = noise(13, 11, channels, dtype="u2")
    fields = {"t338": 2} if channels == 4 else {}
    pixels = values.astype(order + "u2").tobytes()
    data = tiff(pixels, 11, 13, bits=16, order=order, samples=channels, photometric=2, **fields)
    assert opened(data).dtype == np.uint8
    np.testing.assert_array_equal(decode(data, mode="keep"), values)


def test_sixteen_bits_under_alpha_are_composited_exactly() -> None:
    """Alpha of 16 bits is laid over the background at 16 bits."""
    values = noise(40, 40, 4, dtype="u2")
    expected = over(values[..., :3], values[..., 3:], np.array([10, 200, 90]) * 257)
    array = decode(encode_image(values, "png"), background=(10, 200, 90))
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_eight_bit_pictures_can_join_sixteen_bit_ones(format: str) -> None:
    """depth='16' multiplies by 257, so that one set has one dtype, and loses nothing."""
    data = save(smooth(), format)
    array = decode(data, depth="16")
    assert array.dtype == np.uint16
    np.testing.assert_array_equal(array, decode(data).astype(np.uint16) * 257)
    np.testing.assert_array_equal(decode(data, depth="8"), decode(data))


def test_floats_and_32_bits_are_kept_or_refused() -> None:
    """32-bit values survive, are replicated to RGB, and are never scaled by a guess."""
    floats = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    whole = noise(6, 5, dtype="i4").astype(np.int32) - 2**30
    for values in (floats, whole):
        data = save(Image.fromarray(values), "TIFF")
        np.testing.assert_array_equal(decode(data, mode="keep")[..., 0], values)
        assert decode(data).shape == (6, 5, 3)
        assert decode(data).dtype == values.dtype
        for mode, depth in (("RGB", "8"), ("keep", "16"), ("RGBA", "keep")):
            with pytest.raises(DecodeError, match="no full scale"):
                decode(data, mode=mode, depth=depth)


def test_signed_bytes_are_widened() -> None:
    """A TIFF of signed bytes keeps its negative values, which Pillow takes for bright ones."""
    values = np.array([[-128, -1, 0, 127]], np.int8)
    data = tiff(values.tobytes(), 4, 1, bits=8, t339=2)
    array = decode(data, mode="keep")
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array[..., 0], values)


def test_layouts_that_would_lose_something_are_refused() -> None:
    """64-bit floats, 16-bit CMYK and unsigned values over 31 bits are refused by name."""
    doubles = tiff(np.ones(4).tobytes(), 2, 2, bits=64, t339=3)
    cmyk = tiff(bytes(32), 2, 2, bits=16, samples=4, photometric=5)
    unsigned = tiff(b"\xff" * 16, 2, 2, bits=32)
    premultiplied = tiff(bytes(32), 2, 2, bits=16, samples=4, photometric=2, t338=1)
    cases = ((doubles, "64"), (cmyk, "16-bit"), (unsigned, "2,147,483,647"),
             (premultiplied, "premultiplied"))  # fmt: skip
    for data, words in cases:
        with pytest.raises(DecodeError, match=words):
            check(data)


def test_extra_channels_are_not_dropped_silently() -> None:
    """A fourth band of unknown meaning is refused by keep, and left out when RGB is asked for."""
    values = noise(3, 5, 4)
    data = tiff(values.tobytes(), 5, 3, bits=8, samples=4, photometric=2, t338=0)
    np.testing.assert_array_equal(decode(data), values[..., :3])
    with pytest.raises(DecodeError, match="1 more channels than can be kept"):
        decode(data, mode="keep")


@needs_data
def test_real_16_bit_colour_keeps_more_than_8_bits() -> None:
    """A compressed 16-bit TIFF from a real program has values that 8 bits cannot hold."""
    array = decode((DATA / "odd" / "sample.tif").read_bytes())
    assert array.dtype == np.uint16
    assert (array % 257 != 0).mean() > 0.5
