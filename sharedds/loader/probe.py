"""Loads a few samples in one worker process, to learn what they take. The dataset never runs here.

The worker is started as those of the loader will be, so it shows what one of them costs. It ends
after three batches, or after two seconds at the next sample.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from sharedds.errors import SampleError, SharedDSError, WorkerError
from sharedds.host.system import ROOT, system_text
from sharedds.loader.failures import FailedSample
from sharedds.loader.known import DatasetFacts
from sharedds.loader.samples import SampleReader
from sharedds.memory import parse_smaps_rollup, process_memory
from sharedds.order import Batch
from sharedds.workers.delivery import tensors_of
from sharedds.workers.postmortem import exit_text
from sharedds.workers.starting import start_context

__all__ = ["Measured", "batch_bytes", "probe"]

#: Samples are no longer begun after this; a batch of them that is under way is finished.
_SECONDS = 2.0
_BATCHES = 3
#: Seconds until a worker that says nothing is given up.
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a worker has seen of samples, in bytes and seconds.

    Attributes:
        samples: How many it has loaded.
        sample_bytes: One of them in a collated batch, on average.
        largest_sample_bytes: The same in the batch that took most for each.
        tensor_bytes: Of that, each tensor.
        base_bytes: Private memory (USS) of the worker before the first sample.
        loading_bytes: What was added to it at most while a batch was made.
        sample_seconds: What one sample took.
    """

    samples: int
    sample_bytes: int
    largest_sample_bytes: int
    tensor_bytes: tuple[int, ...]
    base_bytes: int | None
    loading_bytes: int | None
    sample_seconds: float

    def added_to(self, facts: DatasetFacts) -> DatasetFacts:
        """Return facts with what was measured."""
        worker = None
        if self.base_bytes is not None and self.loading_bytes is not None:
            worker = self.base_bytes + self.loading_bytes
        return replace(
            facts,
            sample_bytes=self.sample_bytes,
            largest_sample_bytes=self.largest_sample_bytes,
            tensor_bytes=self.tensor_bytes,
            worker_bytes=worker,
            loading_bytes=self.loading_bytes,
            source=f"measured in a worker ({self.samples} samples)",
        )


def batch_bytes(batch: Any) -> tuple[list[int], int]:
    """Return the bytes of each tensor of a batch, as it travels, and those of all else in it."""
    storages: dict[int, int] = {}
    for tensor in tensors_of(batch):
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            # A view of something much larger travels by itself.
            size = storage.nbytes() if storage.nbytes() <= 2 * tensor.nbytes else tensor.nbytes
            storages[storage.data_ptr()] = max(size, storages.get(storage.data_ptr(), 0))
        else:
            storages[id(tensor)] = tensor.nbytes
    return sorted(storages.values(), reverse=True), _other_bytes(batch)


def _other_bytes(part: Any) -> int:
    if isinstance(part, np.ndarray):
        return int(part.nbytes)
    if isinstance(part, str | bytes | bytearray | memoryview):
        return len(part)
    if isinstance(part, Mapping):
        return sum(map(_other_bytes, part.values()))
    if isinstance(part, list | tuple | set):
        return sum(map(_other_bytes, part))
    return 0


# --- in the trainer ------------------------------------------------------------------------------


def probe(
    reader: SampleReader,
    *,
    method: str,
    numbers: list[int],
    batch_size: int,
    seed: int,
    collate_fn: Callable[[Any], Any],
    init_fn: Callable[[int], None],
    is_batched: bool = True,
) -> Measured:
    """Let a worker process load some samples, and return what they take.

    Args:
        reader: Reads from the user's dataset.
        method: How the worker starts.
        numbers: The samples to load, as many of them as there is time for.
        batch_size: Samples in a batch.
        seed: The seed of the loader.
        collate_fn: Makes a batch.
        init_fn: Called in the worker first.
        is_batched: Whether samples are collated; else each is converted by itself.

    Raises:
        SampleError: None of the samples could be loaded.
        WorkerError: The worker died, or could not rebuild the dataset.
        OptionError: The dataset cannot be sent to a worker.
    """
    context = start_context(method)
    results: Any = context.Queue()
    worker: Any = context.Process(  # type: ignore[attr-defined]
        target=_look,
        args=(results, [reader], collate_fn, init_fn, numbers, batch_size, seed, is_batched),
        daemon=True,
    )
    try:
        worker.start()
        found = _answer(results, worker)
    finally:
        if worker.pid is not None:
            if worker.is_alive():
                worker.join(0.5)
            if worker.is_alive():
                worker.kill()
            worker.join()
            if getattr(worker, "line", None) is not None:
                worker.line.close()
        results.cancel_join_thread()
        results.close()
    if isinstance(found, SharedDSError):
        raise found
    return Measured(**found)


def _answer(results: Any, worker: Any) -> Any:
    end = time.monotonic() + _PATIENCE
    is_dead = False
    while time.monotonic() < end:
        try:
            return results.get(timeout=0.2)
        except queue.Empty:
            if is_dead:
                raise WorkerError(
                    f"the worker that measured samples {exit_text(worker.exitcode)}; its output "
                    "may say why. Without max_memory nothing is measured; a dataset that has "
                    "sample_nbytes needs no measuring either"
                ) from None
            is_dead = not worker.is_alive()  # it may have answered just before
    raise WorkerError(
        f"no sample was loaded within {_PATIENCE:.0f} s, so max_memory cannot be planned for; give "
        "the dataset an attribute sample_nbytes (bytes of one sample in a batch)"
    )


# --- in the worker -------------------------------------------------------------------------------


def _look(
    results: Any,
    dataset_holder: list[SampleReader],
    collate_fn: Callable[[Any], Any],
    init_fn: Callable[[int], None],
    numbers: list[int],
    batch_size: int,
    seed: int,
    is_batched: bool,
) -> None:
    """Load, measure and answer; what goes wrong is the answer, too."""
    try:
        reader = dataset_holder[0]
        torch.manual_seed(seed or 0)
        # Default collating makes batches in shared memory only where this is set.
        info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=reader)
        torch_worker._worker_info = info
        init_fn(0)
        base = process_memory().uss
        with _Peak() as peak:
            looking = _Looking(reader, collate_fn, batch_size, seed or 0, is_batched, peak.look)
            found = looking.run(numbers)
        grown = peak.grown
        if grown is not None:
            # A batch that there was no time to fill, or no samples, would have taken more.
            missing = max(0, batch_size - looking.fullest)
            grown += missing * found["largest_sample_bytes"]
        answer: Any = found | {"base_bytes": base, "loading_bytes": grown}
    except SharedDSError as error:
        answer = error
    except BaseException as error:
        answer = WorkerError(f"measuring samples failed: {type(error).__name__}: {error}")
    results.put(answer)


class _Looking:
    """Loads batches as a worker does, and keeps the sizes of what comes out.

    Attributes:
        fullest: The most samples that a batch has had.
    """

    def __init__(
        self,
        reader: SampleReader,
        collate_fn: Callable[[Any], Any],
        batch_size: int,
        seed: int,
        is_batched: bool,
        look: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._collate = collate_fn
        self._batch_size = batch_size
        self._seed = seed
        self._is_batched = is_batched
        self._look = look
        self._looked = 0.0
        self.fullest = 0
        self._failure = ""
        self._count = 0
        self._total = 0
        self._largest: tuple[float, tuple[int, ...]] = (-1.0, ())

    def run(self, numbers: list[int]) -> dict[str, Any]:
        """Load what there is time for."""
        begin = time.perf_counter()
        left = list(numbers)
        while left and time.perf_counter() - begin < _SECONDS:
            samples: list[Any] = []
            # The first batch is of one sample, so that there is one in any case.
            size = self._batch_size if self._count else 1
            while left and len(samples) < size:
                spent = time.perf_counter() - begin
                if samples and spent >= _SECONDS:
                    break
                each = spent / self._count if self._count else _SECONDS
                missing = size - len(samples)
                take = missing if spent + each * missing < _SECONDS else 1
                samples += self._read(left[:take])
                del left[:take]
            self._take(samples)
        if not self._count:
            tried = ", ".join(map(str, numbers[:8]))
            raise SampleError(
                f"none of the samples {tried} could be loaded to measure them for max_memory: "
                f"{self._failure}"
            )
        per_sample, tensors = self._largest
        return {
            "samples": self._count,
            "sample_bytes": -(-self._total // self._count),
            "largest_sample_bytes": int(np.ceil(per_sample)),
            "tensor_bytes": tensors,
            "sample_seconds": (time.perf_counter() - begin - self._looked) / self._count,
        }

    def _read(self, numbers: list[int]) -> list[Any]:
        """Load some samples, those that fail left out; after a failure the rest one by one."""
        indices = np.array(numbers, np.int64)
        try:
            found: list[Any] = self._reader.__getitems__(Batch(self._seed, 0, indices, None, 0, 0))
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        else:
            failed = [sample for sample in found if isinstance(sample, FailedSample)]
            if not failed:
                return found
            self._failure = failed[0].error
        return [] if len(numbers) == 1 else [s for n in numbers for s in self._read([n])]

    def _take(self, samples: list[Any]) -> None:
        count = len(samples)
        if not count:
            return
        try:
            sizes, other = self._sizes(samples)
        except Exception as error:
            raise WorkerError(
                f"collating {count} samples to measure them for max_memory failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.fullest = max(self.fullest, count)
        self._count += count
        self._total += sum(sizes) + other
        each = (sum(sizes) + other) / count
        if each > self._largest[0]:
            self._largest = (each, tuple(-(-size // count) for size in sizes))

    def _sizes(self, samples: list[Any]) -> tuple[list[int], int]:
        """Collate samples, and return the bytes of each tensor and of all else."""
        if self._is_batched:
            batch = self._collate(samples)
            self._look_now()
            return batch_bytes(batch)
        pairs = [batch_bytes(self._collate(sample)) for sample in samples]
        self._look_now()
        sizes, other = max(pairs, key=lambda pair: sum(pair[0]) + pair[1])
        return [size * len(samples) for size in sizes], other * len(samples)

    def _look_now(self) -> None:
        """The samples and their batch are all there: the most that is sure to be seen."""
        begin = time.perf_counter()
        self._look()
        self._looked += time.perf_counter() - begin


class _Peak:
    """While open, sees how far the memory of this process grows.

    Attributes:
        grown: Bytes at most, afterwards; None where the system does not tell.
    """

    grown: int | None = None

    def look(self) -> None:
        """Look at it now, beside the regular looks, which miss what is short."""
        with self._lock:
            self._heap.look()
            self._private.look()

    def __enter__(self) -> _Peak:
        self._heap, self._private = _Growth(_heap), _Growth(_private)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._done.set()
        self._thread.join()
        known = [each.most for each in (self._heap, self._private) if each.most is not None]
        self.grown = max(known, default=None)

    def _watch(self) -> None:
        # The heap is known at once. But a forked worker also fills what the trainer had freed: its
        # heap grows no larger, only its own part, which takes milliseconds to find out.
        due, is_last = 0.0, False
        while not is_last:
            is_last = self._done.wait(0.002)
            with self._lock:
                self._heap.look()
                begin = time.perf_counter()
                if begin >= due:
                    self._private.look()
                    end = time.perf_counter()
                    due = end + 4 * (end - begin)


class _Growth:
    """How much a figure has grown at most since the beginning."""

    def __init__(self, figure: Callable[[], int | None]) -> None:
        self._figure = figure
        self._begin = figure()
        self.most: int | None = None if self._begin is None else 0

    def look(self) -> None:
        """Look at it now."""
        now = self._figure()
        if now is not None and self._begin is not None:
            self.most = max(self.most or 0, now - self._begin)


def _heap() -> int | None:
    return parse_smaps_rollup(system_text(ROOT / "proc/self/status")).get("RssAnon")


def _private() -> int | None:
    """Without shared memory: a batch lies there, which counts as one of those in flight."""
    own = process_memory()
    if own.private_dirty is None or own.shared_memory is None:
        return None
    return own.private_dirty - own.shared_memory
