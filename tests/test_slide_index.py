"""What is on the cells of a slide: tissue by an absolute rule, mean colour, sharpness."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg

from sharedds.ingest.slides.index import CellStatistics, cell_of, statistics

SIDE, TILE, CELL = 1024, 256, 64
_Y, _X = np.mgrid[0:SIDE, 0:SIDE] + 0.5
_NOISE = np.random.default_rng(5).integers(-3, 4, (SIDE, SIDE, 1))
_DISC = (_X - 512) ** 2 + (_Y - 512) ** 2 < 200**2
_SHARE = _DISC.reshape(16, 64, 16, 64).mean((1, 3))


def slide(name: str) -> npt.NDArray[np.uint8]:
    """Glass, a disc of tissue on it, the same with a part that was not scanned, pale tissue."""
    glass = np.full((SIDE, SIDE, 3), 243) + _NOISE
    if name == "glass":
        return glass.astype(np.uint8)
    if name == "pale":
        return (np.full((SIDE, SIDE, 3), [228, 200, 218]) + _NOISE).astype(np.uint8)
    disc = np.where(_DISC[..., None], np.array([200, 90, 150]) + _NOISE, glass)
    if name == "black":
        disc = np.where((_X < 300)[..., None], 0, disc)
    return disc.astype(np.uint8)


def shares(picture: npt.NDArray[np.uint8], quality: int | None) -> npt.NDArray[np.float64]:
    """The share of tissue of each cell, tile by tile."""
    found = np.zeros((16, 16))
    for y in range(4):
        for x in range(4):
            tile = np.ascontiguousarray(
                picture[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE]
            )
            if quality is not None:
                tile = simplejpeg.decode_jpeg(simplejpeg.encode_jpeg(tile, quality=quality))
            counts = statistics(tile, cell=CELL, is_rgb=True).tissue
            found[y * 4 : y * 4 + 4, x * 4 : x * 4 + 4] = counts / CELL**2
    return found


@pytest.mark.parametrize("quality", [None, 90, 75, 50])
@pytest.mark.parametrize("name", ["disc", "black"])
def test_tissue_is_where_there_is_colour(name: str, quality: int | None) -> None:
    """The cells of which half are covered, and no other; black is not tissue, nor is noise."""
    found = shares(slide(name), quality)
    assert np.array_equal(found >= 0.5, _SHARE >= 0.5)
    assert int((found >= 0.5).sum()) == 32
    assert np.abs(found - _SHARE).max() < 0.1


def test_colours_of_16_bits_are_told_by_their_upper_8() -> None:
    """The same cells as in 8 bits; glass, bright in all channels, is none."""
    tile = slide("disc")[256:512, 256:512]
    deep = tile.astype(np.uint16) * 257
    found = [statistics(values, cell=CELL, is_rgb=True).tissue for values in (tile, deep)]
    assert np.array_equal(found[0], found[1])
    assert 0 < found[1].sum() < tile[..., 0].size


@pytest.mark.parametrize("quality", [None, 75])
def test_a_blank_slide_has_no_tissue_and_a_pale_one_has(quality: int | None) -> None:
    """A threshold that is fitted to the slide, such as Otsu's, would split both in two."""
    assert shares(slide("glass"), quality).max() == 0
    assert shares(slide("pale"), quality).min() > 0.95
    brightness = slide("pale").mean(-1)
    assert 0.3 < (brightness < np.median(brightness)).mean() < 0.7  # what fitting does


def test_means_are_those_of_the_pixels() -> None:
    """Rounded for uint8; cells at the edges have fewer pixels."""
    tile = np.random.default_rng(0).integers(0, 256, (150, 203, 3), np.uint8)
    found = statistics(tile, cell=64, is_rgb=True)
    assert found.mean.dtype == np.uint8
    assert found.mean.shape == (3, 4, 3)
    for y in range(3):
        for x in range(4):
            part = tile[y * 64 : (y + 1) * 64, x * 64 : (x + 1) * 64]
            assert np.array_equal(found.mean[y, x], np.rint(part.mean((0, 1))))


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    """Over the pixels of a cell that have four neighbours in the tile."""
    tile = np.random.default_rng(1).integers(0, 256, (130, 100, 3), np.uint8)
    found = statistics(tile, cell=64, is_rgb=True).sharpness
    green = tile[..., 1].astype(float)
    laplacian = np.full(green.shape, np.nan)
    laplacian[1:-1, 1:-1] = (
        green[:-2, 1:-1] + green[2:, 1:-1] + green[1:-1, :-2] + green[1:-1, 2:]
    ) - 4 * green[1:-1, 1:-1]
    for y in range(3):
        for x in range(2):
            part = laplacian[y * 64 : (y + 1) * 64, x * 64 : (x + 1) * 64]
            part = part[np.isfinite(part)]
            expected = part.var() if part.size else 0.0
            assert found[y, x] == pytest.approx(expected, rel=1e-4)


def test_blurred_is_less_sharp() -> None:
    """What the figure is for."""
    noise = np.random.default_rng(2).integers(0, 256, (128, 128, 1), np.uint8)
    sharp = np.repeat(noise, 3, 2)
    blurred = sharp.astype(float)
    for axis in (0, 1):
        blurred = (blurred + np.roll(blurred, 1, axis)) / 2
    figures = [
        statistics(values.astype(np.uint8), cell=64, is_rgb=True).sharpness
        for values in (sharp, blurred)
    ]
    assert (figures[0] > 4 * figures[1]).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_other_channels_count_where_they_are_bright(dtype: str, channels: int) -> None:
    """Over an eighth of the range in any channel; the dark ground is none."""
    most: Any = 1.0 if dtype == "float32" else np.iinfo(dtype).max
    tile = np.zeros((80, 96, channels), dtype)
    tile[10:30, 70:90, channels - 1] = most
    found = statistics(tile, cell=32, is_rgb=False)
    assert isinstance(found, CellStatistics)
    assert found.tissue.dtype == np.uint16
    assert found.tissue.tolist() == [[0, 0, 400], [0, 0, 0], [0, 0, 0]]
    expected = np.uint8 if dtype == "uint8" else np.float32
    assert found.mean.dtype == expected


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 200), (3, 3), (5, 17), (256, 1)])
def test_tiles_of_any_size_have_figures(height: int, width: int) -> None:
    """Also where no pixel has four neighbours."""
    tile = np.full((height, width, 3), [200, 90, 150], np.uint8)
    found = statistics(tile, cell=64, is_rgb=True)
    assert int(found.tissue.sum()) == height * width
    assert found.mean.reshape(-1, 3).tolist() == [[200, 90, 150]] * found.tissue.size
    assert not found.sharpness.any()


@pytest.mark.parametrize(
    ("tile", "cell"), [(256, 64), (240, 60), (512, 128), (1024, 128), (48, 16), (16, 16), (80, 20)]
)
def test_cells_divide_a_tile(tile: int, cell: int) -> None:
    """A quarter where that is 16 to 128: cells lie on one grid over the slide."""
    assert cell_of(tile) == cell


def test_any_tile_has_cells() -> None:
    """Of a multiple of four pixels."""
    for tile in range(16, 4097, 16):
        assert tile % cell_of(tile) == 0
        assert cell_of(tile) % 4 == 0
