"""Channels and orientation of decoded pictures."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import (
    chunk,
    noise,
    opened,
    over,
    png,
    save,
    smooth,
    tiff,
)
from PIL import Image, ImageCms, ImageOps

from sharedds.codecs import check, decode, probe, resize
from sharedds.codecs.pixels import luma
from sharedds.errors import DecodeError, OptionError

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real files is not here")


# --- channels -------------------------------------------------------------------------------------


def test_rgb_jpeg_equals_pillow() -> None:
    """Pixels of a JPEG are those of libjpeg, whoever calls it."""
    data = save(smooth(), "JPEG", quality=95)
    assert np.abs(decode(data).astype(int) - opened(data)).max() <= 1


def test_memoryview_of_a_jpeg_is_read_in_place() -> None:
    """Bytes inside a larger map decode without being cut out."""
    data = save(smooth(), "JPEG")
    inside = memoryview(b"before" + data + b"after")[6 : 6 + len(data)]
    np.testing.assert_array_equal(decode(inside), decode(data))


@pytest.mark.parametrize(
    ("mode", "shape"), [("RGB", 3), ("L", 1), ("RGBA", 4), ("keep", 3)]
)  # fmt: skip
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
def test_channels_follow_the_mode(format: str, mode: str, shape: int) -> None:
    """Every mode gives its number of channels for every format."""
    array = decode(save(smooth(), format), mode=mode)
    assert array.shape == (48, 64, shape)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    if mode == "RGBA":
        assert (array[..., 3] == 255).all()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "BMP"])
def test_grey_is_replicated(format: str) -> None:
    """Grey pictures become RGB with three equal channels, and stay grey with keep and L."""
    data = save(smooth().convert("L"), format)
    array = decode(data)
    np.testing.assert_array_equal(array, np.repeat(opened(data)[..., None], 3, 2))
    for mode in ("keep", "L", "index"):
        np.testing.assert_array_equal(decode(data, mode=mode)[..., 0], array[..., 0])


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (10, 200, 90)])
def test_alpha_is_laid_over_the_background_exactly(background: tuple[int, int, int]) -> None:
    """Each value is the rounded true one, for every pair of colour and alpha."""
    colour, alpha = np.mgrid[0:256, 0:256].astype(np.uint8)
    rgba = np.dstack([colour, colour[::-1], colour, alpha])
    expected = over(rgba[..., :3], alpha[..., None], np.array(background))
    data = save(Image.fromarray(rgba), "PNG")
    np.testing.assert_array_equal(decode(data, background=background), expected)


@pytest.mark.parametrize("background", [(255, 255, 255), (10, 200, 90)])
def test_grey_with_alpha_takes_the_colour_of_the_background(
    background: tuple[int, int, int],
) -> None:
    """LA pictures are grey over the declared colour, in RGB and as luma."""
    colour, alpha = np.mgrid[0:256, 0:256].astype(np.uint8)
    data = save(Image.merge("LA", [Image.fromarray(colour), Image.fromarray(alpha)]), "PNG")
    expected = over(np.dstack([colour] * 3), alpha[..., None], np.array(background))
    np.testing.assert_array_equal(decode(data, background=background), expected)
    grey = decode(data, mode="L", background=background)[..., 0]
    level = luma(np.array([[background]], np.uint8))[0, 0, 0]
    np.testing.assert_array_equal(grey[:, 0], level)
    np.testing.assert_array_equal(grey[:, 255], colour[:, 255])


@pytest.fixture
def palette_picture() -> Image.Image:
    """Return a palette picture, red on the left and blue on the right."""
    image = Image.new("P", (32, 32))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (16, 0, 32, 32))
    return image


@pytest.mark.parametrize(
    ("format", "transparency"), [("PNG", bytes([0, 255])), ("PNG", 0), ("GIF", 0)]
)
def test_transparent_palette_entries_show_the_background(
    palette_picture: Image.Image, format: str, transparency: bytes | int
) -> None:
    """What hides under transparency never appears, whichever way it is declared."""
    data = save(palette_picture, format, transparency=transparency)
    array = decode(data, background=(1, 2, 3))
    assert (array[:, :16] == (1, 2, 3)).all()
    assert (array[:, 16:] == (0, 0, 255)).all()
    kept = decode(data, mode="keep")
    assert (kept[:, :16] == (255, 0, 0, 0)).all()
    assert (kept[:, 16:] == (0, 0, 255, 255)).all()


def test_masks_keep_their_indices() -> None:
    """Class numbers in a palette picture are what mode='index' returns, and colours are not."""
    values = np.array([0, 1, 7, 255], np.uint8)[noise(9, 11) % 4]
    image = Image.fromarray(values)
    image.putpalette(noise(768).tobytes())
    for format in ("PNG", "TIFF", "BMP"):
        array = decode(save(image, format), mode="index")
        np.testing.assert_array_equal(array[..., 0], values)
        assert np.unique(array).tolist() == [0, 1, 7, 255]


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("colour", [0, 3])
def test_small_depths_keep_the_stored_numbers(bits: int, colour: int) -> None:
    """Greys and indices below 8 bits come back as stored; as a picture greys fill 0..255."""
    values = np.arange(32).reshape(4, 8) % 2**bits
    rows = [
        np.packbits(
            np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, 8 - bits :].ravel()
        ).tobytes()
        for row in values
    ]
    extra = [chunk(b"PLTE", noise(3 * 2**bits).tobytes())] if colour == 3 else []
    data = png(8, 4, bits, colour, rows, *extra)
    np.testing.assert_array_equal(decode(data, mode="index")[..., 0], values)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(decode(data), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("photometric", [0, 1])
def test_white_is_zero_in_tiff(photometric: int) -> None:
    """Inverted greys look right as a picture and keep their numbers as indices."""
    values = np.array([[0, 1, 128, 255]], np.uint8)
    data = tiff(values.tobytes(), 4, 1, bits=8, photometric=photometric)
    np.testing.assert_array_equal(decode(data, mode="index")[..., 0], values)
    shown = values if photometric else 255 - values
    np.testing.assert_array_equal(decode(data, mode="L")[..., 0], shown)


@pytest.mark.parametrize("colour", [0, 2])
def test_one_transparent_colour_of_a_png(colour: int) -> None:
    """A colour declared transparent shows the background; all others stay opaque."""
    channels = 3 if colour == 2 else 1
    rows = noise(4, 8 * channels)
    key = rows[0, :channels]
    trns = chunk(b"tRNS", b"".join(struct.pack(">H", value) for value in key))
    data = png(8, 4, 8, colour, [row.tobytes() for row in rows], trns)
    array = decode(data, mode="keep")
    assert array.shape[2] == channels + 1
    assert array[0, 0, -1] == 0
    assert (decode(data, background=(9, 8, 7))[0, 0] == (9, 8, 7)).all()
    np.testing.assert_array_equal(array[..., :-1].reshape(4, -1), rows)


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb_as_in_pillow(format: str) -> None:
    """Four-colour pictures are converted the way Pillow does it."""
    data = save(smooth().convert("CMYK"), format)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(decode(data) - expected).max() <= 2
    assert decode(data, mode="keep").shape == (48, 64, 3)
    check(data)


def test_lab_becomes_rgb() -> None:
    """A TIFF in CIE LAB shows its colours."""
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    source = Image.new("RGB", (8, 8), (200, 60, 30))
    image = ImageCms.applyTransform(source, ImageCms.buildTransform(srgb, lab, "RGB", "LAB"))
    assert image is not None
    array = decode(save(image, "TIFF")).astype(int)
    assert np.abs(array - (200, 60, 30)).max() <= 3


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animations_give_their_first_frame(format: str) -> None:
    """Of several frames the first is decoded."""
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    options = {"lossless": True} if format == "WEBP" else {}
    data = save(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert probe(data, max_pixels=None).frames == 2
    assert (decode(data) == (250, 0, 0)).all()


def test_grey_palette_of_a_gif_is_still_a_palette() -> None:
    """Header and pixels agree on what a GIF with a grey palette is."""
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    data = save(image, "GIF")
    assert decode(data, mode="keep").shape == (16, 16, 3)
    np.testing.assert_array_equal(decode(data, mode="L")[..., 0], np.asarray(image))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_indices_of_colours_are_refused(mode: str) -> None:
    """A picture that stores colours or alpha has no indices, and the error says so."""
    with pytest.raises(DecodeError, match="mode='index' needs a palette or grey picture"):
        decode(save(smooth().convert(mode), "PNG"), mode="index")
    with pytest.raises(DecodeError, match="this JPEG stores colours"):
        decode(save(smooth(), "JPEG"), mode="index")


# --- orientation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", range(1, 9))
def test_pictures_are_turned_upright(format: str, value: int) -> None:
    """Decoded pictures stand as a viewer shows them, for all eight orientations."""
    block = Image.Exif()
    block[0x0112] = value
    data = save(smooth(), format, exif=block, **({"lossless": True} if format == "WEBP" else {}))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image)).astype(int)
    array = decode(data)
    assert array.shape == ((64, 48, 3) if value >= 5 else (48, 64, 3))
    assert np.abs(array - expected).mean() < 1
    assert array.flags.c_contiguous


def test_orientation_can_be_given_or_ignored() -> None:
    """1 leaves the stored picture; any other value replaces what the file says."""
    block = Image.Exif()
    block[0x0112] = 6
    data = save(smooth(), "PNG", exif=block)
    stored = np.asarray(smooth())
    np.testing.assert_array_equal(decode(data, orientation=1), stored)
    np.testing.assert_array_equal(decode(data, orientation=3), stored[::-1, ::-1])
    np.testing.assert_array_equal(decode(data), np.rot90(stored, -1))
    np.testing.assert_array_equal(
        decode(data, mode="L")[..., 0], np.rot90(luma(stored)[..., 0], -1)
    )


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "rgb"}, "choose one of RGB, L, RGBA, keep, index"),
        ({"depth": "32"}, "choose one of keep, 8, 16"),
        ({"mode": "index", "depth": "8"}, "cannot be combined"),
        ({"background": (0, 0, 256)}, "0 to 255"),
        ({"background": (0, 0)}, "red, green and blue"),
        ({"orientation": 9}, "1 to 8"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    """A value that does not exist is the caller's mistake, not the file's."""
    with pytest.raises(OptionError, match=words):
        decode(save(smooth(), "PNG"), **options)


# --- real files -----------------------------------------------------------------------------------


@needs_data
def test_photos_equal_pillow() -> None:
    """Real photographs pass the check and decode to what an independent reader sees."""
    for path in sorted((DATA / "photos").glob("*/*"))[::25]:
        data = path.read_bytes()
        header = check(data)
        array = decode(data)
        assert array.shape == (header.height, header.width, 3)
        with Image.open(path) as image:
            expected = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(array - expected).mean() < 1


@needs_data
def test_odd_files_decode_or_are_refused_clearly() -> None:
    """Files that break other readers: three are refused, for their own reasons; all others load."""
    refused = {}
    for path in sorted((DATA / "odd").iterdir()):
        try:
            check(path.read_bytes())
            assert decode(path.read_bytes()).shape[2] == 3
        except DecodeError as error:
            refused[path.name] = str(error)
    assert sorted(refused) == ["logo.svg", "targa.tga", "truncated.jpg"]
    assert "svg" in refused["logo.svg"]
    assert "truncated" in refused["truncated.jpg"]


@needs_data
def test_eight_orientations_of_one_picture_agree() -> None:
    """The same scene stored in eight ways is upright each time."""
    upright = decode((DATA / "odd" / "rotation_1.jpg").read_bytes())
    upright = resize(upright, height=80, width=60)
    for value in range(2, 9):
        array = decode((DATA / "odd" / f"rotation_{value}.jpg").read_bytes())
        array = resize(array, height=80, width=60)
        assert np.abs(array.astype(int) - upright).mean() < 5
