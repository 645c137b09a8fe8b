"""A shuffled order as a formula: from position to index and back, without holding the order.

The formula is a Feistel network over two mixed-radix halves (Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). A number below ``count`` is split into ``row * columns + column``,
where rows × columns is just above ``count``. Each round adds to one half, modulo its size, a keyed
hash of the other half; that can be undone, so the whole is a bijection. The few results that are
not below ``count`` go through again until they are (cycle walking), which keeps it a bijection.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SampleIndexError

__all__ = ["LARGEST_COUNT", "Permutation", "checked_count", "hash_words", "permute"]

LARGEST_COUNT: Final = 1 << 62
"""The most samples an order can have."""

Words: TypeAlias = npt.NDArray[np.uint64]
One: TypeAlias = int | np.integer[Any]
Many: TypeAlias = npt.NDArray[Any] | Sequence[int]
# Numbers, rows, columns and the keys of the rounds: each one for all numbers, or one for each.
Formula: TypeAlias = Callable[[Words, Any, Any, Any], Words]

# With 4 rounds neighbours stay neighbours far too often, with 6 still measurably; below 64 numbers
# traces of it are left with 8 and even with 10.
_ROUNDS = 12

# On few numbers no formula comes close to a true shuffle. There the numbers are sorted by their
# hashes: up to here once, into a table (2 KiB), which is also quicker than the formula ...
_TABLE_COUNT = 1 << 10
# ... and up to here anew for every position, where each has a permutation of its own.
_SORT_COUNT = 1 << 5

# Multipliers and shift of fmix64, the finaliser of MurmurHash3 (Austin Appleby, public domain).
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)
# The increment of SplitMix64 (Steele, Lea, Flood 2014): 2**64 over the golden ratio, made odd.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF_WORD = np.uint64(32)
_STEPS = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _STEP


def hash_words(words: Words) -> Words:
    """Return 64-bit words through fmix64: a bijection in which every bit changes every bit."""
    words = words ^ (words >> _SHIFT)
    words *= _FIRST
    words ^= words >> _SHIFT
    words *= _SECOND
    words ^= words >> _SHIFT
    return words


def permute(positions: Words, counts: Words, keys: Words) -> Words:
    """Return for each position its index in the permutation of its own count and key.

    Args:
        positions: uint64, each below its count.
        counts: uint64, from 1 to ``LARGEST_COUNT``, of the same shape.
        keys: uint64, of the same shape.

    Returns:
        uint64, each below its count.
    """
    start = hash_words(keys)
    few = counts <= _SORT_COUNT
    if few.all():
        return _sorted_at(positions, counts, start)
    found = np.empty_like(positions)
    found[few] = _sorted_at(positions[few], counts[few], start[few])
    many = ~few
    counts, start = counts[many], start[many]
    columns = _columns(counts)
    rows = (counts - np.uint64(1)) // columns + np.uint64(1)
    rounds = hash_words(start + _STEPS[:, None])
    walked = _forward(positions[many], rows, columns, rounds)
    while (outside := walked >= counts).any():
        walked[outside] = _forward(
            walked[outside], rows[outside], columns[outside], rounds[:, outside]
        )
    found[many] = walked
    return found


def checked_count(count: object, name: str = "count") -> int:
    """Return a number of samples as an ``int``.

    Raises:
        OptionError: Not a whole number, below 0, or above ``LARGEST_COUNT``.
    """
    if isinstance(count, bool | np.bool_) or not hasattr(count, "__index__"):
        raise OptionError(f"{name}={count!r}: a whole number is expected")
    number = operator.index(count)
    if not 0 <= number <= LARGEST_COUNT:
        raise OptionError(f"{name}={number}: 0 to 2**62 is expected")
    return number


@dataclass(frozen=True, slots=True)
class Permutation:
    """A keyed permutation of ``range(count)`` in constant memory.

    Args:
        count: How many numbers, 0 to 2**62.
        key: Unsigned 64-bit; keys side by side give unrelated permutations.

    Raises:
        OptionError: ``count`` or ``key`` out of range.

    Example:
        >>> shuffled = Permutation(10**9, key=1)
        >>> shuffled.position_of(shuffled.at(123_456_789))
        123456789
    """

    count: int
    key: int
    _rounds: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked_count(self.count)
        if isinstance(self.key, bool) or not isinstance(self.key, int):
            raise OptionError(f"key={self.key!r}: a whole number is expected")
        if not 0 <= self.key < 1 << 64:
            raise OptionError(f"key={self.key}: an unsigned number of 64 bits is expected")
        start = hash_words(np.array([self.key], np.uint64))
        object.__setattr__(self, "_rounds", hash_words(start + _STEPS))

    def __len__(self) -> int:
        return self.count

    @overload
    def at(self, positions: One) -> int: ...
    @overload
    def at(self, positions: Many) -> npt.NDArray[np.int64]: ...
    def at(self, positions: One | Many) -> int | npt.NDArray[np.int64]:
        """Return the index at each position.

        Args:
            positions: Integers from 0 to ``count - 1``, in an array of any shape; or one.

        Returns:
            int64, in the same shape; for one integer an ``int``.

        Raises:
            SampleIndexError: A position outside the range.
        """
        return self._mapped(positions, "position", _table, _forward)

    @overload
    def position_of(self, indices: One) -> int: ...
    @overload
    def position_of(self, indices: Many) -> npt.NDArray[np.int64]: ...
    def position_of(self, indices: One | Many) -> int | npt.NDArray[np.int64]:
        """Return the position of each index: the inverse of :meth:`at`.

        Raises:
            SampleIndexError: An index outside the range.
        """
        return self._mapped(indices, "index", _inverse_table, _backward)

    def _mapped(
        self,
        given: One | Many,
        what: str,
        table: Callable[[int, int], npt.NDArray[np.uint16]],
        formula: Formula,
    ) -> int | npt.NDArray[np.int64]:
        asked = np.asarray(given)
        if asked.dtype != np.int64:
            asked = _as_int64(asked, what)
        numbers = asked.reshape(-1).view(np.uint64)  # what is below 0 becomes huge
        if (wrong := numbers >= self.count).any():
            first = int(asked.reshape(-1)[wrong][0])
            raise SampleIndexError(f"{what} {first} is outside of 0 to {self.count - 1}")
        if self.count <= _TABLE_COUNT:
            found = table(self.count, self.key)[numbers].astype(np.int64)
        else:
            found = self._walked(numbers, formula).view(np.int64)
        return found.reshape(asked.shape) if asked.ndim else int(found[0])

    def _walked(self, numbers: Words, formula: Formula) -> Words:
        rows, columns = _split_one(self.count)
        count = np.uint64(self.count)
        found = formula(numbers, rows, columns, self._rounds)
        while (outside := found >= count).any():
            found[outside] = formula(found[outside], rows, columns, self._rounds)
        return found


# --- few numbers: a table ------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _table(count: int, key: int) -> npt.NDArray[np.uint16]:
    """The numbers below ``count`` sorted by their hashes, which are all different."""
    start = hash_words(np.array([key], np.uint64))
    return np.argsort(_stream(start, count)).astype(np.uint16)


@lru_cache(maxsize=8)
def _inverse_table(count: int, key: int) -> npt.NDArray[np.uint16]:
    return np.argsort(_table(count, key)).astype(np.uint16)


def _sorted_at(positions: Words, counts: Words, start: Words) -> Words:
    """As by a table of its own for each position."""
    width = int(counts.max()) if len(counts) else 0
    hashes = _stream(start[:, None], width)
    hashes[np.arange(width, dtype=np.uint64) >= counts[:, None]] = ~np.uint64(0)  # sorted last
    order = np.argsort(hashes, axis=1, kind="stable")
    at = positions.astype(np.int64)[:, None]
    return np.take_along_axis(order, at, axis=1)[:, 0].astype(np.uint64)


def _stream(start: Words, count: int) -> Words:
    """The first ``count`` words of the SplitMix64-like generator that begins at ``start``."""
    return hash_words(start + np.arange(count, dtype=np.uint64) * _STEP)


# --- many numbers: the formula -------------------------------------------------------------------


@lru_cache(maxsize=8)
def _split_one(count: int) -> tuple[np.uint64, np.uint64]:
    """Rows and columns, both of at most 32 bits, whose product is just above ``count``."""
    side = math.isqrt(count - 1) + 1
    # A little off the square there are products so close that hardly a number walks.
    columns = min(range(side, side + min(side // 4, 64) + 1), key=lambda width: -count % width)
    return np.uint64(-(-count // columns)), np.uint64(columns)


def _columns(counts: Words) -> Words:
    """As above for each count, from fewer candidates; the square root need not be exact."""
    side = np.sqrt(counts.astype(np.float64)).astype(np.uint64) + np.uint64(1)
    widths = side + np.arange(4, dtype=np.uint64)[:, None]
    best = ((widths - counts % widths) % widths).argmin(axis=0)
    columns: Words = side + best.astype(np.uint64)
    return columns


def _forward(numbers: Words, rows: Any, columns: Any, rounds: Any) -> Words:
    row, column = np.divmod(numbers, columns)
    for turn in range(0, _ROUNDS, 2):
        row += _hashed(column, rounds[turn], rows)
        _once_around(row, rows)
        column += _hashed(row, rounds[turn + 1], columns)
        _once_around(column, columns)
    row *= columns
    row += column
    return row


def _backward(numbers: Words, rows: Any, columns: Any, rounds: Any) -> Words:
    row, column = np.divmod(numbers, columns)
    for turn in range(_ROUNDS - 2, -1, -2):
        column += columns - _hashed(row, rounds[turn + 1], columns)
        _once_around(column, columns)
        row += rows - _hashed(column, rounds[turn], rows)
        _once_around(row, rows)
    row *= columns
    row += column
    return row


def _once_around(sums: Words, size: Any) -> None:
    """Reduce sums below twice a size; the others become huge by subtracting."""
    np.minimum(sums, sums - size, out=sums)


def _hashed(half: Words, key: Any, size: Any) -> Words:
    """A number below ``size`` (of 32 bits) for each half: the hash as a fraction, times size."""
    words = half ^ key
    words ^= words >> _SHIFT
    words *= _FIRST
    words ^= words >> _SHIFT
    words *= _SECOND
    words >>= _HALF_WORD
    words *= size
    words >>= _HALF_WORD
    return words  # type: ignore[no-any-return]


def _as_int64(given: npt.NDArray[Any], what: str) -> npt.NDArray[np.int64]:
    if given.size == 0:
        return given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise OptionError(f"{what}: whole numbers are expected, not {given.dtype}")
    if given.dtype == np.uint64 and int(given.max()) > LARGEST_COUNT:
        raise SampleIndexError(f"{what} {given.max()} is above 2**62")
    return given.astype(np.int64)
