"""TissuePatches: which places of a slide are candidates, and what is drawn of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_stores import Slide, discs, picture, slides, write_slides
from volume_stores import one_by_one

from sharedds.datasets.slides import SlideDataset
from sharedds.errors import CorruptDataError, OptionError
from sharedds.patches import GridPatches, TissuePatches, UniformPatches
from sharedds.store import Store

EMPTY = "ignore:.* have no patch with .*:UserWarning"


@pytest.fixture(scope="module")
def glass(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of slides with a disc of tissue, none, or tissue everywhere."""
    return write_slides(tmp_path_factory.mktemp("slides") / "x.lmdb", discs())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of slides of noise with classes."""
    return write_slides(tmp_path_factory.mktemp("slides") / "x.lmdb", slides())


def corners(dataset: SlideDataset) -> list[tuple[int, int]]:
    """Return where the patches of each item begin, (y, x)."""
    return [(item["y"], item["x"]) for item in dataset]


# --- which places are candidates -----------------------------------------------------------------


@pytest.mark.filterwarnings(EMPTY)
@pytest.mark.parametrize("name", ["disc", "black"])
def test_the_candidates_of_a_disc_are_exact(glass: Path, name: str) -> None:
    """Those cells of which half or more is inside; what was not scanned is no tissue."""
    y, x = np.mgrid[0:1024, 0:1024] + 0.5
    inside = (x - 512) ** 2 + (y - 512) ** 2 < 200**2
    shares = inside.reshape(16, 64, 16, 64).mean((1, 3))
    wanted = [(64 * row, 64 * column) for row, column in np.argwhere(shares >= 0.5).tolist()]
    found = corners(SlideDataset(glass, patch=TissuePatches(64, min_tissue=0.5)).of_slide(name))
    assert len(found) == 32
    assert found == wanted


@pytest.mark.filterwarnings(EMPTY)
@pytest.mark.parametrize(("name", "least", "most"), [("pale", 250, 256), ("tiny", 1, 1)])
def test_pale_tissue_and_a_small_slide_count(glass: Path, name: str, least: int, most: int) -> None:
    """Tissue everywhere is no background; a slide that is smaller than a patch has one."""
    dataset = SlideDataset(glass, patch=TissuePatches(64))
    assert least <= dataset.groups.count(name) <= most


@pytest.mark.filterwarnings(EMPTY)
def test_a_small_slide_is_put_in_the_middle_of_its_patch(glass: Path) -> None:
    """What is outside is background, and does not count."""
    item = SlideDataset(glass, patch=TissuePatches(64)).of_slide("tiny")[0]
    made = discs()["tiny"].image
    assert (item["y"], item["x"]) == (-17, -12)
    assert np.array_equal(item["image"][:, 17:47, 12:52].permute(1, 2, 0), made)
    assert (item["image"][:, :17] == 243).all()
    assert item["tissue"] == 1


def test_a_slide_without_tissue_is_told_once_by_name(glass: Path) -> None:
    """And has no items; a threshold of its own would have split the noise in two."""
    with pytest.warns(UserWarning, match="1 of 5 slides have no patch .*: 'blank'$") as told:
        dataset = SlideDataset(glass, patch=TissuePatches(64))
    assert len(told) == 1
    assert told[0].filename == __file__
    assert len(dataset) == 32 + 32 + 256 + 1
    assert "blank" not in dataset.groups


def test_a_store_of_blank_slides_is_empty(tmp_path: Path) -> None:
    """Its length says so; nothing loops."""
    write_slides(tmp_path / "x.lmdb", {name: discs()["blank"] for name in "ab"})
    with pytest.warns(UserWarning, match="2 of 2 slides"):
        assert len(SlideDataset(tmp_path / "x.lmdb", patch=TissuePatches(64))) == 0


@pytest.mark.filterwarnings(EMPTY)
def test_shares_are_those_of_the_pixels(glass: Path) -> None:
    """Within what a cell that is covered in part may differ from its mean."""
    dataset = SlideDataset(glass, patch=TissuePatches(48, overlap=8)).of_slide("disc")
    tissue = discs()["disc"].tissue
    assert tissue is not None
    for item in dataset:
        y, x = item["y"], item["x"]
        assert abs(tissue[y : y + 48, x : x + 48].mean() - item["tissue"]) < 0.08


@pytest.mark.filterwarnings(EMPTY)
@pytest.mark.parametrize("overlap", [0, 8, 0.5])
@pytest.mark.parametrize("min_tissue", [0.0, 0.31, 0.93])
def test_candidates_are_places_of_the_grid_with_enough(
    path: Path, overlap: float, min_tissue: float
) -> None:
    """The same that an item of the grid says, and all of them, slide by slide, row by row."""
    grid = SlideDataset(path, patch=GridPatches((32, 24), overlap=overlap))
    chosen = SlideDataset(
        path, patch=TissuePatches((32, 24), overlap=overlap, min_tissue=min_tissue)
    )
    wanted = [
        (item["slide"], item["y"], item["x"], float(item["tissue"]))
        for item in grid
        if item["tissue"] >= min_tissue
    ]
    found = [(item["slide"], item["y"], item["x"], float(item["tissue"])) for item in chosen]
    assert [each[:3] for each in found] == [each[:3] for each in wanted]
    assert np.allclose([each[3] for each in found], [each[3] for each in wanted], atol=1e-6)


def test_a_class_can_be_asked_for(path: Path) -> None:
    """By name or by number; only patches that show enough of it."""
    with pytest.warns(UserWarning, match=r"min_tissue=0.2, label='stroma', min_label=0.6.*slide1"):
        named = SlideDataset(
            path, patch=TissuePatches(16, min_tissue=0.2, label="stroma", min_label=0.6)
        )
    with pytest.warns(UserWarning, match="label=1"):
        numbered = named.with_patch(TissuePatches(16, min_tissue=0.2, label=1, min_label=0.6))
    assert corners(named) == corners(numbered)
    assert len(named) > 10
    assert all(item["label"][1] >= 0.6 and item["tissue"] >= 0.2 for item in named)


def test_a_class_that_is_not_there_is_refused(path: Path, glass: Path) -> None:
    """The text names those that are."""
    with pytest.raises(OptionError, match="'tumour', 'stroma'"):
        SlideDataset(path, patch=TissuePatches(16, label="tumor"))
    with pytest.raises(OptionError, match="without polygons"):
        SlideDataset(glass, patch=TissuePatches(16, label=0))
    with pytest.raises(OptionError, match="balance='labels'"):
        SlideDataset(glass, patch=TissuePatches(16, balance="labels"))


def test_a_store_without_maps_is_refused(tmp_path: Path) -> None:
    """It has to be known where tissue is; other patches are cut anyway, and say nothing of it."""
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=picture(90, 70))})
    with pytest.raises(OptionError, match="nobody has counted"):
        SlideDataset(tmp_path / "x.lmdb", patch=TissuePatches(16))
    item = SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(16))[0]
    assert item["tissue"].isnan()


# --- jitter --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(EMPTY)
def test_moved_patches_keep_half_of_the_tissue_asked_for(glass: Path) -> None:
    """And lie within half a step of their place on the grid, inside the slide."""
    still = SlideDataset(glass, patch=TissuePatches(64), slides=["black", "disc", "pale"])
    moved = still.with_patch(TissuePatches(64, jitter=True))
    tissue = discs()["disc"].tissue
    assert tissue is not None
    distances = set()
    for index, before in enumerate(corners(still)):
        item = one_by_one(moved, [index])[0]
        y, x = item["y"], item["x"]
        distances |= {y - before[0], x - before[1]}
        assert 0 <= y <= 960
        assert 0 <= x <= 960
        assert item["tissue"] >= 0.25
        if item["slide"] == "disc":
            assert tissue[y : y + 64, x : x + 64].mean() >= 0.2
    assert min(distances) >= -32
    assert max(distances) <= 32
    assert len(distances) > 40


@pytest.mark.filterwarnings(EMPTY)
def test_a_patch_that_would_lose_its_tissue_hardly_moves(tmp_path: Path) -> None:
    """An island of one patch: half of it is left wherever the patch ends up."""
    tissue = np.zeros((192, 192), bool)
    tissue[64:96, 64:96] = True
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=picture(192, 192), tissue=tissue)})
    patch = TissuePatches(32, overlap=0, min_tissue=1, jitter=True)
    dataset = SlideDataset(tmp_path / "x.lmdb", patch=patch)
    assert len(dataset) == 1
    items = one_by_one(dataset, [0] * 60)
    for item in items:
        y, x = item["y"], item["x"]
        assert tissue[y : y + 32, x : x + 32].mean() >= 0.5
    assert len({(item["y"], item["x"]) for item in items}) > 20


# --- balance -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(EMPTY)
def test_each_slide_comes_equally_often(glass: Path) -> None:
    """Though one has eight times as many places; an epoch is as long as before."""
    plain = SlideDataset(glass, patch=TissuePatches(64))
    dataset = plain.with_patch(TissuePatches(64, balance="slides"))
    assert len(dataset) == len(plain)
    counts = Counter(item["slide"] for item in one_by_one(dataset, range(len(dataset))))
    assert counts == {"black": 80, "disc": 80, "pale": 80, "tiny": 81}
    assert dataset.groups == [name for name, count in sorted(counts.items()) for _ in range(count)]


@pytest.mark.filterwarnings(EMPTY)
def test_each_place_of_a_balanced_slide_is_as_likely(glass: Path) -> None:
    """Drawn anew for each key."""
    plain = SlideDataset(glass, patch=TissuePatches(64), slides=["disc"])
    dataset = plain.with_patch(TissuePatches(64, balance="slides"))
    counts = Counter((item["y"], item["x"]) for item in one_by_one(dataset, [3] * 640))
    assert set(counts) == set(corners(plain))
    assert max(counts.values()) < 45


def test_each_class_comes_equally_often(path: Path) -> None:
    """The class with the largest share; patches without make one more.

    Of a slide without polygons nobody knows the classes: it is left out, by name.
    """
    with pytest.warns(UserWarning, match=r"\(or no polygons\), and so no items: 'slide1'$"):
        dataset = SlideDataset(path, patch=TissuePatches(16, balance="labels", min_label=0.6))
    assert dataset.slides == ("slide0", "slide2", "slide3")
    counts: Counter[int] = Counter()
    for item in dataset:
        shares = item["label"]
        counts[int(shares.argmax()) if shares.max() >= 0.6 else 2] += 1
        assert item["tissue"] >= 0.5
    assert len(counts) == 3
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_part_is_balanced_anew(path: Path) -> None:
    """Over the slides in it, once they are split."""
    dataset = SlideDataset(path, patch=TissuePatches(16))
    part, _ = dataset.split((0.5, 0.5), groups=dataset.groups)
    balanced = part.with_patch(TissuePatches(16, balance="slides"))
    counts = Counter(balanced.groups)
    assert set(counts) == set(part.groups)
    assert max(counts.values()) - min(counts.values()) <= 1


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.filterwarnings(EMPTY)
def test_drawing_reads_no_pixel(tmp_path: Path) -> None:
    """Neither to find candidates nor to draw one: every tile of the store is damaged."""
    path = write_slides(tmp_path / "x.lmdb", slides())
    store = Store(path)
    with path.open("r+b") as file:
        for slide in range(len(store)):
            for number in range(*store.opened.entry_range(slide, "image")):
                offset, length, _ = store.opened.column("@entries")[number].tolist()
                file.seek(offset + length // 2)
                file.write(bytes(8) if length < 100 else bytes(range(8)))
    for patch in (
        TissuePatches(16),
        TissuePatches(16, balance="slides"),
        TissuePatches(16, jitter=True, balance="labels"),
        GridPatches(16),
    ):
        dataset = SlideDataset(path, patch=patch)
        assert len([dataset._drawn([index]) for index in range(len(dataset))]) > 100
        with pytest.raises(CorruptDataError, match="image"):
            _ = dataset[0]


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"size": (4, 4, 4)}, {"size": 4, "level": -1}, {"size": 4, "level": True},
     {"size": 4, "mpp": 0}, {"size": 4, "mpp": "a"}, {"size": 4, "mpp": 1, "level": 1},
     {"size": 4, "min_tissue": 1.1}, {"size": 4, "min_tissue": None}, {"size": 4, "min_label": 0},
     {"size": 4, "overlap": 4}, {"size": 4, "overlap": (1, 1, 1)}, {"size": 4, "balance": "all"},
     {"size": 4, "label": 1.5}, {"size": 4, "label": True}],
    ids=str,
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    """With the value."""
    with pytest.raises(OptionError):
        TissuePatches(**options)
