"""The numbers that views choose by: from the key of the sample, or from torch."""

from __future__ import annotations

import numpy as np
import torch

from sharedds.datasets.randomness import batch_uniforms, sample_uniforms
from sharedds.order import SampleKey, keys_in_turn, uniforms_in_hand, using_key, using_keys
from sharedds.order.uniforms import uniforms

KEYS = [SampleKey(3, 1, index) for index in (7, 2, 9)]


def test_numbers_are_those_of_splitmix64() -> None:
    """The first outputs for the seed 1234567, as published with the algorithm."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = uniforms(np.array([1234567], np.uint64), 0, 3)[0]
    assert found.tolist() == [(number >> 11) * 2.0**-53 for number in published]


def test_numbers_are_uniform() -> None:
    """Mean, variance and every sixteenth, over keys that are neighbours."""
    numbers = np.array([SampleKey(0, 0, i).number("view") for i in range(2000)], np.uint64)
    found = uniforms(numbers, 0, 24)
    assert 0 <= found.min() < found.max() < 1
    assert abs(found.mean() - 0.5) < 0.005
    assert abs(found.var() - 1 / 12) < 0.002
    assert np.abs(np.histogram(found, 16, (0, 1))[0] - 3000).max() < 4 * 3000**0.5
    assert np.abs(np.corrcoef(found.T) - np.eye(24)).max() < 0.1


def test_later_numbers_need_no_earlier_ones() -> None:
    """Any piece of a stream can be had alone."""
    seeds = np.array([5, 2**64 - 1], np.uint64)
    assert np.array_equal(uniforms(seeds, 3, 4), uniforms(seeds, 0, 7)[:, 3:])


def test_a_sample_gets_the_same_however_it_is_read() -> None:
    """One key in hand, keys in turn, all keys at once."""
    alone = []
    for key in KEYS:
        with using_key(key):
            alone.append(sample_uniforms(5))
    in_turn = []
    with keys_in_turn(3, 1, [7, 2, 9]) as turn:
        for turn.at in range(3):
            in_turn.append(sample_uniforms(5))
    with using_keys(KEYS):
        together = batch_uniforms(3, 5)
    assert np.array_equal(np.stack(alone), together)
    assert np.array_equal(np.stack(in_turn), together)


def test_a_second_call_for_a_sample_goes_on() -> None:
    """Two pictures made for one sample do not show the same part."""
    with using_key(KEYS[0]):
        first, second = sample_uniforms(4), sample_uniforms(4)
    with using_key(KEYS[0]):
        assert np.array_equal(sample_uniforms(8), np.concatenate((first, second)))
    with using_keys(KEYS):
        batch_uniforms(3, 4)
        assert np.array_equal(batch_uniforms(3, 4)[0], second)


def test_the_next_sample_in_turn_begins_anew() -> None:
    """What one sample has drawn does not shift another's numbers."""
    with keys_in_turn(3, 1, [7, 2]) as turn:
        turn.at = 0
        sample_uniforms(9)
        turn.at = 1
        found = sample_uniforms(4)
    with using_key(KEYS[1]):
        assert np.array_equal(sample_uniforms(4), found)


def test_several_pictures_for_one_sample_share_its_numbers_out() -> None:
    """Read at once or one after the other, they get the same."""
    with using_key(KEYS[0]):
        at_once = batch_uniforms(3, 4)
    with using_key(KEYS[0]):
        one_by_one = [sample_uniforms(4) for _ in range(3)]
    assert np.array_equal(at_once, np.stack(one_by_one))


def test_the_generator_of_the_sample_is_not_touched() -> None:
    """A transform draws the same with a view and without."""
    from sharedds.datasets.randomness import sample_generator

    with using_key(KEYS[0]):
        plain = sample_generator().random()
    with using_key(KEYS[0]):
        sample_uniforms(4)
        assert sample_generator().random() == plain


def test_each_purpose_has_numbers_of_its_own() -> None:
    """So that another use of them repeats nothing."""
    with using_key(KEYS[0]):
        one = sample_uniforms(4, "one")
    with using_key(KEYS[0]):
        assert not np.intersect1d(one, sample_uniforms(4, "other")).size


def test_without_keys_torch_decides() -> None:
    """It follows manual_seed, and a batch draws what its samples would."""
    torch.manual_seed(5)
    together = batch_uniforms(3, 24)
    torch.manual_seed(5)
    assert np.array_equal(together, np.stack([sample_uniforms(24) for _ in range(3)]))
    assert not np.array_equal(together, batch_uniforms(3, 24))


def test_keys_of_other_samples_are_not_used() -> None:
    """Three keys in hand say nothing about four samples."""
    with using_keys(KEYS):
        assert uniforms_in_hand(4, 2) is None
    assert uniforms_in_hand(1, 2) is None
