"""What hands out the batches of a loader, and knows where it stands.

A :class:`SampleStream` gives torch's iterators one :class:`EpochPass` after the other. A pass notes
each batch twice: when it is sent to a worker, and when the user gets it. Only the second one moves
the position, so that prefetched batches are never lost by a resume.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from sharedds.errors import StateError
from sharedds.order import Batch, EpochOrder, LoaderState, Sampling, Sequential, Shuffled

__all__ = [
    "EpochPass",
    "OrderedBatches",
    "Position",
    "SampleStream",
    "Source",
]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the stream.

    Attributes:
        epoch: The pass over the data, from 0.
        consumed: Samples of that epoch that were handed out before.
        failed: How many of them could not be loaded.
    """

    epoch: int
    consumed: int
    failed: int = 0


class Source(Protocol):
    """Where the batches of an epoch come from."""

    @property
    def count(self) -> int | None:
        """Samples of a whole epoch, of all ranks; None if unknown."""
        ...

    @property
    def pool(self) -> int:
        """All samples below this number belong to an epoch; 0 if that cannot be said."""
        ...

    def batches(self, start: Position) -> Iterator[tuple[Batch, bool]]:
        """Yield the batches of this rank from a position on, each with whether it is the last."""
        ...

    def length(self, start: Position) -> int | None:
        """Return how many batches those are; None if unknown."""
        ...

    def facts(self) -> dict[str, int | str]:
        """Return what a state must have in common with this source."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBatches:
    """Batches by formula: what a loader with a :class:`~sharedds.order.Sampling` hands out.

    Attributes: as of :class:`~sharedds.order.EpochOrder`.
    """

    sampling: Sampling
    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: bool = False

    @property
    def count(self) -> int:
        """Samples of a whole epoch, of all ranks."""
        return self.sampling.count

    @property
    def pool(self) -> int:
        """All samples below this number belong to an epoch; 0 if that cannot be said."""
        return self.sampling.count if isinstance(self.sampling, Sequential | Shuffled) else 0

    def order(self, start: Position) -> EpochOrder:
        """Return the order of an epoch from a position on."""
        return EpochOrder(
            sampling=self.sampling,
            batch_size=self.batch_size,
            seed=self.seed,
            epoch=start.epoch,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
            pad=self.pad,
            start=start.consumed,
        )

    def batches(self, start: Position) -> Iterator[tuple[Batch, bool]]:
        """Yield the batches of this rank from a position on, each with whether it is the last."""
        order = self.order(start)
        last = len(order) - 1
        return ((batch, step == last) for step, batch in enumerate(order))

    def length(self, start: Position) -> int:
        """Return how many batches those are."""
        return len(self.order(start))

    def samples_of_rank(self, start: Position) -> int:
        """Return how many samples this rank gets from a position on."""
        order = self.order(start)
        whole = len(order) - 1
        return whole * self.batch_size + len(order.batch(whole)) if len(order) else 0

    def facts(self) -> dict[str, int | str]:
        """Return the facts of the sampling."""
        return self.sampling.facts()


class EpochPass:
    """One pass over the data, or over what a resume left of it.

    Args:
        source: Where the batches come from.
        start: Where to begin.

    Attributes:
        epoch: The epoch.
        samples: How many samples were handed out.
        is_over: Whether the last batch was handed out.
    """

    def __init__(self, source: Source, start: Position) -> None:
        self._source = source
        self._start = start
        self._sent: collections.deque[tuple[int, int, bool]] = collections.deque()
        self.epoch = start.epoch
        self._latest: tuple[int, int] | None = None  # consumed and failed, since the start
        self.samples = 0
        self.is_over = False

    @property
    def position(self) -> Position:
        """Where to go on if the loader ended now."""
        if self.is_over:
            return Position(self.epoch + 1, 0)
        return self._start if self._latest is None else Position(self.epoch, *self._latest)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches as they are sent to be made."""
        for batch, is_last in self._source.batches(self._start):
            self._sent.append((batch.consumed, len(batch), is_last))
            yield batch

    def __len__(self) -> int:
        length = self._source.length(self._start)
        if length is None:
            raise TypeError("the sampler of this loader has no length")
        return length

    def handed(self, failed: int = 0) -> None:
        """Note that the user gets the next batch, with so many failed samples in the epoch."""
        consumed, samples, is_last = self._sent.popleft()
        self.samples += samples
        if is_last:
            self.end()
        else:
            self._latest = consumed, failed

    def failed(self) -> None:
        """Note that the next batch became an error: a resume will try it again."""
        if self._sent:
            self._sent.popleft()

    def forget_sent(self, *, but: int = 0) -> None:
        """Forget batches that were sent and will never come: all ``but`` the first so many."""
        while len(self._sent) > but:
            self._sent.pop()

    def end(self) -> None:
        """Note that nothing more comes."""
        self.is_over = True


class SampleStream:
    """Where a loader stands; iterating gives the batches of the pass under way.

    Args:
        source: Where the batches come from.
        seed: The seed of the loader.
        samples: Samples of the dataset.
        fingerprint: Returns what tells the dataset from others, empty if unknown; asked when the
            first state is, since it may take a look at the whole index.
    """

    def __init__(
        self, source: Source, *, seed: int, samples: int, fingerprint: Callable[[], str]
    ) -> None:
        self.source = source
        self.seed = seed
        self.samples = samples
        self._ask_fingerprint = fingerprint
        self._next = Position(0, 0)
        self._pass: EpochPass | None = None
        self._is_moved = False  # by hand, since the newest pass began
        self._before: tuple[Position, EpochPass | None, bool] = (self._next, None, False)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._pass if self._pass is not None else ())

    def __len__(self) -> int:
        length = self.source.length(Position(self._next.epoch, 0))
        if length is None:
            raise TypeError("the sampler of this loader has no length, so the loader has none")
        return length

    @functools.cached_property
    def fingerprint(self) -> str:
        """What tells the dataset from others; empty if unknown."""
        return self._ask_fingerprint()

    @property
    def next_position(self) -> Position:
        """Where the next pass begins."""
        return self._next

    def begin(self) -> EpochPass:
        """Begin the next pass, and return it."""
        self._before = (self._next, self._pass, self._is_moved)
        self._pass = EpochPass(self.source, self._next)
        self._next = Position(self._pass.epoch + 1, 0)
        self._is_moved = False
        return self._pass

    def take_back(self) -> None:
        """Let it be as before :meth:`begin`: the pass could not start."""
        self._next, self._pass, self._is_moved = self._before

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of ``epoch``; the position in it stays if it is the next."""
        if self._next.epoch != epoch:
            self._next = Position(epoch, 0)
        self._is_moved = True

    def position(self, *, under_way: bool) -> Position:
        """Return where to go on: of the newest pass, unless that is gone and another was chosen."""
        if self._pass is None or (self._is_moved and not under_way):
            return self._next
        return self._pass.position

    def state(self, *, under_way: bool) -> LoaderState:
        """Return where to go on, as a state."""
        position = self.position(under_way=under_way)
        return LoaderState(
            seed=self.seed,
            epoch=position.epoch,
            consumed=position.consumed,
            samples=self.samples,
            fingerprint=self.fingerprint,
            sampling=self.source.facts(),
            failed=position.failed,
        )

    def load(self, state: LoaderState) -> None:
        """Let the next pass begin where a state says.

        Raises:
            StateError: The state is of another seed, dataset or sampling.
        """
        if state.samples != self.samples:
            raise StateError(
                f"the state is of a dataset with {state.samples} samples, this one has "
                f"{self.samples}: the same position would be another sample"
            )
        if state.fingerprint and self.fingerprint and state.fingerprint != self.fingerprint:
            raise StateError(
                f"the state is of a dataset with the fingerprint {state.fingerprint}, this one has "
                f"{self.fingerprint}: build the loader with the same data, or start a new run"
            )
        if state.seed != self.seed:
            raise StateError(
                f"the state is of a loader with seed={state.seed}, this one has seed={self.seed}; "
                f"pass seed={state.seed} to build_loader to go on with that run"
            )
        facts = self.source.facts()
        if dict(state.sampling) != facts:
            raise StateError(
                f"the state is of the sampling {_shown(dict(state.sampling))}, this loader has "
                f"{_shown(facts)}: pass the same shuffle and sampler"
            )
        self._next = Position(state.epoch, state.consumed, state.failed)
        self._is_moved = True


def _shown(facts: dict[str, int | str]) -> str:
    return "(" + ", ".join(f"{name}={value}" for name, value in facts.items()) + ")"
