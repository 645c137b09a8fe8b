"""Keys of samples: where all randomness comes from."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedds.errors import OptionError
from sharedds.order import (
    SampleKey,
    current_generator,
    current_key,
    current_keys,
    keys_in_turn,
    using_key,
    using_keys,
)

KEYS = st.builds(
    SampleKey,
    st.integers(),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)


# --- numbers -------------------------------------------------------------------------------------


@given(KEYS, st.text(st.characters(exclude_categories=["Cs"])))
def test_a_number_has_64_bits_and_stays(key: SampleKey, purpose: str) -> None:
    """Whatever the key: one unsigned number of 64 bits, the same when asked again."""
    number = key.number(purpose)
    assert 0 <= number < 2**64
    assert SampleKey(key.seed, key.epoch, key.index, key.draw).number(purpose) == number


def test_the_numbers_are_those_of_ever() -> None:
    """These values are promised: runs can be repeated on other machines and with later releases."""
    assert SampleKey(0, 0, 0).number() == ZERO
    assert SampleKey(-1, 2, 3, 4).number("crop") == CROP
    assert SampleKey(2**100, 0, 7).generator().integers(0, 2**32, 3).tolist() == STREAM


ZERO = 1805123789979980798
CROP = 12300059869934024300
STREAM = [794310340, 2541800472, 2067251178]


@pytest.mark.parametrize("part", ["seed", "epoch", "index", "draw"])
def test_every_bit_of_a_key_matters(part: str) -> None:
    """Changing one bit of one part changes half of the bits of the number."""
    parts = {"seed": 5, "epoch": 1, "index": 77, "draw": 3}
    before = SampleKey(**parts).number()
    changed = []
    for bit in range(62):
        other = SampleKey(**{**parts, part: parts[part] ^ 1 << bit}).number()
        changed.append((before ^ other).bit_count())
    assert abs(sum(changed) / 62 - 32) < 2.5  # 5 deviations of 62 times 64 coins
    assert min(changed) > 10


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32 - 1, 2**40, 2**64, -(2**64), 10**50])
def test_any_integer_is_a_seed(seed: int) -> None:
    """Negative seeds and those above 64 bits work, and none stands for another one."""
    others = [seed + 2**64, seed - 2**64, -seed - 1, seed + 1]
    number = SampleKey(seed, 0, 0).number()
    assert all(SampleKey(other, 0, 0).number() != number for other in others)


def test_numpy_integers_are_integers() -> None:
    """Indices out of an array give the same numbers as plain ones."""
    plain = SampleKey(7, 1, 2, 3)
    other = SampleKey(np.uint8(7), np.int64(1), np.int32(2), np.uint16(3))  # type: ignore[arg-type]
    assert other.number() == plain.number()


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    """Anything else is refused by name, also when the same number was used before."""
    SampleKey(1, 0, 0).number()
    with pytest.raises(OptionError, match="seed="):
        SampleKey(seed, 0, 0).number()  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"epoch": 2**63}, {"index": 1.5}, {"draw": "x"}])
def test_the_other_parts_have_64_bits(wrong: dict[str, object]) -> None:
    """The error shows the key."""
    with pytest.raises(OptionError, match=r"SampleKey\(.*64 bits"):
        SampleKey(**{"seed": 0, "epoch": 0, "index": 0, **wrong}).generator()  # type: ignore[arg-type]


def test_parts_do_not_run_into_each_other() -> None:
    """Keys with the same digits in other places, and other purposes, have other numbers."""
    numbers = {
        SampleKey(seed, epoch, index, draw).number(purpose)
        for seed, epoch, index, draw in [(1, 2, 3, 0), (12, 3, 0, 0), (2, 1, 3, 0), (1, 2, 0, 3)]
        for purpose in ["", "a", "b", "ab", "\0"]
    }
    assert len(numbers) == 20


# --- generators ----------------------------------------------------------------------------------


def test_generators_repeat() -> None:
    """The generator of a key begins at the beginning each time."""
    key = SampleKey(1, 2, 3)
    assert key.generator().random(5).tolist() == key.generator().random(5).tolist()


def test_no_value_occurs_twice() -> None:
    """Over samples, epochs, draws, seeds and purposes no two streams agree."""
    first = {
        SampleKey(seed, epoch, index, draw).generator(purpose).random()
        for seed in (0, 1)
        for epoch in (0, 1)
        for index in range(200)
        for draw in (0, 1)
        for purpose in ("sample", "other")
    }
    assert len(first) == 2 * 2 * 200 * 2 * 2


def test_first_values_are_uniform() -> None:
    """The first values of consecutive samples look like one stream."""
    values = np.array([SampleKey(0, 0, index).generator().random() for index in range(20_000)])
    found = np.bincount((values * 100).astype(int), minlength=100)
    chi_square = ((found - 200.0) ** 2 / 200).sum()
    assert abs(chi_square - 99) < 5 * np.sqrt(2 * 99)
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 5 / np.sqrt(20_000)


def test_the_stream_is_that_of_philox() -> None:
    """The quick way to make a generator gives what NumPy's documented way gives."""
    generator = SampleKey(3, 1, 4).generator()
    state = generator.bit_generator.state["state"]
    assert not state["counter"].any()
    again = np.random.Generator(np.random.Philox(key=state["key"]))
    assert generator.random(100).tolist() == again.random(100).tolist()


def test_a_generator_survives_pickling() -> None:
    """A sample may carry its generator to another process, where the stream goes on."""
    generator = SampleKey(0, 0, 0).generator()
    generator.random(3)
    copy = pickle.loads(pickle.dumps(generator))
    assert copy.random(3).tolist() == generator.random(3).tolist()


def test_a_key_is_not_stretched() -> None:
    """Asked for more words than the key has, it refuses: they would not be random."""
    words = SampleKey(0, 0, 0).generator().bit_generator.seed_seq
    assert len(words.generate_state(4)) == 4
    with pytest.raises(OptionError, match="4 words"):
        words.generate_state(5)


# --- the key in hand -----------------------------------------------------------------------------


def test_outside_of_samples_nothing_is_in_hand() -> None:
    """No key, and no generator."""
    assert current_key() is None
    assert current_generator() is None


def test_keys_nest() -> None:
    """The inner key is in hand until it ends; then the outer one is again, with its generator."""
    outer, inner = SampleKey(0, 0, 1), SampleKey(0, 0, 2)
    with using_key(outer) as held:
        assert held is outer
        generator = current_generator()
        with using_key(inner):
            assert current_key() is inner
            assert current_generator() is not generator
        assert current_key() is outer
        assert current_generator() is generator
    assert current_key() is None


def test_a_batch_in_hand_is_no_sample() -> None:
    """The keys of a batch are in hand together; a sample inside it is, and then the batch again."""
    outer, batch = SampleKey(0, 0, 1), [SampleKey(0, 0, 2), SampleKey(0, 0, 3)]
    assert current_keys() is None
    with using_key(outer), using_keys(iter(batch)) as held:
        assert held == current_keys() == tuple(batch)
        assert current_key() is None
        assert current_generator() is None
        with using_key(batch[0]):
            assert current_keys() is None
            assert current_key() is batch[0]
        assert current_keys() == tuple(batch)
    assert current_keys() is None


def test_keys_take_turns() -> None:
    """Each sample of a batch has its key and its generator, as with a ``with`` of its own."""
    indices, positions = [5, 3, 5], np.array([0, 1, 2])
    expected = []
    for index, draw in zip(indices, positions.tolist(), strict=True):
        with using_key(SampleKey(1, 2, index, draw)):
            expected.append((current_key(), draws(2), current_generator()))
    with keys_in_turn(1, 2, indices, positions) as turn:
        for turn.at, (key, drawn, generator) in enumerate(expected):
            with using_key(SampleKey(0, 0, 0)):
                draws(1)
            assert draws(1) == drawn[:1]
            assert (current_key(), draws(1)) == (key, drawn[1:])
            assert current_generator() is current_generator() is not generator
            assert current_keys() is None
    assert current_key() is None


def test_an_exception_puts_the_key_down() -> None:
    """A sample that fails leaves nothing behind."""
    with pytest.raises(ZeroDivisionError), using_key(SampleKey(0, 0, 0)):
        raise ZeroDivisionError
    assert current_key() is None
    with pytest.raises(ZeroDivisionError), using_keys([SampleKey(0, 0, 0)]):
        raise ZeroDivisionError
    assert current_keys() is None


def draws(count: int) -> list[float]:
    """Return values as code deep in a sample draws them."""
    generator = current_generator()
    assert generator is not None
    return [generator.random() for _ in range(count)]


def test_a_sample_has_one_stream() -> None:
    """Two calls in one sample go on with the stream; the same sample again repeats it."""
    key = SampleKey(0, 0, 0)
    with using_key(key):
        first, second = draws(2), draws(2)
    with using_key(key):
        assert draws(4) == first + second
    assert first != second
    assert key.generator().random(4).tolist() == first + second


def in_thread(call: Callable[[], object]) -> object:
    """Run it in another thread and return what it returned."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_each_thread_has_its_own_key() -> None:
    """What one thread holds another one does not see."""

    def hold() -> SampleKey | None:
        with using_key(SampleKey(0, 0, 2)):
            return current_key()

    with using_key(SampleKey(0, 0, 1)):
        assert in_thread(current_key) is None
        assert in_thread(hold) == SampleKey(0, 0, 2)
        assert current_key() == SampleKey(0, 0, 1)


def test_keys_are_values() -> None:
    """Equal parts make equal keys, which pickle, hash and cannot be changed."""
    key = SampleKey(1, 2, 3)
    assert pickle.loads(pickle.dumps(key)) == key == SampleKey(1, 2, 3, 0)
    assert len({key, SampleKey(1, 2, 3), SampleKey(1, 2, 4)}) == 2
    with pytest.raises(AttributeError):
        key.index = 4  # type: ignore[misc]
