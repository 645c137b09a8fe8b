"""What PyTorch tests of its own DataLoader, for map-style datasets: the same must hold here."""

from __future__ import annotations

import collections
import itertools
import os
import random
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from processes import children
from streams import Draws, as_list, fork, same, stream
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

from sharedds.errors import OptionError, SampleError, SchemaError
from sharedds.loader import build_loader

DATA = torch.randn(100, 2, 3, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(100) // 2
TENSORS = TensorDataset(DATA, LABELS)


def plain(dataset: Any, **options: Any) -> DataLoader[Any]:
    """Torch's own loader."""
    if options.get("num_workers"):
        options["multiprocessing_context"] = "fork"
    return DataLoader(dataset, **options)


# --- order and batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 2},
        {"batch_size": 7},
        {"batch_size": 7, "drop_last": True},
        {"batch_size": 100},
        {"batch_size": 1000},
        {"batch_size": 1000, "drop_last": True},
        {"batch_size": None},
    ],
    ids=str,
)
def test_batches_in_order_are_those_of_torch(options: dict[str, Any], workers: int) -> None:
    """Tensors, sizes, lengths, with and without batching."""
    ours = fork(TENSORS, **options, num_workers=workers)
    torchs = plain(TENSORS, **options)
    assert len(ours) == len(torchs)
    assert same([list(batch) for batch in ours], [list(batch) for batch in torchs])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_shuffled_batches_hold_every_sample_once(batch_size: int, workers: int) -> None:
    """Each with its own label."""
    found: collections.Counter[int] = collections.Counter()
    loader = fork(TENSORS, batch_size=batch_size, shuffle=True, num_workers=workers)
    for images, labels in loader:
        for image, label in zip(images, labels, strict=True):
            index = int((image == DATA).all(dim=(1, 2, 3)).nonzero())
            assert LABELS[index] == label
            found[index] += 1
    assert found == collections.Counter(range(100))


def test_the_length_follows_the_batch_size() -> None:
    """As many batches as come."""
    for count, batch_size, drop_last in itertools.product((0, 1, 5, 6), (1, 2, 7), (False, True)):
        loader = fork(Draws(count), batch_size=batch_size, drop_last=drop_last)
        expected = len(plain(Draws(count), batch_size=batch_size, drop_last=drop_last))
        assert len(loader) == len(list(loader)) == expected


def test_a_number_of_epochs_can_be_iterated() -> None:
    """By one loader, with and without workers, with workers that stay."""
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = fork(range(10), batch_size=5, **options)
        assert [[batch.tolist() for batch in loader] for _ in range(3)] == [
            [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        ] * 3


def test_two_loaders_with_one_seed_shuffle_alike() -> None:
    """Whatever the global generator does; another seed shuffles otherwise."""
    orders = []
    for seed in (3, 3, 4):
        torch.manual_seed(random.randrange(1 << 30))
        orders.append([int(i) for i in fork(range(50), shuffle=True, seed=seed)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(50))


def test_bulk_loading_of_a_large_batch_works() -> None:
    """One batch of more samples than fit a small pipe."""
    (batch,) = fork(range(50_000), batch_size=50_000, num_workers=1)
    assert torch.equal(batch, torch.arange(50_000))


# --- samplers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: SequentialSampler(range(20)),
        lambda: [5, 3, 3, 7],
        lambda: (5, 3),
        lambda: range(19, 0, -2),
        lambda: np.array([4, 2]),
        lambda: torch.tensor([4, 2]),
        list,
    ],
)
def test_a_sampler_that_draws_nothing_gives_the_batches_of_torch(make: Any, workers: int) -> None:
    """Samplers, lists and arrays, with any batch size; drop_last holds as well."""
    for options in ({}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}):
        ours = fork(range(20), sampler=make(), num_workers=workers, **options)
        torchs = plain(range(20), sampler=make(), **options)
        assert len(ours) == len(torchs)
        assert same(list(ours), list(torchs))


@pytest.mark.parametrize(
    ("sampler", "count", "repeats"),
    [
        (RandomSampler(range(20)), 20, False),
        (RandomSampler(range(20), num_samples=50, replacement=True), 50, True),
        (RandomSampler(range(20), num_samples=30), 30, True),
        (SubsetRandomSampler([4, 8, 2]), 3, False),
        (WeightedRandomSampler([0.0, 1.0, 1.0], 40), 40, True),
    ],
)
def test_random_samplers_draw_as_they_say(sampler: Any, count: int, repeats: bool) -> None:
    """So many indices of their own, another order in each epoch."""
    loader = fork(range(20), sampler=sampler)
    epochs = [[int(i) for i in loader] for _ in range(8)]
    assert all(len(epoch) == count == len(loader) for epoch in epochs)
    assert all((len(set(epoch)) < count) is repeats for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1
    assert loader.sampler is sampler


def test_a_sampler_of_batches_is_refused_with_a_hint() -> None:
    """Batches are made here; torch would hand the lists to the dataset."""
    sampler = BatchSampler(SequentialSampler(range(6)), 2, drop_last=False)
    with pytest.raises(SchemaError, match=r"BatchSampler yields .*yields whole numbers"):
        list(fork(range(6), batch_size=None, sampler=sampler))


def test_what_a_sampler_raises_reaches_the_loop() -> None:
    """With and without workers, after the batches before it."""

    def broken() -> Iterator[int]:
        yield from (0, 1, 2)
        raise ZeroDivisionError("sampler")

    for workers in (0, 1):
        with pytest.raises(ZeroDivisionError, match="sampler"):
            list(fork(range(6), sampler=broken(), num_workers=workers))


# --- datasets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset",
    [
        TENSORS,
        Subset(TENSORS, [3, 1, 4, 1, 5]),
        ConcatDataset([TENSORS, Subset(TENSORS, range(7))]),
        StackDataset(TENSORS, TENSORS),
        random_split(TENSORS, [30, 70], torch.Generator().manual_seed(1))[0],
        np.arange(24).reshape(6, 4),
        [1.5, 2.5],
        {0: torch.ones(2), 1: torch.zeros(2)},
        ["a", "bc"],
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_the_datasets_of_torch_and_python_give_the_batches_of_torch(dataset: Any) -> None:
    """Two workers and none."""
    expected = stream(plain(dataset, batch_size=4))
    assert same(stream(fork(dataset, batch_size=4)), expected)
    assert same(stream(fork(dataset, batch_size=4, num_workers=2)), expected)


def test_iterable_datasets_are_refused_with_a_reason() -> None:
    """Chained ones too; samples that cannot be asked for by number have no place in a state."""

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    for dataset in (Stream(), ChainDataset([Stream(), Stream()])):
        with pytest.raises(SchemaError, match="asked for by number"):
            build_loader(dataset)


class Getitems(Dataset[int]):
    """Can only load batches."""

    def __len__(self) -> int:
        return 9

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_loads_batches_gives_those_of_torch(workers: int) -> None:
    """Also inside a Subset; one without __getitem__ works as it does there."""
    for dataset in (Getitems(), Subset(Getitems(), [5, 1, 7])):
        expected = list(plain(dataset, batch_size=2))
        assert same(list(fork(dataset, batch_size=2, num_workers=workers)), expected)


def test_getitems_may_be_switched_off() -> None:
    """A falsy one is none, as wrappers say that they cannot."""

    class Off(Draws):
        __getitems__ = None

    assert len(list(fork(Off(4), batch_size=2))) == 2


def test_a_dataset_may_change_between_epochs_without_workers() -> None:
    """It is the user's own object."""
    data = [1, 2]
    loader: Any = fork(data, batch_size=2)
    assert [batch.tolist() for batch in loader] == [[1, 2]]
    data[0] = 9
    assert [batch.tolist() for batch in loader] == [[9, 2]]
    assert loader.dataset is data


# --- collating -----------------------------------------------------------------------------------


class Point(NamedTuple):
    """A sample with names."""

    label: str
    data: torch.Tensor


class Samples(Dataset[Any]):
    """Samples of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        tensor = torch.tensor([index, 1.0])
        return {
            "text": str(index),
            "float": index / 2,
            "dict": {"a": tensor, "b": {"c": f"{index}"}},
            "point": Point(str(index), tensor),
            "list": [index, [tensor, str(index)]],
            "numpy": np.full((2, 2), index, np.uint8),
            "scalar": np.float32(index),
            "bool": index > 2,
            "ordered": collections.OrderedDict(z=index, a=index),
        }[self.kind]


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize(
    "kind",
    ["text", "float", "dict", "point", "list", "numpy", "scalar", "bool", "ordered"],
)
def test_samples_collate_and_convert_as_in_torch(kind: str, batch_size: int | None) -> None:
    """Types, keys, dtypes; with one worker and none."""
    expected = list(plain(Samples(kind), batch_size=batch_size))
    for workers in (0, 1):
        found = list(fork(Samples(kind), batch_size=batch_size, num_workers=workers))
        assert same(flattened(found), flattened(expected))


def flattened(obj: Any) -> list[Any]:
    """Types and leaves of a nested structure, one after the other."""
    if isinstance(obj, dict):
        parts: Any = itertools.chain(*obj.items())
    elif isinstance(obj, list | tuple):
        parts = obj
    else:
        return [type(obj).__name__, obj]
    return [type(obj).__name__, *itertools.chain(*map(flattened, parts))]


def test_samples_of_different_sizes_fail_as_in_torch() -> None:
    """With the same error and a note of the samples, for any workers."""
    ragged: Any = [torch.zeros(1), torch.zeros(2)]
    with pytest.raises(RuntimeError, match="equal size"):
        list(plain(ragged, batch_size=2))
    for workers in (0, 1):
        with pytest.raises(RuntimeError, match="equal size"):
            list(fork(ragged, batch_size=2, num_workers=workers))


def test_a_collate_function_may_return_anything() -> None:
    """Its result is handed out untouched, None included."""
    results: list[Any] = [None, [], 0, "x", (1,)]
    for result in results:
        loader = fork(range(4), batch_size=2, collate_fn=lambda samples, result=result: result)
        assert list(loader) == [result, result]


# --- errors --------------------------------------------------------------------------------------


class Refuses(Draws):
    """Sample 5 cannot be loaded."""

    def __getitem__(self, index: int) -> tuple[float, ...]:
        if index == 5:
            raise ZeroDivisionError("five")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_sample_comes_in_its_turn(workers: int) -> None:
    """After the batches before it; torch's loader tells neither the sample nor its number."""
    seen = []
    with pytest.raises(SampleError, match=r"sample 5 .*ZeroDivisionError: five"):
        for batch in fork(Refuses(10), batch_size=2, num_workers=workers):
            seen.append(batch[0].tolist())  # noqa: PERF401 - the loop is what is tested
    assert seen == [[0, 1], [2, 3]]


def test_an_error_in_collating_reaches_the_loop() -> None:
    """It says that it comes from a worker, if there is one."""

    def broken(samples: list[Any]) -> Any:
        raise KeyError("collate")

    with pytest.raises(KeyError, match="collate"):
        list(fork(range(4), collate_fn=broken))
    with pytest.raises(KeyError, match="worker process 0"):
        list(fork(range(4), collate_fn=broken, num_workers=1))


def test_an_error_in_the_first_function_of_a_worker_reaches_the_loop() -> None:
    """worker_init_fn is called by workers only."""

    def broken(worker_id: int) -> None:
        raise RuntimeError(f"worker {worker_id} cannot begin")

    assert len(list(fork(range(4), worker_init_fn=broken))) == 4
    with pytest.raises(RuntimeError, match="worker 0 cannot begin"):
        list(fork(range(4), worker_init_fn=broken, num_workers=1))


def test_stop_iteration_in_a_sample_is_an_error() -> None:
    """Not the end of the epoch: samples would be lost in silence."""

    class Stops(Draws):
        def __getitem__(self, index: int) -> tuple[float, ...]:
            raise StopIteration

    assert list(plain(Stops(3))) == []
    for workers in (0, 1):
        with pytest.raises(SampleError, match="StopIteration"):
            list(fork(Stops(3), num_workers=workers))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": "2"}, "num_workers"),
        ({"timeout": -1}, "timeout"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -3}, "batch_size"),
        ({"batch_size": "4"}, "batch_size"),
        ({"batch_size": None, "drop_last": True}, "drop_last"),
        ({"shuffle": True, "sampler": [1]}, "shuffle"),
        ({"sampler": 5}, "sampler"),
        ({"prefetch_factor": 2, "num_workers": 0}, "prefetch_factor"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor"),
        ({"persistent_workers": True, "num_workers": 0}, "persistent_workers"),
        ({"start_method": "bad"}, "start_method"),
        ({"engine": "gpu"}, "engine"),
        ({"engine": "thread", "start_method": "fork"}, "start_method"),
        ({"on_error": "ignore"}, "on_error"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_by_name(options: dict[str, Any], match: str) -> None:
    """All as OptionError, which is a ValueError too, before anything is started."""
    with pytest.raises(OptionError, match=match) as caught:
        build_loader(range(4), **options)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)


# --- workers -------------------------------------------------------------------------------------


class Worker(Dataset[tuple[int, int, int]]):
    """Each sample tells the worker that made it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return info.id, info.num_workers, os.getpid()


def test_workers_know_who_they_are() -> None:
    """get_worker_info is as in torch; in the trainer there is none."""
    loader = fork(Worker(), batch_size=2, num_workers=2, collate_fn=as_list)
    samples = [sample for batch in loader for sample in batch]
    assert [sample[:2] for sample in samples] == [(i // 2 % 2, 2) for i in range(8)]
    assert len({pid for _, _, pid in samples}) == 2
    assert get_worker_info() is None


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_stay_if_asked_to(persistent: bool) -> None:
    """The same processes in every epoch, or new ones; all are gone with the loader."""
    loader = fork(
        Worker(), batch_size=4, num_workers=2, collate_fn=as_list, persistent_workers=persistent
    )
    before = children()
    pids = [{pid for batch in loader for _, _, pid in batch} for _ in range(2)]
    assert (pids[0] == pids[1]) is persistent
    del loader
    assert not children() - before


def test_the_first_function_of_workers_runs_once_in_each() -> None:
    """With its number; what it draws has no influence on the samples."""

    def init(worker_id: int) -> None:
        random.seed(worker_id)
        os.environ["STARTED_AS"] = str(worker_id)

    class Started(Dataset[str]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> str:
            return os.environ["STARTED_AS"]

    loader = fork(Started(), num_workers=2, worker_init_fn=init, collate_fn=as_list)
    assert list(loader) == [["0"], ["1"], ["0"], ["1"]]
    expected = stream(fork(Draws(6)))
    assert same(stream(fork(Draws(6), num_workers=2, worker_init_fn=init)), expected)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_can_be_dropped_at_any_time(persistent: bool) -> None:
    """Unused, in the middle or at the end: no worker, no iterator and no loader is left."""
    before = children()
    for taken in (0, 1, 4):
        loader = fork(range(8), batch_size=2, num_workers=2, persistent_workers=persistent)
        iterator = iter(loader)
        assert len(list(itertools.islice(iterator, taken))) == taken
        gone: list[Any] = [weakref.ref(loader), weakref.ref(iterator)]
        del loader, iterator
        assert [reference() for reference in gone] == [None, None]
        assert not children() - before


def test_prefetching_changes_nothing_but_when() -> None:
    """Any number of batches in advance, also more than there are."""
    expected = list(fork(range(10), batch_size=3))
    for prefetch_factor in (1, 3, 50):
        loader = fork(range(10), batch_size=3, num_workers=2, prefetch_factor=prefetch_factor)
        assert loader.prefetch_factor == prefetch_factor
        assert same(list(loader), expected)


def test_no_more_is_read_than_prefetching_asks_for() -> None:
    """At most workers x prefetch_factor batches are made in advance."""
    asked: list[int] = []

    def indices() -> Iterator[int]:
        for index in range(100):
            asked.append(index)
            yield index

    iterator = iter(fork(range(100), sampler=indices(), num_workers=2, prefetch_factor=3))
    next(iterator)
    assert len(asked) <= 2 * 3 + 2


def test_a_loader_may_have_more_workers_than_batches() -> None:
    """Idle ones do no harm."""
    loader = fork(range(2), num_workers=4)
    assert [int(i) for i in loader] == [0, 1]


def int_of(samples: list[Any]) -> int:
    """The number of the first sample."""
    return int(samples[0][0])


def test_a_loader_inside_a_worker_needs_no_workers() -> None:
    """A dataset may use a loader itself."""

    class Nested(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> list[int]:
            return [int(i) for i in build_loader(Draws(3), collate_fn=int_of)]

    assert list(fork(Nested(), num_workers=1, collate_fn=as_list)) == [[[0, 1, 2]]] * 2


# --- attributes ----------------------------------------------------------------------------------


def test_a_loader_has_the_attributes_of_torch() -> None:
    """Frameworks read them; those of torch that must not change still refuse to."""
    loader = fork(TENSORS, batch_size=4, drop_last=True, num_workers=2, timeout=30)
    assert loader.dataset is TENSORS
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (4, True, 2)
    assert (loader.pin_memory, loader.timeout, loader.prefetch_factor) == (False, 30, 2)
    assert loader.collate_fn is plain(TENSORS).collate_fn
    assert list(loader.batch_sampler or ())[0] == [0, 1, 2, 3]  # noqa: RUF015
    assert isinstance(loader.generator, torch.Generator)
    for name in ("batch_size", "sampler", "dataset", "drop_last", "persistent_workers"):
        with pytest.raises(ValueError, match="should not be set"):
            setattr(loader, name, None)


def test_an_iterator_is_its_own_iterator_and_cannot_be_pickled() -> None:
    """As in torch."""
    import pickle

    loader = fork(range(3))
    iterator = iter(loader)
    assert iter(iterator) is iterator
    with pytest.raises((TypeError, NotImplementedError)):
        pickle.dumps(iterator)
