"""Datasets one after another: nothing is copied, and each is asked in its own way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest
import torch
from processes import METHODS, in_process
from torch.utils.data import ConcatDataset as JoinedByTorch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sharedds.datasets import ConcatDataset, LazyDataset, MemmapDataset, concat
from sharedds.errors import OptionError, SampleIndexError, SchemaError
from sharedds.loader import build_loader
from sharedds.order import SampleKey, using_key, using_keys


class Named(LazyDataset[Any]):
    """A sample is the item and a random number; remembers what it was advised of."""

    advised: tuple[Any, ...] = ()

    def load(self, item: str) -> Any:
        """Return the item and a number."""
        return item, int(self.rng.integers(1 << 40))

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Remember."""
        self.advised = tuple(indices)


class Together(LazyDataset[Any]):
    """The same, several at once."""

    def load_many(self, items: list[str]) -> list[Any]:
        """Return items and numbers."""
        return [(i, int(g.integers(1 << 40))) for i, g in zip(items, self.rngs, strict=True)]


class Squares(Dataset[int]):
    """A dataset of somebody else."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index**2


def names(dataset: Dataset[Any], indices: Sequence[int]) -> list[str]:
    """Return the items of some samples."""
    return [dataset[i][0] for i in indices]


def test_samples_are_numbered_through() -> None:
    """From either end; the same by ``+``, by ``concat`` and by the class."""
    for joined in (
        Named([*"abc"]) + Together([*"de"]),
        concat(Named([*"abc"]), Together([*"de"])),
        ConcatDataset(Named([*"abc"]), Together([*"de"])),
    ):
        assert len(joined) == 5
        assert names(joined, [0, 2, 3, 4, -1, -5]) == ["a", "c", "d", "e", "e", "a"]
        assert [joined.key(i) for i in range(5)] == list("abcde")
        with pytest.raises(SampleIndexError, match="ConcatDataset has 5 samples"):
            joined[5]


def test_empty_parts_change_nothing() -> None:
    """At the beginning, in the middle and at the end."""
    joined = concat(Named([]), Named([*"a"]), Named([]), Named([*"b"]), Named([]))
    assert names(joined, range(2)) == ["a", "b"]


def test_a_join_of_joins_is_one_join() -> None:
    """However it was put together; a subset of a join stays one part."""
    a, b, c = Named([*"a"]), Named([*"b"]), Named([*"c"])
    assert (a + b + c).datasets == (a, b, c)
    assert (a + (b + c)).datasets == (a, b, c)
    part = (a + b).subset([1])
    assert names(part + c, [0, 1]) == ["b", "c"]


def test_any_map_style_dataset_takes_part() -> None:
    """One that knows nothing of keys, advice or batches."""
    joined = Named([*"ab"]) + Squares()
    assert joined[4] == 4
    assert joined.key(4) == "2"
    joined.advise([0, 4])
    assert concat(TensorDataset(torch.arange(3)), Squares())[1][0] == 1


class Stream(IterableDataset[int]):
    """Has no numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize("part", [Stream(), object(), iter([1])])
def test_what_has_no_numbers_is_refused(part: Any) -> None:
    """The class is named."""
    with pytest.raises(SchemaError, match=type(part).__name__):
        concat(Named([*"a"]), part)


def test_a_join_of_nothing_is_refused() -> None:
    """Nobody knows what its samples would be."""
    with pytest.raises(OptionError, match="nothing to join"):
        concat()


def test_subsets_and_splits_of_a_join_copy_nothing() -> None:
    """They share the parts and keep numbers only."""
    joined = Named([*"abc"]) + Named([*"de"])
    part = joined.subset([4, 0, 3])
    assert names(part, range(3)) == ["e", "a", "d"]
    assert part.datasets[0] is joined.datasets[0]
    train, test = joined.split((0.6, 0.4), seed=1)
    assert sorted(names(train, range(3)) + names(test, range(2))) == list("abcde")


def test_a_function_of_groups_gets_the_items() -> None:
    """The group is made of the item in the part where the sample lies."""
    joined = Named(["p1/a", "p2/a", "p3/a"]) + Named(["p1/b", "p2/b", "p3/b"])
    for part in joined.split((2 / 3, 1 / 3), groups=lambda item: item[:2]):
        found = names(part, range(len(part)))
        assert {name[:2] + "/b" for name in found} <= set(found)


def test_advice_reaches_the_part() -> None:
    """In the numbers of the part."""
    first, second = Named([*"abc"]), Named([*"de"])
    (first + second).advise([4, 0, 3, -1])
    assert (first.advised, second.advised) == ((0,), (1, 0, 1))


def test_batches_reach_the_part_that_reads_them() -> None:
    """In the order asked for; without such a part there are no batches."""
    joined = Named([*"abc"]) + Together([*"de"])
    assert joined.reads_batches
    loader: DataLoader[Any] = DataLoader(joined.subset([4, 1, 3, 0]), batch_size=4)
    assert list(next(iter(loader))[0]) == ["e", "b", "d", "a"]
    assert not (Named([*"a"]) + Squares()).__getitems__
    assert not (Named([*"a"]) + Squares()).reads_batches


def test_a_part_that_loses_samples_is_found() -> None:
    """Otherwise later samples would take the place of others."""

    class Lossy(Together):
        @property
        def __getitems__(self) -> Any:
            return lambda indices: [self[i] for i in indices][1:]

    with pytest.raises(SchemaError, match="Lossy read 1 samples for 2"):
        (Named([*"a"]) + Lossy([*"bc"])).subset([0, 1, 2]).__getitems__([0, 1, 2])  # type: ignore[misc]


def test_random_numbers_belong_to_the_number_in_the_join() -> None:
    """The same singly and in batches, in parts of every kind."""
    joined = Named([*"abc"]) + Together([*"de"])
    keys = [SampleKey(0, 0, index) for index in (4, 1, 3, 0)]
    singly = []
    for key in keys:
        with using_key(key):
            singly.append(joined[key.index])
    with using_keys(keys):
        assert joined.__getitems__([key.index for key in keys]) == singly  # type: ignore[misc]
    assert len({number for _, number in singly}) == 4


def test_samples_of_a_subset_of_torch_have_keys_of_their_own() -> None:
    """It can be asked for several at once, but then makes one after another."""
    inner: Subset[Any] = Subset(Named([*"abc"]), [2, 0, 1])
    joined = concat(inner, Together([*"de"]))
    keys = [SampleKey(0, 0, index) for index in (4, 1, 2, 0)]
    singly = []
    for key in keys:
        with using_key(key):
            singly.append(joined[key.index])
    with using_keys(keys):
        assert joined.__getitems__([key.index for key in keys]) == singly  # type: ignore[misc]
    assert len({number for _, number in singly}) == 4


def test_a_pickle_is_as_small_as_its_parts(tmp_path: Path) -> None:
    """And reads the same, after files were opened."""
    np.save(tmp_path / "x.npy", np.zeros(50_000))
    joined = Named(map(str, range(100_000))) + MemmapDataset(tmp_path / "x.npy")
    assert joined[149_999] == 0
    assert len(pickle.dumps(joined)) < 10_000
    assert len(pickle.dumps(joined.split((0.5,))[0])) < 10_000


@pytest.mark.parametrize("method", METHODS)
def test_other_processes_read_a_join(method: str) -> None:
    """Workers of every kind."""
    joined = Named([*"abc"]) + Squares()
    assert in_process(method, joined.__getitem__, 2)[0] == "c"
    assert in_process(method, getattr, joined, "fingerprint") == joined.fingerprint


def test_the_fingerprint_is_made_of_the_parts() -> None:
    """Another part, another order or another subset gives another one."""
    prints = [
        (Named([*"ab"]) + Named([*"c"])).fingerprint,
        (Named([*"c"]) + Named([*"ab"])).fingerprint,
        (Named([*"ab"]) + Squares()).fingerprint,
        (Named([*"ab"]) + Named([*"c"])).subset([0, 1]).fingerprint,
    ]
    assert len(set(prints)) == 4
    assert (Named([*"ab"]) + Named([*"c"])).fingerprint == prints[0]


class InEpoch(LazyDataset[Any]):
    """A sample is the epoch it was made in."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Remember."""
        self.epoch = epoch

    def load(self, item: str) -> int:
        """Return the epoch."""
        return self.epoch


@pytest.mark.parametrize(
    "wrap",
    [
        lambda joined: joined,
        lambda joined: joined.subset([3, 0]),
        lambda joined: Subset(joined, [0, 2]),
        lambda joined: JoinedByTorch([joined]) + joined,
        lambda joined: concat(Subset(joined, [1]), JoinedByTorch([joined])),
    ],
)
def test_every_part_learns_the_epoch(wrap: Any) -> None:
    """However a join is wrapped, or wraps others."""
    dataset = wrap(concat(InEpoch(["a", "b"]), Subset(InEpoch(["c", "d"]), [0, 1])))
    loader = build_loader(dataset, num_workers=0)
    loader.set_epoch(4)
    assert {int(sample) for sample in loader} == {4}
