"""Samplings that are not simply every sample once: by weight, and by class.

Both keep plain arrays over all samples and live in the trainer's process only: workers get the
indices that were drawn, never the sampling. Building one costs O(N) once; an epoch costs nothing
to start, and a draw is O(1), since each is computed from (seed, epoch, position) alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import OptionError
from sharedds.order.keys import SampleKey
from sharedds.order.permutation import checked_count, hash_words, permute

__all__ = ["BalancedSampling", "WeightedSampling"]

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
A = TypeVar("A", bound=npt.NDArray[Any])

_FRACTION = 2.0**-53
_ELEVEN = np.uint64(11)
_STEP = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's (Steele, Lea, Flood 2014)


class WeightedSampling:
    """Draws with replacement, each sample in proportion to its weight.

    By the alias method: N columns of equal size, each shared by at most two samples, so that a
    draw is one column and one comparison (A. J. Walker, "An efficient method for generating
    discrete random variables with general distributions", ACM TOMS 3, 1977). The table is the one
    that M. D. Vose's linear construction (IEEE TSE 17, 1991) makes, from prefix sums in place of a
    loop (L. Hübschle-Schneider and P. Sanders, "Parallel weighted random sampling", ESA 2019).

    It keeps 16 bytes for each sample, in the trainer's process only: workers get indices.

    Args:
        weights: One number for each sample, 0 or more, of any scale; a weight of 0 is never drawn.
        num_samples: Draws in an epoch; None for as many as there are weights.

    Raises:
        OptionError: No weights, one that is negative, infinite or no number, or all of them 0.
    """

    def __init__(self, weights: npt.ArrayLike, num_samples: int | None = None) -> None:
        numbers = _as_weights(weights)
        self.items = len(numbers)
        self._count = _draws(num_samples, self.items)
        self._shares, self._aliases = _alias_table(numbers)
        self._digest = _digest(numbers)

    @property
    def count(self) -> int:
        """Draws in an epoch."""
        return self._count

    @property
    def repeats(self) -> bool:
        """A sample may be drawn again and again."""
        return True

    def at(self, seed: int, epoch: int, positions: Integers) -> Integers:
        """Return the index (int64) drawn at each position of an epoch."""
        steps = positions.astype(np.uint64) * _STEP
        key = SampleKey(seed, epoch, 0)
        columns = (_fractions(key.number("weighted column"), steps) * self.items).astype(np.int64)
        # A fraction is below 1, yet its product with a large number may round up to the number.
        np.minimum(columns, self.items - 1, out=columns)
        keeps = _fractions(key.number("weighted share"), steps) < self._shares[columns]
        return np.where(keeps, columns, self._aliases[columns])

    def facts(self) -> dict[str, int | str]:
        """Return kind, count, number of weights and a hash of them."""
        return {
            "kind": "weighted",
            "count": self._count,
            "items": self.items,
            "digest": self._digest,
        }

    def __repr__(self) -> str:
        return f"WeightedSampling({self.items} weights, num_samples={self._count})"


class BalancedSampling:
    """Draws every class equally often.

    An epoch is a sequence of rounds; each round has every class once, in an order of its own. In
    turn n of a class comes the n-th of its members in a shuffled order, and after the last one
    another order begins. So over an epoch the classes differ by at most one draw, and so do the
    members of one class.

    It keeps 8 bytes for each sample, in the trainer's process only: workers get indices.

    Args:
        labels: The class of each sample: any integers, whose values need not be consecutive.
        num_samples: Draws in an epoch; None for as many as there are labels.

    Raises:
        OptionError: No labels, or labels that are not integers.
    """

    def __init__(self, labels: npt.ArrayLike, num_samples: int | None = None) -> None:
        numbers = _as_labels(labels)
        self.items = len(numbers)
        self._count = _draws(num_samples, self.items)
        self._digest = _digest(numbers.astype(np.int64))
        # Members class after class, in the order of the samples.
        self._members: Integers = _frozen(np.argsort(numbers, kind="stable").astype(np.int64))
        _, sizes = np.unique(numbers, return_counts=True)
        self._sizes: Words = _frozen(sizes.astype(np.uint64))
        self._begins: Integers = _frozen(np.cumsum(sizes) - sizes)

    @property
    def classes(self) -> int:
        """How many classes have members."""
        return len(self._sizes)

    @property
    def count(self) -> int:
        """Draws in an epoch."""
        return self._count

    @property
    def repeats(self) -> bool:
        """Members of a small class are drawn again."""
        return True

    def at(self, seed: int, epoch: int, positions: Integers) -> Integers:
        """Return the index (int64) drawn at each position of an epoch."""
        key = SampleKey(seed, epoch, 0)
        total = np.uint64(self.classes)
        numbers = positions.astype(np.uint64)
        turns = numbers // total
        orders = _hashes(key.number("balanced classes"), turns)
        places = numbers - turns * total
        classes = permute(places, np.full_like(places, total), orders)
        sizes = self._sizes[classes]
        cycles = turns // sizes
        orders = hash_words(_hashes(key.number("balanced members"), classes) + cycles * _STEP)
        inside = permute(turns - cycles * sizes, sizes, orders)
        return self._members[self._begins[classes] + inside.view(np.int64)]

    def facts(self) -> dict[str, int | str]:
        """Return kind, count, number of labels and a hash of them."""
        return {
            "kind": "balanced",
            "count": self._count,
            "items": self.items,
            "digest": self._digest,
        }

    def __repr__(self) -> str:
        return (
            f"BalancedSampling({self.items} labels, {self.classes} classes, "
            f"num_samples={self._count})"
        )


# --- hashes of many numbers at once --------------------------------------------------------------


def _hashes(key: int, numbers: Words) -> Words:
    """A 64-bit word for each number: those of SplitMix64 that starts at ``key``."""
    return hash_words(np.uint64(key) + numbers * _STEP)


def _fractions(key: int, steps: Words) -> npt.NDArray[np.float64]:
    # 53 bits are what a float holds exactly.
    return (hash_words(np.uint64(key) + steps) >> _ELEVEN).astype(np.float64) * _FRACTION


# --- the alias table -----------------------------------------------------------------------------


def _alias_table(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Integers]:
    """For each column: the share its own sample keeps (float64), and who has the rest (int64)."""
    heights = weights / weights.max()  # so that no sum overflows
    # cumsum adds one after the other on every machine; sum may not, and the table would differ.
    heights *= len(heights) / np.cumsum(heights)[-1]
    heavy = heights >= 1
    heavy[np.argmax(heights)] = True  # rounding may have left none
    givers = np.flatnonzero(heavy)
    takers = np.flatnonzero(~heavy)
    # Givers fill the columns of the takers one after another. Who is used up below 1 becomes a
    # taker, whom the next giver fills. What was taken and given before says who meets whom.
    taken = np.concatenate(([0.0], np.cumsum(1.0 - heights[takers])))
    given = np.cumsum(np.maximum(heights[givers] - 1.0, 0.0))
    shares = heights.copy()
    aliases = np.arange(len(heights), dtype=np.int64)
    first = np.searchsorted(given, taken[:-1], side="right")
    aliases[takers] = givers[np.minimum(first, len(givers) - 1)]
    used_up = np.searchsorted(taken, given, side="left")
    left = np.where(used_up < len(taken), 1.0 + given - np.append(taken, 0.0)[used_up], 1.0)
    left[-1] = 1.0  # nobody is there to fill it: what is missing is rounding
    shares[givers] = np.clip(left, 0.0, 1.0)
    aliases[givers[:-1]] = givers[1:]
    return _frozen(shares), _frozen(aliases)


# --- checks --------------------------------------------------------------------------------------


def _as_weights(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    given = np.asarray(weights)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "buif":
        raise OptionError(
            f"weights: one number for each sample is expected, not {given.dtype} of shape "
            f"{given.shape}"
        )
    numbers = given.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        raise OptionError(f"weights[{wrong[0]}]={numbers[wrong[0]]}: 0 or more is expected")
    if not numbers.any():
        raise OptionError("weights: all of them are 0, so that nothing can be drawn")
    return numbers


def _as_labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    given = np.asarray(labels)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "bui":
        raise OptionError(
            f"labels: one integer for each sample is expected, not {given.dtype} of shape "
            f"{given.shape}"
        )
    return given


def _draws(num_samples: int | None, items: int) -> int:
    return items if num_samples is None else checked_count(num_samples, "num_samples")


def _digest(numbers: npt.NDArray[Any]) -> str:
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(little).data)


def _frozen(array: A) -> A:
    array.flags.writeable = False
    return array
