"""Transforms of other packages on volumes: they take plain dictionaries of tensors, or subjects."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from volume_stores import one_by_one, volumes, write_volumes

from sharedds.datasets.volumes import VolumeDataset
from sharedds.patches import ForegroundPatches, GridPatches


def imported(name: str) -> Any:
    """Return a package, or skip; what it warns of when it is loaded is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five cases."""
    return write_volumes(tmp_path_factory.mktemp("volumes") / "x.lmdb", volumes())


class Mirror:
    """A transform of dictionaries as such packages write them, with no package."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the dictionary with some entries mirrored along the first axis of space."""
        return {name: data[name].flip(1) if name in self.keys else data[name] for name in data}


def test_a_transform_of_dictionaries_is_called_for_each_patch(path: Path) -> None:
    """It sees the channel first, as (channels, i, j, k), and both image and label."""
    patch = ForegroundPatches((8, 8, 7), per_case=2)
    plain = one_by_one(VolumeDataset(path, patch=patch), [2])[0]
    mirrored = VolumeDataset(path, patch=patch, dict_transform=Mirror(("image", "label")))
    item = one_by_one(mirrored, [2])[0]
    assert torch.equal(item["image"], plain["image"].flip(2))
    assert torch.equal(item["label"], plain["label"].flip(2))
    assert torch.equal(item["start"], plain["start"])


def test_transforms_of_monai(path: Path) -> None:
    """Intensities and orientations of dictionaries; image and label change together."""
    transforms = imported("monai.transforms")
    chain = transforms.Compose(
        [
            transforms.ScaleIntensityRanged(
                "image", a_min=-1000, a_max=1000, b_min=0, b_max=1, clip=True
            ),
            transforms.Flipd(("image", "label"), spatial_axis=0),
            transforms.RandRotate90d(("image", "label"), prob=1.0, max_k=1, spatial_axes=(0, 1)),
        ]
    )
    patch = ForegroundPatches((8, 8, 7), fraction=1)
    plain = one_by_one(VolumeDataset(path, patch=patch), [2])[0]
    item = one_by_one(VolumeDataset(path, patch=patch, dict_transform=chain), [2])[0]
    image, label = (
        np.rot90(plain[name].numpy()[:, ::-1], axes=(1, 2)) for name in ("image", "label")
    )
    assert np.allclose(np.asarray(item["image"]), (image + 1000) / 2000, atol=1e-6)
    assert np.array_equal(np.asarray(item["label"]), label)
    assert item["case"] == plain["case"]


def test_tensors_of_monai_know_where_a_patch_is(path: Path) -> None:
    """With the affine of the patch, so that what resamples by it is right."""
    data = imported("monai.data")
    transforms = imported("monai.transforms")

    def placed(item: dict[str, Any]) -> dict[str, Any]:
        for name in ("image", "label"):
            item[name] = data.MetaTensor(item[name], affine=item["affine"])
        return item

    chain = transforms.Compose(
        [placed, transforms.Orientationd(("image", "label"), axcodes="RAS", labels=None)]
    )
    patch = GridPatches((8, 8, 4))
    plain = VolumeDataset(path, patch=patch)[3]
    item = VolumeDataset(path, patch=patch, dict_transform=chain)[3]
    # The stored axes point to the left and to the back.
    assert np.array_equal(np.asarray(item["image"]), plain["image"].numpy()[:, ::-1, ::-1])
    corner = plain["affine"].numpy() @ [7, 7, 0, 1]
    assert np.allclose(np.asarray(item["image"].affine)[:, 3], corner)


def test_subjects_of_torchio(path: Path) -> None:
    """Made of the dictionary; space is that of the patch, and several patches stay a list."""
    torchio = imported("torchio")

    def subject(item: dict[str, Any]) -> Any:
        affine = item["affine"].numpy()
        return torchio.Subject(
            image=torchio.ScalarImage(tensor=item["image"], affine=affine),
            label=torchio.LabelMap(tensor=item["label"], affine=affine),
            case=item["case"],
        )

    flip = torchio.Flip(axes=(0,))
    patch = ForegroundPatches((8, 8, 7), fraction=1, per_case=2)
    plain = one_by_one(VolumeDataset(path, patch=patch), [2])[0]
    dataset = VolumeDataset(path, patch=patch, dict_transform=lambda item: flip(subject(item)))
    made = one_by_one(dataset, [2])[0]
    assert len(made) == 2
    for number, each in enumerate(made):
        assert torch.equal(each["image"].data, plain["image"][number].flip(1))
        assert torch.equal(each["label"].data, plain["label"][number].flip(1))
        assert np.allclose(each.spacing, np.linalg.norm(plain["affine"][number, :3, :3], axis=0))


def test_batches_of_what_monai_changed(path: Path) -> None:
    """Collated by torch, several patches of a case in an axis of their own."""
    transforms = imported("monai.transforms")
    dataset = VolumeDataset(
        path,
        patch=ForegroundPatches((8, 8, 7), per_case=2),
        dict_transform=transforms.NormalizeIntensityd("image"),
    )
    batch = default_collate([dataset[0], dataset[2]])
    assert batch["image"].shape == (2, 2, 1, 8, 8, 7)
    assert batch["case"] == ["case0", "case2"]
    assert abs(float(batch["image"].mean())) < 1e-3
