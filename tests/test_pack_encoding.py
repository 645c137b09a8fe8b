"""Pictures encoded anew: sizes, backgrounds, codecs and their limits; and very large ones."""

from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
import simplejpeg
from packing import entries, events, image, jpeg, pack_files, put, row, run_script
from PIL import Image, ImageOps

from sharedds.codecs import probe, resize
from sharedds.errors import OptionError, SourceError
from sharedds.ingest import pack
from sharedds.ingest.images import prepare
from sharedds.store import Store


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


@pytest.mark.parametrize(("chroma", "stored"), [("auto", "420"), ("444", "444")])
def test_the_resolution_of_colour_can_be_chosen(tmp_path: Path, chroma: Any, stored: str) -> None:
    """Of JPEG; half below quality 95 unless told otherwise."""
    files = {"a/x.png": pictures.save(pictures.smooth(), "PNG")}
    report = pack_files(tmp_path, files, codec="jpeg", chroma=chroma)
    data = Store(report.path).read("image", 0)
    assert simplejpeg.decode_jpeg_header(data)[3] == stored


# --- some pictures as pixels ---------------------------------------------------------------------


def test_a_share_of_the_pictures_is_stored_as_pixels(tmp_path: Path) -> None:
    """About as many as asked, the same again, exactly as they were decoded; the others are JPEG."""
    files = {f"a/{n:03d}.png": pictures.save(pictures.smooth(20, 10 + n), "PNG") for n in range(99)}
    report = pack_files(tmp_path, files, codec="jpeg", raw_share=0.3)
    counts = report.content["format"]
    assert set(counts) == {"jpeg", "tiff"}
    assert 15 <= counts["tiff"] <= 45
    digest = report.digest
    assert pack_files(tmp_path, files, codec="jpeg", raw_share=0.3, workers=3).digest == digest
    for key, data in files.items():
        if row(report, key)["format"] == "tiff":
            assert np.array_equal(image(report, key), pictures.opened(data))
    assert pack_files(tmp_path, files, codec="jpeg", raw_share=1).content["format"] == {"tiff": 99}


def test_equal_files_are_stored_alike_and_found(tmp_path: Path) -> None:
    """Which are pixels is drawn by content: drawn by name, a copy would differ from its model."""
    files: dict[str, bytes] = {}
    for n in range(40):
        data = pictures.save(pictures.smooth(20, 10 + n), "PNG")
        files |= {f"a/{n}.png": data, f"b/copy of {n}.png": data}
    report = pack_files(tmp_path, files, codec="jpeg", raw_share=0.5)
    assert set(report.content["format"]) == {"jpeg", "tiff"}
    assert report.duplicate_count == 40


def test_small_pictures_are_stored_as_pixels(tmp_path: Path) -> None:
    """By what their pixels take after they were shrunk, grey ones a third of it."""
    grey = Image.fromarray(pictures.noise(30, 40))
    files = {
        "a/large.png": pictures.save(pictures.smooth(80, 60), "PNG"),
        "a/small.png": pictures.save(pictures.smooth(40, 30), "PNG"),
        "a/grey.png": pictures.save(grey, "PNG"),
    }
    report = pack_files(tmp_path, files, codec="jpeg", raw_below=40 * 30 * 3)
    assert [row(report, key)["format"] for key in files] == ["jpeg", "jpeg", "tiff"]
    assert np.array_equal(image(report, "a/grey.png")[..., 0], np.asarray(grey))
    report = pack_files(tmp_path, files, codec="jpeg", raw_below=40 * 30 * 3 + 1, max_side=40)
    assert report.content["format"] == {"tiff": 3}


@pytest.mark.parametrize("codec", ["keep", "png", "webp"])
def test_only_jpeg_is_mixed_with_pixels(tmp_path: Path, codec: Any) -> None:
    """And shares are from 0 to 1."""
    for options in ({"raw_share": 0.5}, {"raw_below": 9}):
        with pytest.raises(OptionError, match="choose that codec"):
            pack_files(tmp_path, {"a/x.jpg": jpeg()}, codec=codec, **options)
    for value in (1.5, -1, "0.5", True, float("nan")):
        with pytest.raises(OptionError, match=r"raw_share .* from 0 to 1"):
            pack_files(tmp_path, {"a/x.jpg": jpeg()}, codec="jpeg", raw_share=value)


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


# The peak is VmHWM: ru_maxrss counts the process that started this one too, up to its exec.
PEAK = """
import re, sys
from pathlib import Path
from PIL import Image
from sharedds.ingest import pack
guard = Image.MAX_IMAGE_PIXELS
report = pack(sys.argv[1], sys.argv[2], codec=sys.argv[3], workers=2)
assert Image.MAX_IMAGE_PIXELS == guard
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(report.samples, report.failed_count, peak)
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
    assert all(line.startswith(b"packing: ") for line in done.stderr.splitlines())


@pytest.mark.memory
@pytest.mark.parametrize("codec", ["png", "jpeg", "webp", "raw"])
def test_a_large_colour_picture_is_encoded_in_bounded_memory(tmp_path: Path, codec: str) -> None:
    """108 million pixels of RGB stay under 1 GiB; WebP, which would take twice that, gives way."""
    root = put(tmp_path / "src", {"a/x.png": pictures.black(12_000, 9_000, 8, 2)})
    out = str(tmp_path / "out.lmdb")
    script = PEAK.replace("codec=sys.argv[3]", "codec=sys.argv[3], size=(8, 8)")
    done = run_script(script if codec == "raw" else PEAK, str(root), out, codec)
    assert done.returncode == 0, done.stderr
    samples, failed, peak = map(int, done.stdout.split())
    assert (samples, failed) == (1, 0)
    assert peak < 1 << 20  # in kB
    counts = events(f"{out}.report.jsonl")[0]["content"]["format"]
    assert counts == {"png" if codec == "webp" else codec: 1}


@pytest.mark.parametrize(
    ("options", "decoded"), [({"max_side": 100}, 160 * 120), ({"short_side": 60}, 80 * 60)]
)
def test_a_large_jpeg_is_decoded_smaller_before_it_is_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], decoded: int
) -> None:
    """The transform of JPEG shrinks by itself: less is decoded, size and picture stay the same."""
    picture = pictures.smooth(640, 480)
    source = tmp_path / "src"
    (source / "a").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(source / "a" / "plain.jpg", quality=95)
    picture.save(source / "a" / "turned.jpg", quality=95, exif=exif)
    shapes: list[tuple[int, ...]] = []

    def spy(array: Any, **size: int) -> Any:
        shapes.append(array.shape)
        return resize(array, **size)

    monkeypatch.setattr(prepare, "resize", spy)
    pack(source, tmp_path / "x.lmdb", codec="jpeg", quality=95, progress=False, **options)
    side = options.get("max_side", 80)
    assert {shape[0] * shape[1] for shape in shapes} == {decoded}
    store = Store(tmp_path / "x.lmdb")
    expected = np.asarray(picture.resize((side, side * 3 // 4), Image.Resampling.BOX)).astype(int)
    for name, turns in (("a/plain.jpg", 0), ("a/turned.jpg", 1)):
        stored = np.rot90(store[store.index_of(name)]["image"].astype(int), turns)
        assert stored.shape == expected.shape
        assert np.abs(stored - expected).mean() < 5
