"""Which generator of random numbers belongs to the sample that is being made.

Under a loader of this package every sample has a key (:mod:`sharedds.order`), and its generator
comes from that. Elsewhere a sample gets a generator seeded by torch's global one, so that it
follows ``torch.manual_seed`` and the seeds that torch gives to its workers. It is made when first
asked for: a dataset that wants no randomness takes none.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sharedds.errors import OptionError, SchemaError
from sharedds.order import (
    SampleKey,
    current_generator,
    current_key,
    current_keys,
    current_turn,
    uniforms_in_hand,
    using_key,
)

__all__ = [
    "batch_generators",
    "batch_uniforms",
    "keys_of_batch",
    "making_batch",
    "making_rows",
    "making_sample",
    "same_view",
    "sample_generator",
    "sample_uniforms",
    "with_keys",
]


class _Hand(threading.local):
    """What each thread is making, the innermost."""

    scope: _Scope | None = None
    same: same_view | None = None
    rows: tuple[int, int] | None = None  # the first row that is made, and the rows of the batch


_hand = _Hand()


class _Scope:
    """A sample or a batch that is being made; nests, and restores on exit."""

    __slots__ = ("_outer", "turn")

    def __enter__(self) -> None:
        self._outer = _hand.scope
        self.turn = current_turn()
        _hand.scope = self

    def __exit__(self, *about: object) -> None:
        _hand.scope = self._outer

    def generator(self) -> np.random.Generator:
        """Return the generator of the sample."""
        raise SchemaError(
            "load_many makes several samples: self.rngs holds a generator for each of them"
        )

    def generators(self) -> list[np.random.Generator]:
        """Return one generator for each sample."""
        return [self.generator()]


class making_sample(_Scope):  # noqa: N801 - used as a function, like contextlib.suppress
    """While open, one sample is made: :func:`sample_generator` always gives the same generator.

    A sample that is made for the sake of another one shares its generator.
    """

    __slots__ = ("_made",)

    def __enter__(self) -> None:
        self._outer = _hand.scope
        self.turn = current_turn()
        _hand.scope = self
        self._made: np.random.Generator | None = None

    def generator(self) -> np.random.Generator:
        """Return the generator of the sample."""
        if self._made is None:
            outer = self._outer
            if self.turn is not None:
                self._made = current_generator() or _seeded_by_torch()
            elif isinstance(outer, making_sample) and outer.turn is None:
                self._made = outer.generator()
            else:
                self._made = _seeded_by_torch()
        return self._made


class making_batch(_Scope):  # noqa: N801
    """While open, several samples are made: :func:`batch_generators` gives one for each.

    Args:
        count: How many.
    """

    __slots__ = ("_count", "_keys", "_made")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        super().__enter__()
        self._keys = keys_of_batch(self._count)
        self._made: list[np.random.Generator] | None = None

    def generators(self) -> list[np.random.Generator]:
        """Return one generator for each sample."""
        if self._made is None:
            one = current_generator()
            if one is not None:  # the batch is made for the sake of one sample
                self._made = [one] * self._count
            elif self._keys is not None:
                self._made = [key.generator() for key in self._keys]
            else:
                self._made = [_seeded_by_torch() for _ in range(self._count)]
        return self._made


def _seeded_by_torch() -> np.random.Generator:
    words = torch.empty(2, dtype=torch.int64).random_().tolist()
    return np.random.Generator(np.random.Philox(words))


def _innermost() -> _Scope | None:
    """Return what is being made, unless a key was taken in hand since for something else."""
    scope = _hand.scope
    return scope if scope is not None and scope.turn == current_turn() else None


def sample_generator() -> np.random.Generator:
    """Return THE generator of the sample being made; outside of a sample a new one each time.

    Raises:
        SchemaError: Several samples are being made at once.
    """
    scope = _innermost()
    if scope is not None:
        return scope.generator()
    return current_generator() or _seeded_by_torch()


def batch_generators() -> list[np.random.Generator]:
    """Return one generator for each of the samples being made.

    Raises:
        SchemaError: None is being made.
    """
    scope = _innermost()
    if scope is not None:
        return scope.generators()
    one = current_generator()
    if one is None:
        raise SchemaError("rngs are those of the samples in hand; use it inside load_many")
    return [one]


def keys_of_batch(count: int) -> Sequence[SampleKey] | None:
    """Return the keys of the samples that a loader reads at once; None where there are none."""
    keys = current_keys() if current_key() is None else None
    return keys if keys is not None and len(keys) == count else None


def with_keys(count: int) -> list[using_key | making_sample]:
    """Return, for each sample of a batch that is read one by one, the context to read it in."""
    keys = keys_of_batch(count)
    if keys is None:
        return [making_sample() for _ in range(count)]
    return [using_key(key) for key in keys]


class same_view:  # noqa: N801
    """While open, all pictures that this thread reads show the same part: an image and its mask.

    The first one chooses, all others get its numbers; the same part comes of them for pictures of
    the same height and width under views that choose alike. With ``load_batch`` picture ``i`` of
    each batch gets those of picture ``i`` of the first. Nests; make a new one for each sample.

    Raises:
        OptionError: A view needs more or fewer numbers than the first one, or a batch has more or
            fewer pictures; raised where it is read.

    Example:
        >>> with same_view():
        ...     image, mask = images[index], masks[index]  # doctest: +SKIP
    """

    __slots__ = ("_drawn", "_outer", "_rows")

    def __enter__(self) -> None:
        self._outer, self._rows = _hand.same, _hand.rows
        self._drawn: npt.NDArray[np.float64] | None = None
        _hand.same, _hand.rows = self, None

    def __exit__(self, *about: object) -> None:
        _hand.same, _hand.rows = self._outer, self._rows

    def uniforms(self, rows: int, count: int) -> npt.NDArray[np.float64]:
        """Return the numbers that the first view drew."""
        first, whole = _hand.rows or (0, rows)
        if self._drawn is None:
            self._drawn = np.full((whole, count), np.nan)
        own = self._drawn[first : first + rows]
        if self._drawn.shape != (whole, count) or len(own) != rows:
            first_rows, first_count = self._drawn.shape
            raise OptionError(
                f"same_view: {rows} at once of {count} random numbers each, after {first_rows} of "
                f"{first_count}; views of one kind, and batches of one size, can show the same part"
            )
        missing = np.isnan(own).any(axis=1)
        if missing.any():
            own[missing] = _draw(rows, count, "view")[missing]
        return own


class making_rows:  # noqa: N801
    """While open, some rows of a batch are made, the others by other calls.

    Args:
        own: Which rows.
        count: Rows of the batch.
    """

    __slots__ = ("_count", "_first", "_outer")

    def __init__(self, own: slice, count: int) -> None:
        self._first, self._count = int(own.start), count

    def __enter__(self) -> None:
        self._outer = outer = _hand.rows
        begin, count = outer or (0, self._count)
        _hand.rows = begin + self._first, count

    def __exit__(self, *about: object) -> None:
        _hand.rows = self._outer


def batch_uniforms(rows: int, count: int, purpose: str = "view") -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) for samples that are made at once, apart from their generators.

    With keys in hand they come from these, and each call goes on where the last one for the same
    samples ended. Elsewhere torch's global generator gives them, row by row.

    Args:
        rows: How many samples.
        count: Numbers for each.
        purpose: Each one has numbers of its own.

    Returns:
        (rows, count)

    Raises:
        OptionError: Inside :class:`same_view`, others were drawn before.
    """
    same = _hand.same
    return same.uniforms(rows, count) if same and purpose == "view" else _draw(rows, count, purpose)


def _draw(rows: int, count: int, purpose: str) -> npt.NDArray[np.float64]:
    found = uniforms_in_hand(rows, count, purpose)
    if found is not None:
        return found
    drawn: npt.NDArray[np.float64] = torch.rand(rows, count, dtype=torch.float64).numpy()
    return drawn


def sample_uniforms(count: int, purpose: str = "view") -> npt.NDArray[np.float64]:
    """Return :func:`batch_uniforms` of one sample: (count,)."""
    row: npt.NDArray[np.float64] = batch_uniforms(1, count, purpose)[0]
    return row
