"""Samplings by weight and by class."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import OptionError
from sharedds.order import BalancedSampling, Sampling, Sequential, Shuffled, WeightedSampling


def epoch(sampling: Sampling, number: int = 0, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return all indices of an epoch."""
    return sampling.at(seed, number, np.arange(sampling.count))


def chances(sampling: WeightedSampling) -> npt.NDArray[np.float64]:
    """Return the chance of each sample, from the alias table."""
    shares = sampling._shares
    found = shares.copy()
    np.add.at(found, sampling._aliases, 1 - shares)
    return found / sampling.items


# --- by weight -----------------------------------------------------------------------------------


def test_frequencies_are_those_of_the_weights() -> None:
    """Chi-square over a million draws: weights from 1 to 1,000."""
    weights = np.geomspace(1, 1_000, 50)
    found = np.bincount(epoch(WeightedSampling(weights, 1_000_000)), minlength=50)
    expected = weights / weights.sum() * 1_000_000
    assert ((found - expected) ** 2 / expected).sum() < 49 + 5 * math.sqrt(98)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.integers(0, 5).map(float)), min_size=1
    ).filter(any)
)
def test_the_table_has_the_chances_of_the_weights(weights: list[float]) -> None:
    """Whatever the weights: the chance of each sample is its share, and none for 0."""
    expected = np.array(weights) / math.fsum(weights)
    found = chances(WeightedSampling(weights))
    assert np.abs(found - expected).max() < 1e-12
    assert not found[expected == 0].any()


@pytest.mark.parametrize(
    "weights",
    [
        [1.0],
        [5e-324, 0.0],
        [1e308] * 10,
        [1e-300, 1.0, 1e300],
        np.full(1000, 0.1),
        np.ones(7, bool),
        torch.tensor([1, 2, 3]),
        [0] * 500 + [1],
    ],
    ids=["one", "tiny", "huge", "wide", "equal", "bool", "torch", "last"],
)
def test_unusual_weights_work(weights: Any) -> None:
    """Of any scale and kind of number; only samples with a weight are drawn."""
    sampling = WeightedSampling(weights, 2_000)
    positive = np.flatnonzero(np.asarray(weights) > 0)
    assert set(epoch(sampling).tolist()) <= set(positive.tolist())
    assert np.isclose(chances(sampling).sum(), 1)


def test_a_weight_of_zero_is_never_drawn() -> None:
    """Not once in half a million draws from a table that is half zeros."""
    weights = np.tile([0.0, 1.0, 0.0, 1e-3], 500)
    drawn = np.bincount(epoch(WeightedSampling(weights, 500_000)), minlength=2000)
    assert not drawn[weights == 0].any()
    assert drawn[weights == 1].all()


def test_draws_are_independent() -> None:
    """Neighbours in the stream, epochs and seeds agree as often as chance lets them."""
    sampling = WeightedSampling(np.ones(100), 50_000)
    first = epoch(sampling)
    for other in (np.roll(first, 1), epoch(sampling, 1), epoch(sampling, seed=1)):
        assert abs((first == other).sum() - 500) < 5 * math.sqrt(500)
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 5 / math.sqrt(50_000)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, float("nan")], r"weights\[1\]=nan"),
        ([1, 2, float("inf")], r"weights\[2\]=inf"),
        ([-1.0, 2], r"weights\[0\]=-1.0"),
        ([0, 0], "all of them are 0"),
        ([], r"shape \(0,\)"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (["a"], "not <U1"),
        (3.0, r"shape \(\)"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, text: str) -> None:
    """The error names the weight, or what the whole is."""
    with pytest.raises(OptionError, match=text):
        WeightedSampling(weights)


# --- by class ------------------------------------------------------------------------------------

LABELS = np.repeat([3, -1, 900], [1, 10, 89])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-3, 40), min_size=1, max_size=300), st.integers(0, 500))
def test_every_class_comes_equally_often(labels: list[int], draws: int) -> None:
    """Whatever the labels: classes differ by one draw at most, and so do members of a class."""
    numbers = np.array(labels)
    drawn = epoch(BalancedSampling(numbers, draws))
    assert len(drawn) == draws
    times = np.bincount(drawn, minlength=len(numbers))
    per_class = [times[numbers == label].sum() for label in np.unique(numbers)]
    assert max(per_class) - min(per_class) <= 1
    for label in np.unique(numbers):
        members = times[numbers == label]
        assert members.max() - members.min() <= 1


def test_every_round_has_every_class() -> None:
    """So that a batch is balanced too: any three draws in a row that begin a round."""
    drawn = LABELS[epoch(BalancedSampling(LABELS, 300))].reshape(-1, 3)
    assert (np.sort(drawn, axis=1) == [-1, 3, 900]).all()


def test_rounds_and_cycles_have_orders_of_their_own() -> None:
    """The classes of a round come in each order equally often, as do members in each cycle."""
    labels = np.repeat([0, 1, 2], 3)
    drawn = epoch(BalancedSampling(labels, 18_000))
    rounds = (labels[drawn].reshape(-1, 3) * [9, 3, 1]).sum(1)
    cycles = [(drawn[labels[drawn] == c].reshape(-1, 3) % 3 * [9, 3, 1]).sum(1) for c in range(3)]
    for orders, number in ((rounds, 6_000), *((cycle, 2_000) for cycle in cycles)):
        found = np.bincount(orders)
        found = found[found > 0]
        assert len(found) == 6
        assert ((found - number / 6) ** 2 / (number / 6)).sum() < 5 + 5 * math.sqrt(10)


def test_large_classes_and_many_classes() -> None:
    """Beyond the sizes that are sorted: still each member before any comes again."""
    labels = np.concatenate([np.zeros(5_000, np.int64), np.arange(1, 100)])
    drawn = epoch(BalancedSampling(labels, 100 * 5_000))
    assert (np.bincount(drawn[labels[drawn] == 0]) == 1).all()


def test_epochs_and_seeds_differ() -> None:
    """Another epoch or seed is another order of the same classes."""
    sampling = BalancedSampling(np.arange(1000) % 10)
    first = epoch(sampling)
    for other in (epoch(sampling, 1), epoch(sampling, seed=1)):
        assert (first == other).sum() < 10


@pytest.mark.parametrize("labels", [[], [1.5], [[1]], ["a"], 3])
def test_wrong_labels_are_refused(labels: Any) -> None:
    """The error says what they are."""
    with pytest.raises(OptionError, match="labels: one integer for each sample"):
        BalancedSampling(labels)


# --- both ----------------------------------------------------------------------------------------

MAKERS: list[Callable[[int], Sampling]] = [
    lambda count: WeightedSampling([1, 2, 3], count),
    lambda count: BalancedSampling([1, 2, 2], count),
    Sequential,
    Shuffled,
]


@pytest.mark.parametrize("make", MAKERS)
def test_positions_can_be_asked_in_any_order(make: Callable[[int], Sampling]) -> None:
    """A position has one index, in whatever company it is asked for."""
    sampling = make(100)
    positions = np.array([99, 0, 50, 0])
    assert sampling.at(1, 2, positions).tolist() == epoch(sampling, 2, 1)[positions].tolist()
    assert sampling.at(1, 2, positions[:0]).tolist() == []
    assert sampling.at(1, 2, positions).dtype == np.int64


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("count", [-1, True, 1.5, 2**63])
def test_the_number_of_draws_is_a_number(make: Callable[[int], Sampling], count: int) -> None:
    """Negative, too many or no number: refused."""
    with pytest.raises(OptionError, match=r"(num_samples|count)="):
        make(count)


@pytest.mark.parametrize("make", MAKERS)
def test_facts_go_into_a_state(make: Callable[[int], Sampling]) -> None:
    """They survive JSON and agree for equal samplings."""
    facts = make(10).facts()
    assert json.loads(json.dumps(facts)) == facts == make(10).facts()
    assert facts["count"] == make(10).count == 10
    assert facts != make(11).facts()


def test_other_weights_or_labels_have_other_facts() -> None:
    """Whoever resumes with another table is found out."""
    assert WeightedSampling([1, 2]).facts() != WeightedSampling([2, 1]).facts()
    assert BalancedSampling([1, 2]).facts() != BalancedSampling([2, 1]).facts()
    assert BalancedSampling([1, 2]).facts() == BalancedSampling(np.array([1, 2], "u1")).facts()


def test_whether_samples_repeat() -> None:
    """By weight and by class they may; in plain orders they do not."""
    assert [make(1).repeats for make in MAKERS] == [True, True, False, False]


def test_the_draws_are_those_of_ever() -> None:
    """These values are promised: runs can be repeated on other machines and with later releases."""
    assert WeightedSampling([1, 2, 3], 10**9).at(0, 0, np.arange(10)).tolist() == WEIGHTED
    assert BalancedSampling([1, 2, 2, 2]).at(0, 0, np.arange(8)).tolist() == BALANCED


WEIGHTED = [2, 2, 1, 1, 2, 0, 2, 2, 1, 2]
BALANCED = [0, 2, 0, 3, 0, 1, 0, 1]


@pytest.mark.parametrize("make", MAKERS[:2])
def test_an_epoch_costs_no_memory(make: Callable[[int], Sampling]) -> None:
    """A batch in the middle of a billion draws takes less than 64 KiB."""
    sampling = make(10**9)
    positions = np.arange(5 * 10**8, 5 * 10**8 + 64)
    tracemalloc.start()
    try:
        sampling.at(0, 1, positions)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 16


def test_the_tables_cannot_be_changed() -> None:
    """They are read-only: a change would change the order of an epoch under way."""
    arrays = [
        value
        for sampling in (WeightedSampling([1, 2]), BalancedSampling([1, 2]))
        for value in vars(sampling).values()
        if isinstance(value, np.ndarray)
    ]
    assert len(arrays) == 5
    assert not any(array.flags.writeable for array in arrays)
    assert repr(WeightedSampling([1, 2])) == "WeightedSampling(2 weights, num_samples=2)"
    assert repr(BalancedSampling([1, 2])) == (
        "BalancedSampling(2 labels, 2 classes, num_samples=2)"
    )
