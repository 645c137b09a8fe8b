"""LazyDataset: items in a mapped file, loaded one at a time."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import METHODS, in_process
from torch.utils.data import DataLoader

from sharedds.datasets import LazyDataset
from sharedds.errors import OptionError, SampleIndexError, SchemaError
from sharedds.handles import per_process
from sharedds.order import SampleKey, current_keys, using_key, using_keys


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


class Itself(LazyDataset[Any]):
    """A sample is its item."""

    def load(self, item: Any) -> Any:
        """Return the item."""
        return item


class Together(LazyDataset[tuple[str, int]]):
    """Reads several items at once; a sample is the item and a random number."""

    def load_many(self, items: list[str]) -> list[tuple[str, int]]:
        """Return each with a number of its own generator."""
        return [(i, int(g.integers(1 << 40))) for i, g in zip(items, self.rngs, strict=True)]


class Random(LazyDataset[tuple[int, int]]):
    """A sample is two random numbers."""

    def load(self, item: object) -> tuple[int, int]:
        """Draw twice."""
        return int(self.rng.integers(1 << 40)), int(self.rng.integers(1 << 40))


def batch_of(dataset: LazyDataset[Any], indices: list[int]) -> list[Any]:
    """Read several samples at once."""
    read = dataset.__getitems__
    assert read is not None
    return read(indices)


class Pair(NamedTuple):
    """A record."""

    path: str
    label: int


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """A record that computes a field."""

    path: str
    spacing: tuple[float, ...]
    name: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.path.upper())


# --- samples -------------------------------------------------------------------------------------


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
    assert part._items is dataset._items
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


# --- items ---------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])) | st.binary(), inner)
    ),
    max_leaves=8,
)


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal and of equal types, all the way down."""
    if type(first) is not type(second) or first != second:
        return False
    if isinstance(first, dict):
        return same(list(first.items()), list(second.items()))
    if isinstance(first, (list, tuple)):
        return all(map(same, first, second))
    return True


@settings(deadline=None)
@given(st.lists(PLAIN))
def test_records_come_back_as_they_were(items: list[Any]) -> None:
    """Any plain values, mixed as one likes: equal, and of the same types."""
    assert same(list(Itself(items)), items)


@pytest.mark.parametrize(
    "item",
    [
        1 << 64,
        -(1 << 63) - 1,
        10**300,
        ("x", [(1, (2,))], {"k": (3,), 1: None, None: 2.5}),
        ("\udcff.jpg", 1),
        Pair("a", 1),
        [Pair("a", 1), (1, 2)],
        Scan("a", (1.0, 2.0)),
        float("inf"),
        b"\xff/\0",
    ],
)
def test_unusual_records_come_back(item: Any) -> None:
    """Large integers, nested tuples, undecodable names, classes with fields."""
    dataset = Itself([item, item])
    assert all(same(found, item) for found in pickle.loads(pickle.dumps(dataset)))


def test_values_of_libraries_become_plain() -> None:
    """NumPy numbers, and paths inside of records."""
    items = [np.int64(3), np.float32(0.5), np.bool_(True), np.str_("a"), (Path("a/b"), np.int8(1))]
    expected = [3, 0.5, True, "a", ("a/b", 1)]
    assert same(list(Itself(items)), expected)


def test_bytes_come_back_as_bytes() -> None:
    """Alone or among other kinds; a path with odd bytes is text all the same."""
    assert list(Itself([b"a", b"\xff"])) == [b"a", b"\xff"]
    assert list(Itself(["a", b"a", Path("\udcff")])) == ["a", b"a", "\udcff"]


@pytest.mark.parametrize(
    "item",
    [np.zeros(2), torch.zeros(2), {1}, object(), 1j, {(1, 2): 3}, "\ud800", ("\ud800",), print],
)
def test_what_is_no_record_is_refused_with_its_number(item: Any) -> None:
    """Arrays, sets and objects; the error says which item it was."""
    with pytest.raises(SchemaError, match="item 1: "):
        Itself(["fine", item, "fine"])


def test_a_record_that_holds_itself_is_refused() -> None:
    """Instead of a crash."""
    item: list[Any] = []
    item.append(item)
    with pytest.raises(SchemaError, match="holds itself"):
        Itself([item])


def test_a_table_is_refused() -> None:
    """Its parts are the columns, which nobody means."""

    class Table(list[str]):
        itertuples = None

    with pytest.raises(OptionError, match="itertuples"):
        Itself(Table(["path", "label"]))


@pytest.mark.parametrize("method", METHODS)
def test_other_processes_read_records(method: str) -> None:
    """Workers of every kind see the same items and the same fingerprint."""
    dataset = Itself([("a", 1), Pair("b", 2), b"c"])
    assert in_process(method, list, dataset.subset([1, 0])) == [("b", 2), ("a", 1)]
    assert in_process(method, getattr, dataset, "fingerprint") == dataset.fingerprint


def test_the_fingerprint_is_that_of_the_items() -> None:
    """Equal for equal items however often made; another for other items, kinds or samples."""
    made = [Itself(["a", "b"]).fingerprint for _ in range(2)]
    others = [
        Itself(items).fingerprint for items in (["a", "c"], ["ab"], ["b", "a"], [b"a", b"b"], [])
    ]
    parts = [Itself(["a", "b"]).subset(rows).fingerprint for rows in ([0], [1], [1, 0])]
    assert made[0] == made[1]
    assert len({made[0], *others, *parts}) == 9
    assert len(made[0]) < 60
    assert Lengths(["a", "b"]).fingerprint != made[0]


# --- batches and randomness ----------------------------------------------------------------------


def test_a_dataset_without_load_many_offers_no_batches() -> None:
    """Torch asks whether there is a true ``__getitems__``."""
    assert not Lengths(["a"]).__getitems__
    assert not Lengths(["a"]).reads_batches
    assert Together(["a"]).__getitems__
    assert Together(["a"]).reads_batches


def test_several_samples_are_read_at_once() -> None:
    """A plain loader of torch gives the whole batch to ``load_many``."""
    loader: DataLoader[Any] = DataLoader(Together([*"abcde"]).subset([4, 2, 1]), batch_size=2)
    assert [list(names) for names, _ in loader] == [["e", "c"], ["b"]]
    assert Together([*"abcde"])[3][0] == "d"


@pytest.mark.parametrize("samples", [[1], [1, 2, 3], "ab", None])
def test_load_many_returns_one_sample_for_each_item(samples: Any) -> None:
    """Another number of samples would shift all that follow."""

    class Wrong(LazyDataset[Any]):
        def load_many(self, items: list[Any]) -> Any:
            return samples

    with pytest.raises(SchemaError, match="Wrong read") as caught:
        batch_of(Wrong([*"abc"]), [0, 2])
    assert caught.value.__notes__ == ["while loading samples 0, 2 of Wrong"]


def test_random_numbers_follow_torch() -> None:
    """The same after the same seed, never the same in two samples."""
    dataset = Random(range(3))
    torch.manual_seed(7)
    first = [dataset[0], dataset[0], dataset[1]]
    torch.manual_seed(7)
    assert [dataset[0], dataset[0], dataset[1]] == first
    assert len({number for sample in first for number in sample}) == 6


def test_a_dataset_that_draws_nothing_takes_nothing_from_torch() -> None:
    """Torch's own stream is the user's."""
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    assert list(Lengths(["a", "bb"])) == [1, 2]
    assert torch.equal(torch.rand(3), wanted)


def test_random_numbers_belong_to_the_key() -> None:
    """Under a key the sample is the same whenever and however it is read."""
    keys = [SampleKey(0, 1, index) for index in range(4)]
    together, singly = Together([*"abcd"]), Random(range(4))
    with using_keys(keys[1:3]):
        batch = batch_of(together, [1, 2])
    samples = []
    for key in keys[1:3]:
        with using_key(key):
            samples.append(together[key.index])
        with using_key(key):
            assert singly[key.index][0] == samples[-1][1]
    assert batch == samples
    assert current_keys() is None


def test_a_sample_made_for_another_shares_its_generator() -> None:
    """Mixing in a second sample goes on with the stream of the first."""

    class Mixed(Random):
        def load(self, item: object) -> Any:
            return [*super().load(item), *(self[item - 1] if item else ())]  # type: ignore[operator]

    for context in (using_key(SampleKey(0, 0, 1)), None):
        if context is None:
            sample = Mixed(range(2))[1]
        else:
            with context:
                sample = Mixed(range(2))[1]
        assert len(set(sample)) == 4


def test_one_generator_for_several_samples_is_refused() -> None:
    """What it gave would depend on the batch."""

    class Wrong(LazyDataset[Any]):
        def load_many(self, items: list[Any]) -> Any:
            return [self.rng.random() for _ in items]

    with pytest.raises(SchemaError, match=r"self\.rngs"):
        batch_of(Wrong([*"ab"]), [0, 1])
    with pytest.raises(SchemaError, match="inside load_many"):
        _ = Wrong([*"ab"]).rngs


@pytest.mark.parametrize("mask", [[True, False], np.array([True, False]), torch.tensor([1, 0]) > 0])
def test_a_mask_is_not_read_as_numbers(mask: Any) -> None:
    """It would give samples 1 and 0, without a word."""
    with pytest.raises(SchemaError, match="mask"):
        Lengths(["a", "bb"]).subset(mask)


class Table(dict[str, int]):
    """A mapping with fields."""


def test_a_dataclass_that_holds_more_than_its_fields_is_refused() -> None:
    """At once, and not when it is read."""
    kind = dataclasses.make_dataclass("Row", [("width", int)], bases=(Table,))
    with pytest.raises(SchemaError, match="item 1: Row, which is a Table as well"):
        Lengths([1, kind(3)])
