"""LazyDataset: items in a mapped file, loaded one at a time."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharedds.datasets import LazyDataset
from sharedds.errors import OptionError, SampleIndexError, SchemaError
from sharedds.handles import per_process


class Lengths(LazyDataset[int]):
    """Samples are the lengths of the items."""

    def load(self, item: str) -> int:
        """Return the length."""
        return len(item)

    @per_process
    def handle(self) -> object:
        """Something that cannot be pickled."""
        return iter([1])


class Broken(LazyDataset[int]):
    """Fails on one item the way a bug would."""

    def load(self, item: str) -> int:
        """Raise IndexError for "bad"."""
        if item == "bad":
            raise IndexError("list index out of range")
        return len(item)


def test_samples_are_loaded_by_number() -> None:
    """Numbers of any integer type count from either end."""
    dataset = Lengths(["a", b"bb", Path("ccc")])
    assert len(dataset) == 3
    assert [dataset[0], dataset[np.int64(1)], dataset[-1]] == [1, 2, 3]
    assert dataset.item(-1) == "ccc"


def test_items_are_read_once_as_a_stream() -> None:
    """A generator is enough; nothing asks for its length."""

    def stream() -> Iterator[str]:
        yield from ("x" * n for n in range(5))

    assert list(Lengths(stream())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("index", [3, -4, 10**30])
def test_a_number_out_of_range_is_named(index: int) -> None:
    """The error is an IndexError that says how many samples there are."""
    with pytest.raises(SampleIndexError, match="Lengths has 3 samples"):
        Lengths(["a", "b", "c"])[index]


@pytest.mark.parametrize("index", ["0", 1.0, slice(0, 2)])
def test_an_index_that_is_no_number_is_refused(index: Any) -> None:
    """Text, floats and slices are type errors."""
    with pytest.raises(SchemaError, match="whole number"):
        Lengths(["a", "b"])[index]


def test_an_error_of_load_names_the_item() -> None:
    """The error keeps its type and says which sample and item it belongs to."""
    with pytest.raises(IndexError, match="list index") as caught:
        Broken(["ok", "bad"])[-1]
    assert caught.value.__notes__ == ["while loading sample -1 of Broken, item 'bad'"]


def test_an_index_error_inside_load_does_not_end_a_loop_silently() -> None:
    """Python ends a loop over __getitem__ at an IndexError; a dataset has its own __iter__."""

    class Naive:
        def __getitem__(self, index: int) -> int:
            return Broken(["ok", "bad", "ok"])[index]

    assert list(Naive()) == [2]  # type: ignore[call-overload] # and two samples are lost
    with pytest.raises(IndexError, match="list index"):
        list(Broken(["ok", "bad", "ok"]))


def test_a_missing_load_is_named_when_the_dataset_is_made() -> None:
    """The message names the class and the method to write."""

    class Unfinished(LazyDataset[int]):
        pass

    with pytest.raises(TypeError, match="Unfinished needs a method load"):
        Unfinished(["a"])


def test_a_forgotten_super_init_is_named() -> None:
    """Using a dataset without items says what was forgotten."""

    class Forgetful(Lengths):
        def __init__(self) -> None:
            pass

    for use in (len, lambda dataset: dataset[0]):
        with pytest.raises(SchemaError, match=r"Forgetful.__init__ must call super\(\)"):
            use(Forgetful())


def test_one_string_instead_of_a_list_is_refused() -> None:
    """A string would give one sample for each character."""
    with pytest.raises(OptionError, match="one string"):
        Lengths("images/")


def test_a_pickle_is_small_whatever_the_number_of_items() -> None:
    """A list of 200,000 paths pickles to megabytes, the dataset and its subset to little."""
    paths = [f"/data/train/patient{i:07d}/scan.h5" for i in range(200_000)]
    assert len(pickle.dumps(paths)) > 6_000_000
    dataset = Lengths(paths)
    assert dataset.handle is not None
    assert len(pickle.dumps(dataset)) < 5_000
    assert len(pickle.dumps(dataset.split([0.5, 0.5])[0])) < 5_000
    assert pickle.loads(pickle.dumps(dataset)).item(199_999) == paths[-1]


def test_a_subset_of_a_subset_counts_from_its_own_start() -> None:
    """Indices, negative ones too, are those of the dataset they are asked of."""
    dataset = Lengths("x" * n for n in range(10))
    part = dataset.subset([8, 6, -1, 2])
    assert list(part) == [8, 6, 9, 2]
    assert list(part.subset(range(1, 3))) == [6, 9]
    assert list(part.subset(np.array([-1]))) == [2]
    assert list(dataset.subset([])) == []
    assert len(dataset) == 10
    with pytest.raises(SampleIndexError, match="no sample 4"):
        part.subset([4])


def test_a_subset_shares_the_items() -> None:
    """Nothing is copied but the indices; open handles are the subset's own."""
    dataset = Lengths(["a", "b"])
    part = dataset.subset([1])
    assert part._strings is dataset._strings
    assert part.handle is not dataset.handle
    assert copy.deepcopy(part)[0] == 1


def test_a_split_is_disjoint_complete_and_repeatable() -> None:
    """Every sample is in one part; the seed alone decides which."""
    dataset = Lengths("x" * n for n in range(101))
    parts = dataset.split((0.8, 0.1, 0.1), seed=5)
    lengths = [list(part) for part in parts]
    assert sorted(itertools.chain(*lengths)) == list(range(101))
    assert [len(part) for part in parts] == [81, 10, 10]
    assert all(part == sorted(part) for part in lengths)
    assert [list(part) for part in dataset.split((0.8, 0.1, 0.1), seed=5)] == lengths
    assert [list(part) for part in dataset.split((0.8, 0.1, 0.1), seed=2**80)] != lengths


def test_a_split_never_changes() -> None:
    """A stored result: a new version must not move samples from training to test."""
    _, test = Lengths("x" * n for n in range(20)).split((0.75, 0.25), seed=0)
    assert list(test) == [6, 8, 11, 12, 17]


@pytest.mark.parametrize("fractions", [(0.8, 0.3), (-0.1, 0.5), (float("nan"),)])
def test_impossible_shares_are_refused(fractions: tuple[float, ...]) -> None:
    """Shares are not negative and at most 1 together."""
    with pytest.raises(OptionError, match="shares"):
        Lengths(["a"]).split(fractions)
