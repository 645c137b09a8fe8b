"""TIFF slides that are damaged, lie, or are bombs: refused or told, with file, level and tile."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from processes import descriptors, python
from slide_files import (
    YCBCR_HALF,
    Page,
    jpeg_bytes,
    level,
    page,
    picture,
    slide,
    write_slide,
    write_tiff,
)

from sharedds.errors import (
    DecodeError,
    ImageTooLargeError,
    MissingExtraError,
    OptionError,
    SharedDSError,
    SourceError,
)
from sharedds.slides.tiff import open_tiff

JPEG_TILES: dict[str, Any] = {
    "tile": (512, 512),
    "compression": 7,
    "photometric": 6,
    "tags": YCBCR_HALF,
}


def replaced(one: Page, **fields: Any) -> Page:
    """Return a page with other fields."""
    return dataclasses.replace(one, **fields)


def bombs(tmp_path: Path) -> list[Path]:
    """Write files that claim far more than they hold."""
    one = jpeg_bytes(picture(512, 512))
    side = 4_000_000
    whole = Page(width=side, height=side, data=[one], **JPEG_TILES)
    tile = Page(
        width=60000,
        height=60000,
        tile=(60000, 60000),
        compression=8,
        data=[zlib.compress(bytes(1000))],
    )
    strip = Page(width=60000, height=60000, compression=8, data=[zlib.compress(bytes(1000))])
    lying = Page(
        width=side,
        height=side,
        data=[one],
        **{**JPEG_TILES, "tags": {324: (4, [0]), 325: (4, [1])}},
    )
    files = {"tiles": whole, "tile": tile, "strip": strip, "counts": lying}
    paths = [write_tiff(tmp_path / f"{name}.tif", [one]) for name, one in files.items()]
    data = bytearray(paths[3].read_bytes())
    for tag in (324, 325):  # now it says that it names as many places as it needs
        at = data.rindex(struct.pack("<HHI", tag, 4, 1))
        struct.pack_into("<I", data, at + 4, 7813 * 7813)
    paths[3].write_bytes(data)
    return paths


def test_bombs_are_refused_at_once(tmp_path: Path) -> None:
    """Tiles without places, a tile or strip of 10 GB, places past the end: in little memory."""
    paths = bombs(tmp_path)
    python(
        """
        import resource, sys, time
        from pathlib import Path
        from sharedds.errors import DecodeError
        from sharedds.slides.tiff import open_tiff

        limit = 400 << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        start = time.monotonic()
        for path in sys.argv[1:]:
            try:
                open_tiff(Path(path))
            except DecodeError as error:
                assert path in str(error), error
            else:
                raise SystemExit(path)
        assert time.monotonic() - start < 2
        """,
        *paths,
    )


def test_why_a_bomb_is_refused(tmp_path: Path) -> None:
    """The text has the numbers that do not agree."""
    tiles, tile, strip, counts = bombs(tmp_path)
    with pytest.raises(DecodeError, match=r"61,042,969 tiles, it names the places of 1"):
        open_tiff(tiles)
    with pytest.raises(ImageTooLargeError, match=r"10,800,000,000 bytes; 268,435,456 is the most"):
        open_tiff(tile)
    with pytest.raises(DecodeError, match="cannot hold what it promises"):
        open_tiff(strip)
    with pytest.raises(DecodeError, match=r"claims 61,042,969 values and ends at byte"):
        open_tiff(counts)


def test_a_large_strip_is_left_to_libvips(tmp_path: Path) -> None:
    """A compressed strip of more than 64 MiB that may be genuine is no random access: None."""
    for height in (4000, 15000):
        data = zlib.compress(bytes(20000 * height), 1)
        grey = Page(
            width=20000, height=height, channels=1, photometric=1, compression=8, data=[data]
        )
        assert open_tiff(write_tiff(tmp_path / "a.tif", [grey])) is None


def test_a_plain_strip_that_cannot_be_there(tmp_path: Path) -> None:
    """4,000,000 x 4,000,000 pixels in one strip of 1,000 bytes: refused, not read row by row."""
    strip = Page(width=4_000_000, height=4_000_000, data=[bytes(1000)])
    with pytest.raises(DecodeError, match="cut short"):
        open_tiff(write_tiff(tmp_path / "a.tif", [strip]))


def test_a_truncated_tile_is_named(tmp_path: Path) -> None:
    """A tile with half its bytes: an error with file, level, row and column; others are read."""
    one = page(picture(500, 400), tile=128, compression="deflate")
    data = list(one.data)
    data[6] = data[6][: len(data[6] or b"") // 2] if data[6] else None
    path = write_tiff(tmp_path / "a.tif", [replaced(one, data=data)])
    file = slide(path)
    with file.open() as reader:
        with pytest.raises(DecodeError, match="level 0: the tile in row 1, column 2") as caught:
            reader.read(0, y=0, x=0, height=400, width=500)
        assert str(path) in str(caught.value)
        assert np.array_equal(
            reader.read(0, y=0, x=0, height=128, width=500), picture(500, 400)[:128]
        )


@pytest.mark.parametrize("compression", ["jpeg", "lzw", "none"])
def test_damage_of_each_compression(tmp_path: Path, compression: str) -> None:
    """Damaged and cut tiles of other compressions are the same error."""
    a = picture(256, 128)
    if compression == "lzw":
        import pyvips

        pyvips.Image.new_from_array(a).tiffsave(
            str(tmp_path / "a.tif"), compression="lzw", tile=True, tile_width=128, tile_height=128
        )
        from tifffile import TiffFile

        with TiffFile(tmp_path / "a.tif") as known:
            at = known.pages[0].dataoffsets[1] + 20
        data = bytearray((tmp_path / "a.tif").read_bytes())
        data[at : at + 200] = bytes(200)
        (tmp_path / "a.tif").write_bytes(data)
    else:
        ways: dict[str, Any] = {"compression": compression}
        one = page(a, tile=128, **ways)
        cut = (one.data[1] or b"")[:-500]
        write_tiff(tmp_path / "a.tif", [replaced(one, data=[one.data[0], cut])])
    with pytest.raises(DecodeError, match="row 0, column 1"):
        level(slide(tmp_path / "a.tif"))


def test_libraries_stay_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What libtiff and others have to say of damage does not reach the terminal or a log."""
    with caplog.at_level(logging.DEBUG):
        test_damage_of_each_compression(tmp_path, "lzw")
        test_damage_of_each_compression(tmp_path, "jpeg")
    assert capfd.readouterr() == ("", "")
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_file_cut_short(tmp_path: Path) -> None:
    """Tiles past the end are told when it is opened, and are an error where they are read."""
    one = Page(width=512, height=512, tile=(256, 256), compression=8, data=[b"x"] * 4)
    far = {324: (4, [100, 100, 5000, 10**9]), 325: (4, [50, 50, 900, 900])}
    path = write_tiff(tmp_path / "b.tif", [replaced(one, tags=far)])
    file = slide(path)
    assert "2 of 4 tiles reach past the end of the file" in file.header.remarks[0]
    with file.open() as reader, pytest.raises(DecodeError, match="row 1, column 1 is cut short"):
        reader.read(0, y=300, x=300, height=10, width=10)


@pytest.mark.parametrize("part", [0, 3, 7, 100, 1000])
def test_a_stump_is_refused(tmp_path: Path, part: int) -> None:
    """The first bytes of a slide, whose directories lie behind: refused with both sizes."""
    data = write_slide(tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(data[:part])
    with pytest.raises(DecodeError, match=r"no TIFF|cut short"):
        open_tiff(tmp_path / "a.tif")


def test_a_level_that_lies_is_left_out(tmp_path: Path) -> None:
    """A level with too few tiles, or with tiles of another size, does not lose the slide."""
    a = picture(1024, 768)
    few = page(a[::2, ::2], tile=128, compression="jpeg", subfile=1)
    small = page(a[::4, ::4], tile=128, compression="jpeg", subfile=1)
    path = write_tiff(
        tmp_path / "a.tif",
        [
            page(a, tile=256, compression="jpeg"),
            replaced(few, data=few.data[:7]),
            replaced(small, data=[jpeg_bytes(a[:64, :64])] * 4),
        ],
    )
    file = slide(path)
    assert len(file.header.levels) == 1
    assert "12 tiles" in file.header.remarks[0]
    assert "tiles of 128 x 128, while a tile has 64 x 64" in file.header.remarks[1]


def test_a_level_whose_tables_are_damaged_is_left_out(tmp_path: Path) -> None:
    """Shared JPEG tables of a level that are none cost that level, not the slide."""
    a = picture(512, 256)
    ways: dict[str, Any] = {"tile": 128, "compression": "jpeg"}
    pages = [page(a, **ways), page(a[::2, ::2], **ways, tags={347: (7, b"no tables at all")})]
    file = slide(write_tiff(tmp_path / "a.tif", pages))
    assert len(file.header.levels) == 1
    assert file.header.remarks[0].startswith("left out: a level of 256 pixels: level 1:")


def test_tiles_that_are_smaller_than_said(tmp_path: Path) -> None:
    """JPEG tiles of another size at level 0 are an error where they are read."""
    small = [jpeg_bytes(picture(100, 100))] * 4
    one = Page(width=512, height=512, data=small, **{**JPEG_TILES, "tile": (256, 256)})
    file = slide(write_tiff(tmp_path / "a.tif", [one]))
    with file.open() as reader, pytest.raises(DecodeError, match="100 x 100"):
        reader.read(0, y=0, x=0, height=10, width=10)


def test_tiles_that_are_not_there(tmp_path: Path) -> None:
    """Offset 0 or length 0 is no tile: 0 where it would be, counted for each level."""
    one = page(picture(256, 256), tile=128, compression="deflate")
    file = slide(write_tiff(tmp_path / "a.tif", [replaced(one, data=[None, b"", *one.data[2:]])]))
    assert file.header.attrs["missing"] == {"0": 2}
    assert not level(file)[:128].any()
    assert np.array_equal(level(file)[128:], picture(256, 256)[128:])


def test_pages_that_lead_in_a_circle(tmp_path: Path) -> None:
    """A chain of pages that comes back to its beginning ends with an error, not never."""
    path = write_tiff(tmp_path / "a.tif", [page(picture(64, 64), tile=64)])
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    struct.pack_into("<I", data, at + 2 + 12 * count, at)
    path.write_bytes(data)
    with pytest.raises(DecodeError, match="leads back to itself"):
        open_tiff(path)


def test_another_file_by_now(tmp_path: Path) -> None:
    """A slide that was replaced between the look at it and its opening is not read."""
    path = write_slide(tmp_path / "a.tif")
    file = slide(path)
    other = write_slide(tmp_path / "b.tif", picture(512, 512))
    os.replace(other, path)
    before = descriptors()
    with pytest.raises(DecodeError, match="another file"), file.open():
        pass
    assert descriptors() == before


def test_a_file_that_vanished(tmp_path: Path) -> None:
    """A slide that is gone when it is opened is a source that cannot be read."""
    path = write_slide(tmp_path / "a.tif")
    file = slide(path)
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read"), file.open():
        pass
    with pytest.raises(SourceError, match="cannot be read"):
        open_tiff(path)
    os.mkfifo(path)
    with pytest.raises(SourceError, match="no ordinary file"):
        open_tiff(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """Cut in place while it is open: an error that says so, no crash."""
    path = write_slide(tmp_path / "a.tif", compression="none")
    file = slide(path)
    with file.open() as reader:
        reader.read(0, y=0, x=0, height=10, width=10)
        os.truncate(path, 1000)
        with pytest.raises(SourceError, match="changed while it was read"):
            reader.read(0, y=300, x=300, height=10, width=10)


def test_nothing_stays_open(tmp_path: Path) -> None:
    """Files are open between open() and its end only, and reading later is an error."""
    path = write_slide(tmp_path / "a.tif")
    before = descriptors()
    file = slide(path)
    assert descriptors() == before
    with file.open() as reader:
        assert descriptors() == before + 1
    assert descriptors() == before
    with pytest.raises(SourceError, match="closed"):
        reader.read(0, y=0, x=0, height=1, width=1)


def test_regions_outside_are_a_mistake(tmp_path: Path) -> None:
    """Levels, planes, regions, tiles and pictures that are not there are told as such."""
    file = slide(write_slide(tmp_path / "a.tif"))
    with file.open() as reader:
        for call in (
            lambda: reader.read(3, y=0, x=0, height=1, width=1),
            lambda: reader.read(0, y=0, x=0, height=1, width=1, plane=1),
            lambda: reader.read(0, y=700, x=0, height=100, width=1),
            lambda: reader.read(0, y=-1, x=0, height=1, width=1),
            lambda: reader.stream(0, row=9, column=0),
            lambda: reader.associated("label"),
            lambda: next(reader.rows(0)),
        ):
            with pytest.raises(OptionError):
                call()


def test_damage_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    """Whatever bytes are changed: it is read, or refused with the file's name, in little time."""
    below = page(picture(64, 64)[::2, ::2], tile=16)
    good = write_tiff(
        tmp_path / "good.tif",
        [
            page(picture(64, 64), tile=32, compression="jpeg", below=[below]),
            page(picture(64, 64)[::2, ::2], tile=16, compression="deflate"),
        ],
    ).read_bytes()
    (start,) = struct.unpack_from("<I", good, 4)
    draws = np.random.default_rng(11)
    path = tmp_path / "bad.tif"
    nameless = 0
    began = time.monotonic()
    for _ in range(400):
        data = bytearray(good)
        for at in draws.integers(start - 200, len(good), int(draws.integers(1, 6))).tolist():
            data[at] = int(draws.choice([0, 1, 2, 255, int(draws.integers(256))]))
        path.write_bytes(data)
        try:
            file = open_tiff(path)
            if file is None:
                continue
            with file.open() as reader:
                for number, one in enumerate(file.header.levels):
                    height, width = (min(side, 64) for side in one.shape)
                    reader.read(number, y=0, x=0, height=height, width=width)
        except SharedDSError as error:
            nameless += str(path) not in str(error)
    assert nameless == 0
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"bits": 24}, "24 bits"),
        ({"bits": 32, "tags": {339: (3, [6] * 3)}}, "complex"),
        ({"tags": {258: (3, [5, 6, 5])}}, "differ in bits"),
        ({"photometric": 32845}, "LogLuv"),
        ({"photometric": 3}, "palette does not fit"),
        ({"photometric": 2, "channels": 1}, "colour of 1 samples"),
        ({"photometric": 6, "planar": 2}, "samples apart"),
        ({"photometric": 6, "tags": {530: (3, [3, 1])}}, "subsampling"),
        ({"compression": 7, "bits": 16}, "JPEG of 16 bits"),
        ({"compression": 7, "channels": 4, "photometric": 5}, "JPEG of 4 samples"),
        ({"tags": {317: (3, [9])}}, "predictor 9"),
        ({"bits": 12, "tags": {317: (3, [2])}}, "predictor 2 and 12 bits"),
        ({"compression": 8, "tags": {279: (4, [1])}}, "names the lengths of 1"),
        ({"compression": 8, "tags": {279: None}}, "does not say how long"),
        ({"tags": {273: None}}, "does not say where"),
        ({"tags": {273: (2, b"abc\0")}}, "entry 273 has type 2"),
        ({"tags": {32997: (4, [2])}}, "depth"),
        ({"tags": {347: (7, bytes(70000))}}, "JPEG tables of 70,000 bytes"),
        ({"width": 0}, "0 x 8 pixels"),
        ({"rows": 0, "tags": {322: (4, [0]), 323: (4, [16])}}, "tiles of 0 x 16"),
        ({"width": 70000, "height": 70000, "compression": 7, "rows": None}, "longest side"),
    ],
)  # fmt: skip
def test_layouts_that_are_refused(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    """What nothing here reads, or contradicts itself, is refused by what it is, with its page."""
    one = Page(width=8, height=8, data=[bytes(96), bytes(96)], rows=4)
    path = write_tiff(tmp_path / "a.tif", [dataclasses.replace(one, **fields)])
    with pytest.raises(DecodeError, match=says) as caught:
        open_tiff(path)
    assert f"{path}: page 0" in str(caught.value) or f"{path}: TIFF is damaged: page 0" in str(
        caught.value
    )


@pytest.mark.parametrize("compression", [33005, 34925, 50000, 50001])
def test_damage_of_newer_compressions(tmp_path: Path, compression: int) -> None:
    """Bytes that are no JPEG 2000, LZMA, Zstandard or WebP are an error of the tile."""
    one = page(picture(64, 64), tile=64, tags={259: (3, [compression])})
    file = slide(write_tiff(tmp_path / "a.tif", [one]))
    with pytest.raises(DecodeError, match="level 0: the tile in row 0, column 0"):
        level(file)


def test_a_jpeg_2000_of_another_size(tmp_path: Path) -> None:
    """A tile that claims to be far larger than the page says is not decoded."""
    content = io.BytesIO()
    Image.fromarray(picture(400, 400)).save(content, "JPEG2000", no_jp2=True)
    one = page(
        picture(64, 64), tile=64, encode=lambda _: content.getvalue(), tags={259: (3, [33005])}
    )
    with pytest.raises(DecodeError, match="400 x 400"):
        level(slide(write_tiff(tmp_path / "a.tif", [one])))


def test_libvips_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LZW without libvips names the command that installs it."""
    file = slide(write_tiff(tmp_path / "a.tif", [page(picture(64, 64), tags={259: (3, [5])})]))
    monkeypatch.setitem(sys.modules, "pyvips", None)
    with pytest.raises(
        MissingExtraError, match=r"LZW needs libvips: pip install 'sharedds\[slides"
    ):
        level(file)


def test_jpeg_tables_that_are_none(tmp_path: Path) -> None:
    """Shared tables that are no JPEG are told when the slide is opened."""
    one = page(picture(64, 64), tile=64, compression="jpeg", tags={347: (7, b"no tables at all")})
    with pytest.raises(DecodeError, match="level 0"):
        open_tiff(write_tiff(tmp_path / "a.tif", [one]))


def test_what_is_kept_of_decoded_tiles_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tiles are read, no more than the limit is held; the latest ones are."""
    monkeypatch.setattr("sharedds.slides.tiff_reader.CACHED_BYTES", 10 * 64 * 64 * 3)
    a = picture(640, 640)
    file = slide(write_tiff(tmp_path / "a.tif", [page(a, tile=64, compression="deflate")]))
    with file.open() as reader:
        for _ in range(2):
            assert np.array_equal(reader.read(0, y=0, x=0, height=640, width=640), a)
        assert len(reader._kept) == 10
        assert reader._bytes == 10 * 64 * 64 * 3
