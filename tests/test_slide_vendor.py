"""Slides through OpenSlide: levels of any size, threads, and what was not scanned."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from slide_files import page, picture, write_tiff

from sharedds.errors import DecodeError
from sharedds.slides.source import SlideHeader, SlideLevel
from sharedds.slides.vendor import VendorReader, open_vendor

pytest.importorskip("openslide", reason="OpenSlide is not installed")


class Stub:
    """A slide of which only a part was scanned, with a large picture beside it."""

    def __init__(self, alpha: int) -> None:
        self.alpha = alpha
        self.properties = {
            "openslide.associated.macro.width": "100000",
            "openslide.associated.macro.height": "100000",
        }

    def read_region(self, _at: object, _level: int, size: tuple[int, int]) -> Any:
        """Return RGBA pixels."""
        return Image.new("RGBA", size, (200, 100, 0, self.alpha))

    @property
    def associated_images(self) -> dict[str, Any]:
        """Fail."""
        raise AssertionError("it was decoded")


def header(background: tuple[float, ...] | None) -> SlideHeader:
    """That of a slide in OpenSlide's words."""
    return SlideHeader(
        path="scan.mrxs",
        format="mirax",
        dtype=np.dtype(np.uint8),
        levels=(SlideLevel(shape=(64, 64), downsample=1.0),),
        background=background,
        associated=("macro",),
    )


def test_levels_that_are_no_whole_part_of_the_finest(tmp_path: Path) -> None:
    """A downsample of 3.003: pixels are those of the level, not its neighbours'."""
    large = picture(1000, 1000)
    small = np.asarray(Image.fromarray(large).resize((333, 333), Image.Resampling.BOX))
    path = write_tiff(tmp_path / "a.tif", [page(large, tile=128), page(small, tile=128, subfile=1)])
    found = open_vendor(path)
    assert found.header.levels[1].shape == (333, 333)
    assert found.header.levels[1].downsample == pytest.approx(1000 / 333)
    with found.open() as reader:
        for y, x in ((0, 0), (100, 50), (77, 191), (128, 128)):
            part = reader.read(1, y=y, x=x, height=60, width=60).astype(int)
            # Between two pixels of a level OpenSlide interpolates, by a fraction of a pixel.
            assert np.abs(part - small[y : y + 60, x : x + 60]).max() <= 2


def test_threads_share_a_reader(tmp_path: Path) -> None:
    """Each gets the pixels that one alone would."""
    path = write_tiff(tmp_path / "a.tif", [page(picture(700, 700), tile=128)])
    places = [(y, x) for y in range(0, 500, 50) for x in range(0, 500, 50)]
    with open_vendor(path).open() as reader, ThreadPoolExecutor(8) as threads:

        def part(place: tuple[int, int]) -> Any:
            return reader.read(0, y=place[0], x=place[1], height=150, width=150)

        alone = [part(place) for place in places]
        together = list(threads.map(part, places))
    assert all(map(np.array_equal, alone, together))


@pytest.mark.parametrize(
    ("alpha", "background", "expected"),
    [
        (0, (10.0, 20.0, 30.0), [10, 20, 30]),
        (0, None, [255, 255, 255]),
        (51, (0.0, 0.0, 0.0), [40, 20, 0]),
        (255, (10.0, 20.0, 30.0), [200, 100, 0]),
    ],
    ids=["unscanned", "no background", "a fifth", "scanned"],
)
def test_what_was_not_scanned_is_the_background(
    alpha: int, background: tuple[float, ...] | None, expected: list[int]
) -> None:
    """Taken as it is, it would be black."""
    reader = VendorReader(Stub(alpha), header(background))
    assert reader.read(0, y=0, x=0, height=8, width=8)[0, 0].tolist() == expected


def test_a_picture_that_is_too_large_is_not_decoded() -> None:
    """Its size is known before."""
    with pytest.raises(DecodeError, match=r"macro.*256 MiB"):
        VendorReader(Stub(255), header(None)).associated("macro")
