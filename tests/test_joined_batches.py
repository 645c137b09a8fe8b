"""Datasets that are joined make whole batches where all of them do, alike: the same, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing import folder
from streams import fork, same, stream
from torch.utils.data import ConcatDataset as JoinedByTorch
from torch.utils.data import Dataset, Subset, default_collate

from sharedds.datasets import ImageDataset, concat
from sharedds.datasets.offers import batch_form, batch_maker
from sharedds.datasets.randomness import same_view
from sharedds.errors import SchemaError
from sharedds.ingest import pack
from sharedds.loader import build_loader
from sharedds.order import SampleKey, current_generator, current_keys, using_keys
from sharedds.views import RandomResizedCrop

WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "engine": "thread"},
    {"num_workers": 0, "threads_per_worker": 3},
    {"num_workers": 2, "threads_per_worker": 2},
]
OPTIONS: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}


class Noise(Dataset[Any]):
    """Noise around a number of its own, the number of the sample, and a name."""

    def __init__(self, count: int, at: int = 0, shape: tuple[int, ...] = (3, 4, 5)) -> None:
        self.count = count
        self.at = at
        self.shape = shape

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        generator = current_generator()
        assert generator is not None
        return self.pixels(generator), index, f"{self.at}/{index}"

    def pixels(self, generator: np.random.Generator) -> torch.Tensor:
        """The picture of a sample."""
        return torch.from_numpy(generator.integers(0, 50, self.shape, np.uint8)) + self.at


class Whole(Noise):
    """The same, made as whole batches."""

    makes_batches = True

    @property
    def batch_form(self) -> Hashable | None:
        """What batches look like."""
        return self.shape

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Fill the memory that is given."""
        keys = current_keys()
        assert keys is not None
        assert len(keys) == len(indices)
        images = empty((len(indices), *self.shape), torch.uint8, channels_last=True)
        for at, key in enumerate(keys):
            images[at] = self.pixels(key.generator())
        names = tuple(f"{self.at}/{index}" for index in indices)
        return [images, torch.tensor(list(indices)), names]


def parts(kind: type[Noise]) -> list[Any]:
    """Datasets of one form, some of them wrapped."""
    inner: Dataset[Any] = JoinedByTorch([kind(3, 60), kind(4, 80)])
    return [kind(7), kind(0), Subset(kind(9, 40), [8, 0, 5, 5]), inner, concat(kind(2, 100))]


JOINS: list[Callable[[list[Any]], Any]] = [
    lambda datasets: concat(*datasets),
    lambda datasets: concat(*datasets).subset([19, 0, 7, 3, 12, 11, 18, 1, 2, 3]),
    lambda datasets: JoinedByTorch(datasets),
    lambda datasets: Subset(concat(*datasets), [4, 19, 9, 10, 0]),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("join", range(len(JOINS)))
def test_the_stream_is_that_of_single_samples(join: int, way: dict[str, Any]) -> None:
    """However it is joined and made; and whole batches are what is made."""
    expected = stream(fork(JOINS[join](parts(Noise)), **OPTIONS), 2)
    found = stream(fork(JOINS[join](parts(Whole)), **OPTIONS, **way), 2)
    assert same(found, expected)
    for batch in (batch for epoch in found for batch in epoch):
        assert batch[0].is_contiguous(memory_format=torch.channels_last)
    assert not expected[0][0][0].is_contiguous(memory_format=torch.channels_last)


def test_a_batch_that_mixes_parts_is_one_memory() -> None:
    """Asked for once, written to by all, and copied no more."""
    joined = concat(Whole(4), Whole(4, 50))
    asked: list[torch.Tensor] = []

    def empty(
        shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
    ) -> torch.Tensor:
        asked.append(torch.empty(shape, dtype=dtype, memory_format=torch.channels_last))
        return asked[-1]

    indices = [0, 5, 6, -5, 4]
    keys = [SampleKey(0, 0, index) for index in indices]
    with using_keys(keys):
        made = joined.load_batch(indices, empty)
    assert [tuple(each.shape) for each in asked] == [(5, 3, 4, 5)]
    assert made[0] is asked[0]
    assert made[2] == ("0/0", "50/1", "50/2", "0/3", "50/0")


class Untold(Whole):
    """Does not say what its batches look like."""

    batch_form = None


class Floats(Whole):
    """Another dtype, which default_collate would convert."""

    @property
    def batch_form(self) -> Hashable | None:
        """What batches look like."""
        return self.shape, "float32"


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([Whole(2)], True),
        ([Subset(Whole(4), [0])], True),
        ([], True),
        ([Noise(2)], False),
        ([Whole(2, shape=(3, 5, 5))], False),
        ([Floats(2)], False),
        ([Untold(2)], False),
        ([Untold(0), Noise(0)], True),
        ([JoinedByTorch([Whole(2), Noise(1)])], False),
        ([JoinedByTorch([Whole(2), Floats(1)])], False),
        ([[1, 2, 3]], False),
    ],
    ids=range(11),
)
def test_whole_batches_are_made_where_all_parts_make_them_alike(
    others: list[Any], expected: bool
) -> None:
    """Known before anything is loaded; an empty part has no say."""
    joined = concat(Whole(3), *others)
    assert joined.makes_batches is expected
    assert (batch_maker(joined) is not None) is expected
    assert (batch_maker(JoinedByTorch([Whole(3), *others])) is not None) is expected
    assert not expected or batch_form(joined) == (3, 4, 5)


def test_one_part_alone_need_not_tell() -> None:
    """There is nothing to mix it with; of nothing at all no batches are made."""
    assert concat(Untold(3)).makes_batches
    assert not concat(Untold(3), Untold(3)).makes_batches
    assert not concat(Whole(0)).makes_batches


def test_a_class_with_samples_of_its_own_makes_no_batches() -> None:
    """They would go past its code."""

    class Own(JoinedByTorch[Any]):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)  # type: ignore[no-untyped-call]

    assert batch_maker(Own([Whole(3), Whole(2)])) is None


class Liar(Whole):
    """Says that its batches are like others'."""

    batch_form = (3, 4, 5)


def test_a_part_that_makes_others_than_it_says_is_named() -> None:
    """The same whether memory or results differ."""
    joined = concat(Whole(2), Liar(2, shape=(3, 4, 6)))
    assert joined.makes_batches
    with (
        using_keys([SampleKey(0, 0, 0), SampleKey(0, 0, 2)]),
        pytest.raises(SchemaError, match=r"\(Liar, Whole\) do not fit together"),
    ):
        joined.load_batch([0, 2], lambda shape, dtype, **_: torch.empty(shape, dtype=dtype))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ten pictures, and the same pictures without labels."""
    root = tmp_path_factory.mktemp("joined")
    images = folder(root / "images")
    pack(images, root / "images.lmdb", progress=False)
    pack(images, root / "plain.lmdb", progress=False, labels=None)
    return root


@pytest.mark.parametrize("way", WAYS[:4], ids=str)
def test_pictures_of_two_stores_are_those_of_single_samples(
    stores: Path, way: dict[str, Any]
) -> None:
    """With random crops and flips."""
    view = RandomResizedCrop(12, flip=0.5)
    joined = ImageDataset(stores / "images.lmdb", view=view) + ImageDataset(
        stores / "images", view=view
    )
    assert joined.makes_batches
    options = {"batch_size": 4, "shuffle": True}
    expected = stream(fork(joined, **options, collate_fn=lambda each: default_collate(each)), 2)
    assert same(stream(fork(joined, **options, **way), 2), expected)


class Pairs(Dataset[Any]):
    """Two pictures of the same part, each from a join of its own."""

    def __init__(self, images: Any, others: Any) -> None:
        self.images, self.others = images, others

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        with same_view():
            return self.images[index][0], self.others[index][0]


class WholePairs(Pairs):
    """The same, made as whole batches."""

    makes_batches = True
    batch_form = "pairs"

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Both, one after the other."""
        with same_view():
            return [each.load_batch(indices, empty)[0] for each in (self.images, self.others)]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=str)
def test_pictures_of_joins_show_the_same_part(
    stores: Path, way: dict[str, Any], nested: bool
) -> None:
    """Each sample one of its own, though a batch that mixes parts is made run by run."""
    view = RandomResizedCrop(12, flip=0.5)
    one = ImageDataset(stores / "images.lmdb", view=view)
    ten = [7, 3, 3, 0, 9, 1, 8, 2, 5, 4]
    images, others = one.subset(ten[:4]) + one.subset(ten[4:]), one.subset(ten)

    def pairs(kind: type[Pairs]) -> Any:
        made = kind(images, others)
        return concat(made, Subset(made, [5, 0, 4])) if nested else made

    options = {"batch_size": 4, "shuffle": True}
    expected = stream(fork(pairs(Pairs), **options), 2)
    found = stream(fork(pairs(WholePairs), **options, **way), 2)
    assert same(found, expected)
    assert all(torch.equal(image, other) for image, other in found[0])
    assert len({image.numpy().tobytes() for images, _ in found[0] for image in images}) > 8


def test_pictures_that_differ_are_made_one_by_one(stores: Path) -> None:
    """Another size, dtype or no labels; a loader takes threads for those that are alike."""
    one = ImageDataset(stores / "images.lmdb", view=RandomResizedCrop(12))
    alike = one + one.subset([3, 1])
    assert alike.makes_batches
    assert not (one + ImageDataset(stores / "images", view=RandomResizedCrop(16))).makes_batches
    assert not (one + ImageDataset(stores / "images", transform=str)).makes_batches
    loader = build_loader(alike, batch_size=4, engine="auto", num_workers=1)
    assert loader.plan.engine == "thread"
