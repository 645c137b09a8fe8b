"""HeatMap: a number for each patch becomes a map of the slide."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slide_stores import slides, write_slides

from sharedds.datasets.slides import SlideDataset
from sharedds.errors import OptionError, SchemaError
from sharedds.loader import build_loader
from sharedds.patches import GridPatches, HeatMap, TissuePatches, UniformPatches


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four slides."""
    return write_slides(tmp_path_factory.mktemp("slides") / "x.lmdb", slides())


def test_an_element_is_a_patch() -> None:
    """Where patches do not overlap, whatever the order they come in."""
    values = np.arange(12.0).reshape(3, 4)
    heat = HeatMap((96, 128), GridPatches(32))
    for place in random.Random(0).sample(range(12), 12):
        row, column = divmod(place, 4)
        heat.add(values[row, column], (32 * row, 32 * column))
    assert heat.downsample == (32.0, 32.0)
    assert heat.result().dtype == np.float32
    assert np.array_equal(heat.result(), values)


def test_where_patches_overlap_their_mean_stands() -> None:
    """Weighted by how much of the element each covers."""
    heat = HeatMap((40, 80), GridPatches(40, overlap=10), step=10)
    heat.add(torch.tensor([1.0, 3.0]), torch.tensor([[0, 0], [0, 30]]))
    assert heat.result()[0].tolist()[:7] == [1, 1, 1, 2, 3, 3, 3]
    part = HeatMap((10, 20), GridPatches((10, 15)), step=10)
    part.add([1.0, 4.0], [(0, 0), (0, 5)])
    assert part.result().tolist() == [[2.0, 3.0]]


def test_patches_that_end_at_the_border_are_where_they_are() -> None:
    """The last element is as much of them as lies in it."""
    heat = HeatMap((50, 50), GridPatches(40))
    assert heat.shape == (2, 2)
    heat.add([1.0, 3.0, 1.0, 3.0], [(0, 0), (0, 10), (10, 0), (10, 10)])
    assert np.allclose(heat.result()[:, 1], 3)
    assert np.allclose(heat.result()[0, 0], (40 * 1 + 30 * 3) / 70)


def test_several_numbers_of_a_patch_are_channels() -> None:
    """Such as the probabilities of classes."""
    heat = HeatMap((20, 20), GridPatches(10))
    heat.add(np.eye(4), [(0, 0), (0, 10), (10, 0), (10, 10)])
    assert heat.result().shape == (2, 2, 4)
    assert np.array_equal(heat.result().reshape(4, 4), np.eye(4))


@pytest.mark.parametrize(
    "patch", [GridPatches(16, overlap=4), GridPatches(14, mpp=0.9), UniformPatches(20, per_case=90),
              TissuePatches(16, level=1, jitter=True)]
)  # fmt: skip
def test_a_map_shows_where_tissue_is(path: Path, patch: Any) -> None:
    """With what items say of themselves, at any level and pixel size, and from anywhere."""
    dataset = SlideDataset(path, patch=patch)
    heat = HeatMap(
        dataset.shape_of("slide0"), patch, downsample=dataset.downsample_of("slide0"), step=5
    )
    for batch in build_loader(dataset.of_slide("slide0"), batch_size=8, num_workers=0):
        heat.add(batch["tissue"], torch.stack([batch["y"], batch["x"]], 1))
    found = heat.result()
    tissue = slides()["slide0"].tissue
    assert tissue is not None
    y, x = (
        np.minimum(((np.arange(count) + 0.5) * size).astype(int), side - 1)
        for count, size, side in zip(found.shape, heat.downsample, tissue.shape, strict=True)
    )
    wanted = tissue[np.ix_(y, x)]
    known = ~np.isnan(found)
    assert known.mean() > 0.4
    assert np.corrcoef(found[known], wanted[known])[0, 1] > 0.45


def test_what_was_not_shown_to_the_model_is_not_a_number(path: Path) -> None:
    """Patches of tissue leave gaps."""
    patch = TissuePatches(32)
    dataset = SlideDataset(path, patch=patch)
    heat = HeatMap(dataset.shape_of("slide0"), patch)
    for item in dataset.of_slide("slide0"):
        heat.add(1.0, (item["y"], item["x"]))
    found = heat.result()
    assert np.isnan(found).any()
    assert (found[~np.isnan(found)] == 1).all()


def test_a_padded_patch_counts_where_the_slide_is(path: Path) -> None:
    """The slide is smaller than its one patch."""
    patch = GridPatches(80)
    dataset = SlideDataset(path, patch=patch)
    [item] = list(dataset.of_slide("slide3"))
    heat = HeatMap(dataset.shape_of("slide3"), patch, step=20)
    heat.add(5.0, (item["y"], item["x"]))
    assert heat.result().tolist() == [[5.0] * 3] * 3


@pytest.mark.parametrize(
    ("values", "start"),
    [(1.0, (0, 0, 0)), ([1.0, 2.0], [(0, 0)]), (np.ones((1, 2, 2)), [(0, 0)]), ("a", (0, 0)),
     ([[1.0], [2.0, 3.0]], [(0, 0), (0, 8)])],
    ids=["three axes", "too few starts", "pixels", "text", "uneven"],
)  # fmt: skip
def test_values_have_a_shape(values: Any, start: Any) -> None:
    """The text says which is expected."""
    with pytest.raises(SchemaError):
        HeatMap((16, 16), GridPatches(8)).add(values, start)


def test_all_patches_have_as_many_channels() -> None:
    """The first one decides; nothing at all is no map."""
    heat = HeatMap((16, 16), GridPatches(8))
    with pytest.raises(SchemaError, match="no patch has been added"):
        heat.result()
    heat.add([1.0, 2.0], (0, 0))
    with pytest.raises(SchemaError, match="the patches before"):
        heat.add(1.0, (0, 8))


@pytest.mark.parametrize(
    "options", [{"downsample": 0}, {"step": 0}, {"shape": (4, 4, 4)}, {"patches": None},
                {"shape": (1 << 20, 1 << 20), "step": 1}],
    ids=str,
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    """With the value; a map that nobody could hold is refused before it is made."""
    with pytest.raises(OptionError):
        HeatMap(**{"shape": (16, 16), "patches": GridPatches(8), **options})
