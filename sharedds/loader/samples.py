"""What torch's workers read from in place of the dataset: it seeds, loads, checks and collects.

A batch arrives as the numbers of its samples with seed and epoch, so a worker needs nothing else to
make exactly the samples that any other worker, or a run without workers, would make.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, get_worker_info

from sharedds.errors import SampleError, SchemaError
from sharedds.generators.held import HeldGenerators
from sharedds.generators.seeding import GlobalSeeding, kept_globals
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
        self._epoch: int | None = None
        # Found out by the first batch: after worker_init_fn, and in each worker for itself.
        self._held: HeldGenerators | None = None
        self._held_by_collate = HeldGenerators()
        self._advise: Callable[[Integers], object] | None = None
        self._together = False
        self._indices: list[int] = []

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
        """A context that gives the generators of this process back as they were."""
        return _Kept(self)

    def load(self, key: SampleKey) -> Any:
        """Load one sample.

        Raises:
            SampleError: It holds a tensor that is not on the CPU.
            Exception: Whatever the dataset raises.
        """
        with using_key(key):
            if self.seeding.with_sample:
                self._seed(key)
            sample = self.dataset[key.index]
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
            _tell_epoch(self.dataset, batch.epoch)
        self._indices = batch.indices.tolist()
        if self.seeding.with_batch:
            self._seed(batch.key(0))
        if self._together:
            samples = self._read_together(batch)
        else:
            if self._advise is not None:
                self._advise(batch.indices)
            samples = self._read_each(batch)
        if self.seeding.with_sample:  # what collate_fn draws belongs to the batch
            first = batch.key(0)
            self.seeding.seed(first, "collate")
            if self._held_by_collate:
                self._held_by_collate.reseed(first)
        return samples

    def _read_each(self, batch: Batch) -> list[Any]:
        """As :meth:`load` for each sample, written out: calls would take longer than all else."""
        samples: list[Any] = []
        dataset, indices = self.dataset, self._indices
        seed = self._seed if self._held else self.seeding.seed
        with_sample = self.seeding.with_sample
        with keys_in_turn(batch.seed, batch.epoch, indices, batch.draws) as turn:
            for at, index in enumerate(indices):
                turn.at = at
                try:
                    if with_sample:
                        seed(turn.key)
                    sample = dataset[index]
                    kind = type(sample)
                    if kind in _NO_TENSORS or (kind is torch.Tensor and sample.is_cpu):
                        pass
                    elif (device := _elsewhere(sample)) is not None:
                        raise _not_on_cpu(device, turn.key)
                    samples.append(sample)
                except Exception as error:
                    samples += self.policy.failed(error, turn.key, self)
                    if self.policy.raises:
                        break
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
        if all(_elsewhere(sample) is None for sample in samples):
            return samples
        return self._without_elsewhere(samples, keys)

    def _without_elsewhere(self, samples: list[Any], keys: Sequence[SampleKey]) -> list[Any]:
        """The same with the policy's records in place of samples that are not on the CPU."""
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
        self._advise = _adviser(self.dataset)
        self._together = _reads_batches(self.dataset)


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

    def __exit__(self, *about: object) -> None:
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


# --- what a dataset offers -----------------------------------------------------------------------


def _reads_batches(dataset: Any) -> bool:
    """Whether a whole batch is best asked for at once."""
    says = getattr(dataset, "reads_batches", None)
    if isinstance(says, bool):
        return says
    if isinstance(dataset, Subset):
        # Its __getitems__ may well load one by one, but then no sample would have its own key.
        own = type(dataset).__getitem__ is not Subset.__getitem__
        return not own and _reads_batches(dataset.dataset)
    if getattr(dataset, "advise", None) is not None:
        return False
    return bool(getattr(dataset, "__getitems__", None))


def _adviser(dataset: Any) -> Callable[[Integers], object] | None:
    """What to call with the indices of a batch before any of them is read."""
    advise = getattr(dataset, "advise", None)
    if callable(advise):
        return advise  # type: ignore[no-any-return]
    if isinstance(dataset, Subset) and (inner := _adviser(dataset.dataset)) is not None:
        return _SubsetAdviser(inner, dataset.indices)
    if isinstance(dataset, ConcatDataset):
        parts = [_adviser(part) for part in dataset.datasets]
        if any(part is not None for part in parts):
            return _ConcatAdviser(parts, dataset.cumulative_sizes)
    return None


class _SubsetAdviser:
    def __init__(self, inner: Callable[[Integers], object], indices: Sequence[int]) -> None:
        self.inner = inner
        self.indices = indices

    def __call__(self, indices: Integers) -> None:
        self.inner(np.array([self.indices[i] for i in indices.tolist()], np.int64))


class _ConcatAdviser:
    def __init__(
        self, parts: Sequence[Callable[[Integers], object] | None], ends: Sequence[int]
    ) -> None:
        self.parts = parts
        self.ends = ends

    def __call__(self, indices: Integers) -> None:
        of_part: dict[int, list[int]] = {}
        for index in indices.tolist():
            part = bisect.bisect_right(self.ends, index)
            begin = self.ends[part - 1] if part else 0
            of_part.setdefault(part, []).append(index - begin)
        for part, own in of_part.items():
            if (advise := self.parts[part]) is not None:
                advise(np.array(own, np.int64))


def _tell_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset that wants to know, also one that others wrap."""
    set_epoch = getattr(dataset, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    elif isinstance(dataset, Subset):
        _tell_epoch(dataset.dataset, epoch)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            _tell_epoch(part, epoch)


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
