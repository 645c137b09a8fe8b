"""Samplers on both sides: a user's, resumed to the sample, and the one that the loader shows."""

from __future__ import annotations

import itertools
import operator
import reprlib
import weakref
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from sharedds.errors import OptionError, SchemaError
from sharedds.generators.held import HeldGenerators
from sharedds.generators.seeding import GlobalSeeding, kept_globals
from sharedds.handles import unsent
from sharedds.loader.stream import OrderedBatches, Position, SampleStream
from sharedds.order import Batch, SampleKey

__all__ = ["OrderSampler", "SampledBatches", "ShownBatches"]


class SampledBatches:
    """Batches of the indices that a user's sampler yields, all of them for this rank.

    Which indices come is a function of the seed and the epoch here too, so that a pass can be
    resumed by letting the sampler run again up to the position: while it runs, the global
    generators are seeded by (seed, epoch), and so are the generators that it holds. Training does
    not notice. ``set_epoch`` of the sampler is called at the beginning of each pass.

    Args:
        sampler: Yields whole numbers.
        batch_size: Samples in a batch.
        seed: Any integer.
        drop_last: Whether to leave out an incomplete last batch.
    """

    def __init__(
        self, sampler: Iterable[Any], *, batch_size: int, seed: int, drop_last: bool
    ) -> None:
        self.sampler = sampler
        self._is_used_up = False
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self._held = HeldGenerators(sampler=sampler)
        # Two samplers that differ in the seed of their torch generator shall differ here too.
        own = getattr(sampler, "generator", None)
        self._own_seed = own.initial_seed() if isinstance(own, torch.Generator) else 0

    @property
    def count(self) -> int | None:
        """Samples of a whole epoch of this rank; None if the sampler has no length."""
        return len(self.sampler) if isinstance(self.sampler, Sized) else None

    @property
    def pool(self) -> int:
        """Only the sampler knows which samples belong to an epoch."""
        return 0

    def length(self, start: Position) -> int | None:
        """Return how many batches come from a position on; None if unknown."""
        if (count := self.count) is None:
            return None
        left = max(0, count - start.consumed)
        return left // self.batch_size if self.drop_last else -(-left // self.batch_size)

    def samples_of_rank(self, start: Position) -> int | None:
        """Return how many samples come from a position on; None if unknown."""
        return None if (count := self.count) is None else max(0, count - start.consumed)

    def facts(self) -> dict[str, int | str]:
        """Return the kind of the sampler."""
        return {"kind": f"sampler {type(self.sampler).__qualname__}"}

    def batches(self, start: Position) -> Iterator[tuple[Batch, bool]]:
        """Yield the batches from a position on, each with whether it is the last.

        Raises:
            SchemaError: The sampler yields something else than whole numbers.
            OptionError: It can be gone through only once, and was.
        """
        waiting: Batch | None = None  # to know of a batch that it is the last, look one ahead
        for batch in self._batches(start):
            if waiting is not None:
                yield waiting, False
            waiting = batch
        if waiting is not None:
            yield waiting, True

    def _batches(self, start: Position) -> Iterator[Batch]:
        if self._is_used_up:  # this epoch and all that follow would be empty
            raise OptionError(
                f"sampler is a {type(self.sampler).__name__}, which can be gone through only once, "
                "and each epoch asks anew; pass a list, or an object whose __iter__ begins again"
            )
        self._is_used_up = _is_for_once(self.sampler)
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(start.epoch)
        apart = _Apart(SampleKey(self.seed, start.epoch, self._own_seed >> 1), self._held)
        with apart:
            indices = iter(self.sampler)
            for _ in itertools.islice(indices, start.consumed):
                pass
        consumed = start.consumed
        for step in itertools.count():
            with apart:
                taken = [
                    _whole(i, self.sampler) for i in itertools.islice(indices, self.batch_size)
                ]
            if not taken or (self.drop_last and len(taken) < self.batch_size):
                return
            # A sampler may repeat an index: its position tells its times apart.
            draws = np.arange(consumed, consumed + len(taken), dtype=np.int64)
            consumed += len(taken)
            numbers = np.array(taken, np.int64)
            yield Batch(self.seed, start.epoch, numbers, draws, step, consumed)


class _Apart:
    """A context in which a sampler has random numbers of its own, going on from one to the next."""

    def __init__(self, key: SampleKey, held: HeldGenerators) -> None:
        self._kept = kept_globals()
        self._inside: kept_globals | None = None
        self._key = key
        self._held = held

    def __enter__(self) -> None:
        self._kept.__enter__()
        if self._inside is None:
            GlobalSeeding.seed(self._key, "sampler")
            self._held.reseed(self._key)
        else:
            self._inside.restore()

    def __exit__(self, *about: object) -> None:
        self._inside = self._inside or kept_globals()
        self._inside.keep()
        self._kept.restore()


def _is_for_once(sampler: Iterable[Any]) -> bool:
    """Whether it is a generator or the like; an iterator of the user's may begin again."""
    return isinstance(sampler, Iterator) and type(sampler).__module__ in {"builtins", "itertools"}


def _whole(index: Any, sampler: Any) -> int:
    try:
        if isinstance(index, bool) or getattr(index, "dtype", None) == torch.bool:
            raise TypeError  # a mask would be read as samples 1, 0, 0, ...
        number = operator.index(index)
        if not -(1 << 63) <= number < 1 << 63:
            raise TypeError
        return number
    except TypeError:
        raise SchemaError(
            f"{type(sampler).__name__} yields {reprlib.repr(index)}; build_loader needs a sampler "
            "that yields whole numbers, one for each sample, and makes the batches itself"
        ) from None


class OrderSampler(DistributedSampler[int]):
    """The order of the next epoch as plain indices, for code that looks at ``loader.sampler``.

    It is a ``DistributedSampler`` since frameworks take that as the sign that an order is split
    over the ranks already, and leave the loader as it is. Each iteration that the loader has no
    part in gives the order of one epoch more.

    Args:
        stream: The stream of the loader; it is not moved by iterating here.

    Attributes:
        loader: Refers to the loader, so that one which is rebuilt with this sampler finds it.
    """

    loader = unsent[weakref.ref[Any]]()

    def __init__(
        self, stream: SampleStream
    ) -> None:  # that of torch would make an order of its own
        self._stream = stream
        self._seen: Position | None = None
        self._passes = 0

    @property
    def _source(self) -> OrderedBatches:
        source = self._stream.source
        assert isinstance(source, OrderedBatches)  # noqa: S101 - only such a stream has this sampler
        return source

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many ranks the order is split over."""
        return self._source.world_size

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Whose part this is."""
        return self._source.rank

    def __iter__(self) -> Iterator[int]:
        begin = self._stream.next_position
        self._passes = self._passes + 1 if begin is self._seen else 0
        self._seen = begin
        if self._passes:
            begin = Position(begin.epoch + self._passes, 0)
        return self._indices(begin)

    def _indices(self, begin: Position) -> Iterator[int]:
        for batch, _ in self._source.batches(begin):
            yield from batch.indices.tolist()

    def __len__(self) -> int:
        return self._source.samples_of_rank(self._stream.next_position)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass of the loader begin ``epoch``."""
        self._stream.set_epoch(epoch)


class ShownBatches(BatchSampler):
    """The batches of an :class:`OrderSampler`, for code that looks at ``loader.batch_sampler``.

    Hugging Face's Trainer resumes in the middle of an epoch by skipping batches of this sampler,
    and tells only it which epoch that is.
    """

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass of the loader begin ``epoch``."""
        sampler: Any = self.sampler
        sampler.set_epoch(epoch)
