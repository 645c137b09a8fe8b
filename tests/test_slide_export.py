"""Slides out of a store again: as TIFF files with their levels, or a region as a picture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from slide_files import bare_jpeg, jpeg_bytes, page, picture, pyramid, split_jpeg, write_tiff

import sharedds
from sharedds.errors import OptionError, SampleIndexError, SourceError, StoreExistsError
from sharedds.ingest import pack_slides
from sharedds.ingest.exports.preview import preview
from sharedds.ingest.exports.slides import export_region
from sharedds.slides import SlideFile, recognise
from sharedds.store import Store

RESOLUTION = {282: (5, [40000, 1]), 283: (5, [20000, 1]), 296: (3, [3])}


def store_of(tmp_path: Path, pages: Any, **options: Any) -> Store:
    """A store of one slide, ``a``."""
    write_tiff(tmp_path / "src" / "a.tif", pages)
    pack_slides(tmp_path / "src", tmp_path / "x.lmdb", progress=False, **options)
    return Store(tmp_path / "x.lmdb")


def exported(tmp_path: Path, store: Store) -> SlideFile:
    """The slide after it was written."""
    report = sharedds.export(store.path, tmp_path / "back", progress=False)
    assert report.files == 1
    found = recognise(tmp_path / "back" / "a.tif")
    assert found is not None
    return found


def levels_of(found: SlideFile) -> list[npt.NDArray[Any]]:
    """All pixels of each level."""
    with found.open() as reader:
        return [
            reader.read(number, y=0, x=0, height=level.shape[0], width=level.shape[1])
            for number, level in enumerate(found.header.levels)
        ]


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        ("png", "uint8"),
        ("png", "uint16"),
        ("raw", "int16"),
        ("zstd", "uint8"),
        ("zstd", "uint16"),
        ("zstd", "float32"),
    ],
)
def test_every_pixel_of_every_level_comes_back(tmp_path: Path, codec: Any, dtype: str) -> None:
    """With the size of pixels, the levels and the channels."""
    values = (np.arange(300 * 200 * 3).reshape(200, 300, 3) % 251).astype(dtype)
    pages = pyramid(values, (1, 2), tile=64, tags=RESOLUTION, photometric=2)
    store = store_of(tmp_path, pages, codec=codec, tile=64, levels=2)
    found = exported(tmp_path, store)
    assert found.header.dtype == np.dtype(dtype)
    assert found.header.mpp == pytest.approx((0.5, 0.25))
    for number, pixels in enumerate(levels_of(found)):
        assert np.array_equal(pixels, store.array(0, "image").level(number)[...])


@pytest.mark.parametrize("way", ["ycc", "rgb", "tables"])
def test_kept_tiles_come_back_as_they_were(tmp_path: Path, way: str) -> None:
    """Bit for bit, in the colours that they are; other readers see the same picture."""
    whole = picture(700, 500)
    tables, _ = split_jpeg(jpeg_bytes(whole[:256, :256]))
    ways: dict[str, dict[str, Any]] = {
        "ycc": {},
        "rgb": {"encode": bare_jpeg, "photometric": 2},
        "tables": {
            "encode": lambda part: split_jpeg(jpeg_bytes(part))[1],
            "photometric": 6,
            "tags": {530: (3, [2, 2]), 347: (7, tables)},
        },
    }
    pages = [page(whole, tile=256, compression="jpeg", **ways[way])]
    store = store_of(tmp_path, pages, codec="keep", levels=1)
    found = exported(tmp_path, store)
    source = recognise(tmp_path / "src" / "a.tif")
    assert source is not None
    with found.open() as one, source.open() as other:
        for row in range(2):
            for column in range(3):
                place = {"row": row, "column": column}
                assert one.stream(0, **place) == other.stream(0, **place)
    assert np.array_equal(levels_of(found)[0], levels_of(source)[0])
    openslide = pytest.importorskip("openslide", reason="OpenSlide is not installed")
    slide = openslide.OpenSlide(tmp_path / "back" / "a.tif")
    shown = np.asarray(slide.read_region((0, 0), 0, (700, 500)))[..., :3].astype(int)
    slide.close()
    assert np.abs(shown - whole).mean() < 3


@pytest.mark.parametrize(
    ("width", "height"), [(160, 128), (600, 160), (150, 200)], ids=["both", "low", "odd"]
)
def test_a_slide_smaller_than_its_tiles_keeps_them(tmp_path: Path, width: int, height: int) -> None:
    """Tiles of the file are as large as the pictures in it, or no other reader opens it."""
    whole = picture(width, height)
    pages = [page(whole, tile=256, compression="jpeg")]
    store = store_of(tmp_path, pages, codec="keep", levels=1)
    found = exported(tmp_path, store)
    source = recognise(tmp_path / "src" / "a.tif")
    assert source is not None
    assert found.header.levels[0].tile == (256, 256)
    with found.open() as one, source.open() as other:
        assert one.stream(0, row=0, column=0) == other.stream(0, row=0, column=0)
    assert np.array_equal(levels_of(found)[0], levels_of(source)[0])
    openslide = pytest.importorskip("openslide", reason="OpenSlide is not installed")
    slide = openslide.OpenSlide(tmp_path / "back" / "a.tif")
    shown = np.asarray(slide.read_region((0, 0), 0, (width, height)))[..., :3].astype(int)
    slide.close()
    assert np.abs(shown - whole).mean() < 3


def test_a_dry_run_says_how_large_it_would_be(tmp_path: Path) -> None:
    """All is read and compressed; nothing is written."""
    store = store_of(tmp_path, [page(picture(700, 500), tile=256)], codec="jpeg")
    dry = sharedds.export(store.path, tmp_path / "back", dry_run=True, progress=False)
    assert not (tmp_path / "back").exists()
    done = sharedds.export(store.path, tmp_path / "back", progress=False)
    assert dry.bytes == done.bytes == (tmp_path / "back" / "a.tif").stat().st_size


def test_tiles_that_were_encoded_are_copied_but_at_the_edges(tmp_path: Path) -> None:
    """Those at the right and lower edge have to be made whole."""
    whole = picture(700, 500)
    store = store_of(tmp_path, [page(whole, tile=256)], codec="jpeg", quality=95)
    found = exported(tmp_path, store)
    image = store.array(0, "image")
    with found.open() as reader:
        assert reader.stream(0, row=0, column=1) == bytes(next(iter(image.stored([1]))))
    for number, pixels in enumerate(levels_of(found)):
        expected = image.level(number)[...]
        assert pixels.shape == expected.shape
        assert np.abs(pixels.astype(int) - expected).mean() < 2


def test_absent_tiles_stay_absent(tmp_path: Path) -> None:
    """They take no room in the file either."""
    made = page(picture(512, 512), tile=256, compression="jpeg")
    sparse = dataclasses.replace(made, data=[None, *list(made.data)[1:]])
    store = store_of(tmp_path, [sparse], codec="keep", levels=1)
    assert store.array(0, "image").attrs["missing"] == {"0": 1}
    found = exported(tmp_path, store)
    with found.open() as reader:
        assert reader.stream(0, row=0, column=0) is None


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_a_region_is_the_pixels_of_its_level(tmp_path: Path, ending: str) -> None:
    """Without loss; the whole level where no region is named."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    store = store_of(tmp_path, [page(noise, tile=64)], codec="zstd", tile=64, levels=2)
    path = tmp_path / f"part.{ending}"
    export_region(store.path, path, region=(7, 11, 50, 30), level=1)
    with Image.open(path) as image:
        expected = store.array(0, "image").level(1)[11:41, 7:57]
        assert np.array_equal(np.asarray(image), expected)
    with pytest.raises(StoreExistsError, match="force"):
        export_region(store.path, path)
    export_region(store.path, path, force=True)
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), noise)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"region": (0, 0, 401, 10)}, SampleIndexError, "400 x 300"),
        ({"region": (-1, 0, 10, 10)}, SampleIndexError, "not inside"),
        ({"region": (0, 0, 0, 10)}, SampleIndexError, "not inside"),
        ({"level": 9}, sharedds.errors.SchemaError, "no level 9"),
        ({"key": "b"}, sharedds.errors.SampleKeyError, "b"),
        ({"region": (1, 2, 3)}, OptionError, "four whole numbers"),
        ({"region": ("a", 1, 1, 1)}, OptionError, "four whole numbers"),
    ],
    ids=["wide", "left", "empty", "level", "key", "three", "words"],
)
def test_what_is_not_there_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """With what there is; nothing is written."""
    store = store_of(tmp_path, [page(picture(400, 300), tile=64)])
    with pytest.raises(error, match=text):
        export_region(store.path, tmp_path / "x.png", **options)
    assert not (tmp_path / "x.png").exists()
    with pytest.raises(OptionError, match=r"\.png, \.jpg or \.tif"):
        export_region(store.path, tmp_path / "x.gif")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """By name; a folder stays what it is, and nothing else is left."""
    store = store_of(tmp_path, [page(picture(400, 300), tile=64)])
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SourceError, match=r"folder\.png: cannot be written"):
        export_region(store.path, tmp_path / "folder.png", force=True)
    with pytest.raises(SourceError, match=r"x\.png: cannot be written"):
        export_region(store.path, tmp_path / "gone" / "x.png")
    assert sorted(tmp_path.iterdir()) == before


def test_a_preview_shows_tissue_and_patches(tmp_path: Path) -> None:
    """The slide as it is on the left; on the right its tissue is another colour."""
    side = 2048
    y, x = np.mgrid[0:side, 0:side]
    disc = np.full((side, side, 3), 243, np.uint8)
    disc[(x - 1024) ** 2 + (y - 1024) ** 2 < 600**2] = 200, 90, 150
    store = store_of(tmp_path, [page(disc, tile=256)], codec="zstd")
    report = preview(store.path, tmp_path / "a.png")
    assert (report.shown, report.samples) == (1, 1)
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    pink = (np.abs(pixels - (200, 90, 150)).sum(-1) < 30).sum()
    tinted = (np.abs(pixels - (144, 128, 139)).sum(-1) < 40).sum()
    orange = (np.abs(pixels - (255, 150, 40)).sum(-1) < 30).sum()
    assert pink > 10_000
    assert tinted > 10_000
    assert orange > 200


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_a_preview_of_any_channels(tmp_path: Path, channels: int) -> None:
    """Each spread over its range."""
    values = (np.arange(300 * 400 * channels).reshape(300, 400, channels) % 60_000).astype("u2")
    store = store_of(tmp_path, [page(values, tile=64, photometric=1)], tile=64)
    assert preview(store.path, tmp_path / "a.png", key="a").shown == 1
