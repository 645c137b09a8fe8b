"""What torch's workers read from in place of the dataset: it seeds, loads, checks and collects.

A batch arrives as the numbers of its samples with seed and epoch, so a worker needs nothing else to
make exactly the samples that any other worker, or a run without workers, would make.

A dataset may make a whole batch (:func:`~sharedds.datasets.offers.batch_maker`). No code of the
user runs then, so nothing is seeded; if it fails, samples are made one by one, which finds the bad
one. Else samples are made one by one, or by ``__getitems__`` where that is better.
"""

from __future__ import annotations

import contextlib
import reprlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    Dataset,
    default_collate,
    default_convert,
)

from sharedds.datasets.offers import (
    Empty,
    adviser,
    batch_maker,
    reads_batches,
    tell_epoch,
)
from sharedds.errors import SchemaError, WorkerError
from sharedds.generators.held import HeldGenerators
from sharedds.generators.seeding import GlobalSeeding, kept_globals
from sharedds.generators.sparing import SparingSeeding
from sharedds.generators.thread_random import ThreadGenerators, drawing_from
from sharedds.loader.batches import KeyedBatch, WholeBatch
from sharedds.loader.elsewhere import device_elsewhere, not_on_cpu
from sharedds.loader.failures import ErrorPolicy, has_failures
from sharedds.loader.parts import PartReaders
from sharedds.loader.pieces import WholeMaker
from sharedds.loader.spare import SpareMemory
from sharedds.order import Batch, SampleKey, keys_in_turn, using_key, using_keys
from sharedds.workers.buffers import empty_shared

__all__ = ["SampleReader"]

T = TypeVar("T")

Integers = npt.NDArray[np.int64]

#: What holds no tensor, and often is all that a sample is.
_NO_TENSORS = frozenset({bool, bytes, float, int, np.ndarray, str, type(None)})


class SampleReader(Dataset[Any]):
    """Loads the samples of a batch, each with all its randomness from its key.

    Args:
        dataset: The user's dataset.
        seeding: How to seed the global generators.
        policy: What to do with a sample that cannot be loaded.
        collate_fn: Searched for generators; it is called by torch, not here.
        pool: A replacement for a sample is one of so many; 0 takes it from the same batch.
        is_whole: Whether the dataset may make whole batches: they are collated as torch does.
        threads: So many make the samples of one batch.
        sends: Whether batches are made in a worker process, for its trainer.

    Attributes:
        read_ahead: So many samples of a batch are advised before they are read; None for all.
        memory: Gives private memory for batches; None makes one of its own where it is needed.
        kinds: The types of the samples of the latest batch; None where some may have failed.
        own: What stands for the global generators in this thread; None for these themselves.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seeding: GlobalSeeding,
        policy: ErrorPolicy,
        collate_fn: Callable[..., Any] | None = None,
        pool: int = 0,
        is_whole: bool = False,
        threads: int = 1,
        sends: bool = False,
    ) -> None:
        self.dataset = dataset
        self.seeding = seeding
        self.policy = policy
        self.collate_fn = collate_fn
        self.pool = pool
        self.is_whole = is_whole
        self.threads = threads
        self.sends = sends
        self.read_ahead: int | None = None
        self.memory: SpareMemory | None = None
        self.own: ThreadGenerators | None = None
        self.kinds: set[type] | None = None
        self.begin_anew(dataset, collate_fn)

    def begin_anew(self, dataset: Any, collate_fn: Any) -> None:
        """Read from another copy of the dataset, which has not been looked at yet."""
        self.dataset, self.collate_fn = dataset, collate_fn
        self._epoch: int | None = None
        # Found out by the first batch: after worker_init_fn, and in each worker for itself.
        self._held: HeldGenerators | None = None
        self._held_by_collate = HeldGenerators()
        self._advise: Callable[[Integers], object] | None = None
        self._together = False
        self._make_whole: WholeMaker | None = None
        self._parts: PartReaders | None = None
        self._indices: list[int] = []
        self._batch_indices: list[int] = []  # of those, the ones read here are a part
        self._globals = SparingSeeding()
        self._kept: kept_globals | None = None  # what training has drawn from, in its own process
        self._keeper: _Kept | None = None
        self._collate_may_draw = True
        self._is_keyed = False

    def __getitem__(self, batch: Batch) -> Any:
        """Load the one sample of a batch of one, for loaders without batches."""
        return self._read(batch)[0]

    def __getitems__(self, batch: Batch) -> Any:
        """Load the samples of a batch, in its order; records stand for those that failed.

        Returns:
            A list of them, or a WholeBatch; in a KeyedBatch where a ``batch_transform`` follows.

        Raises:
            SchemaError: ``__getitems__`` of the dataset returned something else than asked for.
        """
        read = self._read(batch)
        return KeyedBatch(read, batch) if self._is_keyed else read

    @property
    def is_quiet(self) -> bool:
        """Whether no code of the user runs for a batch, unless something fails."""
        if self._held is None:
            self._prepare()
        return self._make_whole is not None and not self._collate_may_draw

    def kept(self) -> _Kept:
        """The context that gives the generators of this process back as they were; not nested."""
        if self._keeper is None:
            self._keeper = _Kept(self)
        return self._keeper

    def load(self, key: SampleKey) -> Any:
        """Load one sample.

        Raises:
            SampleError: It holds a tensor that is not on the CPU.
            Exception: Whatever the dataset raises.
        """
        with using_key(key):
            if not self.seeding.with_sample:
                sample = self.dataset[key.index]
            else:
                self._globals.seed_apart(key.number("globals"))
                try:
                    if self._held:
                        self._held.reseed(key)
                    sample = self.dataset[key.index]
                finally:
                    self._globals.go_on()
        if (device := device_elsewhere(sample)) is not None:
            raise not_on_cpu(device, key)
        return sample

    def another(self, key: SampleKey, attempt: int) -> SampleKey:
        """Return the key of a sample to take instead of that of ``key``: a pure function."""
        number = key.number("replacement")
        if self.pool:
            index = (number + attempt) % self.pool
        else:  # nobody but the sampler knows which samples belong to this loader
            index = self._batch_indices[(number + attempt) % len(self._batch_indices)]
        # A draw of its own, so that it is no twin of that sample where it occurs by itself.
        return SampleKey(key.seed, key.epoch, index, number >> 1)

    # --- reading a batch

    def _read(self, batch: Batch) -> Any:
        if self._held is None:
            self._prepare()
        if batch.epoch != self._epoch:
            self._epoch = batch.epoch
            tell_epoch(self.dataset, batch.epoch)
            if self._parts is not None:
                self._parts.begin_epoch(batch.epoch)
        self._indices = self._batch_indices = batch.indices.tolist()
        self.kinds = None
        if self._advise is not None and self.read_ahead != 0:
            self._advise(batch.indices[: self.read_ahead])
        if self._make_whole is not None:
            read: Any = self._read_whole(batch, self._make_whole)
        elif self._together:
            read = self._read_together(batch)
        else:
            read = self._read_one_by_one(batch)
        if self._collate_may_draw and self.seeding:  # belongs to the batch
            first = batch.key(0)
            if self.seeding.with_sample:
                self.seeding.seed(first, "collate")
            if self._held_by_collate:
                self._held_by_collate.reseed(first)
        return read

    def _read_whole(self, batch: Batch, make: WholeMaker) -> WholeBatch | list[Any]:
        """The batch as the dataset makes it; if that fails its samples, to learn which it was."""
        keys = tuple(batch.keys())
        try:
            made = make(self._indices, keys)
            if (device := device_elsewhere(made)) is not None:
                raise not_on_cpu(device, keys[0])
            return WholeBatch(made)
        except Exception as error:
            with self._stirred():
                found = self._read_one_by_one(batch)
            if not has_failures(found):  # none by itself: the fault is in making them together
                text = (
                    f"while {type(self.dataset).__name__} made a whole batch of the samples "
                    f"{reprlib.repr(self._indices)} of epoch {batch.epoch}; each of them can be "
                    "loaded by itself"
                )
                if self.policy.raises:
                    error.add_note(text)
                    raise
                warnings.warn(f"{type(error).__name__}: {error}, {text}", stacklevel=2)
            return found

    def _read_one_by_one(self, batch: Batch) -> list[Any]:
        if self._parts is not None:  # never with seeds for the whole batch
            return self._parts.read(batch)
        if self.seeding.with_batch:
            return self._seeded_once(batch, lambda: self._make_each(batch))
        return self._read_each(batch)

    def read_part(self, batch: Batch, indices: list[int]) -> list[Any]:
        """Load samples that are a part of a batch, one by one.

        Args:
            batch: These samples.
            indices: Numbers of all samples of the batch.
        """
        if self._held is None:
            self._prepare()
        self._indices, self._batch_indices = batch.indices.tolist(), indices
        return self._read_each(batch)

    def _read_each(self, batch: Batch) -> list[Any]:
        if not self.seeding.with_sample:
            return self._make_each(batch)
        while True:
            self._globals.begin(self._kept)
            samples = self._make_each(batch)
            if self._globals.is_sound():
                return samples

    def _seeded_once(self, batch: Batch, make: Callable[[], T]) -> T:
        """What ``make`` returns, with all generators seeded by the key of the first sample."""
        while True:
            self._globals.begin(self._kept)
            if self._globals.seeds:
                self._globals.seed(batch.key(0).number("globals"))
            if self._held:
                self._held.reseed(batch.key(0))
            made = make()
            if self._globals.is_careful:
                self._globals.look()
            if self._globals.is_sound():
                return made

    def _make_each(self, batch: Batch) -> list[Any]:
        """As :meth:`load` for each sample, written out: calls would take longer than all else."""
        samples: list[Any] = []
        dataset, indices, with_sample = self.dataset, self._indices, self.seeding.with_sample
        seed = self._globals.seed if with_sample and self._globals.seeds else None
        # Most datasets hold no generator: asked once for all samples.
        held = (self._held or None) if with_sample else None
        is_seeded = seed is not None or held is not None
        is_careful = with_sample and self._globals.is_careful
        is_sound = True
        with keys_in_turn(batch.seed, batch.epoch, indices, batch.draws) as turn:
            for turn.at, index in enumerate(indices):
                try:
                    if is_seeded:
                        if seed is not None:
                            seed(turn.number("globals"))
                        if held is not None:
                            held.reseed(turn.key)
                    samples.append(dataset[index])
                    if is_careful:
                        self._globals.look()
                except Exception as error:
                    is_sound = False
                    samples += self.policy.failed(error, turn.key, self)
                    if self.policy.raises:
                        break
            kinds = set(map(type, samples))
            if not kinds <= _NO_TENSORS:
                keys = (turn.key for turn.at in range(len(samples)))
                found = self._without_elsewhere(samples, keys)
                is_sound = is_sound and found is samples
                samples = found
        self.kinds = kinds if is_sound else None
        return samples

    def _read_together(self, batch: Batch) -> list[Any]:
        keys = list(batch.keys())

        def make() -> Any:
            with using_keys(keys):
                return self.dataset.__getitems__(self._indices)

        try:
            samples = self._seeded_once(batch, make) if self.seeding else make()
        except Exception:
            if not hasattr(self.dataset, "__getitem__"):
                raise
            found = self._read_one_by_one(batch)  # to learn which of them it was
            if not has_failures(found):  # none by itself: the fault is in reading them together
                raise
            return found
        if not isinstance(samples, list) or len(samples) != len(keys):
            raise SchemaError(_wrong_batch(self.dataset, samples, len(keys)))
        return self._without_elsewhere(samples, keys)

    def _without_elsewhere(self, samples: list[Any], keys: Iterable[SampleKey]) -> list[Any]:
        """The same with the policy's records in place of samples that are not on the CPU."""
        if all(
            sample.is_cpu if type(sample) is torch.Tensor else device_elsewhere(sample) is None
            for sample in samples
        ):
            return samples
        kept: list[Any] = []
        for sample, key in zip(samples, keys, strict=True):
            if (device := device_elsewhere(sample)) is None:
                kept.append(sample)
                continue
            kept += self.policy.failed(not_on_cpu(device, key), key, self)
            if self.policy.raises:
                break
        return kept

    @contextlib.contextmanager
    def _stirred(self) -> Iterator[None]:
        """While open, code of the user runs that was not expected to: whose draws are whose?"""
        if self._keeper is not None:
            self._keeper.keep()
        with contextlib.nullcontext() if self.own is None else drawing_from(self.own):
            yield

    # --- what the dataset offers, found out once in each worker

    def _prepare(self) -> None:
        on = bool(self.seeding)
        self._held = HeldGenerators(dataset=self.dataset) if on else HeldGenerators()
        collate = self.collate_fn if on else None
        self._held_by_collate = HeldGenerators(collate_fn=collate) if on else HeldGenerators()
        self._globals = SparingSeeding()
        inner = getattr(self.collate_fn, "collate_fn", self.collate_fn)
        self._is_keyed = getattr(self.collate_fn, "batch_transform", None) is not None
        is_default = inner is default_collate or inner is default_convert
        self._collate_may_draw = self._is_keyed or not is_default
        self._together = reads_batches(self.dataset)
        load = batch_maker(self.dataset) if self.is_whole else None
        self._advise = adviser(self.dataset) if load or not self._together else None
        if self.seeding.with_batch and self._collate_may_draw:
            self._globals = SparingSeeding(is_always=True)  # it draws on where the samples end
        if load is not None:
            self._make_whole = WholeMaker(load, self._memory_for_batches(), threads=self.threads)
        elif self.threads > 1 and not self._together and not self.seeding.with_batch:
            self._parts = PartReaders(self, self.threads)

    def _memory_for_batches(self) -> Empty:
        if self.sends:
            return empty_shared
        if self.memory is None:
            self.memory = SpareMemory()
        return self.memory.empty


class _Kept:
    """The global generators and those that a dataset holds, given back as they were."""

    def __init__(self, reader: SampleReader) -> None:
        self._of = weakref.ref(reader)  # no circle: with the reader its threads end
        self._globals = kept_globals()
        self._undo: list[Callable[[], None]] | None = None
        self._is_open = False

    def __enter__(self) -> None:
        self._is_open = True
        if not self._reader.is_quiet:  # else nothing draws
            self.keep()

    @property
    def _reader(self) -> SampleReader:
        reader = self._of()
        if reader is None:
            raise WorkerError("the reader of these samples is gone")
        return reader

    def keep(self) -> None:
        """Remember the states of now, if that is not done."""
        if not self._is_open or self._undo is not None:
            return
        reader, self._undo = self._reader, []
        for held in (reader._held, reader._held_by_collate):
            if held:
                self._undo += held.states()
        self._globals.keep()
        reader._kept = self._globals

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        self._is_open = False
        reader = self._reader
        reader._kept = None
        if self._undo is None:
            return
        if kind is not None or reader._collate_may_draw or not reader._globals.is_still:
            self._globals.restore()
        for undo in self._undo:
            undo()
        self._undo = None


def _wrong_batch(dataset: Any, found: Any, count: int) -> str:
    name = type(dataset).__name__
    if not isinstance(found, list):
        return f"{name}.__getitems__ returned a {type(found).__name__}; a list is expected"
    return f"{name}.__getitems__ returned {len(found)} samples for {count} indices"
