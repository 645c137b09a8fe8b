"""From a folder through a store to batches: packing changes nothing that training sees."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pictures
import pytest
import torch
from packing import folder, jpeg, put, run_script
from PIL import Image

from sharedds.datasets import ImageDataset
from sharedds.ingest import export, pack

DATA = Path(__file__).parents[2] / "shared" / "data"


def same(one: ImageDataset, other: ImageDataset) -> None:
    """Compare two datasets, picture by picture."""
    assert len(one) == len(other)
    for index in range(len(one)):
        assert one.key(index) == other.key(index)
        assert torch.equal(one[index][0], other[index][0])
        assert one[index][1] == other[index][1]


def test_turned_pictures_are_turned_once_however_often_they_travel(tmp_path: Path) -> None:
    """Folder, store, exported folder and its store all give the same pixels."""
    files = {}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix, name in (("jpg", "JPEG"), ("png", "PNG"), ("tif", "TIFF")):
            data = pictures.save(pictures.smooth(), name, exif=exif)
            files[f"a/{orientation}.{suffix}"] = data
    root = put(tmp_path / "src", files)
    pack(root, tmp_path / "one.lmdb")
    export(tmp_path / "one.lmdb", tmp_path / "back")
    pack(tmp_path / "back", tmp_path / "two.lmdb")
    first = ImageDataset(root)
    for other in ("one.lmdb", "back", "two.lmdb"):
        same(first, ImageDataset(tmp_path / other))


def test_ignored_orientation_stays_ignored_when_read(tmp_path: Path) -> None:
    """The choice lies in the store, so nobody has to repeat it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = pictures.save(pictures.smooth(64, 48), "JPEG", exif=exif)
    root = put(tmp_path / "src", {"a/x.jpg": data})
    pack(root, tmp_path / "as.lmdb", orientation="ignore")
    pack(root, tmp_path / "up.lmdb")
    assert ImageDataset(tmp_path / "as.lmdb")[0][0].shape == (3, 48, 64)
    assert ImageDataset(tmp_path / "up.lmdb")[0][0].shape == (3, 64, 48)


def test_a_test_set_packed_with_the_classes_of_training_agrees(tmp_path: Path) -> None:
    """Numbered when packed, or when read: the labels are the same."""
    train, val = (
        folder(tmp_path / "train", ("a", "b", "c"), 2),
        folder(tmp_path / "v", ("b", "c"), 2),
    )
    pack(train, tmp_path / "train.lmdb")
    pack(val, tmp_path / "fixed.lmdb", classes=tmp_path / "train.lmdb")
    pack(val, tmp_path / "own.lmdb")
    reference = ImageDataset(tmp_path / "train.lmdb")
    fixed = ImageDataset(tmp_path / "fixed.lmdb")
    late = ImageDataset(tmp_path / "own.lmdb", classes=reference)
    assert [fixed[i][1] for i in range(4)] == [late[i][1] for i in range(4)] == [1, 1, 2, 2]
    assert fixed.classes == late.classes == reference.classes == ("a", "b", "c")


TRAIN = """
import sys
from sharedds import ImageDataset, build_loader
loader = build_loader(ImageDataset(sys.argv[1]), batch_size=5, num_workers=2, start_method="fork")
print(sum(len(labels) for _ in range(2) for _, labels in loader))
"""


def test_broken_exif_is_silent_in_training_too(tmp_path: Path) -> None:
    """Two epochs with two workers, from a folder and from a store: not one line of noise."""
    far = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHLL", 1, 0x010F, 2, 10**6, 0x7FFFFFFF)
    files = {}
    for number in range(10):
        files[f"a/{number}.jpg"] = pictures.with_segment(jpeg(number), 0xE1, far + bytes(4))
        files[f"b/{number}.jpg"] = pictures.with_segment(jpeg(number), 0xE1, b"Exif\0\0garbage!")
    root = put(tmp_path / "src", files)
    pack(root, tmp_path / "out.lmdb")
    for source in (root, tmp_path / "out.lmdb"):
        script = "import warnings; warnings.simplefilter('error')\n" + TRAIN
        done = run_script(script, str(source))
        assert (done.returncode, done.stdout, done.stderr) == (0, b"40\n", b"")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real pictures at {DATA}")
def test_real_odd_files_read_the_same_from_folder_and_store(tmp_path: Path) -> None:
    """Palettes, animations, old TIFFs: what can be packed is read alike either way."""
    pack(DATA / "odd", tmp_path / "out.lmdb")
    packed, loose = (ImageDataset(p, depth="8") for p in (tmp_path / "out.lmdb", DATA / "odd"))
    at = {loose.key(index): index for index in range(len(loose))}
    assert len(packed) == len(at) - 1  # a folder also lists the truncated one
    for index in range(len(packed)):
        key = packed.key(index)
        assert torch.equal(packed[index], loose[at[key]]), os.fsencode(key)
