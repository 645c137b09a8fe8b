"""Volumes are the same however they are loaded: in batches, by workers, after a resume."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from volume_stores import (
    PATCHES,
    case,
    empty,
    keys,
    one_by_one,
    same,
    volumes,
    write_volumes,
)

from sharedds.datasets.offers import batch_maker
from sharedds.datasets.volumes import VolumeDataset
from sharedds.errors import SchemaError
from sharedds.loader import build_loader
from sharedds.order import using_keys
from sharedds.patches import ForegroundPatches, Patches, UniformPatches
from sharedds.testing import assert_same_stream

# Some of the patches are larger than some of the volumes, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch .* padded, being larger:UserWarning")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five cases."""
    return write_volumes(tmp_path_factory.mktemp("volumes") / "x.lmdb", volumes())


@pytest.mark.parametrize("kind", PATCHES)
def test_a_whole_batch_is_what_torch_makes_of_its_items(path: Path, kind: str) -> None:
    """Equal to the bit, random places included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = VolumeDataset(path, patch=PATCHES[kind])
    indices = [3, 0, 4, 3, 1]
    make = batch_maker(dataset)
    assert make is not None
    with using_keys(keys(indices)):
        made = make(indices, empty)
    assert same(made, default_collate(one_by_one(dataset, indices)))


def test_whole_volumes_of_one_shape_make_batches(tmp_path: Path) -> None:
    """Those of several do not."""
    made = {name: case((6, 5, 4), seed=n) for n, name in enumerate("abc")}
    dataset = VolumeDataset(write_volumes(tmp_path / "x.lmdb", made))
    assert dataset.makes_batches
    assert same(dataset.load_batch([2, 0], empty), default_collate([dataset[2], dataset[0]]))


def test_items_that_differ_make_no_batches(path: Path) -> None:
    """Volumes of different shapes, and those for which code of the user runs."""
    assert not VolumeDataset(path).makes_batches
    assert not VolumeDataset(path, patch=UniformPatches(4), scaled=False).makes_batches
    with_code = VolumeDataset(path, patch=UniformPatches(4), dict_transform=dict)
    assert not with_code.makes_batches
    with pytest.raises(SchemaError, match="no whole batches"):
        with_code.load_batch([0], empty)


class Noisy:
    """Adds noise from the generator of the sample, and mirrors image and label."""

    dataset: VolumeDataset

    def __call__(self, image: torch.Tensor, label: torch.Tensor) -> Any:
        """Return both, changed."""
        noise = self.dataset.rng.normal(size=tuple(image.shape)).astype(np.float32)
        if self.dataset.rng.random() < 0.5:
            return (image + torch.from_numpy(noise)).flip(1), label.flip(1)
        return image + torch.from_numpy(noise), label


def noisy(path: Path, patch: Patches) -> VolumeDataset:
    """Return patches with noise."""
    transform = Noisy()
    transform.dataset = VolumeDataset(path, patch=patch, transform=transform)
    return transform.dataset


@pytest.mark.parametrize("kind", ["several", "slices"])
def test_the_stream_does_not_depend_on_workers(path: Path, kind: str) -> None:
    """With none, one and four of them, and with threads."""
    patch = PATCHES[kind]
    assert_same_stream(
        VolumeDataset(path, patch=patch), workers=(0, 1, 4), batch_size=2, samples=12
    )


def test_augmentation_does_not_depend_on_workers(path: Path) -> None:
    """What a transform draws belongs to the sample."""
    dataset = noisy(path, ForegroundPatches(6, fraction=0.5, per_case=2))
    assert_same_stream(dataset, workers=(0, 2), batch_size=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_run_goes_on_where_it_was(path: Path, workers: int, steps: int) -> None:
    """In the middle of an epoch, and in the next one; patches are those that would have come."""
    dataset = VolumeDataset(path, patch=ForegroundPatches(6, fraction=0.5))
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3}

    def stream(loader: Any) -> Any:
        for _ in range(2):
            yield from loader

    loader = build_loader(dataset, num_workers=0, **options)
    batches = stream(loader)
    for _ in range(steps):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)
    resumed = build_loader(dataset, num_workers=workers, **options)
    resumed.load_state_dict(state)
    again = [batch for _ in range(2) for batch in resumed][: len(rest)]
    assert len(rest) == 6 - steps
    assert all(same(*pair) for pair in zip(rest, again, strict=True))


def test_patches_follow_the_seed_of_torch_elsewhere(path: Path) -> None:
    """Without a loader of this package; batches and items alike."""
    dataset = VolumeDataset(path, patch=UniformPatches(5))
    torch.manual_seed(7)
    first = default_collate([dataset[0], dataset[2]])
    torch.manual_seed(7)
    assert same(dataset.load_batch([0, 2], empty), first)
    assert not same(default_collate([dataset[0], dataset[2]]), first)


def test_batches_come_whole_out_of_a_loader(path: Path) -> None:
    """With torch's default collating; also of several threads."""
    dataset = VolumeDataset(path, patch=UniformPatches(5, per_case=2))
    one = list(build_loader(dataset, batch_size=3, shuffle=True, num_workers=0))
    more = list(
        build_loader(dataset, batch_size=3, shuffle=True, num_workers=1, threads_per_worker=2)
    )
    assert one[0]["image"].shape == (3, 2, 1, 5, 5, 5)
    assert all(same(*pair) for pair in zip(one, more, strict=True))
