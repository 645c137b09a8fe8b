"""The stream of batches is a function of seed and epoch: not of workers, ranks or batch size."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from streams import Augmented, Draws, as_list, fork, same, stream
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, get_worker_info

from sharedds.errors import OptionError, SampleError, SchemaError, StateError
from sharedds.loader import build_loader
from sharedds.order import SampleKey, current_key

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11}


@pytest.fixture(scope="module")
def expected() -> list[list[Any]]:
    """Two epochs made without workers."""
    return stream(fork(Augmented(30), **OPTIONS), 2)


# --- whatever the workers ------------------------------------------------------------------------


def test_a_plain_loader_depends_on_the_number_of_workers() -> None:
    """Torch gives each worker one seed, so a sample depends on who makes it."""

    def naive(workers: int) -> list[list[Any]]:
        generator = torch.Generator().manual_seed(11)
        context = "fork" if workers else None
        return stream(
            DataLoader(
                Augmented(30),
                batch_size=4,
                shuffle=True,
                num_workers=workers,
                generator=generator,
                multiprocessing_context=context,
            )
        )

    assert same(naive(1), naive(1))
    assert not same(naive(1), naive(2))


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5},
        {"num_workers": 4, "prefetch_factor": 1},
        {"num_workers": 1, "engine": "thread"},
        {"num_workers": 3, "engine": "thread"},
        {"num_workers": 2, "start_method": "forkserver"},
        {"num_workers": 1, "start_method": "spawn"},
    ],
    ids=str,
)
def test_the_stream_is_the_same_for_any_workers(
    options: dict[str, Any], expected: list[list[Any]]
) -> None:
    """Bit for bit, transforms that draw from three global generators included."""
    assert same(stream(fork(Augmented(30), **OPTIONS, **options), 2), expected)


def test_the_batch_size_changes_no_sample(expected: list[list[Any]]) -> None:
    """The same samples in the same order, cut elsewhere."""
    options = OPTIONS | {"batch_size": 7}
    images = torch.cat([images for images, _ in stream(fork(Augmented(30), **options))[0]])
    assert torch.equal(images, torch.cat([images for images, _ in expected[0]]))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_share_the_stream_of_one(world_size: int) -> None:
    """A step of all ranks together is a step of one with so many times the batch size."""
    ranks = [
        stream(fork(Augmented(36), **OPTIONS, rank=rank, world_size=world_size))[0]
        for rank in range(world_size)
    ]
    alone = stream(fork(Augmented(36), **OPTIONS | {"batch_size": 4 * world_size}))[0]
    together = [
        [torch.cat(parts) for parts in zip(*step, strict=True)] for step in zip(*ranks, strict=True)
    ]
    assert same(together, alone)


def test_seeds_and_epochs_have_streams_of_their_own(expected: list[list[Any]]) -> None:
    """Another seed gives another stream, and so does the next epoch."""
    other = stream(fork(Augmented(30), **OPTIONS | {"seed": 12}))
    assert not same(other[0], expected[0])
    assert not same(expected[0], expected[1])


def test_what_collate_draws_is_the_same_for_any_workers() -> None:
    """A collate_fn that mixes samples at random belongs to the stream."""

    def mix(samples: list[Any]) -> list[float]:
        return [random.random(), np.random.random(), float(torch.rand(())), len(samples)]  # noqa: NPY002

    runs = [
        stream(fork(Draws(20), batch_size=3, collate_fn=mix, num_workers=workers), 2)
        for workers in (0, 1, 2)
    ]
    assert runs[0] == runs[1] == runs[2]
    values = [value for epoch in runs[0] for batch in epoch for value in batch[:3]]
    assert len(set(values)) == len(values)


# --- training does not notice --------------------------------------------------------------------


def drawn() -> tuple[float, float, float, float]:
    """What training draws next; the second normal number comes out of a cache."""
    return random.gauss(), np.random.normal(), float(torch.randn(())), np.random.normal()  # noqa: NPY002


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_never_changes_the_random_numbers_of_training(workers: int) -> None:
    """A plain loader without workers does: dropout would depend on the transforms."""

    def training(loader: Any) -> list[tuple[float, ...]]:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        return [drawn() for _ in loader]

    quiet = training(range(5))
    assert training(DataLoader(Augmented(5))) != quiet
    assert training(fork(Augmented(5), shuffle=True, num_workers=workers)) == quiet


def test_the_state_of_training_is_kept_when_a_sample_fails() -> None:
    """An error leaves the global generators as they were too."""

    class Broken(Augmented):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            raise ValueError(index)

    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(SampleError):
        list(fork(Broken(3)))
    assert torch.equal(torch.get_rng_state(), before)


# --- epochs --------------------------------------------------------------------------------------


class Epochs(Dataset[tuple[int, int]]):
    """Each sample says which epoch its dataset was told, and who made it."""

    epoch = -1

    def __len__(self) -> int:
        return 6

    def set_epoch(self, epoch: int) -> None:
        """Note the epoch."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.epoch, os.getpid()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_that_stay_learn_each_epoch(method: str) -> None:
    """Counted by itself or set by hand, also where the dataset is wrapped; the workers stay."""
    wrapped: Any = Subset(ConcatDataset([Epochs(), Epochs()]), range(12))
    loader = build_loader(
        wrapped,
        batch_size=2,
        num_workers=2,
        start_method=method,
        persistent_workers=True,
        collate_fn=as_list,
    )
    pids = set()
    for epoch in (0, 1, 2, 7, 8):
        if epoch == 7:
            loader.set_epoch(7)
        samples = [sample for batch in loader for sample in batch]
        assert [told for told, _ in samples] == [epoch] * 12
        pids |= {pid for _, pid in samples}
    assert len(pids) == 2


def test_setting_the_epoch_acts_from_the_next_pass_on() -> None:
    """A pass under way goes on as it is; saying what comes anyway changes nothing."""
    loader = fork(Draws(12), batch_size=3, shuffle=True)
    reference = stream(fork(Draws(12), batch_size=3, shuffle=True), 4)
    iterator = iter(loader)
    begun = [next(iterator)]
    loader.set_epoch(3)
    assert loader.epoch == 0
    assert same([*begun, *iterator], reference[0])
    assert same(list(loader), reference[3])
    again = fork(Draws(12), batch_size=3, shuffle=True)
    for epoch in range(3):
        again.set_epoch(epoch)
        assert same(list(again), reference[epoch])


def test_augmentations_differ_in_every_epoch_and_can_be_made_again() -> None:
    """Nobody calls set_epoch; a new process that starts at epoch 2 makes exactly epoch 2."""
    for workers in (0, 2):
        loader = fork(Draws(32), batch_size=8, shuffle=True, seed=7, num_workers=workers)
        epochs = stream(loader, 3)
        orders = [torch.cat([batch[0] for batch in epoch]) for epoch in epochs]
        draws = [torch.cat([batch[1] for batch in epoch])[order.argsort()]
                 for epoch, order in zip(epochs, orders, strict=True)]  # fmt: skip
        for a, b in itertools.combinations(range(3), 2):
            assert not torch.equal(orders[a], orders[b])
            assert not (draws[a] == draws[b]).any()
        fresh = fork(Draws(32), batch_size=8, shuffle=True, seed=7, num_workers=workers)
        fresh.set_epoch(2)
        assert same(list(fresh), epochs[2])


# --- several passes ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_two_passes_at_once_are_two_epochs(workers: int) -> None:
    """Nested and zipped loops are right without workers that stay."""
    reference = stream(fork(Draws(6), batch_size=2, shuffle=True), 3)
    loader = fork(Draws(6), batch_size=2, shuffle=True, num_workers=workers)
    pairs = list(zip(loader, loader, strict=True))
    assert same([list(side) for side in zip(*pairs, strict=True)], reference[:2])
    assert same(list(loader), reference[2])


def test_workers_that_stay_serve_one_pass_at_a_time() -> None:
    """The older loop gets a clear error, where torch would mix up the batches of both."""
    loader = fork(Draws(12), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    outer = iter(loader)
    next(outer)
    inner = list(loader)
    with pytest.raises(StateError, match="another loop over this loader has begun"):
        next(outer)
    assert same(inner, stream(fork(Draws(12), batch_size=2, shuffle=True), 2)[1])


def test_a_finished_pass_takes_nothing_from_the_next() -> None:
    """Asking an exhausted iterator again gives no batch of the pass that runs now."""
    loader = fork(Draws(6), batch_size=2, num_workers=1, persistent_workers=True)
    first = iter(loader)
    assert len(list(first)) == 3
    second = iter(loader)
    assert next(first, None) is None
    assert len(list(second)) == 3


def test_breaking_off_with_workers_that_stay_keeps_the_stream() -> None:
    """What was made in advance is dropped, and the next epoch is whole."""
    reference = stream(fork(Draws(20), batch_size=2, shuffle=True), 3)
    loader = fork(Draws(20), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for step, batch in enumerate(loader):
            assert same(batch, reference[epoch][step])
            if step == 3:
                break
    assert len(loader) == 10


# --- what the dataset offers ---------------------------------------------------------------------


class Together(Draws):
    """Loads whole batches, and counts the calls."""

    calls = 0

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Load several."""
        type(self).calls += 1
        assert current_key() is None
        return [self[index] for index in indices]


def test_a_dataset_that_loads_batches_is_asked_once_for_each() -> None:
    """Its global draws follow the first sample of the batch: the same for any workers."""
    Together.calls = 0
    alone = stream(fork(Together(20), batch_size=5, shuffle=True))
    assert Together.calls == 4
    assert same(stream(fork(Together(20), batch_size=5, shuffle=True, num_workers=2)), alone)


@pytest.mark.parametrize("result", [(0, 1), [0], None])
def test_a_wrong_answer_to_a_batch_is_named(result: Any) -> None:
    """Torch would collate what came, however many that is."""

    class Wrong(Together):
        def __getitems__(self, indices: list[int]) -> Any:
            return result

    with pytest.raises(SchemaError, match=r"Wrong.__getitems__ returned"):
        list(fork(Wrong(4), batch_size=2))


def test_a_bad_sample_of_a_batch_is_found() -> None:
    """The error names the sample, although the dataset loads whole batches."""

    class Bad(Together):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise ValueError("five")
            return super().__getitem__(index)

    with pytest.raises(SampleError, match="sample 5 of epoch 0") as caught:
        list(fork(Bad(8), batch_size=4))
    assert caught.value.sample == 5


class Keyed(Dataset[SampleKey | None]):
    """Each sample is its own key."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> SampleKey | None:
        return current_key()


def test_wrapped_datasets_keep_a_key_for_each_sample() -> None:
    """Torch's Subset would load a batch at once; through it too, each sample has its own key."""
    wrapped: Any = Subset(ConcatDataset([Keyed(), Keyed()]), [15, 3, 9, 0])
    keys = [key for batch in fork(wrapped, batch_size=2, collate_fn=as_list) for key in batch]
    assert keys == [SampleKey(0, 0, index) for index in range(4)]


def test_a_subset_with_a_getitem_of_its_own_is_asked_for_samples() -> None:
    """Torch wants it to load batches as well; samples would have no keys of their own there."""

    class Doubled(Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            return index, super().__getitem__(index)  # type: ignore[no-untyped-call]

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    (batch,) = fork(Doubled(Keyed(), [5, 6]), batch_size=2, collate_fn=as_list)
    assert batch == [(0, SampleKey(0, 0, 0)), (1, SampleKey(0, 0, 1))]


def test_advice_comes_before_the_first_read_of_a_batch() -> None:
    """Also through Subset and ConcatDataset, with the numbers of the inner datasets."""
    log: list[Any] = []

    class Advised(Dataset[int]):
        def __init__(self, name: str) -> None:
            self.name = name

        def __len__(self) -> int:
            return 4

        def advise(self, indices: np.ndarray[Any, Any]) -> None:
            log.append((self.name, indices.tolist()))

        def __getitem__(self, index: int) -> int:
            log.append(index)
            return index

    wrapped: Any = Subset(ConcatDataset([Advised("a"), Advised("b")]), [6, 1, 5, 0])
    list(fork(wrapped, batch_size=4))
    assert log == [("b", [2, 1]), ("a", [1, 0]), 2, 1, 1, 0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: (1, t), lambda t: {"x": t}])
def test_a_sample_that_is_not_on_the_cpu_is_named(wrap: Any, workers: int) -> None:
    """A tensor elsewhere cannot be sent; the message says which sample and what to do."""

    class Elsewhere(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return wrap(torch.empty(1, device="meta" if index == 2 else "cpu"))

    with pytest.raises(SampleError, match=r"sample 2 .*must stay on the CPU"):
        list(fork(Elsewhere(), batch_size=2, num_workers=workers))


def test_workers_see_the_users_dataset() -> None:
    """get_worker_info().dataset is what was passed, so that worker_init_fn can change it."""

    class Offset(Draws):
        offset = 0.0

        def __getitem__(self, index: int) -> tuple[float, ...]:
            return (index + self.offset,)

    def shift(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.offset = 100.0  # type: ignore[attr-defined]

    (batch,) = fork(Offset(3), batch_size=3, num_workers=1, worker_init_fn=shift)
    assert batch[0].tolist() == [100, 101, 102]


class Damaged(Draws):
    """Every fifth sample cannot be loaded."""

    def __getitem__(self, index: int) -> tuple[float, ...]:
        if index % 5 == 0:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:.*could not be loaded")
@pytest.mark.filterwarnings("ignore:.*it was (left out|replaced)")
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_what_stands_for_bad_samples_is_the_same_for_any_workers(policy: Any) -> None:
    """Also batches of which nothing is left; a state counts them as consumed."""
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "on_error": policy}
    alone = stream(fork(Damaged(30), **options), 2)
    for workers in ({"num_workers": 2}, {"num_workers": 2, "engine": "thread"}):
        assert same(stream(fork(Damaged(30), **options, **workers), 2), alone)
    assert all(
        len(index) > 0 and not (index % 5 == 0).any() for epoch in alone for index, *_ in epoch
    )
    loader = fork(Damaged(30), **options)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(3)]
    resumed = fork(Damaged(30), **options)
    resumed.load_state_dict(loader.state_dict())
    assert same([*first, *resumed], alone[0])


@pytest.mark.filterwarnings("ignore:.*could not be loaded")
@pytest.mark.filterwarnings("ignore:.*it was (left out|replaced)")
def test_a_replacement_is_one_that_the_sampler_chose() -> None:
    """A sample of another split would leak from validation into training."""
    chosen = [5, 6, 7, 10, 11, 12]
    loader = fork(Damaged(30), batch_size=3, sampler=chosen, on_error="replace")
    assert {int(index) for batch in loader for index in batch[0]} <= {6, 7, 11, 12}


def test_a_loader_that_was_rebuilt_from_its_arguments_says_why_it_cannot_work() -> None:
    """Frameworks do that to replace samplers; the ranks are split here already."""
    loader = fork(Draws(4))
    rebuilt = type(loader)(loader.dataset, batch_size=2)
    with pytest.raises(OptionError, match="use_distributed_sampler=False"):
        next(iter(rebuilt))


def test_the_sampler_shows_the_next_epoch() -> None:
    """For code that looks at loader.sampler: each time one epoch more, and the loader stays."""
    loader = fork(Draws(10), batch_size=4, shuffle=True, rank=1, world_size=2)
    shown = [list(loader.sampler), list(loader.sampler)]
    passes = [[int(i) for batch in loader for i in batch[0]] for _ in range(2)]
    assert shown == passes
    assert passes[0] != passes[1]
    assert len(loader.sampler) == 5  # type: ignore[arg-type]
    assert [len(batch) for batch in loader.batch_sampler] == [4, 1]  # type: ignore[union-attr]


def test_an_iterator_knows_how_long_it_is() -> None:
    """Progress bars ask for it."""
    loader = fork(Draws(10), batch_size=4)
    iterator: Iterator[Any] = iter(loader)
    assert len(iterator) == len(loader) == 3  # type: ignore[arg-type]
