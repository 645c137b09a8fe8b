"""The key of a sample: all its randomness comes from (seed, epoch, index, draw).

A key is four integers. :meth:`SampleKey.number` folds them into 64 bits and
:meth:`SampleKey.generator` into the 128-bit key of a Philox generator, so that a sample gets the
same random numbers whichever process or thread makes it, in whatever order, and after a resume.

While a sample is made its key is *in hand* (:class:`using_key`); code that has no other way to
learn it asks :func:`current_key`, or :func:`current_generator` for the one generator of the sample.
"""

from __future__ import annotations

import hashlib
import operator
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from numpy.random.bit_generator import ISeedSequence

from sharedds.errors import OptionError
from sharedds.order.uniforms import uniforms

__all__ = [
    "SampleKey",
    "checked_seed",
    "current_generator",
    "current_key",
    "current_keys",
    "current_turn",
    "keys_in_turn",
    "uniforms_in_hand",
    "using_key",
    "using_keys",
]

# Seed (folded), epoch, index, draw: 32 bytes in front of the purpose, so no two keys look alike.
_pack = struct.Struct("<Qqqq").pack
_WORD = (1 << 64) - 1


class _Words(ISeedSequence):
    """Hands a bit generator the words of a key.

    ``Philox(key=...)`` gives the same stream, but takes 9 µs to make instead of 3.
    """

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[Any]:
        words = self._words.view(dtype)
        if n_words > len(words):
            raise OptionError(f"a key has {len(words)} words of {np.dtype(dtype)}, not {n_words}")
        return words[:n_words]


def checked_seed(seed: object) -> int:
    """Return a seed as an ``int``; any whole number is one.

    Raises:
        OptionError: Not a whole number.
    """
    if isinstance(seed, bool | np.bool_) or not hasattr(seed, "__index__"):
        raise OptionError(f"seed={seed!r}: a whole number is expected")
    return operator.index(seed)


@lru_cache(maxsize=64, typed=True)
def _fold(seed: int) -> int:
    """Any integer as 64 bits; neighbours come out unrelated."""
    text = str(checked_seed(seed)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class SampleKey:
    """What the randomness of one sample depends on, and nothing else does.

    Args:
        seed: Any integer, also negative or of more than 64 bits.
        epoch: The pass over the data; fits 64 bits.
        index: The number of the sample; fits 64 bits.
        draw: Tells apart the times one sample occurs in an epoch; 0 if it occurs once.

    Example:
        >>> SampleKey(seed=0, epoch=1, index=7).generator().integers(0, 1000)
        np.int64(67)
    """

    seed: int
    epoch: int
    index: int
    draw: int = 0

    def number(self, purpose: str = "") -> int:
        """Return an unsigned 64-bit hash of the key: the same on all machines and for ever.

        Args:
            purpose: Each one has numbers of its own.

        Raises:
            OptionError: A part of the key is no integer, or too large.
        """
        return xxhash.xxh3_64_intdigest(self._bytes(purpose))

    def generator(self, purpose: str = "sample") -> np.random.Generator:
        """Return a new generator at the beginning of the stream of this key.

        It is a Philox generator (Salmon et al. 2011) keyed by 128 bits, so that among all samples
        of all epochs no two share a stream.

        Args:
            purpose: Each one has a stream of its own.

        Raises:
            OptionError: A part of the key is no integer, or too large.
        """
        key = xxhash.xxh3_128_intdigest(self._bytes(purpose))
        words = np.array((key & _WORD, key >> 64), np.uint64)
        return np.random.Generator(np.random.Philox(_Words(words)))  # type: ignore[arg-type]

    def _bytes(self, purpose: str) -> bytes:
        try:
            packed = _pack(_fold(self.seed), self.epoch, self.index, self.draw)
        except struct.error as error:
            raise OptionError(f"{self}: epoch, index and draw are integers of 64 bits") from error
        return packed + purpose.encode()


# --- the key in hand -----------------------------------------------------------------------------


class _Hand(threading.local):
    """What each thread holds."""

    held: _Held | None = None


_hand = _Hand()


class _Held:
    """What is in hand between ``with`` and its end; nests, and gives back what was there before."""

    __slots__ = ("_drawn", "_outer")
    _outer: _Held | None
    #: Whether there is one key in hand; and which of several, where they take turns.
    is_one = True
    at = 0
    _drawn: tuple[int, int]  # at which turn, and how many uniforms were drawn from its key by then

    def pass_over(self, count: int) -> int:
        """Return how many uniforms were drawn from what is in hand, and count these as drawn."""
        at, drawn = self._drawn
        first = drawn if at == self.at else 0
        self._drawn = (self.at, first + count)
        return first

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _hand.held = self._outer


class using_key(_Held):  # noqa: N801 - used as a function, like contextlib.suppress
    """Hold a key while its sample is made, in this thread only; nests, and restores on exit.

    Make a new one for each ``with``.

    Example:
        >>> with using_key(SampleKey(0, 0, 7)) as key:
        ...     current_key() is key
        True
    """

    __slots__ = ("generator", "key")

    def __init__(self, key: SampleKey) -> None:
        self.key = key
        self.generator: np.random.Generator | None = None

    def __enter__(self) -> SampleKey:
        self._outer = _hand.held
        self._drawn = (0, 0)
        _hand.held = self
        return self.key


class using_keys(_Held):  # noqa: N801
    """Hold the keys of a batch whose samples are made all at once; else like :class:`using_key`.

    No one of them is *the* key in hand: :func:`current_key` is None.
    """

    __slots__ = ("keys",)
    is_one = False

    def __init__(self, keys: Iterable[SampleKey]) -> None:
        self.keys = tuple(keys)

    def __enter__(self) -> tuple[SampleKey, ...]:
        self._outer = _hand.held
        self._drawn = (0, 0)
        _hand.held = self
        return self.keys


class keys_in_turn(_Held):  # noqa: N801
    """Hold the keys of a batch one after the other, each made when it is asked for.

    Like a :class:`using_key` around each sample, at the cost of one assignment a sample.

    Args:
        seed: As of :class:`SampleKey`.
        epoch: As of :class:`SampleKey`.
        indices: Numbers of the samples.
        draws: The draw of each; None stands for zeros.

    Attributes:
        at: Whose turn it is: a position in ``indices``. Set it before each sample.
    """

    __slots__ = (
        *("_draws", "_epoch", "_folded", "_generator", "_indices", "_key", "_made", "_seed", "at"),
    )

    def __init__(
        self,
        seed: int,
        epoch: int,
        indices: Sequence[int],
        draws: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._seed = seed
        self._folded = _fold(seed)
        self._epoch = epoch
        self._indices = indices
        self._draws = draws
        self._key: SampleKey
        self._generator: np.random.Generator | None
        self._made = -1  # at which turn
        self.at = 0

    @property
    def key(self) -> SampleKey:
        """The key of the sample whose turn it is."""
        if self._made != self.at:
            at = self._made = self.at
            draw = 0 if self._draws is None else int(self._draws[at])
            self._key = SampleKey(self._seed, self._epoch, self._indices[at], draw)
            self._generator = None
        return self._key

    def number(self, purpose: str = "") -> int:
        """Return :meth:`SampleKey.number` of that key, in half the time."""
        at = self.at
        draw = 0 if self._draws is None else int(self._draws[at])
        try:
            packed = _pack(self._folded, self._epoch, self._indices[at], draw)
        except struct.error:
            return self.key.number(purpose)  # which says what is wrong
        return xxhash.xxh3_64_intdigest(packed + purpose.encode())

    @property
    def generator(self) -> np.random.Generator | None:
        """The generator of that sample, if it has been made."""
        return self._generator if self._made == self.at else None

    @generator.setter
    def generator(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def __enter__(self) -> keys_in_turn:
        self._outer = _hand.held
        self._drawn = (0, 0)
        _hand.held = self
        return self


def current_key() -> SampleKey | None:
    """Return the key of the sample that this thread makes, or None."""
    held: Any = _hand.held
    return held.key if held is not None and held.is_one else None


def current_turn() -> tuple[object, int] | None:
    """Return what is equal only for the same key in hand, or None; no key is made for it."""
    held = _hand.held
    return (held, held.at) if held is not None and held.is_one else None


def current_keys() -> tuple[SampleKey, ...] | None:
    """Return the keys of the batch that this thread makes at once, or None."""
    held = _hand.held
    return held.keys if isinstance(held, using_keys) else None


def current_generator() -> np.random.Generator | None:
    """Return THE generator of the sample that this thread makes, or None.

    It is made on the first call, and later calls for the same sample go on with its stream.
    """
    held: Any = _hand.held
    if held is None or not held.is_one:
        return None
    generator: np.random.Generator | None = held.generator
    if generator is None:
        generator = held.generator = held.key.generator()
    return generator


def uniforms_in_hand(
    rows: int, count: int, purpose: str = "uniforms"
) -> npt.NDArray[np.float64] | None:
    """Return the next numbers in [0, 1) of the samples that this thread makes.

    Args:
        rows: How many samples.
        count: Numbers for each.
        purpose: Each one has numbers of its own.

    Returns:
        (rows, count). With one key in hand all are of its stream; with as many as ``rows``, each
        row is of its own: what a sample gets does not depend on how it is read. None without keys,
        or with another number of them.
    """
    held: Any = _hand.held
    if held is None:
        return None
    if held.is_one:
        source = held if isinstance(held, keys_in_turn) else held.key
        numbers = np.array([source.number(purpose)], np.uint64)
        drawn = rows * count
        return uniforms(numbers, held.pass_over(drawn), drawn).reshape(rows, count)
    if len(held.keys) != rows:
        return None
    numbers = np.array([key.number(purpose) for key in held.keys], np.uint64)
    return uniforms(numbers, held.pass_over(count), count)
