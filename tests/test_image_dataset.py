"""ImageDataset: pictures and labels from a store or a folder, the same either way."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sharedds.datasets import ImageDataset
from sharedds.errors import (
    ClassMismatchError,
    CorruptDataError,
    DecodeError,
    ImageTooLargeError,
    OptionError,
    SampleError,
    SampleIndexError,
    SourceError,
    StoreNotFoundError,
)
from sharedds.ingest import pack
from sharedds.loader import build_loader
from sharedds.order import SampleKey, using_key, using_keys
from sharedds.store import StoreWriter

# How an upright picture is turned to be stored with an EXIF orientation.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def gradient(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """A picture that survives JPEG and has no symmetry."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 6, y * 8, (x + 2 * y + 20 * seed) % 200], -1)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of ten pictures."""
    root = tmp_path / "photos"
    for number, name in enumerate(("a", "b")):
        (root / name).mkdir(parents=True)
        for i in range(10):
            gradient(10 * number + i).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    """The same, packed."""
    pack(photos, tmp_path / "photos.lmdb", progress=False)
    return tmp_path / "photos.lmdb"


def test_a_sample_is_a_tensor_and_a_label(packed: Path) -> None:
    """(C, H, W) uint8 and an int, equal to what Pillow reads."""
    image, label = ImageDataset(packed)[12]
    assert image.dtype == torch.uint8
    assert label == 1
    assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(gradient(12)))


def test_a_folder_and_its_store_give_the_same(photos: Path, packed: Path) -> None:
    """No packing is needed to start, and packing changes nothing."""
    stored, loose = ImageDataset(packed), ImageDataset(photos)
    assert len(stored) == len(loose) == 20
    assert stored.classes == loose.classes == ("a", "b")
    for i in range(20):
        assert stored.key(i) == loose.key(i)
        assert torch.equal(stored[i][0], loose[i][0])
        assert stored[i][1] == loose[i][1] == stored.label(i)


def test_transforms_see_tensor_and_label(packed: Path) -> None:
    """The transform gets the tensor, the target transform the number."""
    dataset = ImageDataset(packed, transform=lambda x: x.shape, target_transform=lambda n: n + 100)
    assert dataset[0] == (torch.Size([3, 30, 40]), 100)


def test_an_error_in_a_transform_names_the_picture(packed: Path) -> None:
    """The note of the error tells which sample it was."""
    dataset = ImageDataset(packed, transform=lambda x: x.no_such_thing)
    with pytest.raises(AttributeError) as caught:
        dataset[3]
    assert any("a/3.png" in note for note in caught.value.__notes__)


def test_pictures_without_classes_come_alone(tmp_path: Path) -> None:
    """A flat folder has no labels; a sample is the picture."""
    gradient(0).save(tmp_path / "x.png")
    dataset = ImageDataset(tmp_path)
    assert dataset.classes is None
    assert dataset.label(0) is None
    assert dataset[0].shape == (3, 30, 40)


def test_a_batch_is_the_same_as_its_samples(packed: Path, photos: Path) -> None:
    """__getitems__ reads ahead and keeps the order asked for."""
    for dataset in (ImageDataset(packed), ImageDataset(photos)):
        for (image, label), i in zip(
            dataset.__getitems__([7, 2, 19, 2]), [7, 2, 19, 2], strict=True
        ):
            assert torch.equal(image, dataset[i][0])
            assert label == dataset[i][1]


def test_the_fingerprint_is_that_of_names_and_labels(photos: Path, packed: Path) -> None:
    """The same in another process or for a touched file; another one when a picture is gone."""
    for source in (photos, packed):
        dataset = ImageDataset(source)
        assert pickle.loads(pickle.dumps(dataset)).fingerprint == dataset.fingerprint
        assert ImageDataset(source).fingerprint == dataset.fingerprint
        assert dataset.subset([1]).fingerprint != dataset.fingerprint
    before = ImageDataset(photos).fingerprint
    os.utime(photos / "a" / "3.png")
    assert ImageDataset(photos).fingerprint == before
    (photos / "a" / "3.png").unlink()
    assert ImageDataset(photos).fingerprint != before


def test_a_transform_has_the_random_numbers_of_its_sample(packed: Path) -> None:
    """The same whether samples are read one by one or as a batch; each its own."""

    class Noisy(ImageDataset):
        def __init__(self, source: Path) -> None:
            super().__init__(source, transform=lambda image: self.rng.random())

    dataset = Noisy(packed)
    keys = [SampleKey(0, 0, index) for index in (3, 1, 2)]
    with using_keys(keys):
        batch = dataset.__getitems__([key.index for key in keys])
    for key, sample in zip(keys, batch, strict=True):
        with using_key(key):
            assert dataset[key.index] == sample
    assert len({number for number, _ in batch}) == 3
    assert not dataset.reads_batches


def test_advice_changes_nothing(photos: Path, packed: Path) -> None:
    """It asks the disk, and leaves errors to the reading."""
    for source in (photos, packed):
        dataset = ImageDataset(source)
        dataset.advise([0, 19, -1])
        dataset.subset([5]).advise([0])
        with pytest.raises(SampleIndexError):
            dataset.advise([20])
    (photos / "a" / "3.png").unlink()
    ImageDataset.advise(dataset, [0])


def test_subset_and_split_copy_nothing(packed: Path) -> None:
    """Parts are disjoint, know their pictures, and pickle small."""
    dataset = ImageDataset(packed)
    train, test = dataset.split([0.75, 0.25], seed=3)
    assert len(train) == 15
    assert len(test) == 5
    names = {part.key(i) for part in (train, test) for i in range(len(part))}
    assert len(names) == 20
    assert len(pickle.dumps(train)) < 3_000
    assert torch.equal(dataset.subset([5, 4])[1][0], dataset[4][0])
    assert dataset.subset(np.arange(10, 20)).subset([-1]).key(0) == "b/9.png"


def test_the_pickle_is_small_whatever_is_indexed(tmp_path: Path) -> None:
    """A list of names grows with the folder; the dataset does not."""
    (tmp_path / "c").mkdir()
    gradient(0).save(tmp_path / "c" / "0.png")
    for i in range(1, 3000):
        os.link(tmp_path / "c" / "0.png", tmp_path / "c" / f"{i}.png")
    dataset = ImageDataset(tmp_path)
    names = [dataset.key(i) for i in range(len(dataset))]
    assert len(pickle.dumps(names)) > 30_000
    assert len(pickle.dumps(dataset)) < 3_000
    assert pickle.loads(pickle.dumps(dataset)).key(2999) == dataset.key(2999)


def test_labels_follow_the_classes_of_another_dataset(tmp_path: Path, photos: Path) -> None:
    """Without a reference class b of the test set is 0; with it, it is 1 as in training."""
    (tmp_path / "val" / "b").mkdir(parents=True)
    gradient(0).save(tmp_path / "val" / "b" / "0.png")
    train = ImageDataset(photos)
    assert ImageDataset(tmp_path / "val").label(0) == 0
    val = ImageDataset(tmp_path / "val", classes=train)
    assert val.label(0) == 1
    assert val.classes == ("a", "b")


def test_an_unknown_class_is_named_with_both_maps(tmp_path: Path, photos: Path) -> None:
    """A class that training never saw is an error, not a number."""
    (tmp_path / "val" / "dog").mkdir(parents=True)
    gradient(0).save(tmp_path / "val" / "dog" / "0.png")
    with pytest.raises(ClassMismatchError, match=r"dog.*'dog': 0.*'a': 0, 'b': 1"):
        ImageDataset(tmp_path / "val", classes=ImageDataset(photos))


def _deep(folder: Path, name: str) -> np.ndarray[Any, Any]:
    pixels = np.linspace(0, 65535, 4096).astype(np.uint16).reshape(64, 64)
    Image.fromarray(pixels).save(folder / name)
    return pixels


def test_sixteen_bits_survive_where_the_first_picture_has_them(tmp_path: Path) -> None:
    """Pillow's own conversion turns nearly all of it white; here every value is kept."""
    pixels = _deep(tmp_path, "deep.png")
    with Image.open(tmp_path / "deep.png") as image:
        naive = np.asarray(image.convert("RGB"))
    assert (naive[..., 0] != pixels // 257).mean() > 0.5
    image = ImageDataset(tmp_path)[0]
    assert image.dtype == torch.uint16
    assert np.array_equal(image[0].numpy(), pixels)


def test_a_stray_deep_picture_is_scaled_with_one_warning(tmp_path: Path) -> None:
    """Among 8-bit pictures it takes their depth, linearly, and says so once."""
    gradient(0, 64, 64).save(tmp_path / "a.png")
    pixels = _deep(tmp_path, "b.png")
    _deep(tmp_path, "c.png")
    dataset = ImageDataset(tmp_path)
    with pytest.warns(UserWarning, match="scaled over 0..65535"):
        image = dataset[1]
    assert image.dtype == torch.uint8
    assert np.abs(image[0].numpy().astype(int) - pixels / 257).max() <= 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataset[2].dtype == torch.uint8
    assert ImageDataset(tmp_path, depth="keep")[1].dtype == torch.uint16
    assert ImageDataset(tmp_path, depth="16")[0].dtype == torch.uint16


def test_grey_colour_alpha_palette_and_deep_stack_in_a_batch(tmp_path: Path) -> None:
    """One class folder of every mode: the naive stack fails, this one has (N, 3, 64, 64)."""
    (tmp_path / "c").mkdir()
    base = gradient(0, 64, 64)
    base.save(tmp_path / "c" / "0.png")
    for number, mode in enumerate(("L", "LA", "RGBA", "P"), 1):
        base.convert(mode).save(tmp_path / "c" / f"{number}.png")
    red = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    red.save(tmp_path / "c" / "5.png")
    files = sorted((tmp_path / "c").iterdir())
    with pytest.raises(ValueError, match="same shape"):
        np.stack([np.asarray(Image.open(f)) for f in files])
    dataset = ImageDataset(tmp_path)
    images, _ = next(iter(build_loader(dataset, batch_size=6, num_workers=0)))
    assert images.shape == (6, 3, 64, 64)
    assert (images[5] == 255).all()
    black = ImageDataset(tmp_path, background=(0, 0, 0))
    assert (black[5][0] == 0).all()


def test_a_mask_keeps_its_class_indices(tmp_path: Path) -> None:
    """Palette indices are labels: conversion to RGB destroys them, mode='index' keeps them."""
    mask = np.zeros((16, 16), np.uint8)
    mask[4:8], mask[8:12], mask[12:] = 1, 7, 255
    image = Image.fromarray(mask).convert("P")
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
    image.save(tmp_path / "mask.png")
    read = ImageDataset(tmp_path, mode="index")[0]
    assert read.shape == (1, 16, 16)
    assert read.unique().tolist() == [0, 1, 7, 255]


@pytest.mark.parametrize("source", ["folder", "store"])
def test_orientation_is_applied_once(tmp_path: Path, source: str) -> None:
    """All eight EXIF orientations of one picture come out upright; read naively, seven are not."""
    folder = tmp_path / "src"
    folder.mkdir()
    upright = np.asarray(gradient(1, 64, 48)).astype(int)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = gradient(1, 64, 48)
        if orientation > 1:
            picture = picture.transpose(STORED_AS[orientation])
        picture.save(folder / f"{orientation}.jpg", quality=95, exif=exif)
    path = folder
    if source == "store":
        path = tmp_path / "x.lmdb"
        pack(folder, path, progress=False)
    dataset = ImageDataset(path)
    for i in range(8):
        with Image.open(folder / f"{i + 1}.jpg") as naive:
            stored = np.asarray(naive).astype(int)
        pixels = dataset[i].permute(1, 2, 0).numpy().astype(int)
        assert pixels.shape == upright.shape
        assert np.abs(pixels - upright).mean() < 6
        wrong = stored.shape != upright.shape or np.abs(stored - upright).mean() > 20
        assert wrong == (i > 0)


def test_raw_pixels_are_read_from_their_column(photos: Path, tmp_path: Path) -> None:
    """A store of raw pixels gives writable tensors of one size and survives no flipped bit."""
    out = tmp_path / "raw.lmdb"
    pack(photos, out, codec="raw", size=(40, 48), progress=False)
    dataset = ImageDataset(out)
    image, label = dataset[11]
    assert image.shape == (3, 40, 48)
    assert label == 1
    image += 1
    raw = bytearray(out.read_bytes())
    at = raw.find(np.ascontiguousarray(dataset[3][0].permute(1, 2, 0).numpy()).tobytes())
    raw[at + 500] ^= 1
    (tmp_path / "bad.lmdb").write_bytes(raw)
    with pytest.raises(CorruptDataError, match="sample 3"):
        ImageDataset(tmp_path / "bad.lmdb")[3]


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    """A truncated JPEG in a folder raises with its path, in a worker too."""
    gradient(0).save(tmp_path / "good.jpg")
    (tmp_path / "bad.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:300])
    dataset = ImageDataset(tmp_path)
    with pytest.raises(DecodeError, match=r"bad\.jpg") as caught:
        dataset[0]
    assert caught.value.sample == 0
    with pytest.raises(SampleError, match=r"bad\.jpg"):
        list(build_loader(dataset, num_workers=1))


def test_a_file_that_vanishes_is_named(photos: Path) -> None:
    """Deleted after the scan: an error with its path."""
    dataset = ImageDataset(photos)
    (photos / "a" / "4.png").unlink()
    with pytest.raises(SourceError, match=r"4\.png"):
        dataset[4]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_gives_the_same_epoch(
    photos: Path, packed: Path, method: str, tmp_path: Path
) -> None:
    """After reading in the parent, two workers give each picture once, in the order asked for."""
    for source in (packed, photos):
        dataset = ImageDataset(source)
        expected = [dataset[i] for i in range(len(dataset))]
        loader = build_loader(dataset, batch_size=3, num_workers=2, start_method=method)
        images = torch.cat([batch for batch, _ in loader])
        labels = torch.cat([batch for _, batch in loader])
        assert torch.equal(images, torch.stack([image for image, _ in expected]))
        assert labels.tolist() == [label for _, label in expected]
        if method == "spawn":
            break  # one run is enough: each costs seconds to import torch


def test_shuffle_mixes_the_classes_and_visits_each_once(tmp_path: Path) -> None:
    """Records lie in class order; the batches do not."""
    for name in ("a", "b"):
        (tmp_path / "src" / name).mkdir(parents=True)
        gradient(0, 8, 8).save(tmp_path / "src" / name / "0000.png")
        for i in range(1, 600):
            os.link(tmp_path / "src" / name / "0000.png", tmp_path / "src" / name / f"{i:04d}.png")
    pack(tmp_path / "src", tmp_path / "x.lmdb", progress=False)
    dataset = ImageDataset(tmp_path / "x.lmdb")
    assert [dataset.key(i) for i in (0, 599, 600)] == ["a/0000.png", "a/0599.png", "b/0000.png"]
    loader = build_loader(dataset, batch_size=32, shuffle=True, seed=1, num_workers=0)
    epochs = [[labels for _, labels in loader] for _ in range(2)]
    for labels in epochs:
        assert all(len(set(batch.tolist())) == 2 for batch in labels[:10])
        assert torch.cat(labels).bincount().tolist() == [600, 600]
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


def test_options_and_numbers_are_checked(packed: Path, tmp_path: Path) -> None:
    """Each bad argument is an error that names it."""
    bad: Any = "sepia"
    with pytest.raises(OptionError, match="sepia"):
        ImageDataset(packed, mode=bad)
    with pytest.raises(OptionError, match="sepia"):
        ImageDataset(packed, depth=bad)
    with pytest.raises(SampleIndexError, match="no sample 20"):
        ImageDataset(packed)[20]
    with pytest.raises(StoreNotFoundError, match=r"nothing\.lmdb"):
        ImageDataset(tmp_path / "nothing.lmdb")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no image found"):
        ImageDataset(tmp_path / "empty")
    with StoreWriter(tmp_path / "other.lmdb", schema={"x": "int64"}) as writer:
        writer.add({"x": 1})
    with pytest.raises(OptionError, match="no field 'image'"):
        ImageDataset(tmp_path / "other.lmdb")


def _own(path: Path, schema: dict[str, str], **values: Any) -> Path:
    with StoreWriter(path, schema=schema) as writer:
        writer.add(values)
    return path


@pytest.mark.parametrize(
    ("kind", "label"),
    [("int64", 3), ("str", "cat"), ("json", {"a": 1}), ("float32", 0.5), ("bool", True)],
)
def test_labels_of_an_own_store_are_what_was_written(tmp_path: Path, kind: str, label: Any) -> None:
    """A label is not always a number; reading a text column as numbers would be wrong silently."""
    picture = np.asarray(gradient(1))
    schema = {"image": "png", "label": kind, "orientation": "str"}
    path = _own(tmp_path / "x.lmdb", schema, image=picture, label=label, orientation="left")
    image, read = ImageDataset(path)[0]
    assert read == label
    assert np.array_equal(image.permute(1, 2, 0).numpy(), picture)


@pytest.mark.parametrize("kind", ["float32[3,8,8]", "uint8[28,28]", "uint8[8,8,5]", "lz4", "str"])
def test_fields_that_are_no_pictures_are_refused(tmp_path: Path, kind: str) -> None:
    """Only pictures and uint8 pixels (H, W, C) are read as images; the error shows the fields."""
    if kind == "str":
        value: Any = "x"
    elif kind == "lz4":
        value = np.zeros((8, 8, 3), np.uint8)
    else:
        dtype, shape = kind[:-1].split("[")
        value = np.zeros([int(n) for n in shape.split(",")], dtype)
    path = _own(tmp_path / "x.lmdb", {"image": kind}, image=value)
    with pytest.raises(OptionError, match="no field 'image' of pictures"):
        ImageDataset(path)


def test_raw_pixels_follow_the_mode(tmp_path: Path) -> None:
    """Grey pixels become RGB; what would have to be computed is refused."""
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    path = _own(tmp_path / "x.lmdb", {"image": "uint8[8,8,1]"}, image=grey)
    assert ImageDataset(path)[0].shape == (3, 8, 8)
    assert ImageDataset(path, mode="L")[0].shape == (1, 8, 8)
    with pytest.raises(DecodeError, match=r"sample 0.*1 channels.*'RGBA'"):
        ImageDataset(path, mode="RGBA")[0]


def test_a_label_out_of_range_is_not_renumbered(tmp_path: Path) -> None:
    """-1 often means unknown; as an index it would be the last class."""
    schema = {"image": "png", "label": "int64"}
    with StoreWriter(tmp_path / "x.lmdb", schema=schema, classes=["b"]) as writer:
        writer.add({"image": np.asarray(gradient(1)), "label": -1})
    dataset = ImageDataset(tmp_path / "x.lmdb", classes=["a", "b"])
    with pytest.raises(ClassMismatchError, match="label -1"):
        dataset[0]


def test_a_bad_first_picture_blames_itself_alone(tmp_path: Path) -> None:
    """The depth comes from the first picture that can be read."""
    for i in range(3):
        gradient(i).save(tmp_path / f"{i}.png")
    (tmp_path / "0.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    dataset = ImageDataset(tmp_path)
    assert dataset[1].shape == (3, 30, 40)
    (tmp_path / "0.png").unlink()
    assert ImageDataset.__getitem__(dataset, 2).shape == (3, 30, 40)
    with pytest.raises(SourceError, match=r"0\.png"):
        dataset[0]


def test_a_picture_over_the_limit_keeps_its_own_error(tmp_path: Path) -> None:
    """It is not damaged, it is large; the error says how to allow it."""
    path = _own(tmp_path / "x.lmdb", {"image": "png"}, image=np.zeros((20, 20), np.uint8))
    with pytest.raises(ImageTooLargeError, match="max_pixels"):
        ImageDataset(path, max_pixels=100)[0]


@pytest.mark.parametrize("name", ["state.json", "data.mdb"])
def test_files_named_like_ours_do_not_hide_the_pictures(tmp_path: Path, name: str) -> None:
    """`state.json` is a common name; only what is inside makes a store or an unfinished pack."""
    gradient(0).save(tmp_path / "1.png")
    (tmp_path / name).write_text('{"epoch": 3}')
    assert len(ImageDataset(tmp_path)) == 1
