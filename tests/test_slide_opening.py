"""Which reader takes a file, and slides that OpenSlide reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from slide_files import bare_jpeg, page, picture, pyramid, write_slide, write_tiff

from sharedds.errors import DecodeError, SourceError
from sharedds.slides import is_slide, recognise
from sharedds.slides.vendor import open_vendor, vendor_of

pytest.importorskip("openslide", reason="OpenSlide is not installed")

DATA = Path(__file__).parents[2] / "shared" / "data"
SCAN = DATA / "slides" / "CMU-1-Small-Region.svs"
real = pytest.mark.skipif(not SCAN.exists(), reason="the real slides are not here")


def test_content_decides(tmp_path: Path) -> None:
    """A TIFF called .jpg is read by tiles, a JPEG called .tif as a stream."""
    tiled = write_slide(tmp_path / "a.jpg", picture(300, 200))
    Image.fromarray(picture(30, 20)).save(tmp_path / "b.png")
    stream = (tmp_path / "b.png").rename(tmp_path / "b.tif")
    found = [recognise(path) for path in (tiled, stream)]
    assert [each.header.is_sequential for each in found if each is not None] == [False, True]


@pytest.mark.parametrize("data", [b"", b"hello", b"BM" + bytes(60), b"II", bytes(200)])
def test_what_is_no_picture_is_none(tmp_path: Path, data: bytes) -> None:
    """It is left out by whoever scans a folder, not an error."""
    path = tmp_path / "a.svs"
    path.write_bytes(data)
    assert recognise(path) is None


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A file that is gone, a folder, a pipe: at once, by name."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("gone", ".", "pipe"):
        with pytest.raises(SourceError):
            recognise(tmp_path / name)


def test_a_damaged_tiff_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    """No other reader makes something else of it."""
    path = write_slide(tmp_path / "a.tif", picture(300, 200))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DecodeError, match=r"a\.tif"):
        recognise(path)


def test_only_slides_are_slides(tmp_path: Path) -> None:
    """Levels make one, or a name that only scanners give; a tiled TIFF alone is a picture."""
    Image.fromarray(picture(30, 20)).save(tmp_path / "photo.jpg")
    plain = write_tiff(tmp_path / "plain.tif", [page(picture(300, 200), tile=128)])
    levels = write_tiff(tmp_path / "levels.tif", pyramid(picture(512, 512), tile=128))
    (tmp_path / "broken.svs").write_bytes(b"II*\0")
    assert not is_slide(tmp_path / "photo.jpg")
    assert not is_slide(plain)
    assert is_slide(levels)
    assert is_slide(tmp_path / "broken.svs")
    assert not is_slide(tmp_path / "gone.tif")


# --- OpenSlide -----------------------------------------------------------------------------------


def test_levels_read_by_openslide_are_those_of_our_reader(tmp_path: Path) -> None:
    """The same pixels at the same places, on each level."""
    path = tmp_path / "a.tif"
    write_tiff(path, pyramid(picture(700, 500), (1, 2, 4), tile=128))
    ours = recognise(path)
    theirs = open_vendor(path)
    assert ours is not None
    shapes = [level.shape for level in ours.header.levels]
    assert [level.shape for level in theirs.header.levels] == shapes
    with ours.open() as one, theirs.open() as other:
        for number, (height, width) in enumerate(shapes):
            for y, x in ((0, 0), (height // 3, width // 4)):
                place = {"y": y, "x": x, "height": height - y, "width": width - x}
                expected = one.read(number, **place).astype(int)
                assert np.abs(other.read(number, **place) - expected).max() <= 1


def test_rows_of_a_vendor_slide_are_level_zero(tmp_path: Path) -> None:
    """From top to bottom, the last part shorter."""
    path = tmp_path / "a.tif"
    write_tiff(path, pyramid(picture(300, 200), (1,), tile=128))
    with open_vendor(path).open() as reader:
        parts = list(reader.rows(90))
        whole = reader.read(0, y=0, x=0, height=200, width=300)
    assert [len(part) for part in parts] == [90, 90, 20]
    assert np.array_equal(np.concatenate(parts), whole)


def test_what_openslide_does_not_know_is_named(tmp_path: Path) -> None:
    """Its own errors do not come out."""
    path = tmp_path / "a.jpg"
    path.write_bytes(bare_jpeg(picture(64, 64)))
    assert vendor_of(path) is None
    with pytest.raises(SourceError, match="OpenSlide does not know its format"):
        open_vendor(path)
    with pytest.raises(SourceError, match="cannot be read"):
        open_vendor(tmp_path / "gone.svs")


def test_a_slide_that_changed_is_told(tmp_path: Path) -> None:
    """Between looking and opening."""
    path = tmp_path / "a.tif"
    write_tiff(path, pyramid(picture(300, 200), (1,), tile=128))
    found = open_vendor(path)
    write_tiff(path, pyramid(picture(310, 200), (1,), tile=128))
    with pytest.raises(DecodeError, match="another file"), found.open():
        pass


def test_a_tile_that_is_damaged_is_told_by_place(tmp_path: Path) -> None:
    """The text has the level and the region."""
    path = tmp_path / "a.tif"
    write_tiff(path, [page(picture(512, 512), tile=256, compression="jpeg")])
    data = bytearray(path.read_bytes())
    at = data.rindex(b"\xff\xda")
    found = open_vendor(path)
    data[at : at + 40] = bytes(40)
    path.write_bytes(bytes(data))
    os.utime(path, ns=(found.identity[1], found.identity[1]))
    with found.open() as reader, pytest.raises(DecodeError, match="level 0, rows"):
        reader.read(0, y=0, x=0, height=512, width=512)


@real
def test_a_scanner_s_slide_by_both_readers(tmp_path: Path) -> None:
    """Pixels, size of pixels, magnification and the pictures beside the levels agree."""
    path = tmp_path / "scan.svs"
    shutil.copyfile(SCAN, path)
    ours, theirs = recognise(path), open_vendor(path)
    assert ours is not None
    assert vendor_of(path) == "aperio"
    assert theirs.header.mpp == pytest.approx(ours.header.mpp)
    assert theirs.header.magnification == ours.header.magnification == 20
    assert set(theirs.header.associated) == set(ours.header.associated)
    with ours.open() as one, theirs.open() as other:
        place = {"y": 700, "x": 900, "height": 400, "width": 500}
        assert np.array_equal(one.read(0, **place), other.read(0, **place))
        for name in ours.header.associated:
            assert np.array_equal(one.associated(name), other.associated(name))
