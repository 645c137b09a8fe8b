"""Real slides, where they are at hand: every level is what other programs read of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile
from slide_files import level, slide

DATA = Path(__file__).parents[2] / "shared" / "data" / "slides"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real slides at {DATA}")
SCAN = DATA / "CMU-1-Small-Region.svs"
STACK = DATA / "multi-channel-z-series.ome.tif"


def test_a_scan_is_read_as_openslide_does() -> None:
    """Every level, the resolution, and the pictures beside them."""
    file = slide(SCAN)
    header = file.header
    with openslide.OpenSlide(str(SCAN)) as other:
        assert [one.shape[::-1] for one in header.levels] == list(other.level_dimensions)
        for number, size in enumerate(other.level_dimensions):
            theirs = np.asarray(other.read_region((0, 0), number, size))[..., :3].astype(int)
            assert np.abs(level(file, number) - theirs).max() <= 2
        with file.open() as reader:
            assert set(header.associated) == set(other.associated_images)
            for name, picture in other.associated_images.items():
                theirs = np.asarray(picture.convert("RGB")).astype(int)
                assert np.abs(reader.associated(name) - theirs).max() <= 2
    assert header.mpp == (0.499, 0.499)
    assert (header.magnification, header.format, header.remarks) == (20, "Aperio", ())


def test_tiles_of_a_scan_are_those_of_the_file() -> None:
    """Streams and shared tables are bit for bit what tifffile finds in the file."""
    file = slide(SCAN)
    data = SCAN.read_bytes()
    with tifffile.TiffFile(SCAN) as known, file.open() as reader:
        page = known.pages.first
        assert file.header.levels[0].tables == page.jpegtables
        columns = -(-page.imagewidth // page.tilewidth)
        places = list(zip(page.dataoffsets, page.databytecounts, strict=True))
        for number, (offset, length) in enumerate(places):
            found = reader.stream(0, row=number // columns, column=number % columns)
            assert found == data[offset : offset + length]
    assert len(places) == 130


def test_a_focus_stack_is_read_as_tifffile_does() -> None:
    """Five planes of three channels, signed bytes in big-endian order."""
    file = slide(STACK)
    header = file.header
    assert (header.planes, header.channels, header.dtype) == (5, 3, np.dtype("i1"))
    assert header.is_rgb is False
    with tifffile.TiffFile(STACK) as known:
        series = known.series[0]
        order = [series.axes.index(axis) for axis in "ZYXC"]
        theirs = series.asarray().transpose(order)
    for plane in range(5):
        assert np.array_equal(level(file, plane=plane), theirs[plane])
