"""What a loader takes in memory: estimated before it starts, for processes and batches together.

The estimate errs on the side of too much. A batch is counted wherever it could be at one moment,
and what is known of one sample is taken from the largest that was seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sharedds.errors import OptionError
from sharedds.host.machine import Machine
from sharedds.loader.known import DatasetFacts, LoaderFacts, whole_number
from sharedds.text import decimal_size, parse_size

__all__ = [
    "SERVER_BYTES",
    "WORKER_BYTES",
    "MemoryEstimate",
    "Shape",
    "estimate_memory",
    "limit_text",
    "parse_memory",
    "rounded_for_pinning",
]

#: Private memory (USS) of a worker that has loaded nothing yet, by the way it starts.
WORKER_BYTES = {"fork": 11_000_000, "forkserver": 14_000_000, "spawn": 296_000_000}
#: What the fork server holds, which has the libraries of all workers.
SERVER_BYTES = 300_000_000
#: The resource tracker of the standard library, which runs beside workers that are not forked.
_TRACKER_BYTES = 10_000_000
#: What this process takes in addition once it reads batches: queues, threads, code not used before.
_LOOP_BYTES = 16_000_000
#: Stack and arenas of a thread.
_THREAD_BYTES = 2_000_000

_EXPECTED = "bytes as a whole number, or text such as '8GiB', '500MB' or '50%'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What memory depends on, of a plan.

    Attributes:
        engine: "process" or "thread".
        start_method: How workers start; None for threads.
        num_workers: How many; 0 makes batches in this process.
        prefetch_factor: Batches under way or ready for each worker; 0 without workers.
        pin_memory: Whether batches are copied to pinned memory.
        batch_size: Samples in a batch.
        threads_per_worker: Threads that make the samples of one batch.
    """

    engine: str
    start_method: str | None
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    batch_size: int
    threads_per_worker: int = 1

    @property
    def batches(self) -> int:
        """Batches that can exist at once: those of the workers, and the one handed out."""
        return self.num_workers * self.prefetch_factor + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What a loader will take, in bytes.

    Attributes:
        trainer: This process, as it was when the plan was made, and what it takes to read batches;
            None if it was not measured.
        other: Processes below it that ran already, its fork server left out, and caches of decoded
            samples in memory.
        server: The fork server, or the resource tracker that runs beside spawned workers.
        workers: All workers, each with the samples of the batch that it makes.
        in_flight: Batches that are made, ready, or handed out.
        pinned: Their copies in pinned memory, as large as torch makes them.
        total: All of this.
    """

    trainer: int | None
    other: int = 0
    server: int
    workers: int
    in_flight: int
    pinned: int
    total: int

    def to_dict(self) -> dict[str, int | None]:
        """Return the parts as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MemoryEstimate:
        """Return the estimate that :meth:`to_dict` gave.

        Raises:
            OptionError: Something is missing, or is no number of bytes.
        """
        found: dict[str, Any] = {}
        for part in fields(cls):
            value = values.get(part.name)
            if not (isinstance(value, int) or (value is None and part.name == "trainer")):
                raise OptionError(f"estimate[{part.name!r}]={value!r}: a number of bytes expected")
            found[part.name] = value
        return cls(**found)


def parse_memory(value: float | str, machine: Machine, *, used: int = 0) -> int:
    """Return a memory limit as bytes.

    Args:
        value: Bytes, also as ``8e9``; or text: a number with a unit (``8GiB`` is binary, and so are
            ``8Gi``, ``8G`` and ``8g``, as container engines and SLURM mean them; ``8GB`` is
            decimal), or a share (``50%``) of what this process has and could still take, which
            ranks on the same machine share.
        machine: Where a share is of.
        used: Bytes that this process has already.

    Raises:
        OptionError: No such number, or a share of what is not known.
    """
    if not isinstance(value, str):
        given: Any = value  # a float by its annotation, and whatever comes
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        return whole_number("max_memory", given, least=1) or 0
    share = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", value)
    if share is None:
        size = parse_size(value) or 0
    else:
        number = float(share[1])
        if not 0 < number <= 100:
            raise OptionError(f"max_memory={value!r}: a share above 0 and up to 100% is expected")
        if machine.memory.available is None:
            raise OptionError(
                f"max_memory={value!r}: this system does not tell how much memory is available; "
                "give it in bytes, or as '8GiB'"
            )
        left = machine.memory.available // max(1, machine.local_ranks)
        size = int((used + left) * number / 100)
    if size < 1:
        raise OptionError(f"max_memory={value!r}: {_EXPECTED} is expected")
    return size


def estimate_memory(shape: Shape, facts: LoaderFacts, dataset: DatasetFacts) -> MemoryEstimate:
    """Return what a loader of this shape takes at most.

    What is not known of the samples counts as nothing.
    """
    size = dataset.planned_sample_bytes or 0
    batch = size * shape.batch_size
    loading = _loading(shape.batch_size, dataset)
    server = 0
    more = (shape.threads_per_worker - 1) * _THREAD_BYTES
    if shape.num_workers == 0:
        # The one that the training loop still holds, and the next one, as samples and collated.
        workers, in_flight, copies = more, 2 * batch + loading, 2
    else:
        if shape.engine == "thread":
            own = _THREAD_BYTES
        else:
            own = _worker_base(shape.start_method or "", dataset)
            server = 0 if shape.start_method == "fork" else _TRACKER_BYTES
        workers = shape.num_workers * (own + more + loading)
        in_flight, copies = shape.batches * batch, shape.batches
    has_server = shape.num_workers > 0 and shape.start_method == "forkserver"
    if has_server or facts.is_server_running:
        server += facts.server_bytes if facts.server_bytes is not None else SERVER_BYTES
    pinned = 0
    if shape.pin_memory:
        tensors = dataset.tensor_bytes or (size,)
        pinned = copies * sum(rounded_for_pinning(part * shape.batch_size) for part in tensors)
    trainer = facts.trainer_bytes
    if trainer is not None:
        trainer += _LOOP_BYTES
    parts = (trainer or 0, facts.other_bytes, server, workers, in_flight, pinned)
    return MemoryEstimate(
        trainer=trainer,
        other=facts.other_bytes,
        server=server,
        workers=workers,
        in_flight=in_flight,
        pinned=pinned,
        total=sum(parts),
    )


def rounded_for_pinning(size: int) -> int:
    """Return what torch's allocator of pinned memory takes for a tensor: a power of two."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def limit_text(limit: int) -> str:
    """Return a limit as people write it: ``2 GiB (2.1 GB)`` if it is a round number of MiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if limit % (1 << 20) == 0 and limit >= size:
            return f"{limit / size:g} {unit} ({decimal_size(limit)})"
    return decimal_size(limit)


def _loading(batch_size: int, dataset: DatasetFacts) -> int:
    """What making a batch adds to a process: its samples; what was measured, if that is more."""
    size = dataset.planned_sample_bytes or 0
    if dataset.loading_bytes is None:
        return batch_size * size
    other = (dataset.batch_size or 1) - batch_size
    return max(batch_size * size, dataset.loading_bytes - other * size)


def _worker_base(method: str, dataset: DatasetFacts) -> int:
    """A worker apart from the samples in its hands."""
    least = WORKER_BYTES.get(method, WORKER_BYTES["spawn"])
    if dataset.worker_bytes is None:
        return least
    return max(0, dataset.worker_bytes - _loading(dataset.batch_size or 1, dataset))
