"""Patches drawn by class: every voxel equally likely, the promised share, nothing but one block."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from volume_stores import Volume, is_padded, numbered, write_volumes

from sharedds.datasets.volume_cases import StoredVolumes
from sharedds.datasets.volume_sources import VolumeCase
from sharedds.errors import CorruptDataError, OptionError
from sharedds.patches import ForegroundPatches, Location, Patches, WeightedPatches

SHAPE = (40, 36, 30)
SIZE = (16, 16, 16)


def labels() -> dict[str, npt.NDArray[np.uint8]]:
    """Return labels with nothing, with one voxel, with a far corner, and with two classes."""
    made = {name: np.zeros(SHAPE, np.uint8) for name in "ABCD"}
    made["B"][0, 0, 0] = 1
    made["C"][32:, 28:, 22:] = 1
    made["D"][5:25, 5:25, 5:25] = 1
    made["D"][38:, 20:25, 10] = 2
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the four cases."""
    folder = tmp_path_factory.mktemp("volumes")
    cases = {name: Volume(image=numbered(SHAPE), label=label) for name, label in labels().items()}
    return write_volumes(folder / "x.lmdb", cases)


@pytest.fixture(scope="module")
def source(path: Path) -> StoredVolumes:
    """Its cases."""
    return StoredVolumes(path, 1 << 20)


def draws(case: VolumeCase, patches: Patches, count: int, seed: int = 0) -> Iterator[Location]:
    """Yield patches of some visits."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        numbers = generator.random((patches.per_case, patches.uniforms))
        yield from patches.locations(case, 0, numbers)


def chi_square(counts: Sequence[int], expected: float) -> float:
    """Return the statistic."""
    return float(np.square(np.array(counts) - expected).sum() / expected)


# --- the share -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["B", "C", "D"])
def test_a_third_of_the_patches_holds_foreground_for_certain(
    source: StoredVolumes, name: str
) -> None:
    """Each of them contains the voxel that was drawn, and that voxel is foreground."""
    case, label = source.open("ABCD".index(name)), labels()[name]
    places = list(draws(case, ForegroundPatches(SIZE, fraction=1 / 3), 3000))
    forced = [place for place in places if place.drawn is not None]
    assert abs(len(forced) - 1000) < 80
    for place in forced:
        assert place.drawn is not None
        assert label[place.drawn] > 0
        inside = zip(place.start, place.drawn, SIZE, strict=True)
        assert all(start <= at < start + p for start, at, p in inside)


@pytest.mark.parametrize("number", range(4), ids="ABCD")
def test_no_patch_is_padded(source: StoredVolumes, number: int) -> None:
    """Voxels at the border are drawn, and patches moved inside."""
    places = draws(source.open(number), ForegroundPatches(SIZE), 500)
    assert not any(is_padded(place, SHAPE) for place in places)


def test_the_corner_is_drawn_and_its_patch_moved_inside(source: StoredVolumes) -> None:
    """Where centres closer than half a patch are erased, this voxel is never seen."""
    places = draws(source.open(1), ForegroundPatches(SIZE, fraction=1), 50)
    assert {(place.start, place.drawn) for place in places} == {((0, 0, 0), (0, 0, 0))}


@pytest.mark.parametrize(("per_case", "fraction"), [(4, 0.5), (3, 1 / 3), (5, 0.7)])
def test_several_patches_of_a_visit_keep_to_the_share(
    source: StoredVolumes, per_case: int, fraction: float
) -> None:
    """It is met at each visit as closely as whole numbers allow, and exactly on average."""
    patches = ForegroundPatches(SIZE, fraction=fraction, per_case=per_case)
    places = list(draws(source.open(3), patches, 600))
    hits = [place.drawn is not None for place in places]
    each = np.array(hits).reshape(-1, per_case).sum(axis=1)
    wanted = per_case * fraction
    assert set(each.tolist()) <= {math.floor(wanted + 1e-9), math.ceil(wanted - 1e-9)}
    assert abs(each.mean() - wanted) < 0.08


@pytest.mark.parametrize("fraction", [0, 1])
def test_a_share_of_nothing_and_of_all(source: StoredVolumes, fraction: int) -> None:
    """Are what they say."""
    places = draws(source.open(2), ForegroundPatches(SIZE, fraction=fraction, per_case=3), 40)
    assert {place.drawn is not None for place in places} == {bool(fraction)}


# --- which voxel ---------------------------------------------------------------------------------


def test_all_voxels_of_a_class_are_equally_likely(source: StoredVolumes) -> None:
    """Of 512 voxels in a corner, over 8 blocks of different sizes; 511 degrees, 99.95 %: 620."""
    places = draws(source.open(2), ForegroundPatches(SIZE, fraction=1), 5120)
    counts = collections.Counter(place.drawn for place in places)
    assert len(counts) == 512
    assert chi_square(list(counts.values()), 10) < 620


def test_classes_are_equally_likely_whatever_their_size(source: StoredVolumes) -> None:
    """8,000 voxels of one and 10 of the other; these are drawn evenly (9 degrees, 99.9 %: 28)."""
    label = labels()["D"]
    places = list(draws(source.open(3), ForegroundPatches(SIZE, fraction=1), 5120))
    small = [place.drawn for place in places if place.drawn and label[place.drawn] == 2]
    assert abs(len(small) - 2560) < 150
    counts = collections.Counter(small)
    assert len(counts) == 10
    assert chi_square(list(counts.values()), len(small) / 10) < 28


def test_any_voxel_of_foreground(source: StoredVolumes) -> None:
    """10 of 8,010 voxels are drawn as rarely as they are."""
    label = labels()["D"]
    patches = ForegroundPatches(SIZE, fraction=1, classes="any")
    found = [label[place.drawn] for place in draws(source.open(3), patches, 4000) if place.drawn]
    assert len(found) == 4000
    assert np.count_nonzero(np.array(found) == 2) < 20


@pytest.mark.parametrize(
    ("classes", "share"), [([2], 1.0), ((1, 2, 9), 0.5), ({1: 1, 2: 3}, 0.75), ({1: 0, 2: 5}, 1.0)],
    ids=["list", "some that are not there", "odds", "odds of nothing"],
)  # fmt: skip
def test_classes_can_be_chosen(source: StoredVolumes, classes: Any, share: float) -> None:
    """By a list, equally likely, or by odds; of those that the case has."""
    label = labels()["D"]
    patches = ForegroundPatches(SIZE, fraction=1, classes=classes)
    found = [label[place.drawn] for place in draws(source.open(3), patches, 2000) if place.drawn]
    assert len(found) == 2000
    assert abs(np.mean(np.array(found) == 2) - share) < 0.05


def test_weights_are_those_of_voxels(source: StoredVolumes) -> None:
    """Background is a class here: 34,190 voxels of 1, 8,000 of 2 and 10 of 1,000."""
    label = labels()["D"]
    patches = WeightedPatches(SIZE, weights={0: 1, 1: 2, 2: 1000})
    found = [label[place.drawn] for place in draws(source.open(3), patches, 4000) if place.drawn]
    background = int((label == 0).sum())
    weights = np.array([background, 16000, 10000])
    expected = 4000 * weights / weights.sum()
    counts = np.bincount(found, minlength=3)
    assert np.square(counts - expected).dot(1 / expected) < 13.8  # 2 degrees, 99.9 %


def test_negative_classes_are_no_foreground(tmp_path: Path) -> None:
    """They mark what is to be ignored; named, they can be drawn."""
    label = np.zeros((9, 9, 9), np.int8)
    label[4, 4, 4], label[0, 8, 3] = 1, -1
    write_volumes(tmp_path / "x.lmdb", {"a": Volume(image=numbered(label.shape), label=label)})
    case = StoredVolumes(tmp_path / "x.lmdb", 0).open(0)
    for classes, voxel in ((None, (4, 4, 4)), ("any", (4, 4, 4)), ([-1], (0, 8, 3))):
        patches = ForegroundPatches(3, fraction=1, classes=classes)  # type: ignore[arg-type]
        assert {place.drawn for place in draws(case, patches, 20)} == {voxel}


def test_a_class_that_is_named_twice_is_no_likelier() -> None:
    """A list says which, and odds say how often."""
    plain = ForegroundPatches(8, classes=[1, 2])
    assert ForegroundPatches(8, classes=[1, 2, 1]) == plain
    assert ForegroundPatches(8, classes=np.array([1, 2])) == plain  # type: ignore[arg-type]


def test_every_voxel_has_one_number(source: StoredVolumes) -> None:
    """Counting through a class meets each of its voxels once."""
    case, label = source.open(3), labels()["D"]
    found = {case.locate(1, number) for number in range(case.voxels(1))}
    assert found == set(map(tuple, np.argwhere(label == 1).tolist()))


# --- nothing to draw -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "patches",
    [ForegroundPatches(SIZE, fraction=1), WeightedPatches(SIZE, weights={1: 1}),
     ForegroundPatches(SIZE, fraction=1, classes=[7])],
    ids=["foreground", "weights", "a class"],
)  # fmt: skip
def test_a_case_without_foreground_gives_patches_from_anywhere(
    source: StoredVolumes, patches: Patches
) -> None:
    """They say so, and lie as patches at random do."""
    places = list(draws(source.open(0), patches, 200))
    assert all(place.is_fallback and place.drawn is None for place in places)
    assert len({place.start for place in places}) > 190


# --- what is read --------------------------------------------------------------------------------


def test_one_block_of_the_label_is_read_and_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the class has: the naive way reads the label to list its voxels."""
    source = StoredVolumes(path, 0)
    case = source.open(3)
    _ = case.classes
    asked: list[list[int]] = []
    label: Any = case
    inner = label._label._read_blocks

    def watched(level: int, numbers: list[int]) -> Any:
        asked.append(numbers)
        return inner(level, numbers)

    monkeypatch.setattr(label._label, "_read_blocks", watched)
    for _ in draws(case, ForegroundPatches(SIZE, fraction=1), 20):
        pass
    assert [len(numbers) for numbers in asked] == [1] * 20


def test_counts_that_are_not_true_are_found(tmp_path: Path) -> None:
    """A table that was made of another label is damage, and not a voxel of another class."""
    label = np.zeros((9, 9, 9), np.uint8)
    label[4, 4, 4] = 1
    made = tmp_path / "x.lmdb"
    write_volumes(made, {"a": Volume(image=numbered(label.shape), label=label)})
    case: Any = StoredVolumes(made, 0).open(0)
    case._table = ({1: 3}, {1: slice(0, 1)})
    with pytest.raises(CorruptDataError, match=r"case 'a'.*pack it again"):
        case.locate(1, 1)
    case._table = ({1: 1}, {1: slice(0, 9)})
    with pytest.raises(CorruptDataError, match="case 'a'"):
        case.locate(1, 0)


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"fraction": -0.1}, {"fraction": 1.1}, {"fraction": "half"}, {"fraction": True},
     {"fraction": math.nan}, {"classes": []}, {"classes": "all"}, {"classes": [1.5]},
     {"fraction": np.ones(2)}, {"classes": 3}, {"classes": {1: -1}}, {"classes": {1: 0}},
     {"classes": {"liver": 1}}],
    ids=str,
)  # fmt: skip
def test_options_of_foreground_are_checked(options: dict[str, Any]) -> None:
    """All else is refused, with the value."""
    with pytest.raises(OptionError, match=r"fraction|class"):
        ForegroundPatches(8, **options)


@pytest.mark.parametrize("weights", [{}, {1: 0}, {1: -2}, {1: math.inf}, [1, 2], {True: 1},
                                     {1: np.ones(2)}], ids=str)  # fmt: skip
def test_weights_are_checked(weights: Any) -> None:
    """Something has to be left to draw."""
    with pytest.raises(OptionError, match="weights"):
        WeightedPatches(8, weights=weights)
