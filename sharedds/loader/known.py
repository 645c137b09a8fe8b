"""What a plan is made from: facts about machine, ranks and dataset, and what the user asked for."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Generic, SupportsIndex, TypeVar

from sharedds.errors import OptionError
from sharedds.host.storage import Storage

__all__ = [
    "ENGINES",
    "Choice",
    "DatasetFacts",
    "LoaderFacts",
    "LoaderRequest",
    "RankFacts",
    "counted",
    "truth",
    "whole_number",
]

ENGINES = ("process", "thread", "auto")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Which part of each step this process takes.

    Attributes:
        rank: Which of the ranks this is.
        world_size: How many ranks train together.
        reason: Where this is known from.
        last_step: What becomes of samples that do not fill a step: "padded", "dropped", "split"
            (over the ranks), "kept", or "as sampled".
        last_step_reason: How many they are, and why so.
    """

    rank: int = 0
    world_size: int = 1
    reason: str = "one process trains alone"
    last_step: str = "kept"
    last_step_reason: str = "every sample counts exactly once"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is known of the machine and of this process before planning; None: not known.

    Attributes:
        cpus: CPUs this process may use.
        cpus_reason: What limits them, for people; empty for the bare number.
        batches: Batches of one epoch.
        start_methods: Ways this platform can start a process, its preferred one first.
        fork_hazards: What makes a fork unsafe now, for people.
        accelerator: Type of the accelerator in use ("cuda", "mps", ...), None without one.
        cuda_initialized: Whether this process has used CUDA already.
        is_daemon: Whether this process is itself a worker, which may not start others.
        ranks: Which part of each step this process takes.
        local_ranks: How many ranks share memory and ``/dev/shm`` of this machine.
        memory_available: Bytes that this process and its workers could still take.
        shared_memory_free: Bytes free where batches travel (``/dev/shm``).
        descriptors: Files this process may have open at once.
        descriptors_open: How many it has open now.
        trainer_bytes: What this process holds now.
        other_bytes: What other processes below it hold already, its fork server left out, and what
            caches of decoded samples in memory may take.
        server_bytes: What a fork server that runs or was tried holds.
        is_server_running: Whether a fork server runs already, and so is paid for in any case.
    """

    cpus: int
    batches: int | None
    start_methods: tuple[str, ...]
    accelerator: str | None = None
    cuda_initialized: bool = False
    is_daemon: bool = False
    cpus_reason: str = ""
    ranks: RankFacts = RankFacts()
    fork_hazards: tuple[str, ...] = ()
    local_ranks: int = 1
    memory_available: int | None = None
    shared_memory_free: int | None = None
    descriptors: int | None = None
    descriptors_open: int = 0
    trainer_bytes: int | None = None
    other_bytes: int = 0
    server_bytes: int | None = None
    is_server_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """What is known of the samples before planning; None: not known.

    Attributes:
        samples: How many there are.
        batches: Batches of one epoch.
        batch_size: Samples in a batch; None without batches.
        sample_bytes: Bytes of one sample as a part of a collated batch.
        largest_sample_bytes: The most that was seen of that; memory is planned with it.
        tensor_bytes: Bytes of each tensor of one sample; empty if only their sum is known.
        record_bytes: Bytes of one sample as it is stored.
        worker_bytes: Private memory (USS) of a worker that has loaded batches of ``batch_size``.
        loading_bytes: What loading such a batch adds to a process at most: samples that are not
            collated yet, and what decoding them takes.
        storage: Where the samples are read from.
        makes_batches: Whether the dataset makes whole batches, and they are asked for.
        reads_batches: Whether it is asked for several samples at once.
        runs_user_code: Whether code of the user runs for each sample or batch: it may hold the
            interpreter.
        source: Where the sizes are known from: "measured in a worker", "told by the dataset", ...
    """

    samples: int | None = None
    batches: int | None = None
    batch_size: int | None = None
    sample_bytes: int | None = None
    largest_sample_bytes: int | None = None
    tensor_bytes: tuple[int, ...] = ()
    record_bytes: int | None = None
    worker_bytes: int | None = None
    loading_bytes: int | None = None
    storage: Storage | None = None
    makes_batches: bool = False
    reads_batches: bool = False
    runs_user_code: bool = True
    source: str = ""

    @property
    def planned_sample_bytes(self) -> int | None:
        """Bytes of one sample that memory is planned with: the most that was seen."""
        sizes = (self.sample_bytes, self.largest_sample_bytes)
        return max((size for size in sizes if size is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRequest:
    """What the user asked for; None leaves the choice to the plan.

    Attributes:
        max_memory: Bytes that this process, its workers and all batches may take together.
        origins: Pairs (choice, where it comes from) for what was not asked for by an argument.
    """

    num_workers: int | None = None
    start_method: str | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    threads_per_worker: int | None = None
    engine: str = "process"
    seed_globals: str = "sample"
    max_memory: int | None = None
    origins: tuple[tuple[str, str], ...] = ()

    def said(self, choice: str) -> str:
        """Return where a value that is not None comes from."""
        return dict(self.origins).get(choice, "as requested")


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """One choice of a plan.

    Attributes:
        value: What was chosen.
        reason: Why, for people.
        limit: What bound it: "request", "rule", "CPUs", "max_memory", ...
    """

    value: T
    reason: str
    limit: str = "rule"


def whole_number(name: str, value: SupportsIndex | None, *, least: int) -> int | None:
    """Return an argument as an int; None stays.

    Raises:
        OptionError: No whole number, or less than ``least``.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name}={value!r}: a whole number is expected")
    number = operator.index(value)
    if number < least:
        raise OptionError(f"{name}={number}: {least} or more is expected")
    return number


def truth(name: str, value: bool | None) -> bool | None:
    """Return an argument that is a truth value or None.

    Raises:
        OptionError: Something else.
    """
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: True, False or None is expected")
    return value


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 batch", "3 batches"."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number:,} {noun if number == 1 else plural}"
