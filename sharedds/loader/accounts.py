"""What a loader costs while it runs: who holds which memory, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from sharedds.cache import CacheStats
from sharedds.host.system import megabytes
from sharedds.memory import ProcessMemory
from sharedds.workers.delivery import tensors_of

__all__ = [
    "Counters",
    "LoaderMemory",
    "LoaderStats",
    "ProcessUse",
    "nbytes_of",
    "pinned_bytes",
]

#: Of longer lists, so many items stand for all.
_SAMPLED = 64
#: The size of each of the first batches is found out, then that of one in so many.
_FIRST, _EVERY = 8, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What one process of a loader holds.

    Attributes:
        role: "trainer", "server" (which forks the workers), "worker 3", or "other".
        memory: Its memory, in bytes.
        waiting: Bytes of batches that it has made and nobody has fetched, of the trainer those that
            it has fetched and not touched: shared memory that is part of no PSS.
        grown: What its heap and shared memory have grown by since it was first looked at; None
            unless it is watched.
    """

    role: str
    memory: ProcessMemory
    waiting: int = 0
    grown: int | None = None

    @property
    def irrevocable(self) -> int | None:
        """Bytes the kernel cannot take back but by swapping: heap, shared memory, waiting."""
        if self.memory.anonymous is None or self.memory.shared_memory is None:
            return None
        return self.memory.anonymous + self.memory.shared_memory + self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMemory:
    """What the trainer and the processes of its loader hold at one moment; print it as a table.

    Attributes:
        processes: The trainer first, then all processes below it.
        batches_in_flight: Batches that workers were told to make and ``next()`` has not handed out.
        in_flight: What those take when all are made, in bytes; None while no batch is known.
        pinned: Page-locked memory of this process, in bytes; None where it is not told.
        budget: ``max_memory`` in bytes, None without one.
    """

    processes: tuple[ProcessUse, ...]
    batches_in_flight: int = 0
    in_flight: int | None = None
    pinned: int | None = None
    budget: int | None = None

    @property
    def pss(self) -> int | None:
        """Proportional shares of all in bytes, and the batches that wait; None if not told."""
        shares = [use.memory.pss for use in self.processes if use.memory.pss is not None]
        waiting = sum(use.waiting for use in self.processes)
        return sum(shares) + waiting if shares else None

    @property
    def irrevocable(self) -> int | None:
        """The part of it that the kernel cannot take back: what counts for the budget."""
        known = [use.irrevocable for use in self.processes if use.irrevocable is not None]
        return sum(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        processes = [
            {
                "role": use.role,
                **asdict(use.memory),
                "waiting": use.waiting,
                "grown": use.grown,
                "irrevocable": use.irrevocable,
            }
            for use in self.processes
        ]
        return {
            "processes": processes,
            "batches_in_flight": self.batches_in_flight,
            "in_flight": self.in_flight,
            "pinned": self.pinned,
            "budget": self.budget,
            "pss": self.pss,
            "irrevocable": self.irrevocable,
        }

    def __str__(self) -> str:
        budget = f" of a budget of {megabytes(self.budget)}" if self.budget is not None else ""
        count = len(self.processes)
        lines = [
            f"memory of {count} process{'es' if count != 1 else ''}, in MB",
            *_table(self.processes),
            f"  held for good      {megabytes(self.irrevocable)}{budget} (heap, shared, waiting)",
            f"  PSS                {megabytes(self.pss)}, with mapped files",
        ]
        if self.batches_in_flight:
            size = "of unknown size" if self.in_flight is None else megabytes(self.in_flight)
            lines.append(f"  batches in flight  {self.batches_in_flight}, {size} when all are made")
        if self.pinned:
            lines.append(f"  pinned             {megabytes(self.pinned)}")
        return "\n".join(lines)


def _table(uses: tuple[ProcessUse, ...]) -> list[str]:
    is_grown = any(use.grown is not None for use in uses)
    header = ["process", "pid", "PSS", "USS", "heap", "shared", "waiting", "files"]
    rows = [header + ["grown"] * is_grown]
    for use in uses:
        memory = use.memory
        sizes = [memory.pss, memory.uss, memory.anonymous, memory.shared_memory, use.waiting]
        sizes += [memory.file, *([use.grown] if is_grown else [])]
        rows.append([use.role, str(memory.pid), *map(_mega, sizes)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"  {row[0]:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _mega(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.1f}"


# --- time ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """How the newest loop over a loader goes; print it as one screen.

    Attributes:
        epoch: The epoch of the loop.
        batches: Batches handed out.
        samples: Samples in them, those that could not be loaded left out.
        bytes: Their size; that of most batches is taken from others, so it is about right.
        first_batch_seconds: From ``iter()`` to the first batch: workers start. None before it.
        waited: Seconds the loop waited in ``next()``, the first batch left out.
        between: Seconds between: what the body of the loop took.
        in_flight: Batches that workers make or that wait for their turn.
        allowed: How many may be, now.
        most: How many may be without a memory budget: ``num_workers * prefetch_factor``.
        busy: Share of their life that the workers spent on a CPU, on average; None without workers
            or where it is not told. The rest they waited: for storage, or for room in flight.
        cache: How full the cache of decoded samples is and how often it helped, in all loops so
            far; None without one.
    """

    epoch: int
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    first_batch_seconds: float | None = None
    waited: float = 0.0
    between: float = 0.0
    in_flight: int = 0
    allowed: int = 0
    most: int = 0
    busy: float | None = None
    cache: CacheStats | None = None

    @property
    def rate(self) -> float | None:
        """Samples a second since the first batch; None before the second one."""
        passed = self.waited + self.between
        if self.batches < 2 or passed <= 0:
            return None
        return self.samples * (self.batches - 1) / self.batches / passed

    @property
    def wait_share(self) -> float | None:
        """Share of the time since the first batch that the loop waited in ``next()``."""
        passed = self.waited + self.between
        return self.waited / passed if self.batches > 1 and passed > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        cache = None if self.cache is None else self.cache.to_dict()
        figures = {"rate": self.rate, "wait_share": self.wait_share, "cache": cache}
        return asdict(self) | figures

    def __str__(self) -> str:
        first = self.first_batch_seconds
        lines = [
            f"epoch {self.epoch}: {self.batches:,} batches, {self.samples:,} samples, about "
            + megabytes(self.bytes),
            f"  first batch after  {'-' if first is None else f'{first:.2f} s'}",
        ]
        if self.rate is not None and self.wait_share is not None:
            size = f"{self.bytes / max(1, self.samples) * self.rate / 1e6:,.1f} MB/s"
            lines += [
                f"  rate since then    {self.rate:,.1f} samples/s, {size}",
                f"  waited in next()   {self.waited:.2f} s ({self.wait_share:.0%})",
                f"  in the loop body   {self.between:.2f} s",
            ]
        if self.most:
            limit = (
                f" of {self.most}"
                if self.allowed == self.most
                else (f" of {self.allowed} that the memory budget allows (else {self.most})")
            )
            lines.append(f"  in flight          {self.in_flight}{limit}")
        if self.busy is not None:
            lines.append(f"  workers busy       {self.busy:.0%} of their time, on a CPU")
        if self.cache is not None:
            lines.append(f"  cache              {self.cache}")
        return "\n".join(lines)


class Counters:
    """What one loop counts as it goes: a few additions for each batch.

    Args:
        exact: Whether to find out the size of each batch: a memory budget depends on it.

    Attributes:
        batches: Batches handed out.
        first: Seconds from the beginning to the first of them.
        waited: Seconds waited for the others.
        between: Seconds between them.
        largest: Bytes of the largest of those that were measured.
    """

    __slots__ = (
        "_exact",
        "_last",
        "_measured",
        "_measured_batches",
        "_next_measured",
        "_started",
        "batches",
        "between",
        "first",
        "largest",
        "waited",
    )

    def __init__(self, *, exact: bool = False) -> None:
        self.batches = 0
        self.waited = 0.0
        self.between = 0.0
        self.first: float | None = None
        self._started = time.perf_counter()
        self.largest = 0
        self._last = 0.0
        self._exact = exact
        self._measured = self._measured_batches = 0
        self._next_measured = 1

    @property
    def bytes(self) -> int:
        """Bytes of all batches, about."""
        if not self._measured_batches:
            return 0
        return self._measured * self.batches // self._measured_batches

    @property
    def batch_bytes(self) -> int | None:
        """Bytes of a batch, on average; None while unknown."""
        return self._measured // self._measured_batches if self._measured_batches else None

    def note(self, batch: Any, asked: float) -> None:
        """Note that a batch is handed out, which was asked for at ``asked`` (perf_counter)."""
        now = time.perf_counter()
        self.batches += 1
        if self.first is None:
            self.first = now - self._started
        else:
            self.waited += now - asked
            self.between += asked - self._last
        if self.batches >= self._next_measured:
            self._measure(batch)
            now = time.perf_counter()
        self._last = now

    def _measure(self, batch: Any) -> None:
        size = nbytes_of(batch)
        self._measured += size
        self._measured_batches += 1
        self.largest = max(self.largest, size)
        is_seldom = not self._exact and self.batches >= _FIRST
        self._next_measured = self.batches + (_EVERY if is_seldom else 1)


def nbytes_of(batch: Any) -> int:
    """Return about how many bytes the tensors, arrays and texts of a batch take."""
    if isinstance(batch, torch.Tensor):
        return batch.nbytes if batch.layout == torch.strided else 0
    if isinstance(batch, np.ndarray | np.generic):
        return int(batch.nbytes)
    if isinstance(batch, bytes | bytearray | str):
        return len(batch)
    if isinstance(batch, Mapping):
        return sum(map(nbytes_of, batch.values()))
    if isinstance(batch, list | tuple):
        if len(batch) <= _SAMPLED:
            return sum(map(nbytes_of, batch))
        step = len(batch) // _SAMPLED
        return sum(map(nbytes_of, batch[::step])) * len(batch) // len(batch[::step])
    if hasattr(batch, "__dict__") and not callable(batch):
        return sum(nbytes_of(tensor) for tensor in tensors_of(batch))
    return 0


def pinned_bytes() -> int | None:
    """Return how much memory torch has page-locked for this process; None where it does not tell.

    Blocks are rounded up to powers of two, and kept for the next batch of the same size.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    try:
        return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    except (AttributeError, KeyError, RuntimeError):  # an older torch
        return None
