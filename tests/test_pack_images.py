"""What becomes of each kind of picture: kept, proved, encoded anew, or refused."""

from __future__ import annotations

import gzip
import io
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
from packing import image, jpeg, pack_files, put, row, run, stored
from PIL import Image, ImageFile, ImageOps

from sharedds.codecs import decode
from sharedds.ingest import PackReport, pack
from sharedds.store import Store

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


def upright(data: bytes) -> pictures.Array:
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
