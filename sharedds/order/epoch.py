"""The order of an epoch: which samples are in which batch of which rank."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError
from sharedds.order.keys import SampleKey, checked_seed
from sharedds.order.permutation import Permutation, checked_count

__all__ = ["Batch", "EpochOrder", "Sampling", "Sequential", "Shuffled"]

Integers = npt.NDArray[np.int64]

#: Positions that are mapped to samples at once while an epoch is iterated over: a call of NumPy
#: costs as much as a hundred of them do.
_BLOCK = 4096


@runtime_checkable
class Sampling(Protocol):
    """Which sample stands at which position of an epoch; a formula, the same in every process."""

    @property
    def count(self) -> int:
        """Draws in an epoch."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether a sample may occur more than once in an epoch."""
        ...

    def at(self, seed: int, epoch: int, positions: Integers) -> Integers:
        """Return the index (int64) at each position (int64, from 0 to ``count - 1``)."""
        ...

    def facts(self) -> dict[str, int | str]:
        """Return what tells this sampling from others, as JSON numbers and strings."""
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """Samples 0, 1, 2, ... in every epoch.

    Args:
        count: How many samples.

    Raises:
        OptionError: ``count`` is no number of samples.
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", checked_count(self.count))

    @property
    def repeats(self) -> bool:
        """No sample occurs twice."""
        return False

    def at(self, seed: int, epoch: int, positions: Integers) -> Integers:
        """Return the positions themselves."""
        return positions

    def facts(self) -> dict[str, int | str]:
        """Return kind and count."""
        return {"kind": "sequential", "count": self.count}


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Every sample once, in a new order each epoch.

    Args:
        count: How many samples.

    Raises:
        OptionError: ``count`` is no number of samples.
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", checked_count(self.count))

    @property
    def repeats(self) -> bool:
        """No sample occurs twice."""
        return False

    def at(self, seed: int, epoch: int, positions: Integers) -> Integers:
        """Return the index (int64) at each position; O(1) each, whatever the count."""
        return _permutation(self.count, seed, epoch).at(positions)

    def facts(self) -> dict[str, int | str]:
        """Return kind and count."""
        return {"kind": "shuffled", "count": self.count}


@lru_cache(maxsize=8)
def _permutation(count: int, seed: int, epoch: int) -> Permutation:
    return Permutation(count, SampleKey(seed, epoch, 0).number("order of the epoch"))


# --- batches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one batch, with all that their making depends on.

    Args:
        seed: The seed of the loader.
        epoch: The pass over the data.
        indices: int64, read-only: numbers of samples.
        draws: int64, read-only: the draw of each sample's key; None stands for zeros.
        step: The number of the batch among those of its rank, counted from the order's start.
        consumed: Samples of the epoch that all ranks together have been given once this batch and
            its counterparts of the other ranks are.
    """

    seed: int
    epoch: int
    indices: Integers
    draws: Integers | None
    step: int
    consumed: int

    def __len__(self) -> int:
        return len(self.indices)

    def key(self, at: int) -> SampleKey:
        """Return the key of the sample at a place in this batch."""
        draw = 0 if self.draws is None else int(self.draws[at])
        return SampleKey(self.seed, self.epoch, int(self.indices[at]), draw)

    def keys(self) -> Iterator[SampleKey]:
        """Yield the key of each sample."""
        seed, epoch = self.seed, self.epoch
        if self.draws is None:
            for index in self.indices.tolist():
                yield SampleKey(seed, epoch, index)
        else:
            for index, draw in zip(self.indices.tolist(), self.draws.tolist(), strict=True):
                yield SampleKey(seed, epoch, index, draw)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling bytes takes a quarter of the time that pickling an array does.
        return _batch_of, self._parts()

    def _parts(self) -> tuple[int, int, bytes, tuple[int, bytes] | None, int, int]:
        draws = _as_offsets(self.draws) if self.draws is not None else None
        return self.seed, self.epoch, self.indices.tobytes(), draws, self.step, self.consumed


def _batch_of(
    seed: int,
    epoch: int,
    indices: bytes,
    draws: tuple[int, bytes] | None,
    step: int,
    consumed: int,
) -> Batch:
    numbers = _from_offsets(*draws, len(indices) // 8) if draws is not None else None
    return Batch(seed, epoch, np.frombuffer(indices, np.int64), numbers, step, consumed)


def _as_offsets(draws: Integers) -> tuple[int, bytes]:
    """The least draw and the distances to it, in 2 bytes each where they fit: they are a run."""
    least = int(draws.min()) if len(draws) else 0
    offsets = draws - least
    short = len(draws) > 0 and int(offsets.max()) < 1 << 16
    return least, (offsets.astype(np.uint16) if short else offsets).tobytes()


def _from_offsets(least: int, offsets: bytes, count: int) -> Integers:
    kind = np.uint16 if len(offsets) < 8 * count else np.int64
    draws = np.frombuffer(offsets, kind).astype(np.int64) + least
    draws.flags.writeable = False
    return draws


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The batches of one rank in one epoch, each computed when asked for.

    All ranks walk along one order of the epoch: step s takes the next ``world_size × batch_size``
    positions, and each rank the run of ``batch_size`` that is its own. What is left at the end, R
    samples, is too few for a step:

    * ``drop_last`` leaves them out;
    * ``pad`` gives every rank ceil(R / world_size) samples, and takes the missing ones, fewer than
      there are ranks, from the beginning of the epoch: for training, where every rank must take
      the same number of steps with batches of one size;
    * otherwise they are split as evenly as can be, some ranks perhaps getting none: for evaluation,
      where every sample counts exactly once.

    Where an epoch was left depends on one number, the samples consumed by all ranks. Given as
    ``start``, with whatever batch size and world size, the rest of the epoch follows.

    Args:
        sampling: Which sample stands at which position.
        batch_size: Samples in a batch of one rank.
        seed: Any integer.
        epoch: The pass over the data, from 0.
        rank: Which of the ranks this is.
        world_size: How many ranks walk along this order.
        drop_last: Whether to leave out what does not fill a step.
        pad: Whether to repeat samples so that all ranks get equally many.
        start: Samples of this epoch consumed before, by all ranks together.

    Raises:
        OptionError: A value out of its range, or ``drop_last`` and ``pad`` together.

    Example:
        >>> order = EpochOrder(sampling=Sequential(10), batch_size=2, seed=0, epoch=0,
        ...                    rank=1, world_size=2)
        >>> [batch.indices.tolist() for batch in order]
        [[2, 3], [6, 7], [9]]
    """

    sampling: Sampling
    batch_size: int
    seed: int
    epoch: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: bool = False
    start: int = 0

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "seed", checked_seed(self.seed))
        keep(self, "batch_size", _at_least(self.batch_size, 1, "batch_size"))
        keep(self, "world_size", _at_least(self.world_size, 1, "world_size"))
        keep(self, "epoch", _at_least(self.epoch, 0, "epoch"))
        keep(self, "rank", _at_least(self.rank, 0, "rank"))
        keep(self, "start", _at_least(self.start, 0, "start"))
        count = checked_count(self.sampling.count, "sampling.count")
        if self.rank >= self.world_size:
            raise OptionError(f"rank={self.rank}: world_size={self.world_size} ranks count from 0")
        if self.start > count:
            raise OptionError(f"start={self.start}: the epoch has {count} samples")
        if self.drop_last and self.pad:
            raise OptionError("drop_last=True and pad=True exclude each other: choose one")

    def __len__(self) -> int:
        return self._full_steps + (self._tail_size > 0)

    def __iter__(self) -> Iterator[Batch]:
        # Few at first: nobody shall wait for what may never be asked for.
        step, many, full = 0, 1, self._full_steps
        while step < full:
            end = min(step + many, full)
            yield from self._run(step, end)
            step, many = end, min(2 * many, max(1, _BLOCK // self.batch_size))
        if self._tail_size:
            yield self.batch(full)

    def _run(self, begin: int, end: int) -> Iterator[Batch]:
        """Yield these batches, all of them full, computed together."""
        size, together = self.batch_size, self.batch_size * self.world_size
        steps = np.arange(begin, end, dtype=np.int64)[:, None] * together
        first = self.start + self.rank * size
        positions = (steps + np.arange(first, first + size, dtype=np.int64)).reshape(-1)
        indices = self._drawn(positions)
        draws = positions if self.sampling.repeats else None
        consumed = self.start + begin * together
        for step in range(begin, end):
            consumed += together
            part = slice((step - begin) * size, (step - begin + 1) * size)
            drawn = draws[part] if draws is not None else None
            yield Batch(self.seed, self.epoch, indices[part], drawn, step, consumed)

    def batch(self, step: int) -> Batch:
        """Return batch ``step`` of this rank, counted from ``start``.

        Raises:
            OptionError: There is no such batch.
        """
        number = _at_least(step, 0, "step")
        if number >= len(self):
            raise OptionError(f"step={number}: rank {self.rank} has {len(self)} batches")
        together = self.batch_size * self.world_size
        begin = self.start + number * together
        if number < self._full_steps:
            first, size = begin + self.rank * self.batch_size, self.batch_size
        else:
            first, size = begin + self._tail_begin, self._tail_size
        count = self.sampling.count
        positions = np.arange(first, first + size, dtype=np.int64)
        if first + size > count:
            positions[max(0, count - first) :] -= count
            positions %= count
        return Batch(
            seed=self.seed,
            epoch=self.epoch,
            indices=self._drawn(positions),
            draws=positions if self.sampling.repeats else None,
            step=number,
            consumed=min(begin + together, count),
        )

    def _drawn(self, positions: Integers) -> Integers:
        """The indices at these positions; both arrays become read-only."""
        drawn = self.sampling.at(self.seed, self.epoch, positions)
        indices = np.ascontiguousarray(drawn, dtype=np.int64).view()
        if indices.shape != positions.shape:
            raise OptionError(
                f"{type(self.sampling).__name__}.at() gave {indices.shape} indices for "
                f"{len(positions)} positions"
            )
        positions.flags.writeable = indices.flags.writeable = False
        return indices

    @property
    def dropped(self) -> int:
        """How many samples of the epoch no rank gets; 0 unless ``drop_last``."""
        return self._left if self.drop_last else 0

    @property
    def padded_positions(self) -> Integers:
        """Positions (int64) that some rank gets a second time, in the order of the ranks."""
        missing = -self._left % self.world_size if self.pad else 0
        return np.arange(missing, dtype=np.int64) % max(self.sampling.count, 1)

    @property
    def padded(self) -> Integers:
        """Indices (int64) that some rank gets in addition, in the order of the ranks."""
        return self.sampling.at(self.seed, self.epoch, self.padded_positions)

    # --- the steps, and what is left after them

    @property
    def _full_steps(self) -> int:
        return (self.sampling.count - self.start) // (self.batch_size * self.world_size)

    @property
    def _left(self) -> int:
        return (self.sampling.count - self.start) % (self.batch_size * self.world_size)

    @property
    def _tail_size(self) -> int:
        """Samples in the last, smaller batch of this rank."""
        if self.drop_last:
            return 0
        each, rest = divmod(self._left, self.world_size)
        return each + (rest > 0 if self.pad else self.rank < rest)

    @property
    def _tail_begin(self) -> int:
        """Samples left that go to the ranks before this one."""
        if self.pad:
            return self.rank * self._tail_size
        each, rest = divmod(self._left, self.world_size)
        return self.rank * each + min(self.rank, rest)


def _at_least(value: object, least: int, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise OptionError(f"{name}={value!r}: a whole number is expected")
    number = operator.index(value)
    if number < least:
        raise OptionError(f"{name}={number}: {least} or more is expected")
    return number
