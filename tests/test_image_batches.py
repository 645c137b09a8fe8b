"""ImageDataset.load_batch: equal to the bit to what torch collates of single samples."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise, orientation_block, save
from PIL import Image
from torch.utils.data import DataLoader, Subset, default_collate

from sharedds.datasets import ImageDataset
from sharedds.datasets.offers import batch_maker
from sharedds.errors import ClassMismatchError, DecodeError, SampleIndexError, SchemaError
from sharedds.ingest import pack
from sharedds.loader import build_loader
from sharedds.order import SampleKey, using_key, using_keys
from sharedds.store import StoreWriter
from sharedds.views import CenterCrop, Full, RandomCrop, RandomResizedCrop, Resize, View

VIEW = RandomResizedCrop((40, 30), flip=0.5, flip_vertical=0.25)
INDICES = [5, 0, 11, 5, 3, 7, 7, 1]


class Memory:
    """Gives memory, and remembers what it gave."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
    ) -> torch.Tensor:
        """Return a tensor of nonsense."""
        layout = torch.channels_last if channels_last else torch.contiguous_format
        tensor = torch.empty(shape, dtype=dtype, memory_format=layout)
        tensor.fill_(99)
        self.given.append(tensor)
        return tensor


def keys(indices: Sequence[int]) -> list[SampleKey]:
    """Return keys of which no two are equal, though indices may be."""
    return [SampleKey(4, 2, index, draw) for draw, index in enumerate(indices)]


def at_once(dataset: Any, indices: Sequence[int] = INDICES) -> Any:
    """Return the batch that the dataset makes."""
    make = batch_maker(dataset)
    assert make is not None
    with using_keys(keys(indices)):
        return make(list(indices), Memory())


def one_by_one(dataset: Any, indices: Sequence[int] = INDICES) -> Any:
    """Return the batch that torch makes of single samples."""
    samples = []
    for key in keys(indices):
        with using_key(key):
            samples.append(dataset[key.index])
    return default_collate(samples)


def same(one: Any, other: Any) -> bool:
    """Whether two batches are of one type and equal to the bit."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    pairs = zip(one, other, strict=True)
    return type(one) is type(other) and all(same(*pair) for pair in pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of two classes: JPEG in all orientations, and other kinds."""
    root = tmp_path_factory.mktemp("pictures")
    for name in "ab":
        (root / name).mkdir()
    for number in range(12):
        picture = Image.fromarray(noise(50 + number, 90 - 3 * number, 3, seed=number))
        if number < 8:
            data = save(picture, "JPEG", quality=80, exif=orientation_block(number + 1))
        else:
            kind = {8: "RGB", 9: "L", 10: "P", 11: "RGBA"}[number]
            data = save(picture.convert(kind), "PNG")
        (root / "ab"[number % 2] / f"{number:02}").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def kept(folder: Path) -> Path:
    """The same, packed as they are."""
    pack(folder, folder.with_name("kept.lmdb"), progress=False)
    return folder.with_name("kept.lmdb")


@pytest.fixture(scope="module")
def raw(folder: Path) -> Path:
    """The same as finished pixels of 48 x 56."""
    pack(folder, folder.with_name("raw.lmdb"), codec="raw", size=(48, 56), progress=False)
    return folder.with_name("raw.lmdb")


@pytest.mark.parametrize("source", ["folder", "kept", "raw"])
@pytest.mark.parametrize(
    "view",
    [VIEW, RandomCrop(32, flip=0.5), RandomCrop(70), CenterCrop(24), Resize((20, 60))],
    ids=repr,
)
def test_a_batch_is_that_of_its_samples(
    source: str, view: View, request: pytest.FixtureRequest
) -> None:
    """Folder, store of files, store of pixels: images and labels."""
    dataset = ImageDataset(request.getfixturevalue(source), view=view)
    assert dataset.makes_batches
    batch = at_once(dataset)
    assert same(batch, one_by_one(dataset))
    assert batch[1].dtype == torch.int64
    assert batch[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("depth", ["auto", "8", "16"])
def test_channels_and_depth_are_those_of_the_samples(folder: Path, mode: Any, depth: Any) -> None:
    """One, three or four channels of 8 or 16 bits."""
    dataset = ImageDataset(folder, view=VIEW, mode=mode, depth=depth)
    batch = at_once(dataset)
    assert batch[0].dtype == (torch.uint16 if depth == "16" else torch.uint8)
    single = one_by_one(dataset)
    assert np.array_equal(batch[0].numpy(), single[0].numpy())
    assert same(batch[1], single[1])


def test_masks_make_batches(tmp_path: Path) -> None:
    """Indices of a palette, unmixed."""
    for number in range(12):
        data = save(Image.fromarray(noise(30, 40, seed=number)), "PNG")
        (tmp_path / f"{number:02}.png").write_bytes(data)
    assert same(
        at_once(ImageDataset(tmp_path, view=VIEW, mode="index")),
        one_by_one(ImageDataset(tmp_path, view=VIEW, mode="index")),
    )


def test_finished_pixels_need_no_view(raw: Path) -> None:
    """They have one size anyhow; views that keep it, or lead to one, do as well."""
    for view in (None, Full(flip=0.5), Resize(24)):
        dataset = ImageDataset(raw, view=view)
        assert same(at_once(dataset), one_by_one(dataset))
    assert ImageDataset(raw).sample_nbytes == 48 * 56 * 3 + 8


def test_small_finished_pixels_make_batches(tmp_path: Path) -> None:
    """Rows that share a checksum are read together."""
    with StoreWriter(
        tmp_path / "x.lmdb", schema={"image": "uint8[9,8,1]", "label": "int32"}
    ) as writer:
        for number in range(40):
            writer.add({"image": noise(9, 8, 1, seed=number), "label": number - 20})
    for options in ({}, {"view": RandomCrop(6, flip=0.5)}, {"mode": "L", "view": Resize((4, 5))}):
        dataset = ImageDataset(tmp_path / "x.lmdb", **options)
        assert same(at_once(dataset, [39, 0, 20, 20]), one_by_one(dataset, [39, 0, 20, 20]))


def test_pictures_without_labels_come_alone(tmp_path: Path) -> None:
    """As a sample without a label is the picture; what is done to labels does not matter."""
    for number in range(12):
        data = save(Image.fromarray(noise(30, 40, 3, seed=number)), "JPEG")
        (tmp_path / f"{number:02}.jpg").write_bytes(data)
    dataset = ImageDataset(tmp_path, view=VIEW, target_transform=str)
    assert isinstance(at_once(dataset), torch.Tensor)
    assert same(at_once(dataset), one_by_one(dataset))


def test_a_subset_makes_its_own_batches(kept: Path) -> None:
    """Of this package and of torch, one in the other."""
    whole = ImageDataset(kept, view=VIEW)
    part = whole.subset([3, 9, 1, 0, 11, 5])
    for dataset in (part, Subset(whole, [3, 9, 1, 0]), Subset(part, [5, 0, 1, 2])):
        assert same(at_once(dataset, [2, 0, -1, 3]), one_by_one(dataset, [2, 0, -1, 3]))


def test_renumbered_labels_are_renumbered(folder: Path) -> None:
    """By the classes of another dataset."""
    dataset = ImageDataset(folder, view=VIEW, classes=["z", "b", "a"])
    batch = at_once(dataset)
    assert same(batch, one_by_one(dataset))
    assert set(batch[1].tolist()) == {1, 2}


def test_a_label_out_of_range_is_named_in_a_batch(tmp_path: Path) -> None:
    """-1 would be the last class."""
    with StoreWriter(
        tmp_path / "x.lmdb", schema={"image": "uint8[8,8,3]", "label": "int64"}, classes=["b"]
    ) as writer:
        for label in (0, -1):
            writer.add({"image": noise(8, 8, 3), "label": label})
    with pytest.raises(ClassMismatchError, match="sample 1 has label -1"):
        at_once(ImageDataset(tmp_path / "x.lmdb", classes=["a", "b"]), [0, 1])


@pytest.mark.parametrize("source", ["kept", "raw"])
def test_a_batch_lies_in_the_memory_it_was_given(
    source: str, request: pytest.FixtureRequest
) -> None:
    """Nothing is copied after."""
    dataset = ImageDataset(request.getfixturevalue(source), view=VIEW)
    memory = Memory()
    with using_keys(keys(INDICES)):
        images, labels = dataset.load_batch(INDICES, memory)
    assert [tensor.data_ptr() for tensor in memory.given] == [images.data_ptr(), labels.data_ptr()]


@pytest.mark.parametrize("source", ["folder", "raw"])
def test_without_keys_a_batch_draws_what_its_samples_would(
    source: str, request: pytest.FixtureRequest
) -> None:
    """From torch's global generator, in the same order: also in torch's own loader."""
    dataset = ImageDataset(request.getfixturevalue(source), view=VIEW)
    torch.manual_seed(3)
    batch = dataset.load_batch(INDICES, Memory())
    torch.manual_seed(3)
    assert same(batch, default_collate([dataset[index] for index in INDICES]))
    torch.manual_seed(3)
    loader = DataLoader(dataset, sampler=INDICES, batch_size=8, generator=torch.Generator())
    assert same(batch, next(iter(loader)))


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2, "start_method": "fork"},
        {"num_workers": 2, "engine": "thread"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("source", ["folder", "raw"])
def test_a_loader_gives_the_batches_of_single_samples(
    source: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """For two epochs, whatever makes them; a collate function of one's own gets single samples."""
    dataset = ImageDataset(request.getfixturevalue(source), view=VIEW)
    own = build_loader(
        dataset, batch_size=5, shuffle=True, seed=7, num_workers=0, collate_fn=_collate
    )
    loader = build_loader(dataset, batch_size=5, shuffle=True, seed=7, **options)
    for _ in range(2):
        batches, singles = list(loader), list(own)
        assert len(batches) == 3
        assert all(same(*pair) for pair in zip(batches, singles, strict=True))


def _collate(samples: list[Any]) -> Any:
    return default_collate(samples)


def test_a_worker_makes_the_same_batch(kept: Path) -> None:
    """After the dataset has travelled."""
    dataset = ImageDataset(kept, view=VIEW)
    before = at_once(dataset)
    assert same(at_once(pickle.loads(pickle.dumps(dataset))), before)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"view": Full()},
        {"view": Resize(30)},
        {"view": VIEW, "transform": lambda image: image},
        {"view": VIEW, "target_transform": lambda label: label},
        {"view": VIEW, "mode": "keep"},
        {"view": VIEW, "depth": "keep"},
    ],
    ids=lambda options: "-".join(options),
)
def test_samples_that_differ_make_no_batch(kept: Path, options: dict[str, Any]) -> None:
    """Of several sizes or kinds, or with code for each of them."""
    dataset = ImageDataset(kept, **options)
    assert not dataset.makes_batches
    assert batch_maker(dataset) is None
    with pytest.raises(SchemaError, match="no whole batches"):
        dataset.load_batch([0], Memory())


@pytest.mark.parametrize(("kind", "label"), [("str", "cat"), ("float32", 0.5), ("uint64", 1)])
def test_labels_that_are_no_integers_make_no_batch(tmp_path: Path, kind: str, label: Any) -> None:
    """Torch would collate them otherwise."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "png", "label": kind}) as writer:
        writer.add({"image": noise(8, 8, 3), "label": label})
    assert not ImageDataset(tmp_path / "x.lmdb", view=VIEW).makes_batches


def test_a_sample_of_ones_own_is_not_gone_past(kept: Path) -> None:
    """A subclass with a __getitem__ has its samples made by it."""

    class Own(ImageDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[1]

    assert batch_maker(Own(kept, view=VIEW)) is None


def test_a_bad_picture_fails_its_batch_by_name(tmp_path: Path) -> None:
    """The loader then finds the sample, and does with it what was asked for."""
    for number in range(4):
        data = save(Image.fromarray(noise(30, 40, 3, seed=number)), "JPEG")
        (tmp_path / f"{number}.jpg").write_bytes(data[:500] if number == 2 else data)
    dataset = ImageDataset(tmp_path, view=VIEW)
    with pytest.raises(DecodeError, match=r"2\.jpg: sample 2"):
        at_once(dataset, [0, 1, 2, 3])
    loader = build_loader(dataset, batch_size=4, num_workers=0, on_error="skip", error_budget=1)
    with pytest.warns(UserWarning, match="sample 2 .*truncated"):
        (images,) = list(loader)
    assert images.shape == (3, 3, 40, 30)


def test_a_number_that_does_not_exist_is_named(kept: Path) -> None:
    """As for single samples."""
    with pytest.raises(SampleIndexError, match="no sample 12"):
        at_once(ImageDataset(kept, view=VIEW), [0, 12])


def test_a_picture_unlike_the_others_fails_its_batch(tmp_path: Path) -> None:
    """Floats among bytes: a batch has one dtype."""
    (tmp_path / "0.png").write_bytes(save(Image.fromarray(noise(30, 40)), "PNG"))
    deep = Image.fromarray(np.ones((30, 40), np.float32))
    (tmp_path / "1.tif").write_bytes(save(deep, "TIFF"))
    with pytest.raises(DecodeError, match="sample 1 has 3 channels of float32"):
        at_once(ImageDataset(tmp_path, view=VIEW), [0, 1])


def test_signed_numbers_make_no_batch(tmp_path: Path) -> None:
    """They are widened to int32 when they are decoded, though the file has 16 bits of each."""
    for number in range(4):
        values = np.full((8, 8), number, np.uint16)
        data = save(Image.fromarray(values), "TIFF", tiffinfo={339: 2})
        (tmp_path / f"{number}.tif").write_bytes(data)
    dataset = ImageDataset(tmp_path, mode="index", view=CenterCrop(4))
    assert not dataset.makes_batches
    (batch,) = build_loader(dataset, batch_size=4, num_workers=0)
    assert batch.dtype == dataset[0].dtype == torch.int32
    assert batch[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_an_empty_batch_is_empty(kept: Path) -> None:
    """No picture is read for none."""
    images, labels = ImageDataset(kept, view=VIEW).load_batch([], Memory())
    assert images.shape == (0, 3, 40, 30)
    assert labels.shape == (0,)


def test_more_pictures_than_are_read_together(folder: Path) -> None:
    """A batch is read in groups; each sample still gets its own part."""
    dataset = ImageDataset(folder, view=VIEW)
    indices = [index % 12 for index in range(150)]
    assert same(at_once(dataset, indices), one_by_one(dataset, indices))


def test_the_size_of_a_sample_is_told(kept: Path, folder: Path, raw: Path) -> None:
    """A plan need not load one; what is stored is told where no single file tells it."""
    assert ImageDataset(kept, view=VIEW).sample_nbytes == 40 * 30 * 3 + 8
    assert ImageDataset(kept, view=VIEW, depth="16").sample_nbytes == 40 * 30 * 6 + 8
    assert ImageDataset(kept, view=VIEW, transform=str).sample_nbytes is None
    assert ImageDataset(kept).sample_nbytes is None
    assert ImageDataset(kept).record_nbytes is None
    assert ImageDataset(raw).record_nbytes == 48 * 56 * 3
    sizes = [path.stat().st_size for path in folder.glob("*/*")]
    assert min(sizes) <= (ImageDataset(folder).record_nbytes or 0) <= max(sizes)


def test_a_plan_uses_what_is_told(kept: Path) -> None:
    """The batches in advance follow the size of a sample."""
    known, unknown = ImageDataset(kept, view=VIEW), ImageDataset(kept)
    plans = [build_loader(one, batch_size=4, num_workers=2).plan for one in (known, unknown)]
    assert [plan.prefetch_factor for plan in plans] == [8, 2]
