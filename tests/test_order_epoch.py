"""Batches of an epoch: one stream, whatever the ranks, the batch size and the place of a resume."""

from __future__ import annotations

import pickle
import tracemalloc
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, TensorDataset

from sharedds.errors import OptionError
from sharedds.order import (
    BalancedSampling,
    Batch,
    EpochOrder,
    SampleKey,
    Sampling,
    Sequential,
    Shuffled,
    WeightedSampling,
)

SEED, EPOCH = 7, 3
LABELS = TensorDataset(torch.arange(10))


def orders(sampling: Sampling, world_size: int = 1, **options: Any) -> list[EpochOrder]:
    """Return the order of each rank."""
    options = {"batch_size": 4, "seed": SEED, "epoch": EPOCH, **options}
    return [
        EpochOrder(sampling=sampling, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def stream(ranks: list[EpochOrder], steps: int | None = None) -> list[int]:
    """Return the indices of all ranks in global order: step by step, in each rank by rank."""
    most = max((len(rank) for rank in ranks), default=0)
    wanted = most if steps is None else min(steps, most)
    return list(
        chain.from_iterable(
            rank.batch(step).indices.tolist()
            for step in range(wanted)
            for rank in ranks
            if step < len(rank)
        )
    )


def whole(sampling: Sampling) -> list[int]:
    """Return the epoch as one rank reads it, sample by sample."""
    indices: list[int] = sampling.at(SEED, EPOCH, np.arange(sampling.count)).tolist()
    return indices


SAMPLINGS = st.one_of(
    st.builds(Sequential, st.integers(0, 200)),
    st.builds(Shuffled, st.integers(0, 200)),
    st.builds(WeightedSampling, st.just([1, 0, 2, 5]), st.integers(0, 200)),
    st.builds(BalancedSampling, st.just([0, 1, 1, 1, 5, 5]), st.integers(0, 200)),
)


# --- one stream ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(SAMPLINGS, st.integers(1, 20), st.integers(1, 9))
def test_ranks_together_read_the_epoch_once(sampling: Sampling, batch: int, ranks: int) -> None:
    """Whatever count, batch size and ranks: nothing lost, nothing twice, in order."""
    assert stream(orders(sampling, ranks, batch_size=batch)) == whole(sampling)


@settings(deadline=None, max_examples=200)
@given(
    SAMPLINGS,
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5)), max_size=5),
    st.sampled_from([{}, {"pad": True}, {"drop_last": True}]),
)
def test_a_resume_goes_on_with_the_stream(
    sampling: Sampling, parts: list[tuple[int, int, int]], tail: dict[str, bool]
) -> None:
    """With other batch and world sizes at any steps: what was read, then the rest, is the epoch."""
    read: list[int] = []
    start = 0
    for batch, ranks, steps in parts:
        group = orders(sampling, ranks, batch_size=batch, start=start, **tail)
        full = min(steps, (sampling.count - start) // (batch * ranks))
        read += stream(group, full)
        if full:
            start = group[0].batch(full - 1).consumed
            assert {rank.batch(full - 1).consumed for rank in group} == {start}
    last = orders(sampling, 3, batch_size=2, start=start, **tail)
    read += stream(last)
    epoch = whole(sampling)
    if tail.get("pad"):
        assert sorted(read) == sorted(epoch + last[0].padded.tolist())
    else:
        assert read == epoch[: len(epoch) - last[0].dropped]


def test_skipping_the_steps_taken_is_not_enough() -> None:
    """By steps, as skipping batches does it, a resume on other ranks repeats or loses samples."""
    sampling = Shuffled(64)
    read = stream(orders(sampling, 2), steps=3)
    by_steps = orders(sampling, 4)
    rest = [i for rank in by_steps for batch in list(rank)[3:] for i in batch.indices.tolist()]
    assert sorted(read + rest) != list(range(64))
    start = orders(sampling, 2)[0].batch(2).consumed
    assert sorted(read + stream(orders(sampling, 4, start=start))) == list(range(64))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """No two of them share more than chance."""
    found = [Shuffled(1000).at(s, e, np.arange(1000)) for s in (0, 1, -1) for e in range(4)]
    same = [int((a == b).sum()) for i, a in enumerate(found) for b in found[:i]]
    assert max(same) < 8
    assert abs(sum(same) / len(same) - 1) < 0.7


def test_the_order_is_that_of_ever() -> None:
    """These values are promised: runs can be repeated on other machines and with later releases."""
    assert Shuffled(10).at(0, 0, np.arange(10)).tolist() == TEN
    assert Shuffled(10**9).at(-1, 2, np.arange(3)).tolist() == BILLION


TEN = [7, 0, 1, 6, 4, 8, 9, 2, 5, 3]
BILLION = [670561151, 386067597, 136955399]


# --- the tail ------------------------------------------------------------------------------------


def sizes(ranks: list[EpochOrder]) -> list[list[int]]:
    """Return the sizes of the batches of each rank."""
    return [[len(batch) for batch in rank] for rank in ranks]


def test_evaluation_counts_each_sample_once() -> None:
    """10 samples on 4 ranks: torch's sampler counts 2 of them twice, ours none."""
    torchs: list[int] = []
    for rank in range(4):
        torchs += DistributedSampler(LABELS, num_replicas=4, rank=rank, shuffle=False)
    assert len(torchs) == 12
    ours = orders(Shuffled(10), 4)
    assert sorted(stream(ours)) == list(range(10))
    assert sizes(ours) == [[3], [3], [2], [2]]


def test_more_ranks_than_samples() -> None:
    """3 samples on 7 ranks: four of them evaluate nothing."""
    ours = orders(Sequential(3), 7)
    assert sizes(ours) == [[1], [1], [1], [], [], [], []]
    assert stream(ours) == [0, 1, 2]
    assert [len(rank) for rank in ours] == [1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(("count", "ranks"), [(10, 4), (3, 7), (1, 5), (16, 4), (17, 4), (0, 3)])
def test_padding_gives_all_ranks_the_same(count: int, ranks: int) -> None:
    """Equal batches on all ranks; what is repeated, fewer than there are ranks, is known."""
    ours = orders(Shuffled(count), ranks, pad=True)
    assert len({tuple(size) for size in sizes(ours)}) == 1
    padded = ours[0].padded.tolist()
    assert len(padded) < ranks
    assert sorted(stream(ours)) == sorted([*range(count), *padded])
    assert all(rank.padded.tolist() == padded for rank in ours)


def test_padding_comes_from_the_beginning() -> None:
    """The missing samples are the first of the epoch; of too few, again and again."""
    ours = orders(Sequential(10), 4, pad=True, batch_size=2)
    assert stream(ours) == [*range(10), 0, 1]
    assert ours[0].padded.tolist() == ours[0].padded_positions.tolist() == [0, 1]
    few = orders(Sequential(3), 7, pad=True)
    assert stream(few) == [0, 1, 2, 0, 1, 2, 0]
    assert few[0].padded.tolist() == [0, 1, 2, 0]


def test_padding_after_a_resume_comes_from_the_beginning_too() -> None:
    """Of the epoch, not of what is left of it."""
    ours = orders(Sequential(10), 4, pad=True, start=9)
    assert stream(ours) == [9, 0, 1, 2]


@pytest.mark.parametrize(("count", "ranks", "dropped"), [(10, 4, 10), (35, 4, 3), (32, 4, 0)])
def test_dropping_keeps_whole_steps(count: int, ranks: int, dropped: int) -> None:
    """Only batches of full size on all ranks; how many samples are left out is known."""
    ours = orders(Shuffled(count), ranks, drop_last=True)
    assert set(chain.from_iterable(sizes(ours))) <= {4}
    assert stream(ours) == whole(Shuffled(count))[: count - dropped]
    assert [rank.dropped for rank in ours] == [dropped] * ranks
    assert not len(ours[0].padded)


def test_without_padding_nothing_is_padded_or_dropped() -> None:
    """Both say so."""
    order = orders(Sequential(10), 4)[0]
    assert order.dropped == 0
    assert order.padded.tolist() == []


def test_consumed_ends_with_the_count() -> None:
    """It counts samples of the epoch: neither beyond its end, nor the repeated ones."""
    order = orders(Sequential(10), 3, batch_size=2, pad=True)[1]
    assert [batch.consumed for batch in order] == [6, 10]
    dropping = orders(Sequential(10), 3, batch_size=2, drop_last=True)[1]
    assert [batch.consumed for batch in dropping] == [6]


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Shuffled(60_000), WeightedSampling([1.0, 2.0] * 9, 60_000)])
def test_a_loop_gives_what_asking_for_each_batch_does(sampling: Sampling) -> None:
    """Though it computes many batches at once: on every rank, from any start, to the last."""
    for options in ({"start": 17}, {"pad": True}, {"drop_last": True}, {"batch_size": 9_000}):
        for order in orders(sampling, 3, **{"batch_size": 7, **options}):
            steps = list(order)
            assert len(steps) == len(order)
            for step in (*range(20), len(order) // 2, len(order) - 2, len(order) - 1):
                if 0 <= step < len(order):
                    assert steps[step] == order.batch(step)
                    assert not steps[step].indices.flags.writeable


def test_a_batch_names_the_key_of_each_sample() -> None:
    """Seed, epoch and index; the draw is 0 where no sample occurs twice."""
    batch = orders(Sequential(10))[0].batch(1)
    assert list(batch.keys()) == [SampleKey(SEED, EPOCH, index) for index in (4, 5, 6, 7)]
    assert (batch.seed, batch.epoch, batch.step, batch.consumed) == (SEED, EPOCH, 1, 8)


def test_each_draw_of_a_sample_has_its_own_key() -> None:
    """With replacement the draw is the position: the same for any ranks, batch size and start."""
    sampling = WeightedSampling([1, 1], 20)
    alone = list(chain.from_iterable(map(Batch.keys, orders(sampling)[0])))
    assert [key.draw for key in alone] == list(range(20))
    assert len(set(alone)) == 20
    ranks = orders(sampling, 3, batch_size=2, start=5)
    shared = set(chain.from_iterable(map(Batch.keys, chain(*ranks))))
    assert shared == set(alone[5:])


@pytest.mark.parametrize(
    "sampling",
    [Shuffled(2**62), WeightedSampling([1, 2], 2**62), WeightedSampling([1, 2], 100)],
)
def test_a_batch_pickles_to_less_than_a_kilobyte(sampling: Sampling) -> None:
    """64 samples, whatever the count, also with draws; what arrives is the same and read-only."""
    order = EpochOrder(sampling=sampling, batch_size=64, seed=2**64, epoch=10**6)
    batch = order.batch(len(order) // 2)
    data = pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert again == batch
    assert list(again.keys()) == list(batch.keys())
    assert not again.indices.flags.writeable
    assert again.indices.dtype == np.int64


@pytest.mark.parametrize("draws", [[], [5, 0, 2**40], [3, 3, 3]])
def test_odd_draws_survive_pickling(draws: list[int]) -> None:
    """Draws that are no run of numbers arrive as they were."""
    numbers = np.array(draws, np.int64)
    batch = Batch(0, 0, numbers.copy(), numbers, step=0, consumed=3)
    again = pickle.loads(pickle.dumps(batch))
    assert again == batch
    assert again.draws.tolist() == draws
    assert again.draws.dtype == np.int64


def test_batches_are_values() -> None:
    """The same batch asked for twice is equal; nothing in it can be changed."""
    order = orders(Shuffled(100))[0]
    assert order.batch(2) == order.batch(2)
    assert len({order.batch(2), order.batch(2), order.batch(3)}) == 2
    assert order.batch(2) != "batch"
    with pytest.raises(ValueError, match="read-only"):
        order.batch(2).indices[0] = 1


class Listed:
    """A sampling of one's own that keeps its array."""

    count, repeats = 5, False

    def __init__(self, *indices: int) -> None:
        self.indices = np.array(indices)

    def at(self, seed: int, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the indices as they are."""
        return self.indices

    def facts(self) -> dict[str, int | str]:
        """Return nothing."""
        return {}


def test_a_sampling_of_ones_own_keeps_its_arrays() -> None:
    """Batches are read-only, what they were made from is not made so."""
    sampling = Listed(3, 1, 4, 1, 5)
    order = EpochOrder(sampling=sampling, batch_size=5, seed=0, epoch=0)
    assert order.batch(0).indices.tolist() == [3, 1, 4, 1, 5]
    assert sampling.indices.flags.writeable


def test_a_sampling_that_gives_too_few_is_refused() -> None:
    """Samples are never lost in silence."""
    order = EpochOrder(sampling=Listed(3, 1), batch_size=5, seed=0, epoch=0)
    with pytest.raises(OptionError, match=r"Listed.at\(\) gave \(2,\) indices for 5"):
        order.batch(0)


# --- nothing is held in memory -------------------------------------------------------------------


def test_an_epoch_of_a_billion_starts_at_once() -> None:
    """Its order, its length, a batch in its middle and what is padded take less than 64 KiB."""
    tracemalloc.start()
    try:
        order = orders(Shuffled(10**9), 64, pad=True)[-1]
        middle = order.batch(len(order) // 2)
        assert len(order.padded) == -(10**9) % 64
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(middle) == 4
    assert most < 1 << 16


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -1),
        ("batch_size", True),
        ("batch_size", 2.0),
        ("world_size", 0),
        ("world_size", None),
        ("rank", -1),
        ("rank", 1),
        ("epoch", -1),
        ("epoch", "1"),
        ("seed", 1.5),
        ("seed", False),
        ("start", -1),
        ("start", 11),
        ("start", True),
    ],
)
def test_a_wrong_value_is_named(option: str, value: object) -> None:
    """The error says which option has which value."""
    options: dict[str, Any] = {"batch_size": 2, "seed": 0, "epoch": 0, option: value}
    with pytest.raises(OptionError, match=f"{option}={value!r}"):
        EpochOrder(sampling=Sequential(10), **options)


def test_dropping_and_padding_exclude_each_other() -> None:
    """Both at once mean nothing."""
    with pytest.raises(OptionError, match="drop_last=True and pad=True"):
        EpochOrder(sampling=Sequential(1), batch_size=1, seed=0, epoch=0, drop_last=True, pad=True)


@pytest.mark.parametrize("step", [-1, 3, True, 1.0])
def test_a_step_is_one_of_the_epoch(step: object) -> None:
    """No batch before the first or after the last."""
    with pytest.raises(OptionError, match=f"step={step!r}"):
        orders(Sequential(10))[0].batch(step)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Sequential, Shuffled])
@pytest.mark.parametrize("count", [-1, True, 2.5, 2**63])
def test_a_count_is_a_number_of_samples(kind: type[Shuffled], count: int) -> None:
    """Refused by name."""
    with pytest.raises(OptionError, match="count="):
        kind(count)
