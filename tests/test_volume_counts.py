"""What is told of patches that are not as asked for: once an epoch, counted in all processes."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset
from volume_stores import Volume, case, numbered, volumes, write_volumes

from sharedds.datasets.volumes import VolumeDataset
from sharedds.loader import build_loader
from sharedds.patches import ForegroundPatches, GridPatches, WeightedPatches

WAYS: dict[str, dict[str, Any]] = {
    "in this process": {"num_workers": 0},
    "two workers": {"num_workers": 2},
    "workers that stay": {"num_workers": 2, "persistent_workers": True},
    "spawned": {"num_workers": 1, "start_method": "spawn"},
    "threads": {"num_workers": 2, "engine": "thread"},
    "threads of a worker": {"num_workers": 1, "threads_per_worker": 2},
}


def mixed(path: Path) -> VolumeDataset:
    """Return a case without foreground, one that is too small, and a good one."""
    nothing = np.zeros((12, 12, 12), np.uint8)
    some = nothing.copy()
    some[3:6, 3:6, 3:6] = 1
    made = {
        "bare": case((12, 12, 12), label=nothing),
        "good": case((12, 12, 12), label=some),
        "small": case((12, 12, 3), label=some[..., 3:6]),
    }
    write_volumes(path, made)
    return VolumeDataset(path, patch=ForegroundPatches(8, fraction=0.5, per_case=2))


def told(loader: Iterable[Any], epochs: int = 1) -> list[str]:
    """Return the warnings of some loops."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in loader:
                pass
    return [str(each.message) for each in caught if "patch" in str(each.message)]


def line(epoch: int, times: int = 1) -> str:
    """Return what is told of an epoch of :func:`mixed`."""
    patches = "1 patch was" if times == 1 else f"{times} patches were"
    return (
        f"epoch {epoch}: {patches} cut anywhere, since the case has no voxel of the classes asked "
        f"for: 'bare'; {2 * times} patches were padded, being larger than the volume: 'small'"
    )


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_as_asked_for_is_told_in_one_line(tmp_path: Path, way: str) -> None:
    """By the loader, once an epoch, counted over all workers, with the cases named."""
    dataset = mixed(tmp_path / "x.lmdb")
    loader = build_loader(dataset, batch_size=1, shuffle=True, **WAYS[way])
    assert told(loader, epochs=2) == [line(0), line(1)]
    assert not dataset.counts


def test_a_dataset_that_others_wrap_is_told(tmp_path: Path) -> None:
    """By subsets and joins of torch and of this package, each dataset once."""
    dataset = mixed(tmp_path / "x.lmdb")
    whole = list(range(3))
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 0, "shuffle": False}
    assert told(build_loader(Subset(dataset, whole), **options)) == [line(0)]
    twice: Any = ConcatDataset([Subset(dataset, whole), dataset])
    assert told(build_loader(twice, **options)) == [line(0, times=2)]
    assert told(build_loader(dataset + dataset.subset(whole), **options)) == [line(0)] * 2


def test_a_part_counts_for_itself(tmp_path: Path) -> None:
    """The line of one is not about what the other has made."""
    dataset = mixed(tmp_path / "x.lmdb")
    part = dataset.subset([0, 2])
    assert told(build_loader(part, batch_size=1, num_workers=0)) == [line(0)]
    assert not dataset.counts


def test_what_was_made_is_counted_until_it_is_told(tmp_path: Path) -> None:
    """Asked for at any time, also of a copy that went through a pickle."""
    dataset = mixed(tmp_path / "x.lmdb")
    copy = pickle.loads(pickle.dumps(dataset))
    for item in copy:
        del item
    assert dataset.counts.without_foreground == 1
    assert dataset.counts.cases_smaller == ("small",)
    with pytest.warns(UserWarning, match="^epoch 7: 1 patch was cut anywhere"):
        dataset.end_epoch(7)
    assert not dataset.counts


@pytest.mark.parametrize(
    "patch",
    [ForegroundPatches(3, fraction=1, classes=[8, 9]), ForegroundPatches(3, fraction=1),
     WeightedPatches(3, weights={8: 1, 0: 0})],
    ids=["classes that no case has", "nothing but what is ignored", "weights of nothing"],
)  # fmt: skip
def test_nothing_to_draw_anywhere_is_told_of_all_cases(tmp_path: Path, patch: Any) -> None:
    """Three of them are named."""
    label = np.full((5, 4, 3), -1, np.int8)
    made = {f"c{n}": Volume(image=numbered(label.shape), label=label) for n in range(5)}
    dataset = VolumeDataset(write_volumes(tmp_path / "x.lmdb", made), patch=patch)
    (text,) = told(build_loader(dataset, batch_size=5, num_workers=0))
    assert "5 patches were cut anywhere" in text
    assert text.endswith("'c0', 'c1', 'c2' and 2 more cases")


def test_nothing_is_told_where_all_is_well(tmp_path: Path) -> None:
    """No line, and no counts."""
    path = write_volumes(tmp_path / "x.lmdb", volumes())
    dataset = VolumeDataset(path, patch=GridPatches((8, 8, 1)))
    assert not told(build_loader(dataset, batch_size=9, num_workers=0))
    assert not dataset.counts
