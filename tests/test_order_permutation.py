"""Shuffled orders by formula: bijective, and as random as a shuffle in memory.

The statistics are z scores: about normal with deviation 1 for true shuffles. A shuffle by torch
passes them, and two weak formulas fail, so they can tell.
"""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import OptionError, SampleIndexError
from sharedds.order import Permutation, permutation
from sharedds.order.permutation import permute

Integers = npt.NDArray[np.int64]
Shuffle = Callable[[int, int], Integers]

LIMIT = 5.0  # of a z score: once in two million
KEYS = {1_000: 400, 1_500: 400, 5_000: 200, 1 << 20: 3}


def by_formula(count: int, key: int) -> Integers:
    """Return our permutation."""
    return Permutation(count, key).at(np.arange(count))


def by_torch(count: int, key: int) -> Integers:
    """Return a shuffle in memory."""
    generator = torch.Generator().manual_seed(key * 7919 + 5)
    return torch.randperm(count, generator=generator).numpy()


def by_affine_map(count: int, key: int) -> Integers:
    """Return ``factor * position + shift`` modulo count, as some loaders shuffle."""
    numbers = np.random.default_rng(key)
    factor = next(f for f in numbers.integers(1, count, 1000).tolist() if math.gcd(f, count) == 1)
    moved: Integers = (np.arange(count) * factor + numbers.integers(count)) % count
    return moved


# --- scores --------------------------------------------------------------------------------------


def chi_score(found: npt.ArrayLike, expected: npt.ArrayLike, freedom: int | None = None) -> float:
    """Return how far chi-square is from its mean, in deviations."""
    counts, means = np.broadcast_arrays(np.asarray(found, float), np.asarray(expected, float))
    freedom = freedom or counts.size - 1
    return float((((counts - means) ** 2 / means).sum() - freedom) / math.sqrt(2 * freedom))


def longest_runs(shuffles: Integers) -> npt.NDArray[np.float64]:
    """Return the length of the longest increasing run of each."""
    count = shuffles.shape[1]
    lengths = []
    for row in shuffles:
        ends = np.concatenate(([-1], np.flatnonzero(np.diff(row) < 0), [count - 1]))
        lengths.append(float(np.diff(ends).max()))
    return np.array(lengths)


@lru_cache
def usual_runs(count: int) -> npt.NDArray[np.float64]:
    """Return the longest runs of other shuffles by torch."""
    return longest_runs(np.stack([by_torch(count, 10**6 + k) for k in range(KEYS[count])]))


def fixed_point_score(fixed: Integers) -> float:
    """Return how well the numbers of fixed points follow the Poisson distribution of mean 1."""
    chances = [math.exp(-1) / math.factorial(k) for k in range(4)]
    expected = np.array([*chances, 1 - sum(chances)]) * len(fixed)
    return chi_score(np.bincount(np.minimum(fixed, 4), minlength=5), expected)


def distance_score(steps: Integers, keys: int, count: int) -> float:
    """Return how well distances of neighbours follow 2 (n - d), in 20 bins."""
    chances = 2.0 * (count - np.arange(1, count)) / (count * (count - 1.0))
    bins = np.arange(count - 1) * 20 // (count - 1)
    expected = np.bincount(bins, chances) * keys * (count - 1)
    found = np.bincount(bins[np.abs(steps).ravel() - 1], minlength=20)
    return chi_score(found, expected)


def scores(shuffles: Integers) -> dict[str, float]:
    """Return z scores of shuffles (keys, count) made with keys 0, 1, 2, ..."""
    keys, count = shuffles.shape
    steps = np.diff(shuffles, axis=1)
    identity = np.arange(count)
    fixed = (shuffles == identity).sum(1)
    centred = shuffles - (count - 1) / 2
    spread = (count**2 - 1) / 12
    serial = (centred[:, 1:] * centred[:, :-1]).sum(1) / spread
    across = (centred[1:] * centred[:-1]).sum(1) / spread
    ascents = ((steps > 0).sum(1) - (count - 1) / 2) / math.sqrt((count + 1) / 12)
    close = float((np.abs(steps) == 1).sum())
    equal = float((shuffles[1:] == shuffles[:-1]).sum())
    cells = 50
    cell = identity * cells // count
    sizes = np.bincount(cell)
    grid = np.bincount((cell * cells + shuffles * cells // count).ravel(), minlength=cells**2)
    found = {
        "grid": chi_score(
            grid, (np.outer(sizes, sizes) / count * keys).ravel(), freedom=(cells - 1) ** 2
        ),
        "fixed points": (fixed.sum() - keys) / math.sqrt(keys),
        "ascents": ascents.sum() / math.sqrt(keys),
        "serial correlation": (serial.sum() + keys) / math.sqrt(keys * count),
        "neighbours stay neighbours": (close - 2 * keys) / math.sqrt(2 * keys),
        "distance of neighbours": distance_score(steps, keys, count),
        "equal to the next key's": (equal - (keys - 1)) / math.sqrt(keys - 1),
        "correlation with the next key's": across.sum() / math.sqrt((keys - 1) * count),
    }
    if keys >= 100:
        found["fixed points are Poisson"] = fixed_point_score(fixed)
        found["spread of ascents"] = (ascents.var() - 1) * math.sqrt(keys / 2)
        runs, usual = longest_runs(shuffles), usual_runs(count)
        error = math.sqrt((runs.var() + usual.var()) / keys)
        found["longest increasing run"] = float(runs.mean() - usual.mean()) / error
    return found


def failed(shuffle: Shuffle, count: int) -> dict[str, float]:
    """Return the scores beyond the limit."""
    found = scores(np.stack([shuffle(count, key) for key in range(KEYS[count])]))
    return {name: score for name, score in found.items() if abs(score) > LIMIT}


# --- as random as a shuffle in memory ------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [by_formula, by_torch])
@pytest.mark.parametrize("count", KEYS)
def test_statistics_are_those_of_a_shuffle(shuffle: Shuffle, count: int) -> None:
    """Table or formula: no statistic tells them from true shuffles, nor keys from neighbours."""
    assert not failed(shuffle, count)


@pytest.mark.parametrize("count", [1_500, 5_000])
@pytest.mark.parametrize("rounds", [2, 4])
def test_fewer_rounds_are_found_out(
    count: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 2 or 4 rounds the same formula fails: neighbours stay neighbours."""
    monkeypatch.setattr(permutation, "_ROUNDS", rounds)
    assert "neighbours stay neighbours" in failed(by_formula, count)


@pytest.mark.parametrize("count", [1_000, 5_000])
def test_an_affine_map_is_found_out(count: int) -> None:
    """Multiplying and adding is a bijection, and far from a shuffle."""
    assert len(failed(by_affine_map, count)) > 1


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_order_of_a_few_is_equally_likely(count: int) -> None:
    """All 2, 6 or 24 orders occur, each as often as the others."""
    keys = 6_000
    found = Counter(tuple(by_formula(count, key).tolist()) for key in range(keys))
    orders = math.factorial(count)
    assert len(found) == orders
    assert chi_score(list(found.values()), keys / orders) < LIMIT


def test_each_place_of_ten_is_equally_likely() -> None:
    """Every position gets every index equally often."""
    shuffles = np.stack([by_formula(10, key) for key in range(5_000)])
    grid = np.bincount((np.arange(10) * 10 + shuffles).ravel(), minlength=100)
    assert chi_score(grid, 500, freedom=81) < LIMIT


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 62, 63])
def test_keys_that_differ_in_a_bit_are_unrelated(bit: int) -> None:
    """Whichever bit of the key changes: as many positions agree as by chance."""
    keys = np.random.default_rng(bit).integers(0, 1 << 63, 40, np.uint64).tolist()
    agree = [(by_formula(2_000, k) == by_formula(2_000, k ^ 1 << bit)).sum() for k in keys]
    assert abs(sum(agree) - 40) < LIMIT * math.sqrt(40)


# --- a bijection ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [0, 1, 2, 3, 10, 1_000, 1_023, 1_024, 1_025, 1_026, 4_099, 65_537, 1 << 20]
)
def test_every_number_occurs_once(count: int) -> None:
    """Also around the sizes where another method takes over."""
    assert np.array_equal(np.sort(by_formula(count, 3)), np.arange(count))


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_the_inverse_leads_back(count: int, key: int, data: st.DataObject) -> None:
    """Whatever count and key: the position of the index at a position is that position."""
    shuffled = Permutation(count, key)
    positions = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    indices = shuffled.at(positions)
    assert ((indices >= 0) & (indices < count)).all()
    assert shuffled.position_of(indices).tolist() == positions
    assert len(set(indices.tolist())) == len(set(positions))


@pytest.mark.parametrize("count", [7, 100_000])
def test_one_many_or_a_table_of_positions(count: int) -> None:
    """An integer gives an integer, an array an array of its shape, in whatever order asked."""
    shuffled = Permutation(count, 1)
    positions = np.array([[3, 0], [6, 3]], np.int32)
    indices = shuffled.at(positions)
    assert indices.shape == (2, 2)
    assert indices.dtype == np.int64
    assert indices.tolist() == [[shuffled.at(int(p)) for p in row] for row in positions]
    assert type(shuffled.at(3)) is int
    assert shuffled.at(np.int64(3)) == shuffled.at(np.uint64(3)) == shuffled.at(3)
    assert shuffled.at([]).tolist() == []
    assert len(shuffled) == count


def test_the_numbers_are_those_of_ever() -> None:
    """These values are promised: runs can be repeated with later releases."""
    assert Permutation(10, 1).at(np.arange(10)).tolist() == TEN
    assert Permutation(10**9, 1).at(np.arange(3)).tolist() == BILLION
    assert Permutation(2**62, 2**64 - 1).at(2**62 - 1) == LAST


TEN = [1, 4, 6, 2, 0, 7, 3, 8, 9, 5]
BILLION = [42539180, 490750028, 308532043]
LAST = 2688369253888658331


def test_it_survives_pickling_in_a_few_bytes() -> None:
    """What is pickled are the count and the keys."""
    shuffled = Permutation(10**9, 5)
    data = pickle.dumps(shuffled)
    assert len(data) < 600
    assert pickle.loads(data) == shuffled
    assert pickle.loads(data).at(17) == shuffled.at(17)


def peak(call: Callable[[], object]) -> int:
    """Return the most bytes that were allocated while it ran."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1_024, 1_025, 10**9, 2**62])
def test_memory_does_not_grow_with_the_count(count: int) -> None:
    """Making one and reading a batch stay below 64 KiB; a shuffle in memory takes megabytes."""
    assert peak(lambda: np.random.default_rng(0).permutation(10**6)) > 1 << 22
    positions = np.arange(64)
    assert peak(lambda: Permutation(count, 987_654).at(positions)) < 1 << 16


# --- permutations side by side -------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 32, 33, 50, 1_000])
def test_side_by_side_every_number_occurs_once(count: int) -> None:
    """Permutations computed together are bijections, around the change of method as well."""
    keys = np.repeat(np.arange(20, dtype=np.uint64), count)
    positions = np.tile(np.arange(count, dtype=np.uint64), 20)
    found = permute(positions, np.full_like(keys, count), keys).reshape(20, count)
    assert (np.sort(found, axis=1) == np.arange(count)).all()


def test_side_by_side_counts_may_differ() -> None:
    """Each position is looked up by its own count and key, as if it were alone."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, [[5], [40], [10**6]], (3, 50)).ravel().astype(np.uint64)
    positions = counts // np.uint64(2)
    keys = rng.integers(0, 2**63, 150).astype(np.uint64)
    alone = [
        permute(positions[i : i + 1], counts[i : i + 1], keys[i : i + 1])[0] for i in range(150)
    ]
    assert permute(positions, counts, keys).tolist() == alone


@pytest.mark.parametrize("count", [3, 4, 5])
def test_side_by_side_each_order_is_equally_likely(count: int) -> None:
    """As for one permutation."""
    keys = np.arange(24_000, dtype=np.uint64)
    positions = np.tile(np.arange(count, dtype=np.uint64), len(keys))
    spread = np.repeat(keys, count)
    found = permute(positions, np.full_like(spread, count), spread).reshape(-1, count)
    orders = Counter(map(tuple, found.tolist()))
    assert len(orders) == math.factorial(count)
    assert chi_score(list(orders.values()), len(keys) / len(orders)) < LIMIT


def test_side_by_side_neighbours_part() -> None:
    """The formula is good on the fewest numbers that it splits into a square, its weakest case."""
    count, number = 36, 40_000
    keys = np.repeat(np.arange(number, dtype=np.uint64), count)
    positions = np.tile(np.arange(count, dtype=np.uint64), number)
    found = permute(positions, np.full_like(keys, count), keys).astype(np.int64)
    steps = np.diff(found.reshape(-1, count), axis=1)
    close = int((np.abs(steps) == 1).sum())
    expected = number * 2 * (count - 1) / count
    assert abs(close - expected) < LIMIT * math.sqrt(expected)
    assert distance_score(steps, number, count) < LIMIT


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [-1, 2**62 + 1, True, 1.0, "3", None])
def test_a_count_is_a_number_of_samples(count: object) -> None:
    """Negative, too many, or no number: refused by name."""
    with pytest.raises(OptionError, match=r"count=.* is expected"):
        Permutation(count, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [-1, 2**64, True, 0.5])
def test_a_key_has_64_bits(key: object) -> None:
    """Other keys are refused by name."""
    with pytest.raises(OptionError, match=r"key=.* is expected"):
        Permutation(5, key)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 5, 5_000])
def test_a_position_outside_is_refused(count: int) -> None:
    """Before the first, after the last, or beyond 64 bits: the error names it."""
    shuffled = Permutation(count, 0)
    for wrong in (-1, count, 2**63):
        with pytest.raises(SampleIndexError, match=str(wrong)):
            shuffled.at(wrong)
        with pytest.raises(SampleIndexError, match=str(wrong)):
            shuffled.position_of(wrong)


def test_a_position_is_a_whole_number() -> None:
    """Floating point positions are refused."""
    with pytest.raises(OptionError, match="float64"):
        Permutation(5, 0).at(np.array([1.0]))
