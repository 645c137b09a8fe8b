"""Packing slides: levels, sizes of pixels, tiles as they are or encoded anew, what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from slide_files import (
    aperio_page,
    bare_jpeg,
    jpeg_bytes,
    page,
    picture,
    pyramid,
    split_jpeg,
    write_slide,
    write_tiff,
)

import sharedds
from sharedds.errors import DecodeError, OptionError, SourceError
from sharedds.ingest import PackReport, pack_slides
from sharedds.ingest.slides.scan import find_slides
from sharedds.slides import recognise
from sharedds.store import Store

RESOLUTION = {282: (5, [20000, 1]), 283: (5, [20000, 1]), 296: (3, [3])}


def packed(tmp_path: Path, **options: Any) -> tuple[PackReport, Store]:
    """Pack what is in ``src``."""
    report = pack_slides(tmp_path / "src", tmp_path / "out.lmdb", progress=False, **options)
    return report, Store(tmp_path / "out.lmdb")


def level(store: Store, key: str, number: int = 0) -> npt.NDArray[Any]:
    """A level of a slide."""
    return store.array(store.index_of(key), "image").level(number)[...]


def far(one: Any, other: Any) -> npt.NDArray[np.float64]:
    """Mean difference of each channel."""
    found: npt.NDArray[np.float64] = np.abs(np.asarray(one, float) - other).mean((0, 1))
    return found


# --- what a slide becomes ------------------------------------------------------------------------


def test_a_slide_becomes_levels_of_tiles(tmp_path: Path) -> None:
    """Those of the file, then halves until the longer side is two tiles."""
    whole = picture(1024, 768)
    write_slide(tmp_path / "src" / "a.tif", whole)
    report, store = packed(tmp_path, tile=128)
    assert (report.samples, report.failed_count, report.kind) == (1, 0, "slides")
    image = store.array(0, "image")
    assert image.levels == ((768, 1024, 3), (384, 512, 3), (192, 256, 3))
    assert image.attrs["downsamples"] == [1.0, 2.0, 4.0]
    assert image.attrs["mpp"] == [0.5, 0.5]
    assert image.chunk == (128, 128, 3)
    assert store.column("size")[0].tolist() == [768, 1024]
    assert store.key(0) == "a"
    for number, step in enumerate((1, 2, 4)):
        assert far(level(store, "a", number), whole[::step, ::step]).max() < 3


@pytest.mark.parametrize("codec", ["png", "zstd", "lz4", "raw", "webp"])
@pytest.mark.parametrize("size", [(300, 200), (1, 1), (257, 255), (16, 600)])
def test_codecs_without_loss_keep_every_pixel(
    tmp_path: Path, codec: Any, size: tuple[int, int]
) -> None:
    """And levels that are made are means of 2 x 2, halves rounded up, odd sides as they are."""
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    write_tiff(tmp_path / "src" / "a.tif", [page(noise, tile=64)])
    _, store = packed(tmp_path, codec=codec, tile=64)
    expected = noise
    for number in range(len(store.array(0, "image").levels)):
        assert np.array_equal(level(store, "a", number), expected)
        more = [(0, n % 2) for n in expected.shape[:2]]
        even = np.pad(expected, (*more, (0, 0)), mode="edge").astype(int)
        sums = even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]
        expected = ((sums + 2) // 4).astype(np.uint8)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32", "int8"])
def test_numbers_of_any_size_are_kept(tmp_path: Path, dtype: str) -> None:
    """In the dtype of the file, by a codec that holds them, with as many channels."""
    values = (np.arange(300 * 200 * 2).reshape(200, 300, 2) % 251 - 60).astype(dtype)
    write_tiff(tmp_path / "src" / "a.tif", [page(values, tile=64, photometric=1)])
    report, store = packed(tmp_path)
    assert report.content["dtype"] == {dtype: 1}
    assert np.array_equal(level(store, "a"), values)
    with pytest.raises(SourceError, match=r"jpeg tiles hold uint8.*codec='zstd'"):
        pack_slides(tmp_path / "src", tmp_path / "b.lmdb", codec="jpeg", progress=False)


def test_a_picture_without_tiles_is_streamed(tmp_path: Path) -> None:
    """A JPEG, a PNG of 16 bits, and a TIFF in strips: every pixel, from top to bottom."""
    whole = picture(700, 500)
    (tmp_path / "src").mkdir()
    Image.fromarray(whole).save(tmp_path / "src" / "a.jpg", quality=95)
    deep = (np.arange(300 * 400).reshape(400, 300) % 65_000).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "src" / "b.png")
    write_tiff(tmp_path / "src" / "c.tif", [page(whole, rows=50)])
    _, store = packed(tmp_path, codec="zstd")
    assert np.array_equal(level(store, "a"), np.asarray(Image.open(tmp_path / "src" / "a.jpg")))
    assert np.array_equal(level(store, "b")[..., 0], deep)
    assert np.array_equal(level(store, "c"), whole)


def test_thumbnail_label_and_macro_are_no_levels(tmp_path: Path) -> None:
    """Nor are the label and the macro picture, which may name a patient, kept unless asked for."""
    whole = picture(1024, 768)
    text = "|AppMag = 20|MPP = 0.5000"
    pages = [
        aperio_page(whole, "1024x768 [0,0 1024x768] (256x256) RAW" + text, tile=256),
        aperio_page(whole[::3, ::3], "1024x768 -> 342x256 - " + text),
        aperio_page(whole[::4, ::4], "1024x768 -> 256x192 " + text, tile=256),
        aperio_page(whole[:180, :200], "label 200x180", subfile=1),
        aperio_page(whole[:120, :300], "macro 300x120", subfile=9),
    ]
    write_tiff(tmp_path / "src" / "scan.svs", pages)
    _, store = packed(tmp_path, codec="zstd", levels=2)
    image = store.array(0, "image")
    assert image.levels == ((768, 1024, 3), (192, 256, 3))
    assert image.attrs["downsamples"] == [1.0, 4.0]
    assert (image.attrs["mpp"], image.attrs["magnification"]) == ([0.5, 0.5], 20)
    assert np.array_equal(image.level(1)[...], whole[::4, ::4])
    assert not [name for name in store.fields if name.startswith("associated")]
    asked = tmp_path / "asked.lmdb"
    pack_slides(tmp_path / "src", asked, associated=("label", "macro"), progress=False)
    assert np.array_equal(Store(asked)[0]["associated_label"], whole[:180, :200])
    assert np.array_equal(Store(asked)[0]["associated_macro"], whole[:120, :300])


@pytest.mark.parametrize(
    ("unit", "value", "mpp"),
    [(3, 20000, 0.5), (2, 50800, 0.5), (1, 20000, None)],
    ids=["cm", "inch", "none"],
)
def test_the_size_of_a_pixel_has_a_unit(
    tmp_path: Path, unit: int, value: int, mpp: float | None
) -> None:
    """Without one it is not known, and asking for it is refused by the name of the slide."""
    tags = {282: (5, [value, 1]), 283: (5, [value, 1]), 296: (3, [unit])}
    write_tiff(tmp_path / "src" / "x.tif", [page(picture(1024, 768), tile=256, tags=tags)])
    _, store = packed(tmp_path)
    if mpp is not None:
        assert store.array(0, "image").attrs["mpp"] == [mpp, mpp]
        assert store.read_mpp(0, 0, 0, 64, 1.0).shape == (64, 64, 3)
    else:
        assert "mpp" not in store.array(0, "image").attrs
        with pytest.raises(sharedds.errors.SchemaError, match=r"\(x\).*not known"):
            store.read_mpp(0, 0, 0, 64, 1.0)


def test_an_implausible_size_is_kept_and_told(tmp_path: Path) -> None:
    """72 dots an inch are a screen's."""
    tags = {282: (5, [72, 1]), 283: (5, [72, 1]), 296: (3, [2])}
    write_tiff(tmp_path / "src" / "x.tif", [page(picture(512, 512), tile=256, tags=tags)])
    report, store = packed(tmp_path)
    assert store.array(0, "image").attrs["mpp"][0] == pytest.approx(352.78, abs=0.01)
    assert any("implausible" in text for _, text in report.remarks)


# --- JPEG tiles ----------------------------------------------------------------------------------


def jpeg_slides(folder: Path, whole: npt.NDArray[np.uint8]) -> None:
    """The ways in which scanners write JPEG tiles."""
    half = {530: (3, [2, 2])}
    tables, _ = split_jpeg(jpeg_bytes(whole[:256, :256]))
    ways: dict[str, dict[str, Any]] = {
        "ycc": {"compression": "jpeg"},
        "rgb_bare": {"compression": "jpeg", "encode": bare_jpeg, "photometric": 2},
        "rgb_adobe": {
            "compression": "jpeg",
            "encode": lambda part: jpeg_bytes(part, keep_rgb=True),
            "photometric": 2,
        },
        "tables": {
            "compression": "jpeg",
            "encode": lambda part: split_jpeg(jpeg_bytes(part))[1],
            "photometric": 6,
            "tags": {**half, 347: (7, tables)},
        },
        "lie": {"compression": "jpeg", "encode": jpeg_bytes, "photometric": 2},
    }
    for name, options in ways.items():
        write_tiff(folder / f"{name}.tif", [page(whole, tile=256, **options)])


@pytest.mark.parametrize("codec", ["keep", "jpeg", "zstd"])
def test_colours_are_right_whatever_the_markers_say(tmp_path: Path, codec: Any) -> None:
    """In tiles that are copied, encoded anew, or without loss; a contradiction is told."""
    whole = picture(512, 512)
    jpeg_slides(tmp_path / "src", whole)
    report, store = packed(tmp_path, codec=codec, quality=95)
    assert report.samples == 5
    for name in ("ycc", "rgb_bare", "rgb_adobe", "tables", "lie"):
        assert far(level(store, name), whole).max() < 3, name
    assert [case for case, _ in report.remarks] == ["lie"]


def test_kept_tiles_are_the_streams_of_the_file(tmp_path: Path) -> None:
    """Bit for bit, at the size they have there, tables beside them."""
    whole = picture(1000, 700)
    write_tiff(tmp_path / "src" / "a.tif", pyramid(whole, (1, 2), tile=240, compression="jpeg"))
    _, store = packed(tmp_path, codec="keep")
    found = recognise(tmp_path / "src" / "a.tif")
    assert found is not None
    image = store.array(0, "image")
    assert image.chunk == (240, 240, 3)
    with found.open() as reader:
        for number in (0, 1):
            stored = image.level(number)
            height, width = stored.shape[:2]
            columns = -(-width // 240)
            count = -(-height // 240) * columns
            for tile, data in enumerate(stored.stored(range(count))):
                row, column = divmod(tile, columns)
                assert bytes(data) == reader.stream(number, row=row, column=column)
    with found.open() as reader:
        expected = reader.read(0, y=0, x=0, height=700, width=1000)
    assert np.array_equal(level(store, "a"), expected)


def test_without_jpeg_tiles_nothing_can_be_kept(tmp_path: Path) -> None:
    """Refused with what to do instead; the others are packed."""
    write_tiff(tmp_path / "src" / "plain.tif", [page(picture(300, 200), tile=64)])
    write_slide(tmp_path / "src" / "good.tif", picture(300, 200))
    report, store = packed(tmp_path, codec="keep")
    assert [store.key(n) for n in range(len(store))] == ["good"]
    ((name, reason),) = report.failed
    assert name == "plain.tif"
    assert "no JPEG tiles" in reason
    assert "codec='jpeg'" in reason


# --- channels and planes -------------------------------------------------------------------------


def test_planes_of_a_focus_stack_are_an_axis(tmp_path: Path) -> None:
    """Or one of them is chosen; they are never channels."""
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    values = (
        1000 * np.arange(3)[:, None, None, None]
        + 100 * np.arange(2)[:, None, None]
        + np.zeros((300, 280))
    ).astype(np.uint16)
    (tmp_path / "src").mkdir()
    options: dict[str, Any] = {
        "tile": (256, 256), "photometric": "minisblack", "compression": "zlib",
    }  # fmt: skip
    tifffile.imwrite(tmp_path / "src" / "f.ome.tif", values, metadata={"axes": "ZCYX"}, **options)
    _, store = packed(tmp_path)
    image = store.array(0, "image")
    assert store.key(0) == "f"
    assert image.shape == (3, 300, 280, 2)
    assert image[2, 5, 7].tolist() == [2000, 2100]
    one = tmp_path / "one.lmdb"
    pack_slides(tmp_path / "src", one, plane=2, progress=False)
    assert Store(one).array(0, "image")[5, 7].tolist() == [2000, 2100]
    with pytest.raises(SourceError, match="has 3 planes; plane 3"):
        pack_slides(tmp_path / "src", tmp_path / "no.lmdb", plane=3, progress=False)


# --- bad input -----------------------------------------------------------------------------------


def test_bombs_are_refused_at_once(tmp_path: Path) -> None:
    """More tiles than there are offsets, and a tile of 10 GB; what is good is packed."""
    one = jpeg_bytes(picture(512, 512))
    tiled = page(picture(512, 512), tile=512, compression="jpeg")
    big = dataclasses.replace(tiled, width=4_000_000, height=4_000_000, data=[one])
    write_tiff(tmp_path / "src" / "bomb.tif", [big])
    small = page(picture(16, 16), tile=16, compression="deflate")
    data = [zlib.compress(bytes(1000))]
    huge = dataclasses.replace(small, width=60_000, height=60_000, tile=(60_000, 60_000), data=data)
    write_tiff(tmp_path / "src" / "tile.tif", [huge])
    write_slide(tmp_path / "src" / "good.tif", picture(300, 200))
    (tmp_path / "src" / "notes.txt").write_text("x")
    report, store = packed(tmp_path)
    assert len(store) == 1
    assert sorted(name for name, _ in report.failed) == ["bomb.tif", "tile.tif"]
    counts = report.files, report.stored_files, report.failed_files, report.left_out_count
    assert counts == (4, 1, 2, 1)


def damaged(path: Path, whole: npt.NDArray[np.uint8], *, tile: int = 64) -> None:
    """Write a slide of which the second tile is cut short."""
    made = page(whole, tile=tile, compression="deflate")
    data: Any = list(made.data)
    data[1] = data[1][: len(data[1]) // 2]
    write_tiff(path, [dataclasses.replace(made, data=data)])


def test_one_bad_tile_does_not_lose_the_slide(tmp_path: Path) -> None:
    """It is not there, named in the store and in the report; or it ends the run."""
    whole = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    damaged(tmp_path / "src" / "a.tif", whole)
    report, store = packed(tmp_path, codec="zstd", tile=64)
    shown = level(store, "a")
    expected = whole.copy()
    expected[:64, 64:128] = 0
    assert np.array_equal(shown, expected)
    attrs = store.array(0, "image").attrs
    assert attrs["bad"] == [[0, 0, 1]]
    assert attrs["missing"] == {"0": 1}
    assert any("level 0, row 0, column 1" in text for _, text in report.remarks)
    with pytest.raises(DecodeError, match=r"a\.tif: level 0: the tile in row 0, column 1"):
        pack_slides(
            tmp_path / "src",
            tmp_path / "b.lmdb",
            codec="zstd",
            tile=64,
            on_error="raise",
            progress=False,
        )
    assert not (tmp_path / "b.lmdb").exists()


def test_a_slide_of_bad_tiles_is_refused(tmp_path: Path) -> None:
    """More than half: what is left is no slide."""
    whole = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    made = page(whole, tile=64, compression="deflate")
    data = [b"no deflate"] * 3 + list(made.data)[3:]
    write_tiff(tmp_path / "src" / "a.tif", [dataclasses.replace(made, data=data)])
    write_slide(tmp_path / "src" / "b.tif", picture(300, 200))
    report, store = packed(tmp_path, tile=64)
    assert [store.key(n) for n in range(len(store))] == ["b"]
    assert "more than half of its tiles" in dict(report.failed)["a.tif"]
    assert (report.files, report.stored_files, report.failed_files) == (2, 1, 1)


def test_a_slide_that_vanishes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the scan and its turn; the others are packed, and nothing of it is left."""
    for name in ("a", "b", "c"):
        write_slide(tmp_path / "src" / f"{name}.tif", picture(300, 200))

    def found(*args: Any, **options: Any) -> Any:
        result = find_slides(*args, **options)
        (tmp_path / "src" / "b.tif").unlink()
        return result

    monkeypatch.setattr("sharedds.ingest.slides.pack.find_slides", found)
    report, store = packed(tmp_path)
    assert [store.key(n) for n in range(len(store))] == ["a", "c"]
    assert "cannot be read" in dict(report.failed)["b.tif"]
    assert sorted(os.listdir(tmp_path)) == ["out.lmdb", "out.lmdb.report.jsonl", "src"]


def test_a_folder_without_slides_says_what_there_was(tmp_path: Path) -> None:
    """By kind, and what slides are."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match=r"no slide could be packed; left out: .*txt.*TIFF"):
        packed(tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tile": 100}, "multiples of 16"),
        ({"tile": 8}, "tile"),
        ({"codec": "gif"}, "codec"),
        ({"levels": 0}, "levels"),
        ({"levels": "all"}, "levels"),
        ({"quality": 0}, "quality"),
        ({"plane": -1}, "plane"),
        ({"associated": ("patient",)}, "associated"),
        ({"on_error": "ignore"}, "on_error"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    """Before anything is looked at."""
    with pytest.raises(OptionError, match=text):
        packed(tmp_path, **options)


# --- around it -----------------------------------------------------------------------------------


def test_pack_finds_out_that_these_are_slides(tmp_path: Path) -> None:
    """Where all pictures are slides; ordinary pictures stay pictures, unless told."""
    write_slide(tmp_path / "src" / "a.tif", picture(1024, 768))
    report = sharedds.pack(tmp_path / "src", tmp_path / "a.lmdb", progress=False)
    assert report.kind == "slides"
    (tmp_path / "photos").mkdir()
    Image.fromarray(picture(64, 48)).save(tmp_path / "photos" / "a.png")
    plain = sharedds.pack(tmp_path / "photos", tmp_path / "b.lmdb", progress=False)
    assert plain.kind == "images"
    told = sharedds.pack(tmp_path / "photos", tmp_path / "c.lmdb", kind="slide", progress=False)
    assert told.kind == "slides"
    with pytest.raises(OptionError, match="tile is an option for slides"):
        sharedds.pack(tmp_path / "photos", tmp_path / "d.lmdb", kind="image", tile=64)
    with pytest.raises(OptionError, match="max_side is an option for pictures"):
        sharedds.pack(tmp_path / "photos", tmp_path / "d.lmdb", kind="slide", max_side=64)


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It counts and estimates."""
    write_slide(tmp_path / "src" / "a.tif", picture(1024, 768))
    report = pack_slides(tmp_path / "src", tmp_path / "a.lmdb", dry_run=True, progress=False)
    assert report.samples == 1
    assert 10_000 < report.estimated_bytes < 3_000_000
    assert os.listdir(tmp_path) == ["src"]


def test_names_that_differ_by_the_extension_alone_keep_it(tmp_path: Path) -> None:
    """A key names one slide."""
    write_slide(tmp_path / "src" / "x" / "a.tif", picture(300, 200))
    Image.fromarray(picture(30, 20)).save(tmp_path / "src" / "x" / "a.png")
    Image.fromarray(picture(30, 20)).save(tmp_path / "src" / "b.png")
    _, store = packed(tmp_path)
    assert sorted(store.key(n) for n in range(3)) == ["b", "x/a.png", "x/a.tif"]


def test_a_key_is_never_the_path_of_another_slide(tmp_path: Path) -> None:
    """Else two equal keys would be refused when all is packed."""
    for name in ("a.tif", "a.svs"):
        write_slide(tmp_path / "src" / name, picture(300, 200))
    Image.fromarray(picture(30, 20)).save(tmp_path / "src" / "a.tif.png")
    _, store = packed(tmp_path)
    assert sorted(store.key(n) for n in range(3)) == ["a.svs", "a.tif", "a.tif.png"]


def test_the_store_holds_no_place(tmp_path: Path) -> None:
    """Neither the folder nor anything above it; nor does the report that goes with it."""
    write_slide(tmp_path / "src" / "a.tif", picture(300, 200))
    packed(tmp_path)
    assert os.fsencode(tmp_path) not in (tmp_path / "out.lmdb").read_bytes()
    assert str(tmp_path) not in (tmp_path / "out.lmdb.report.jsonl").read_text()


@pytest.mark.parametrize("blank", [True, False], ids=["glass", "noise"])
def test_an_estimate_looks_at_the_pixels(tmp_path: Path, blank: bool) -> None:
    """A blank slide takes a small part of what noise takes; both are told within a half."""
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), np.uint8)
    whole = np.full_like(noise, 243) if blank else noise
    write_tiff(tmp_path / "src" / "a.tif", [page(whole, tile=256)])
    _, store = packed(tmp_path)
    image = store.array(0, "image")
    levels = [image.level(number) for number in range(len(image.levels))]
    blocks = [(level, -(-level.shape[0] // 256) * -(-level.shape[1] // 256)) for level in levels]
    stored = sum(len(data) for level, count in blocks for data in level.stored(range(count)))
    told = pack_slides(tmp_path / "src", tmp_path / "b.lmdb", dry_run=True, progress=False)
    assert 0.5 < told.estimated_bytes / stored < 1.5


SQUARE = json.dumps({"type": "Polygon", "coordinates": [[[0, 0], [64, 0], [64, 64], [0, 64]]]})


def test_regions_may_lie_beside_the_slides(tmp_path: Path) -> None:
    """In one folder: only the files of annotations are no slides."""
    write_slide(tmp_path / "src" / "a.tif", picture(300, 200))
    (tmp_path / "src" / "a.geojson").write_text(SQUARE)
    report, store = packed(tmp_path, annotations=tmp_path / "src")
    assert (report.samples, report.left_out_count) == (1, 1)
    assert store.array(0, "label")[0, 0].tolist() == [64 * 64]


def test_regions_of_no_slide_are_told(tmp_path: Path) -> None:
    """A slip in a name would lose labels without a word."""
    write_slide(tmp_path / "src" / "a.tif", picture(300, 200))
    (tmp_path / "drawn").mkdir()
    for name in ("a", "A-1"):
        (tmp_path / "drawn" / f"{name}.geojson").write_text(SQUARE)
    report, _ = packed(tmp_path, annotations=tmp_path / "drawn")
    assert [text for text in report.warnings if "A-1.geojson" in text and "no slide" in text]
    assert not [text for text in report.warnings if "a.geojson" in text]


def test_tissue_and_regions_are_counted_by_cell(tmp_path: Path) -> None:
    """Each tile is looked at once, while it is packed; blank slides are named."""
    side = 512
    y, x = np.mgrid[0:side, 0:side]
    glass = np.full((side, side, 3), 243, np.uint8)
    disc = glass.copy()
    disc[(x - 256) ** 2 + (y - 256) ** 2 < 100**2] = 200, 90, 150
    write_tiff(tmp_path / "src" / "disc.tif", [page(disc, tile=256)])
    write_tiff(tmp_path / "src" / "blank.tif", [page(glass, tile=256)])
    square = [[64, 0], [192, 0], [192, 128], [64, 128]]
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [square]},
        "properties": {"classification": {"name": "tumour"}},
    }
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn" / "disc.geojson").write_text(json.dumps(feature))
    report, store = packed(tmp_path, codec="zstd", annotations=tmp_path / "drawn")
    assert any("no tissue was found on 1" in text and "blank" in text for text in report.warnings)
    number = store.index_of("disc")
    tissue = store.array(number, "tissue")
    assert tissue.attrs["cell"] == 64
    assert tissue.shape == (8, 8)
    assert int(tissue[...].sum()) == pytest.approx(np.pi * 100**2, rel=0.03)
    assert store.array(number, "mean")[0, 0].tolist() == [243, 243, 243]
    labels = store.array(number, "label")[...]
    assert store.attrs["class_names"] == ["tumour"]
    assert labels[..., 0].tolist() == [[0, 4096, 4096, *[0] * 5]] * 2 + [[0] * 8] * 6
    with pytest.raises(sharedds.errors.SampleKeyError):
        store.array(store.index_of("blank"), "label")


@pytest.mark.parametrize("codec", ["keep", "auto"])
def test_what_was_packed_is_trained_on(tmp_path: Path, codec: Any) -> None:
    """Slides with tiles of several sizes have cells of one; patches show the tissue counted."""
    side = 960
    y, x = np.mgrid[0:side, 0:side]
    disc = np.full((side, side, 3), 243, np.uint8)
    disc[(x - 480) ** 2 + (y - 480) ** 2 < 300**2] = 200, 90, 150
    for tile in (240, 256):
        made = page(disc, tile=tile, compression="jpeg", tags=RESOLUTION)
        write_tiff(tmp_path / "src" / f"{tile}.tif", [made])
    _, store = packed(tmp_path, codec=codec)
    assert store.attrs["cell"] == (16 if codec == "keep" else 64)
    data = sharedds.SlideDataset(store.path, patch=sharedds.TissuePatches(96, min_tissue=0.9))
    loader = sharedds.build_loader(data, batch_size=8, shuffle=True, seed=0, num_workers=0)
    batches = list(loader)
    assert sum(len(batch["image"]) for batch in batches) == len(data) > 30
    for batch in batches:
        pink = (batch["image"][:, 0] - batch["image"][:, 1].int() > 60).float().mean((1, 2))
        assert (pink - batch["tissue"]).abs().max() < 0.1
    assert {name for batch in batches for name in batch["slide"]} == {"240", "256"}


def test_slides_are_found_out_by_content_too(tmp_path: Path) -> None:
    """By a pyramid called .tif, a name that only scanners give, also with a codec for slides."""
    write_slide(tmp_path / "src" / "a.tif", picture(1024, 768))
    write_slide(tmp_path / "src" / "b.svs", picture(1024, 768))
    for number, options in enumerate(({}, {"codec": "zstd"}, {"levels": 2})):
        out = tmp_path / f"{number}.lmdb"
        report = sharedds.pack(tmp_path / "src", out, progress=False, **options)  # type: ignore[arg-type]
        assert (report.kind, report.samples) == ("slides", 2)
    (tmp_path / "src" / "a.tif").unlink()
    assert sharedds.pack(tmp_path / "src", tmp_path / "x.lmdb", progress=False).kind == "slides"
    Image.fromarray(picture(64, 48)).save(tmp_path / "src" / "a.png")
    assert sharedds.pack(tmp_path / "src", tmp_path / "y.lmdb", progress=False).kind == "images"


def test_a_store_of_slides_is_verified_and_described(tmp_path: Path) -> None:
    """As any other."""
    write_slide(tmp_path / "src" / "a.tif", picture(600, 500))
    report, store = packed(tmp_path, codec="keep")
    assert sharedds.verify(store.path).ok
    found = sharedds.info(store.path)
    assert found.digest == report.digest
    assert {field.name for field in found.fields} >= {"image", "tissue", "mean", "size"}
    data = bytearray(Path(store.path).read_bytes())
    stored = bytes(next(iter(store.array(0, "image").stored([2]))))
    at = data.index(stored) + len(stored) // 2
    data[at] ^= 1
    bad = tmp_path / "bad.lmdb"
    bad.write_bytes(data)
    problems = sharedds.verify(bad).problems
    assert [(problem.key, problem.field) for problem in problems] == [("a", "image")]


def test_damaged_headers_of_size_are_no_claim(tmp_path: Path) -> None:
    """A picture whose header claims a hundred thousand pixels a side."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    with pytest.raises(SourceError, match=r"bomb\.png"):
        packed(tmp_path)
