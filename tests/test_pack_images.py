"""What becomes of each kind of picture: kept, proved, encoded anew, or refused."""

from __future__ import annotations

import gzip
import io
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
from packing import entries, jpeg, put, run, run_script, stored
from PIL import Image, ImageFile, ImageOps

from sharedds.codecs import decode, probe
from sharedds.errors import SourceError
from sharedds.ingest import PackReport, pack
from sharedds.store import Store

Pixels = pictures.Array


def pack_files(place: Path, files: dict[str, bytes], **options: Any) -> PackReport:
    """Pack these files into ``place/out.lmdb``."""
    return pack(put(place / "src", files), place / "out.lmdb", force=True, **options)


def image(report: PackReport, key: str) -> Pixels:
    """Return a stored picture as it is read, upright, in the channels it has."""
    store = Store(report.path)
    index = store.index_of(key)
    kinds = {field.name: field.kind for field in store.header.fields}
    if kinds["image"] == "column":
        return np.array(store.column("image")[index])
    return decode(
        store.read("image", index),
        mode="keep",
        orientation=int(store.column("orientation")[index]),
        max_pixels=None,
    )


def row(report: PackReport, key: str) -> dict[str, Any]:
    """Return the columns of a sample, codes as names."""
    store = Store(report.path)
    index = store.index_of(key)
    values = {n: store.value(n, index) for n in store.fields if n != "image"}
    for name in values:
        names = store.attrs.get(f"{name.removeprefix('source_')}s", [])
        if names:
            values[name] = names[values[name]]
    return values


# --- damage --------------------------------------------------------------------------------------


def test_a_truncated_jpeg_is_reported_and_the_rest_is_packed(tmp_path: Path) -> None:
    """The naive cure fills the missing part with grey; here the file is named with its reason."""
    whole = jpeg(1, 256, 256)
    cut = whole[: len(whole) * 6 // 10]
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        naive = np.asarray(Image.open(io.BytesIO(cut)).convert("RGB"))
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    assert (naive[-20:] == 128).all()
    files = {f"a/good{n}.jpg": jpeg(n) for n in range(20)}
    files |= {"a/cut.jpg": cut, "a/stub.jpg": whole[:100]}
    report = pack_files(tmp_path, files)
    assert report.samples == 20
    assert [name for name, _ in report.failed] == ["a/cut.jpg", "a/stub.jpg"]
    assert "truncated" in report.failed[0][1]
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_jpeg_without_its_end_marker_loses_no_pixel(tmp_path: Path) -> None:
    """Packed with the pixels of the intact picture, or reported; never changed."""
    whole = jpeg(1, 256, 256)
    report = pack_files(tmp_path, {"a/good.jpg": jpeg(2), "a/cut.jpg": whole[:-2]})
    if report.failed_count:
        assert report.failed[0][0] == "a/cut.jpg"
    else:
        assert np.array_equal(image(report, "a/cut.jpg"), decode(whole))


def test_bad_files_give_exit_code_3_and_strict_gives_4(tmp_path: Path) -> None:
    """A script can tell a clean pack from one that left something out."""
    root = str(put(tmp_path / "src", {"a/good.jpg": jpeg(1), "a/cut.jpg": jpeg(2)[:200]}))
    assert run("pack", root, str(tmp_path / "x")).returncode == 3
    assert run("pack", root, str(tmp_path / "y"), "--strict").returncode == 4
    assert len(Store(tmp_path / "x")) == len(Store(tmp_path / "y")) == 1


def test_broken_exif_does_no_harm_and_makes_no_noise(tmp_path: Path) -> None:
    """The pixels are fine, so the file is packed as upright; warnings are errors here."""
    far = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHLL", 1, 0x010F, 2, 1_000_000, 0x7FFFFFFF)
    files = {}
    for number in range(10):
        plain = jpeg(number)
        files[f"a/{number}.jpg"] = pictures.with_segment(plain, 0xE1, far + bytes(4))
        files[f"b/{number}.jpg"] = pictures.with_segment(plain, 0xE1, b"Exif\0\0garbage!")
    root = put(tmp_path / "src", files)
    done = run("pack", str(root), str(tmp_path / "out.lmdb"), flags=("-W", "error"))
    assert done.returncode == 0
    # The 10 of each class are the same pictures, with another segment each.
    assert done.stderr.count(b"\n") <= 1, done.stderr
    report = PackReport(path=str(tmp_path / "out.lmdb"))
    for number in range(10):
        expected = decode(jpeg(number))
        for name in "ab":
            assert np.array_equal(image(report, f"{name}/{number}.jpg"), expected)


def test_empty_files_and_odd_things_are_reported_each_with_its_reason(tmp_path: Path) -> None:
    """Nothing hangs on a pipe, and nothing that is no file becomes a picture."""
    files = {f"a/{n}.jpg": jpeg(n) for n in range(10)} | {f"a/e{n}.jpg": b"" for n in range(3)}
    root = put(tmp_path / "src", files)
    (root / "a" / "x.jpg").mkdir()
    os.mkfifo(root / "a" / "y.jpg")
    (root / "a" / "z.jpg").symlink_to(root / "nowhere")
    started = time.monotonic()
    report = pack(root, tmp_path / "out.lmdb")
    assert time.monotonic() - started < 10
    assert report.samples == 10
    assert dict(report.failed) == {
        "a/e0.jpg": "empty",
        "a/e1.jpg": "empty",
        "a/e2.jpg": "empty",
        "a/y.jpg": "not a regular file",
        "a/z.jpg": "broken link",
    }
    remarks = [item for item in report.left_out if item["is_folder"]]
    assert [(item["reason"], item["example"]) for item in remarks] == [
        ("directory with an image name", "a/x.jpg")
    ]
    assert report.samples + report.failed_count + report.left_out_count == 15


# --- formats -------------------------------------------------------------------------------------


def test_the_content_decides_not_the_extension(tmp_path: Path) -> None:
    """What is stored is described by what it is; what is no picture is named as what it is."""
    picture = pictures.smooth()
    made = {name: pictures.save(picture, name) for name in ("JPEG", "PNG", "BMP")}
    made["WEBP"] = pictures.save(picture, "WEBP", lossless=True)
    files = {
        "a/a.jpg": made["WEBP"],
        "a/b.jpg": made["BMP"],
        "a/c.jpeg": made["PNG"],
        "a/d.png": made["JPEG"],
        "a/e.JPEG": gzip.compress(made["JPEG"]),
        "a/f.jpg": b"<!DOCTYPE html><html><body>404</body></html>",
        "a/plain": made["JPEG"],
        "a/README": b"no extension, no picture",
    }
    report = pack_files(tmp_path, files)
    formats = {"a/a.jpg": "webp", "a/b.jpg": "bmp", "a/c.jpeg": "png", "a/d.png": "jpeg"}
    assert {key: row(report, key)["format"] for key in formats} == formats
    for key in ("a/a.jpg", "a/b.jpg", "a/c.jpeg"):
        assert np.array_equal(image(report, key), np.asarray(picture))
    assert row(report, "a/plain")["format"] == "jpeg"
    reasons = dict(report.failed)
    assert reasons.keys() == {"a/e.JPEG", "a/f.jpg"}
    assert "gzip" in reasons["a/e.JPEG"]
    assert "HTML/text" in reasons["a/f.jpg"]
    assert not any("truncated" in reason for reason in reasons.values())
    assert [item["reason"] for item in report.left_out] == ["no extension, and not an image"]


def test_mixed_modes_are_counted(tmp_path: Path) -> None:
    """The report has the number of each mode, and says what will happen to alpha and to 16 bits."""
    alpha = np.zeros((64, 64, 4), np.uint8)
    alpha[..., 0] = 255
    files = {
        "a/l.png": pictures.save(Image.fromarray(pictures.noise(64, 64)), "PNG"),
        "a/la.png": pictures.save(Image.fromarray(pictures.noise(64, 64, 2), "LA"), "PNG"),
        "a/rgb.png": pictures.save(Image.fromarray(pictures.noise(64, 64, 3)), "PNG"),
        "a/rgba.png": pictures.save(Image.fromarray(alpha), "PNG"),
        "a/p.png": pictures.save(pictures.smooth(64, 64).quantize(16), "PNG"),
        "a/deep.png": pictures.save(Image.fromarray(pictures.noise(64, 64, dtype="u2")), "PNG"),
    }
    report = pack_files(tmp_path, files)
    modes = {"L": 1, "LA": 1, "P": 1, "RGB": 1, "RGBA": 1, "I;16": 1}
    assert report.content["mode"] == modes
    assert report.content["bits"] == {"4": 1, "8": 4, "16": 1}
    assert any("2 of 6 pictures have an alpha channel" in text for text in report.warnings)
    assert any("1 of 6 pictures have more than 8 bits" in text for text in report.warnings)


# --- orientation ---------------------------------------------------------------------------------


def rotated(format: str, orientation: int) -> bytes:
    """Return a picture with this orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if format == "JPEG" else {}
    return pictures.save(pictures.smooth(), format, exif=exif, **options)


ROTATED = {f"a/{o}.jpg": rotated("JPEG", o) for o in range(1, 9)} | {
    "a/6.png": rotated("PNG", 6),
    "a/6.tif": rotated("TIFF", 6),
}


def upright(data: bytes) -> Pixels:
    """Return the picture as it should be seen."""
    with Image.open(io.BytesIO(data)) as picture:
        turned = ImageOps.exif_transpose(picture)
        assert turned is not None
        return np.asarray(turned.convert("RGB"))


@pytest.mark.parametrize(
    ("options", "limit"),
    [({}, 3), ({"codec": "png"}, 3), ({"codec": "webp"}, 3), ({"codec": "jpeg"}, 8)],
    ids=["keep", "png", "webp", "jpeg"],
)
def test_orientation_is_applied_exactly_once(
    tmp_path: Path, options: dict[str, Any], limit: int
) -> None:
    """Kept as a column beside original bytes, applied to pixels that are encoded anew."""
    report = pack_files(tmp_path, ROTATED, **options)
    for key, data in ROTATED.items():
        expected, found = upright(data), image(report, key)
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).mean() < limit
        tag = row(report, key)["orientation"]
        assert tag == (1 if options else int(key[2]))
        assert (found.shape[0] > found.shape[1]) == (int(key[2]) >= 5)


@pytest.mark.parametrize("codec", ["keep", "png"])
def test_orientation_can_be_ignored_and_that_is_recorded(tmp_path: Path, codec: Any) -> None:
    """Pictures lie as they are stored, and the file and the report say so."""
    report = pack_files(tmp_path, ROTATED, codec=codec, orientation="ignore")
    store = Store(report.path)
    assert store.attrs["recipe"]["orientation"] == "ignore"
    assert any("orientation is ignored" in text for text in report.warnings)
    if codec == "png":
        assert all(image(report, key).shape == (48, 64, 3) for key in ROTATED)


# --- 16 bits -------------------------------------------------------------------------------------

RAMP = np.linspace(0, 65535, 4096).astype("u2").reshape(64, 64)
DEEP = {
    "a/g.png": pictures.save(Image.fromarray(RAMP), "PNG"),
    "a/little.tif": pictures.save(Image.fromarray(RAMP), "TIFF"),
    "a/big.tif": pictures.tiff(RAMP.astype(">u2").tobytes(), 64, 64, bits=16, order=">"),
}


@pytest.mark.parametrize("codec", ["keep", "png", "jpeg", "webp"])
def test_16_bit_values_survive_every_codec(tmp_path: Path, codec: Any) -> None:
    """Pillow's way to RGB turns them white; what JPEG and WebP cannot hold becomes a PNG."""
    with Image.open(io.BytesIO(DEEP["a/g.png"])) as picture:
        naive = np.asarray(picture.convert("RGB"))
    assert (naive == 255).mean() > 0.9
    report = pack_files(tmp_path, DEEP, codec=codec)
    for key in DEEP:
        found = image(report, key)
        assert found.dtype == np.uint16
        assert np.array_equal(found[..., 0], RAMP)
        assert row(report, key)["bits"] == 16
    became = [text for text in report.warnings if "became PNG" in text]
    assert bool(became) == (codec in ("jpeg", "webp"))


@pytest.mark.parametrize("codec", ["png", "webp", "raw"])
def test_8_bits_are_a_linear_scaling_when_asked_for(tmp_path: Path, codec: Any) -> None:
    """All levels are used and next to nothing is clipped; the report says it was done."""
    size = (64, 64) if codec == "raw" else None
    report = pack_files(tmp_path, DEEP, codec=codec, depth="8", size=size)
    for key in DEEP:
        found = image(report, key)
        assert found.dtype == np.uint8
        assert len(np.unique(found)) >= 250
        assert (found == 255).mean() < 0.02
        assert row(report, key)["bits"] == 8
        assert row(report, key)["source_bits"] == 16
    assert any("3 pictures of more than 8 bits were scaled" in text for text in report.warnings)


def test_raw_pixels_refuse_16_bits_unless_scaled(tmp_path: Path) -> None:
    """Clipping never happens silently; the reason names the way out."""
    report = pack_files(tmp_path, DEEP | {"a/8.jpg": jpeg()}, codec="raw", size=(64, 64))
    assert report.samples == 1
    assert report.failed_count == 3
    assert all("--depth 8" in reason for _, reason in report.failed)


def test_32_bit_values_are_kept_or_refused(tmp_path: Path) -> None:
    """They have no full scale, so no codec but "keep" takes them."""
    deep = pictures.save(
        Image.fromarray(pictures.noise(8, 8, dtype="u2").astype(np.float32)), "TIFF"
    )
    files = {"a/f.tif": deep, "a/8.jpg": jpeg()}
    assert stored(pack_files(tmp_path, files).path) == files
    for codec in ("png", "jpeg", "webp"):
        for depth in ("keep", "8"):
            report = pack_files(tmp_path, files, codec=codec, depth=depth)
            assert [name for name, _ in report.failed] == ["a/f.tif"]


# --- encoding anew -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["jpeg", "png", "webp"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (120, 200)),
        ({"max_side": 100}, (60, 100)),
        ({"short_side": 60}, (60, 100)),
        ({"max_side": 500}, (120, 200)),
        ({"short_side": 120}, (120, 200)),
    ],
)
def test_sizes_shrink_keep_the_aspect_and_never_grow(
    tmp_path: Path, codec: Any, options: dict[str, Any], expected: tuple[int, int]
) -> None:
    """The limits are met exactly, and the columns say what is stored."""
    picture = pictures.smooth(200, 120)
    report = pack_files(
        tmp_path, {"a/x.png": pictures.save(picture, "PNG")}, codec=codec, **options
    )
    found = image(report, "a/x.png")
    assert found.shape == (*expected, 3)
    values = row(report, "a/x.png")
    assert (values["height"], values["width"]) == expected
    assert (values["format"], values["source_format"]) == (codec, "png")
    target = np.asarray(picture.resize(expected[::-1], Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(found - target).mean() < 8


@pytest.mark.parametrize(("width", "height"), [(200, 120), (90, 300), (20, 10), (3000, 2)])
def test_raw_pixels_all_have_the_size_asked_for(tmp_path: Path, width: int, height: int) -> None:
    """Scaled to cover it, cut in the middle; even where what covers it would be enormous."""
    picture = pictures.smooth(width, height)
    files = {"a/x.png": pictures.save(picture, "PNG"), "a/y.jpg": jpeg()}
    report = pack_files(tmp_path, files, codec="raw", size=(60, 90))
    column = Store(report.path).column("image")
    assert column.shape == (2, 60, 90, 3)
    expected = np.asarray(ImageOps.fit(picture, (90, 60), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(image(report, "a/x.png") - expected).mean() < 6
    assert row(report, "a/x.png")["format"] == "raw"


def test_transparent_pixels_show_the_background_in_codecs_without_alpha(tmp_path: Path) -> None:
    """Not the colour that hides under them; with alpha they stay as they are."""
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[:, 16:] = (0, 0, 255, 255)
    pixels[:, :16, 0] = 255  # bright red, fully transparent
    data = pictures.save(Image.fromarray(pixels), "PNG")
    with Image.open(io.BytesIO(data)) as naive:
        assert (np.asarray(naive.convert("RGB"))[:, :16] == (255, 0, 0)).all()
    report = pack_files(tmp_path, {"a/x.png": data}, codec="jpeg", background=(0, 255, 0))
    found = image(report, "a/x.png").astype(int)
    assert np.abs(found[:, :12] - (0, 255, 0)).mean() < 4
    assert np.abs(found[:, 20:] - (0, 0, 255)).mean() < 4
    assert any("background (0, 255, 0) shows" in text for text in report.warnings)
    for codec in ("png", "webp"):
        report = pack_files(tmp_path, {"a/x.png": data}, codec=codec)
        assert np.array_equal(image(report, "a/x.png"), pixels)


def test_a_palette_with_transparency_shows_the_background(tmp_path: Path) -> None:
    """Also in GIF; without a warning for each file."""
    picture = Image.new("P", (32, 32), 1)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.paste(0, (0, 0, 16, 32))
    files = {
        "a/p.png": pictures.save(picture, "PNG", transparency=bytes([0, 255])),
        "a/p.gif": pictures.save(picture, "GIF", transparency=0),
    }
    report = pack_files(tmp_path, files, codec="raw", size=(32, 32))
    for key in files:
        found = image(report, key)
        assert (found[:, :16] == 255).all()
        assert (found[:, 16:] == (0, 0, 255)).all()


@pytest.mark.parametrize("codec", ["png", "webp", "jpeg"])
def test_grey_pictures_are_encoded_anew(tmp_path: Path, codec: Any) -> None:
    """With and without alpha, and 1-bit ones; WebP has no grey, so there it becomes colour."""
    grey, both = pictures.noise(20, 30), pictures.noise(20, 30, 2)
    bits = np.where(pictures.noise(20, 30) > 128, 255, 0).astype(np.uint8)
    files = {
        "a/l.png": pictures.save(Image.fromarray(grey), "PNG"),
        "a/la.png": pictures.save(Image.fromarray(both, "LA"), "PNG"),
        "a/1.png": pictures.save(Image.fromarray(bits).convert("1"), "PNG"),
    }
    report = pack_files(tmp_path, files, codec=codec, quality=100)
    assert report.samples == 3
    for key, expected in (("a/l.png", grey), ("a/1.png", bits)):
        found = image(report, key)
        assert found.shape[2] == (3 if codec == "webp" else 1)
        assert np.abs(found[..., 0].astype(int) - expected).max() <= (3 if codec == "jpeg" else 0)
    if codec != "jpeg":
        assert np.array_equal(image(report, "a/la.png")[..., -1], both[..., 1])
        assert np.array_equal(image(report, "a/la.png")[..., 0], both[..., 0])


def test_webp_is_without_loss_whatever_the_quality(tmp_path: Path) -> None:
    """The option is for JPEG only."""
    noise = pictures.noise(20, 30, 3)
    files = {"a/x.png": pictures.save(Image.fromarray(noise), "PNG")}
    report = pack_files(tmp_path, files, codec="webp", quality=1)
    assert np.array_equal(image(report, "a/x.png"), noise)


def test_the_header_alone_can_be_trusted(tmp_path: Path) -> None:
    """With check="header" a file that is cut short is packed; what has no header still is not."""
    files = {"a/cut.jpg": jpeg(1, 256, 256)[:9000], "a/no.jpg": b"no picture", "a/good.jpg": jpeg()}
    assert pack_files(tmp_path, files).samples == 1
    report = pack_files(tmp_path, files, check="header")
    assert report.samples == 2
    assert [name for name, _ in report.failed] == ["a/no.jpg"]


# --- large pictures ------------------------------------------------------------------------------


def bomb() -> bytes:
    """Return a tiny PNG whose header claims ten thousand million pixels."""
    data = bytearray(pictures.black(8, 8, 8, 2))
    data[16:24] = struct.pack(">II", 100_000, 100_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def test_a_bomb_is_refused_at_once(tmp_path: Path) -> None:
    """By its header, with its size and the option that would let it in."""
    guard = Image.MAX_IMAGE_PIXELS
    started = time.monotonic()
    report = pack_files(tmp_path, {"a/bomb.png": bomb(), "a/good.jpg": jpeg()})
    assert time.monotonic() - started < 1
    assert report.samples == 1
    assert "100000 x 100000 = 10,000,000,000 pixels" in report.failed[0][1]
    assert "--max-pixels" in report.failed[0][1]
    assert guard == Image.MAX_IMAGE_PIXELS


def test_the_limit_of_pixels_can_be_moved(tmp_path: Path) -> None:
    """Down, so that what passed is refused, and away altogether."""
    files = {"a/x.png": pictures.black(40, 30, 8, 2)}
    with pytest.raises(SourceError, match="40 x 30 = 1,200 pixels"):
        pack_files(tmp_path, files, max_pixels=1199)
    assert pack_files(tmp_path, files, max_pixels=1200).samples == 1
    assert pack_files(tmp_path, files, max_pixels=None).samples == 1


@pytest.mark.parametrize("codec", ["keep", "jpeg", "png", "webp"])
def test_a_very_long_picture_is_read_back_unchanged(tmp_path: Path, codec: Any) -> None:
    """JPEG ends at 65,500 pixels and WebP at 16,383: then it is kept without loss as a PNG."""
    pixels = pictures.noise(4, 70_000, 3)
    data = pictures.save(Image.fromarray(pixels), "PNG")
    report = pack_files(tmp_path, {"a/long.png": data}, codec=codec)
    assert np.array_equal(image(report, "a/long.png"), pixels)
    assert row(report, "a/long.png")["format"] == "png"


PEAK = """
import resource, sys
from PIL import Image
from sharedds.ingest import pack
guard = Image.MAX_IMAGE_PIXELS
report = pack(sys.argv[1], sys.argv[2], codec=sys.argv[3], workers=2)
assert Image.MAX_IMAGE_PIXELS == guard
print(report.samples, report.failed_count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.memory
@pytest.mark.parametrize("codec", ["keep", "png"])
def test_large_scans_are_packed_in_bounded_memory(tmp_path: Path, codec: str) -> None:
    """108 million pixels, several at a time, stay under 1 GiB; 400 million are refused by name."""
    scan = pictures.black(12_000, 9_000, 1, 0)
    files = {f"a/{n}.png": scan for n in range(3 if codec == "keep" else 1)}
    root = put(tmp_path / "src", files | {"a/z.png": pictures.black(20_000, 20_000, 1, 0)})
    out = str(tmp_path / "out.lmdb")
    done = run_script(
        "import warnings; warnings.simplefilter('error')\n" + PEAK, str(root), out, codec
    )
    assert done.returncode == 0, done.stderr
    samples, failed, peak = map(int, done.stdout.split())
    assert (samples, failed) == (len(files), 1)
    assert peak < 1 << 20  # in kB
    [bad] = entries(f"{out}.report.jsonl", "failed")
    assert "400,000,000 pixels" in bad["reason"]
    assert "--max-pixels" in bad["reason"]
    header = probe(Store(out).read("image", 0), max_pixels=None)
    assert (header.width, header.height) == (12_000, 9_000)
    assert done.stderr.count(b"\n") <= 1
