"""What torch's workers read from in place of the dataset: it seeds, loads, checks and collects.

A batch arrives as the numbers of its samples with seed and epoch, so a worker needs nothing else to
make exactly the samples that any other worker, or a run without workers, would make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    Dataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from sharedds.datasets.offers import adviser, reads_batches, tell_epoch
from sharedds.errors import SampleError, SchemaError
from sharedds.generators.held import HeldGenerators
from sharedds.generators.seeding import GlobalSeeding, kept_globals
from sharedds.generators.sparing import SparingSeeding
from sharedds.loader.failures import ErrorPolicy, has_failures
from sharedds.order import Batch, SampleKey, keys_in_turn, using_key, using_keys

__all__ = ["SampleReader", "WorkerStart"]

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

    Attributes:
        read_ahead: So many samples of a batch are advised before they are read; None for all.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seeding: GlobalSeeding,
        policy: ErrorPolicy,
        collate_fn: Callable[..., Any] | None = None,
        pool: int = 0,
    ) -> None:
        self.dataset = dataset
        self.seeding = seeding
        self.policy = policy
        self.collate_fn = collate_fn
        self.pool = pool
        self.read_ahead: int | None = None
        self._epoch: int | None = None
        # Found out by the first batch: after worker_init_fn, and in each worker for itself.
        self._held: HeldGenerators | None = None
        self._held_by_collate = HeldGenerators()
        self._advise: Callable[[Integers], object] | None = None
        self._together = False
        self._indices: list[int] = []
        self._globals = SparingSeeding()
        self._kept: kept_globals | None = None  # what training has drawn from, in its own process
        self._keeper: _Kept | None = None
        self._collate_may_draw = True

    def __getitem__(self, batch: Batch) -> Any:
        """Load the one sample of a batch of one, for loaders without batches."""
        return self._read(batch)[0]

    def __getitems__(self, batch: Batch) -> list[Any]:
        """Load the samples of a batch, in its order; records stand for those that failed.

        Raises:
            SchemaError: ``__getitems__`` of the dataset returned something else than asked for.
        """
        return self._read(batch)

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
        if (device := _elsewhere(sample)) is not None:
            raise _not_on_cpu(device, key)
        return sample

    def another(self, key: SampleKey, attempt: int) -> SampleKey:
        """Return the key of a sample to take instead of that of ``key``: a pure function."""
        number = key.number("replacement")
        if self.pool:
            index = (number + attempt) % self.pool
        else:  # nobody but the sampler knows which samples belong to this loader
            index = self._indices[(number + attempt) % len(self._indices)]
        # A draw of its own, so that it is no twin of that sample where it occurs by itself.
        return SampleKey(key.seed, key.epoch, index, number >> 1)

    # --- reading a batch

    def _read(self, batch: Batch) -> list[Any]:
        if self._held is None:
            self._prepare()
        if batch.epoch != self._epoch:
            self._epoch = batch.epoch
            tell_epoch(self.dataset, batch.epoch)
        self._indices = batch.indices.tolist()
        if self.seeding.with_batch:
            self._seed(batch.key(0))
        if self._together:
            samples = self._read_together(batch)
        else:
            if self._advise is not None and self.read_ahead != 0:
                self._advise(batch.indices[: self.read_ahead])
            samples = self._read_each(batch)
        if self._collate_may_draw and self.seeding.with_sample:  # belongs to the batch
            first = batch.key(0)
            self.seeding.seed(first, "collate")
            if self._held_by_collate:
                self._held_by_collate.reseed(first)
        return samples

    def _read_each(self, batch: Batch) -> list[Any]:
        if not self.seeding.with_sample:
            return self._make_each(batch)
        while True:
            self._globals.begin(len(self._indices), self._kept)
            samples = self._make_each(batch)
            if self._globals.is_sound():
                return samples

    def _make_each(self, batch: Batch) -> list[Any]:
        """As :meth:`load` for each sample, written out: calls would take longer than all else."""
        samples: list[Any] = []
        dataset, indices, held = self.dataset, self._indices, self._held
        with_sample, seed = self.seeding.with_sample, self._globals.seed
        is_careful = with_sample and self._globals.is_careful
        with keys_in_turn(batch.seed, batch.epoch, indices, batch.draws) as turn:
            for at, index in enumerate(indices):
                turn.at = at
                try:
                    if with_sample:
                        seed(turn.number("globals"))
                        if held:
                            held.reseed(turn.key)
                    samples.append(dataset[index])
                    if is_careful:
                        self._globals.look()
                except Exception as error:
                    samples += self.policy.failed(error, turn.key, self)
                    if self.policy.raises:
                        break
            if not _NO_TENSORS.issuperset(map(type, samples)):
                keys = (turn.key for turn.at in range(len(samples)))
                return self._without_elsewhere(samples, keys)
        return samples

    def _read_together(self, batch: Batch) -> list[Any]:
        keys = list(batch.keys())
        try:
            with using_keys(keys):
                if self.seeding.with_sample:
                    self._seed(keys[0])
                samples = self.dataset.__getitems__(self._indices)
        except Exception:
            if not hasattr(self.dataset, "__getitem__"):
                raise
            found = self._read_each(batch)  # to learn which of them it was
            if not has_failures(found):  # none by itself: the fault is in reading them together
                raise
            return found
        if not isinstance(samples, list) or len(samples) != len(keys):
            raise SchemaError(_wrong_batch(self.dataset, samples, len(keys)))
        return self._without_elsewhere(samples, keys)

    def _without_elsewhere(self, samples: list[Any], keys: Iterable[SampleKey]) -> list[Any]:
        """The same with the policy's records in place of samples that are not on the CPU."""
        if all(
            sample.is_cpu if type(sample) is torch.Tensor else _elsewhere(sample) is None
            for sample in samples
        ):
            return samples
        kept: list[Any] = []
        for sample, key in zip(samples, keys, strict=True):
            if (device := _elsewhere(sample)) is None:
                kept.append(sample)
                continue
            kept += self.policy.failed(_not_on_cpu(device, key), key, self)
            if self.policy.raises:
                break
        return kept

    def _seed(self, key: SampleKey) -> None:
        self.seeding.seed(key)
        if self._held:
            self._held.reseed(key)

    # --- what the dataset offers, found out once in each worker

    def _prepare(self) -> None:
        on = bool(self.seeding)
        self._held = HeldGenerators(dataset=self.dataset) if on else HeldGenerators()
        collate = self.collate_fn if on else None
        self._held_by_collate = HeldGenerators(collate_fn=collate) if on else HeldGenerators()
        self._globals = SparingSeeding()
        inner = getattr(self.collate_fn, "collate_fn", self.collate_fn)
        self._collate_may_draw = inner is not default_collate and inner is not default_convert
        self._advise = adviser(self.dataset)
        self._together = reads_batches(self.dataset)


class _Kept:
    """The global generators and those that a dataset holds, given back as they were."""

    def __init__(self, reader: SampleReader) -> None:
        self._reader = reader
        self._globals = kept_globals()

    def __enter__(self) -> None:
        reader = self._reader
        if reader._held is None:
            reader._prepare()
        held = (reader._held, reader._held_by_collate)
        self._undo = [undo for generators in held if generators for undo in generators.states()]
        self._globals.keep()
        reader._kept = self._globals

    def __exit__(self, *about: object) -> None:
        self._reader._kept = None
        self._globals.restore()
        for undo in self._undo:
            undo()


class WorkerStart:
    """Runs first in each worker: shows it the user's dataset, then calls the user's function.

    Args:
        function: The user's ``worker_init_fn``, if there is one.
    """

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function

    def __call__(self, worker_id: int) -> None:
        """Begin the work of a worker."""
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SampleReader):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch made it read-only
        if self.function is not None:
            self.function(worker_id)


# --- checks --------------------------------------------------------------------------------------


def _elsewhere(sample: Any) -> str | None:
    """The device of a tensor that is not on the CPU: the sample itself, or directly in it."""
    if isinstance(sample, torch.Tensor):
        return _device(sample)
    if isinstance(sample, dict):
        parts: Any = sample.values()
    elif isinstance(sample, tuple | list):
        parts = sample
    else:
        return None
    for part in parts:
        if isinstance(part, torch.Tensor) and (device := _device(part)) is not None:
            return device
    return None


def _device(tensor: torch.Tensor) -> str | None:
    if type(tensor) is torch.Tensor:
        return None if tensor.is_cpu else str(tensor.device)
    with torch._C.DisableTorchFunctionSubclass():  # which would make this slow
        return None if tensor.is_cpu else str(tensor.device)


def _not_on_cpu(device: str, key: SampleKey) -> SampleError:
    return SampleError(
        f"sample {key.index} holds a tensor on {device}; samples must stay on the CPU: workers "
        "can send nothing else. Move whole batches in the training loop, which is also faster: "
        "batch.to(device, non_blocking=True)",
        sample=key.index,
    )


def _wrong_batch(dataset: Any, found: Any, count: int) -> str:
    name = type(dataset).__name__
    if not isinstance(found, list):
        return f"{name}.__getitems__ returned a {type(found).__name__}; a list is expected"
    return f"{name}.__getitems__ returned {len(found)} samples for {count} indices"
