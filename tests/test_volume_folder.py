"""VolumeDataset straight on a folder: files that can be mapped, and those that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from volume_stores import AFFINE, numbered, same, volumes, write_volumes

from sharedds.datasets.volumes import VolumeDataset
from sharedds.errors import DecodeError, OptionError, SchemaError, SourceError
from sharedds.patches import ForegroundPatches, GridPatches, UniformPatches
from sharedds.testing import assert_same_stream

nibabel = pytest.importorskip("nibabel", reason="NIfTI files need nibabel")

# Some of the patches are larger than some of the volumes, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch .* padded, being larger:UserWarning")


def nifti(path: Path, values: Any, affine: Any = AFFINE, **scaling: float) -> None:
    """Write a NIfTI file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = nibabel.Nifti1Image(values, affine)
    if scaling:
        made.header.set_slope_inter(scaling["slope"], scaling["intercept"])
    nibabel.save(made, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images and labels, paired by name; one in a folder of its own."""
    for number, (name, made) in enumerate(volumes().items()):
        inner = f"{name}.nii" if number else f"ward/{name}.nii"
        nifti(tmp_path / "images" / inner, made.image)
        nifti(tmp_path / "labels" / inner, made.label)
    return tmp_path


def test_a_folder_gives_what_its_store_gives(folder: Path) -> None:
    """Voxels, labels, affines and places, to the bit."""
    path = write_volumes(folder / "x.lmdb", volumes())
    packed = VolumeDataset(path, patch=GridPatches(6))
    mapped = VolumeDataset(folder, patch=GridPatches(6))
    assert mapped.cases[-1] == "ward/case0"
    for number in range(1, 5):
        one, other = packed.of_case(f"case{number}"), mapped.of_case(f"case{number}")
        for first, second in zip(one, other, strict=True):
            assert torch.allclose(first.pop("affine"), second.pop("affine"), atol=1e-5)
            assert same(first, second)


def test_arrays_without_labels_are_read_as_they_are(tmp_path: Path) -> None:
    """They have no place in space."""
    values = np.random.default_rng(0).normal(size=(7, 8, 9))
    np.save(tmp_path / "a.npy", values)
    item = VolumeDataset(tmp_path)[0]
    assert item["image"].dtype == torch.float32
    assert np.array_equal(item["image"][0], values.astype(np.float32))
    assert np.array_equal(item["affine"], np.eye(4))
    assert "label" not in item


def test_files_are_scaled_as_their_headers_say(tmp_path: Path) -> None:
    """Slope and intercept are applied to what was cut."""
    values = numbered((6, 7, 8), np.int16)
    nifti(tmp_path / "a.nii", values, slope=0.5, intercept=-10)
    stored = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj.get_unscaled())
    item = VolumeDataset(tmp_path, patch=GridPatches((6, 7, 8)))[0]
    assert np.allclose(item["image"][0], stored * 0.5 - 10)


def test_a_folder_of_files_that_nobody_counted_draws_no_classes(folder: Path) -> None:
    """The advice is to pack it."""
    with pytest.raises(OptionError, match="pack the folder"):
        VolumeDataset(folder, patch=ForegroundPatches(4))


def test_compressed_files_are_refused(tmp_path: Path) -> None:
    """They cannot be mapped; the text says what can be done."""
    nifti(tmp_path / "a.nii.gz", numbered((4, 4, 4), np.int16))
    with pytest.raises(SourceError, match=r"a\.nii\.gz: is compressed \(gzip\).*Pack the folder"):
        VolumeDataset(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """With what could be in it."""
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(SourceError, match="no volume found"):
        VolumeDataset(tmp_path)


def test_a_label_of_another_shape_is_refused(folder: Path) -> None:
    """With both shapes."""
    nifti(folder / "labels" / "case1.nii", np.zeros((9, 30, 11), np.uint8))
    with pytest.raises(SchemaError, match=r"\(9, 30, 12\).*\(9, 30, 11\)"):
        VolumeDataset(folder)


def test_a_label_without_an_image_is_refused(folder: Path) -> None:
    """It may be one that was misnamed."""
    nifti(folder / "labels" / "case9.nii", np.zeros((9, 30, 11), np.uint8))
    with pytest.raises(SourceError, match="a label without an image"):
        VolumeDataset(folder)


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    """Which of them is meant nobody can know."""
    np.save(folder / "images" / "case1.npy", np.zeros((9, 30, 12)))
    with pytest.raises(SourceError, match=r"case1.*too"):
        VolumeDataset(folder)


def test_a_label_of_fractions_is_damage(folder: Path) -> None:
    """Whole numbers kept as floats are labels, others are not."""
    whole = volumes()["case1"].label
    assert whole is not None
    nifti(folder / "labels" / "case1.nii", whole.astype(np.float32))
    item = VolumeDataset(folder).of_case("case1")[0]
    assert np.array_equal(item["label"][0], whole)
    nifti(folder / "labels" / "case1.nii", whole.astype(np.float32) / 2)
    with pytest.raises(DecodeError, match="no whole numbers"):
        VolumeDataset(folder).of_case("case1")[0]
    nifti(folder / "labels" / "case1.nii", whole.astype(np.int16) * 200)
    with pytest.raises(DecodeError, match="no whole numbers of uint8, such as 400"):
        VolumeDataset(folder, label_dtype="uint8").of_case("case1")[0]


def test_a_folder_is_read_the_same_by_workers(folder: Path) -> None:
    """Each maps the files for itself."""
    dataset = VolumeDataset(folder, patch=UniformPatches(5))
    assert_same_stream(dataset, workers=(0, 2), batch_size=2)
