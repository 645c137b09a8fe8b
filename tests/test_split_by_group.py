"""Splits that keep together what belongs together, such as the scans of a patient."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.datasets import LazyDataset
from sharedds.errors import OptionError, SchemaError


class Numbers(LazyDataset[int]):
    """A sample is its number."""

    def load(self, item: int) -> int:
        """Return the item."""
        return item


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=80),
    fractions=st.lists(st.floats(0.05, 1), min_size=1, max_size=4),
    whole=st.booleans(),
    seed=st.integers(),
)
def test_no_group_is_torn_apart(
    groups: list[int], fractions: list[float], whole: bool, seed: int
) -> None:
    """Whatever groups, shares and seed: disjoint, ascending, no part empty, complete if asked."""
    total = sum(fractions) * (1 if whole else 1.25)
    shares = [fraction / total for fraction in fractions]
    dataset = Numbers(range(len(groups)))
    if len(set(groups)) < len(shares):
        with pytest.raises(OptionError, match="cannot fill"):
            dataset.split(shares, seed=seed, groups=groups)
        return
    parts = [list(part) for part in dataset.split(shares, seed=seed, groups=groups)]
    owners = [{groups[i] for i in part} for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert all(part == sorted(part) and part for part in parts)
    samples = list(itertools.chain(*parts))
    assert len(set(samples)) == len(samples)
    if whole:
        assert len(samples) == len(groups)
    taken = set().union(*owners)
    assert {i for i, group in enumerate(groups) if group in taken} == set(samples)


def test_a_split_by_samples_tears_groups_apart() -> None:
    """What the option is for: without it, each patient is in training and in test."""
    groups = np.arange(1000) // 10
    dataset = Numbers(range(1000))
    train, test = dataset.split((0.8, 0.2))
    assert len(set(groups[list(train)]) & set(groups[list(test)])) > 50
    train, test = dataset.split((0.8, 0.2), groups=groups)
    assert not set(groups[list(train)]) & set(groups[list(test)])


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_those_of_samples(seed: int) -> None:
    """Groups of very different sizes: each part is off by less than the largest group."""
    sizes = np.random.default_rng(0).geometric(0.05, 300)
    groups = np.repeat(np.arange(300), sizes)
    parts = Numbers(range(len(groups))).split((0.7, 0.1, 0.1), seed=seed, groups=groups)
    for part, share in zip(parts, (0.7, 0.1, 0.1), strict=True):
        assert abs(len(part) - share * len(groups)) <= sizes.max()


def test_the_same_seed_gives_the_same_parts_for_ever() -> None:
    """A stored result: a new version must not move a patient from training to test."""
    dataset = Numbers(range(24))
    parts = dataset.split((0.5, 0.25, 0.25), seed=3, groups=[i // 3 for i in range(24)])
    assert [sorted({i // 3 for i in part}) for part in parts] == STORED
    others = dataset.split((0.5, 0.25, 0.25), seed=4, groups=[i // 3 for i in range(24)])
    assert [list(part) for part in parts] != [list(part) for part in others]


STORED = [[0, 2, 3, 5], [4, 6], [1, 7]]


def test_groups_are_told_apart_by_equality_alone() -> None:
    """Text, tuples, tensors, arrays, or a function of the item: the same split."""
    numbers = [i // 4 for i in range(40)]
    dataset = Numbers(range(40))
    kinds: list[Any] = [
        numbers,
        np.array(numbers),
        torch.tensor(numbers),
        [f"patient {n}" for n in numbers],
        [("site", n) for n in numbers],
        iter(numbers),
        lambda item: item // 4,
    ]
    splits = [[list(p) for p in dataset.split((0.5, 0.5), groups=groups)] for groups in kinds]
    assert all(split == splits[0] for split in splits)


def test_a_subset_has_groups_of_its_own() -> None:
    """One for each of its samples; a function gets their items."""
    part = Numbers(range(100)).subset(range(50, 90))
    first, second = part.split((0.5, 0.5), groups=lambda item: item // 10)
    assert {i // 10 for i in first} | {i // 10 for i in second} == {5, 6, 7, 8}
    assert len(first) == len(second) == 20


def test_a_part_without_a_share_stays_empty() -> None:
    """A share of nothing gets nothing."""
    first, none = Numbers(range(4)).split((1.0, 0.0), groups=[0, 0, 1, 1])
    assert (len(first), len(none)) == (4, 0)


@pytest.mark.parametrize("groups", [[0, 1], [0] * 5, [], 7])
def test_one_group_for_each_sample_is_expected(groups: Any) -> None:
    """Too few, too many, or one value alone."""
    with pytest.raises(OptionError, match=r"one .*for each"):
        Numbers(range(4)).split((0.5, 0.5), groups=groups)


@pytest.mark.parametrize("group", [float("nan"), [1], np.zeros(2)])
def test_a_group_that_equals_no_other_is_refused(group: Any) -> None:
    """A missing patient number would make a group of its own for each sample."""
    with pytest.raises(SchemaError, match="sample 1 has the group"):
        Numbers(range(2)).split((0.5, 0.5), groups=[0, group])


def test_fewer_groups_than_parts_are_refused() -> None:
    """A part would stay empty; the error counts both."""
    with pytest.raises(OptionError, match="2 groups cannot fill 3 parts"):
        Numbers(range(4)).split((0.5, 0.3, 0.2), groups=[0, 0, 1, 1])
