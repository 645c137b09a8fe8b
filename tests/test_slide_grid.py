"""Slides covered by patches, and put together again: every pixel once, on level 0 or any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from slide_stores import Slide, halved, picture, slides, write_slides

from sharedds.datasets.slides import SlideDataset
from sharedds.errors import OptionError, SchemaError, StoreExistsError
from sharedds.loader import build_loader
from sharedds.patches import Aggregator, GridPatches, TissuePatches, UniformPatches
from sharedds.patches.pyramid import mask_pyramid
from sharedds.store import Store

Values = npt.NDArray[Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four slides."""
    return write_slides(tmp_path_factory.mktemp("slides") / "x.lmdb", slides())


def starts(batch: Any) -> torch.Tensor:
    """Return where the patches of a batch begin, (n, 2)."""
    return torch.stack([batch["y"], batch["x"]], 1)


def joined(dataset: SlideDataset, slide: str, grid: Any, **options: Any) -> Aggregator:
    """Put a slide together of its patches, which nothing changes."""
    whole = Aggregator(
        dataset.shape_of(slide), grid, downsample=dataset.downsample_of(slide), **options
    )
    for batch in build_loader(dataset.of_slide(slide), batch_size=7, num_workers=0):
        whole.add(batch["image"], starts(batch))
    return whole


# --- where patches are ---------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0, 8, 0.25, (3, 17)])
def test_a_grid_covers_each_slide(path: Path, overlap: Any) -> None:
    """Each pixel is in one patch or more; the last of a row ends at the border."""
    dataset = SlideDataset(path, patch=GridPatches((40, 36), overlap=overlap))
    for name, slide in slides().items():
        height, width, _ = slide.image.shape
        seen = np.zeros((height, width), int)
        for item in dataset.of_slide(name):
            y, x = item["y"], item["x"]
            assert y + 40 <= height or height < 40
            seen[max(y, 0) : y + 40, max(x, 0) : x + 36] += 1
        assert seen.min() >= 1
        assert seen.max() <= 9


def test_sizes_along_two_axes_and_one_number(path: Path) -> None:
    """They are the same grid; a share is rounded down along each axis."""
    grids = [GridPatches(32, overlap=0.3), GridPatches((32, 32), overlap=(9, 9))]
    one, other = (SlideDataset(path, patch=grid) for grid in grids)
    assert [item["x"] for item in one] == [item["x"] for item in other]
    assert one.patch == GridPatches((32, 32), overlap=9)


def test_what_patches_of_volumes_print_is_what_it_was() -> None:
    """It is part of what a saved state belongs to."""
    grid = GridPatches(16, overlap=4)
    assert repr(grid) == (
        "GridPatches(per_case=1, size=(16, 16, 16), overlap=(4, 4, 4), output_size=None)"
    )
    assert repr(UniformPatches(8)) == "UniformPatches(per_case=1, size=(8, 8, 8))"
    assert "mpp=0.5" in repr(GridPatches((16, 16), mpp=0.5))


@pytest.mark.parametrize("options", [{"level": -1}, {"mpp": 0.0}, {"level": 1, "mpp": 1.0}])
@pytest.mark.parametrize("kind", [GridPatches, UniformPatches])
def test_how_fine_patches_are_is_checked(kind: Any, options: dict[str, Any]) -> None:
    """A level or a pixel size."""
    with pytest.raises(OptionError, match=r"level|mpp"):
        kind(8, **options)


@pytest.mark.parametrize("given", [(1, 1, 1), (9, 0)])
def test_an_overlap_has_as_many_axes_as_a_size(given: Any) -> None:
    """And leaves a step along each."""
    with pytest.raises(OptionError, match="overlap"):
        GridPatches((8, 8), overlap=given)


# --- put together --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["crop", "mean", "hann", "gaussian"])
@pytest.mark.parametrize("slide", ["slide0", "slide3"])
def test_a_slide_comes_back(path: Path, mode: Any, slide: str) -> None:
    """Of patches that overlap, up to every corner; also one that is smaller than a patch."""
    grid = GridPatches(64, overlap=16)
    result = joined(SlideDataset(path, patch=grid), slide, grid, mode=mode).result()
    image = slides()[slide].image.transpose(2, 0, 1)
    assert result.shape == image.shape
    assert np.abs(result - image.astype(float)).max() <= (0 if mode == "crop" else 1e-3)


@pytest.mark.parametrize("level", [1, 2])
def test_a_level_comes_back(path: Path, level: int) -> None:
    """Starts are pixels of level 0; the result is as fine as the level."""
    grid = GridPatches(24, overlap=4, level=level)
    dataset = SlideDataset(path, patch=grid)
    result = joined(dataset, "slide1", grid).result()
    image = slides()["slide1"].image
    for _ in range(level):
        image = halved(image)
    assert dataset.downsample_of("slide1") == (2**level, 2**level)
    assert np.array_equal(result, image.transpose(2, 0, 1))


@pytest.mark.parametrize("mpp", [0.5, 0.61, 1.0, 1.37, 0.3])
def test_each_patch_of_a_pixel_size_has_its_place(path: Path, mpp: float) -> None:
    """Also where that is no whole number of pixels of level 0."""
    grid = GridPatches(20, overlap=3, mpp=mpp)
    dataset = SlideDataset(path, patch=grid)
    whole = joined(dataset, "slide0", grid)
    height, width = dataset.shape_of("slide0")
    assert whole.missing == 0
    assert whole.result().shape == (3, height, width)
    assert (height, width) == (int(200 * 0.25 / mpp + 1e-6), int(260 * 0.25 / mpp + 1e-6))


def test_a_mask_is_written_by_bands(path: Path, tmp_path: Path) -> None:
    """Of class numbers, to a file of two axes; only unfinished rows are kept."""
    grid = GridPatches(32, overlap=8)
    dataset = SlideDataset(path, patch=grid)
    whole = joined(dataset, "slide0", grid, argmax=True, out=tmp_path / "mask.npy")
    assert whole.unfinished_bytes == 0
    result = whole.result()
    assert isinstance(result, np.memmap)
    assert result.dtype == np.uint8
    assert np.array_equal(np.load(tmp_path / "mask.npy"), slides()["slide0"].image.argmax(-1))


def test_a_model_that_gives_less_than_it_is_shown(path: Path) -> None:
    """Its outputs cover the slide all the same."""
    grid = GridPatches(32, output_size=20)
    dataset = SlideDataset(path, patch=grid)
    whole = Aggregator(dataset.shape_of("slide1"), grid, downsample=1)
    for item in dataset.of_slide("slide1"):
        whole.add(item["image"][:, 6:26, 6:26], (item["y"], item["x"]))
    assert np.array_equal(whole.result(), slides()["slide1"].image.transpose(2, 0, 1))


def test_places_without_tissue_are_filled(path: Path) -> None:
    """A model saw the others only; without being told, the gaps are an error that counts them."""
    patch = TissuePatches(32)
    dataset = SlideDataset(path, patch=patch)
    whole = joined(dataset, "slide0", patch)
    with pytest.raises(SchemaError, match=r"patches are missing: [\d,]+ pixels are not covered"):
        whole.result()
    whole.fill(9)
    result = whole.result()
    image = slides()["slide0"].image.transpose(2, 0, 1)
    shown = result == image
    assert ((result == 9) | shown).all()
    assert 0.3 < shown.mean() < 0.95


def test_nothing_can_be_filled_before_a_patch_came() -> None:
    """Nobody knows channels and dtype."""
    with pytest.raises(SchemaError, match="no patch has been added"):
        Aggregator((8, 8), GridPatches(4)).fill()


@pytest.mark.parametrize("start", [(1, 0), (0, 5), (-4, 0), (8, 8)])
def test_a_patch_from_elsewhere_is_refused(start: tuple[int, int]) -> None:
    """Its start is none of the grid's."""
    with pytest.raises(OptionError, match="no patch of the grid begins at"):
        Aggregator((8, 8), GridPatches(4)).add(np.zeros((1, 4, 4)), start)


@pytest.mark.parametrize(
    ("shape", "start"),
    [((4, 4), (0, 0)), ((2, 1, 4, 4), (0, 0)), ((1, 4, 4), (0, 0, 0)), ((1, 4, 5), (0, 0))],
    ids=str,
)
def test_shapes_of_outputs_are_checked(shape: tuple[int, ...], start: Any) -> None:
    """Outputs have channels and two axes; starts two numbers."""
    with pytest.raises(SchemaError):
        Aggregator((8, 8), GridPatches(4)).add(np.zeros(shape), start)


@pytest.mark.parametrize("downsample", [0, -1, "2", (1, 2, 3)], ids=str)
def test_a_factor_is_a_number(downsample: Any) -> None:
    """Above 0."""
    with pytest.raises(OptionError, match="downsample"):
        Aggregator((8, 8), GridPatches(4), downsample=downsample)


# --- masks in levels -----------------------------------------------------------------------------


def test_a_mask_becomes_a_store_of_levels(tmp_path: Path) -> None:
    """Each has every second pixel of the one below; a file is mapped, not loaded."""
    mask = np.random.default_rng(0).integers(0, 5, (301, 170), np.uint8)
    np.save(tmp_path / "mask.npy", mask)
    out = mask_pyramid(
        tmp_path / "mask.npy", tmp_path / "mask.lmdb", key="slide7", downsample=4, mpp=1.0,
        tile=64, class_names=["none", "tumour"],
    )  # fmt: skip
    store = Store(out)
    array = store.array(store.index_of("slide7"), "mask")
    assert array.levels == ((301, 170), (151, 85), (76, 43), (38, 22))
    assert array.attrs == {"downsamples": [4.0, 8.0, 16.0, 32.0], "mpp": [1.0, 1.0]}
    assert store.attrs["class_names"] == ["none", "tumour"]
    for level in range(4):
        assert np.array_equal(array.level(level)[()], mask[:: 2**level, :: 2**level])


@pytest.mark.parametrize(
    "mask", [np.zeros((3, 4)), np.zeros((3, 4, 5), int), np.zeros((0, 4), int)]
)
def test_a_mask_is_whole_numbers_along_two_axes(tmp_path: Path, mask: Values) -> None:
    """Means of classes are none."""
    with pytest.raises(SchemaError, match="whole numbers"):
        mask_pyramid(mask, tmp_path / "x.lmdb")


def test_a_store_of_masks_is_not_replaced(tmp_path: Path) -> None:
    """Unless that is asked for."""
    mask = np.ones((9, 9), np.uint8)
    mask_pyramid(mask, tmp_path / "x.lmdb")
    with pytest.raises(StoreExistsError):
        mask_pyramid(mask, tmp_path / "x.lmdb")
    mask_pyramid(mask * 2, tmp_path / "x.lmdb", force=True)
    assert Store(tmp_path / "x.lmdb").array(0, "mask")[0, 0] == 2


# --- sections cut short --------------------------------------------------------------------------


def test_levels_with_uneven_factors_have_their_places(tmp_path: Path) -> None:
    """A scanner's levels need not be halves: downsample 4.0016."""
    image = picture(403, 331)
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=image, levels=3)})
    grid = GridPatches(16, level=2)
    dataset = SlideDataset(tmp_path / "x.lmdb", patch=grid)
    whole = joined(dataset, "a", grid)
    assert whole.missing == 0
