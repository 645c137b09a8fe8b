"""Where the time of a sample goes, for any dataset: its stack, looked at every few milliseconds.

Batches are made in one thread, without workers, while another thread looks at what the first is
busy with. Each look stands for the time since the one before, told apart into computing (CPU time
of the thread), waiting for a CPU (the kernel's run delay), and waiting for something else: storage.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate

from sharedds.diagnose.frames import STAGES, classify
from sharedds.diagnose.loading import EndlessOrder, batch_nbytes
from sharedds.diagnose.target import Opened
from sharedds.errors import OptionError
from sharedds.order import SampleKey, using_key

__all__ = ["StackSampler", "profile_samples"]

_PERIOD = 0.002  # seconds
_SWITCH = 1e-5  # seconds after which the loading thread gives way to the one that looks
_SLOWEST = 20
_KEPT_BYTES = 64_000_000  # of samples, for measuring what their transfer costs
_KEPT = 256
_SIGN_OF_LIFE = 0.5
_EMPTY = "the dataset is empty: there is nothing to load"
#: Frames of this package, as places name them.
_OWN = ("sharedds/diagnose/profile.py", "sharedds/diagnose/loading.py")


@dataclass(slots=True)
class StageTime:
    """Seconds of one stage: all of it, computing, and waiting for a CPU."""

    wall: float = 0.0
    cpu: float = 0.0
    delay: float = 0.0


@dataclass(slots=True)
class StackSampler:
    """Looks at the stack of the thread that made it, from a thread of its own; a context manager.

    Args:
        period: Seconds between two looks.

    Attributes:
        stages: Time by stage, while ``is_on``.
        places: Time by place in the source, of what fits no stage.
        is_on: Whether time counts.
        is_collating: Whether the thread makes a batch of samples.
        looks: How often it has looked.
        own: Time in this package's own code around the samples, which no stage is billed for.
    """

    period: float = _PERIOD
    stages: dict[str, StageTime] = field(
        default_factory=lambda: {name: StageTime() for name in STAGES}
    )
    places: Counter[str] = field(default_factory=Counter)
    is_on: bool = False
    is_collating: bool = False
    looks: int = 0
    own: StageTime = field(default_factory=StageTime)
    _thread: threading.Thread | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _interval: float = 0.0

    def __enter__(self) -> StackSampler:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        clocks = _Clocks()
        self._thread = threading.Thread(
            target=self._look, args=(threading.get_ident(), clocks), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        sys.setswitchinterval(self._interval)

    def _look(self, ident: int, clocks: _Clocks) -> None:
        wall, cpu, delay = clocks.read()
        while not self._stopped.wait(self.period):
            frame = sys._current_frames().get(ident)
            now, cpu_now, delay_now = clocks.read()
            if self.is_on:
                stage, place = classify(frame, is_collating=self.is_collating)
                is_own = stage == "other" and place.startswith(_OWN)
                spent = self.own if is_own else self.stages[stage]
                spent.wall += now - wall
                spent.cpu += cpu_now - cpu
                spent.delay += delay_now - delay
                self.looks += 1
                if stage == "other" and not is_own:
                    self.places[place] += round((now - wall) * 1e6)
            del frame
            # The time of looking itself, for which the other thread had to wait, does not count.
            wall, cpu, delay = clocks.read()

    def settle(self, name: str) -> None:
        """Bill what C code did under our own frames, if that is most: it shows none itself."""
        if self.own.wall <= sum(spent.wall for spent in self.stages.values()):
            return
        rest = self.stages["other"]
        rest.wall += self.own.wall
        rest.cpu += self.own.cpu
        rest.delay += self.own.delay
        self.places[name] += round(self.own.wall * 1e6)
        self.own = StageTime()


class _Clocks:
    """The clocks of the thread that makes it, for another thread to read."""

    def __init__(self) -> None:
        self._cpu: int | None = None
        with contextlib.suppress(AttributeError, OSError):
            self._cpu = time.pthread_getcpuclockid(threading.get_ident())
        self._schedule: int | None = None
        with contextlib.suppress(OSError):
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._schedule = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> tuple[float, float, float]:
        """Return the time, the CPU time of the thread and how long it has waited for a CPU."""
        cpu = time.clock_gettime(self._cpu) if self._cpu is not None else 0.0
        delay = 0.0
        if self._schedule is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                delay = int(os.pread(self._schedule, 96, 0).split()[1]) / 1e9
        return time.perf_counter(), cpu, delay

    def __del__(self) -> None:
        if self._schedule is not None:
            with contextlib.suppress(OSError):
                os.close(self._schedule)


def profile_samples(
    opened: Opened,
    *,
    batch_size: int,
    seconds: float,
    say: Callable[[str], None],
    slowest: int = _SLOWEST,
) -> tuple[dict[str, Any], list[Any]]:
    """Load samples for a while and tell where the time goes.

    Args:
        opened: The dataset.
        batch_size: Samples in a batch.
        seconds: For how long.
        say: Told now and then that it goes on.
        slowest: How many of the slowest samples to name.

    Returns:
        What was measured, as plain values; and some of the samples.
    """
    torch.set_num_threads(1)  # as in a worker
    making = _Making(opened, batch_size, say)
    making.batch()  # what is done once, such as opening files and loading libraries
    making.forget()
    read_before = _storage_bytes()
    with StackSampler() as sampler:
        making.sampler = sampler
        begin = time.perf_counter()
        cpu = time.thread_time()
        while time.perf_counter() - begin < seconds or making.batches < 2:
            making.batch()
        cpu = time.thread_time() - cpu
    read_after = _storage_bytes()
    sampler.settle(f"{type(opened.dataset).__qualname__}.__getitem__")
    times = np.array(making.times) * 1000
    result = {
        "samples": making.samples,
        "batches": making.batches,
        "bytes": making.nbytes,
        "seconds": making.seconds,
        "loop_seconds": making.loop_seconds,  # with what any loader adds to each sample
        "cpu_seconds": cpu,
        "stages": {
            name: {"wall": spent.wall, "cpu": spent.cpu, "delay": spent.delay}
            for name, spent in sampler.stages.items()
        },
        "looks": sampler.looks,
        "other_places": [[place, micros / 1e6] for place, micros in sampler.places.most_common(8)],
        "median_ms": float(np.median(times)),
        "p95_ms": float(np.percentile(times, 95)),
        "slowest": [
            {"index": index, "name": opened.name_of(index), "ms": making.fastest[index] * 1000}
            for index in heapq.nlargest(slowest, making.fastest, key=making.fastest.__getitem__)
        ],
        "uncollated": making.is_list,
        "is_iterable": isinstance(opened.dataset, IterableDataset),
        "storage_bytes": None if read_after is None else read_after - (read_before or 0),
    }
    return result, making.kept


def _storage_bytes() -> int | None:
    """Return how much this process has made the system read from storage."""
    try:
        text = Path("/proc/self/io").read_text("ascii")
        return int(text.split("read_bytes:")[1].split()[0])
    except (OSError, ValueError, IndexError):
        return None


class _Making:
    """Makes batches one after another in this thread, as a loader without workers does."""

    def __init__(self, opened: Opened, batch_size: int, say: Callable[[str], None]) -> None:
        self.dataset = opened.dataset
        self.collate: Callable[[list[Any]], Any] = opened.collate_fn or default_collate
        self.batch_size = batch_size
        self.sampler = StackSampler()
        self.kept: list[Any] = []
        self.is_list = False
        self._kept_bytes = 0
        self._say = say
        self._said = time.perf_counter()
        self._position = 0
        self._items: Iterator[Any] | None = None
        self._advise = getattr(self.dataset, "advise", None)
        if not isinstance(self.dataset, IterableDataset) and not len(self.dataset):
            raise OptionError(_EMPTY)
        self.forget()

    def forget(self) -> None:
        """Begin to count."""
        self.batches = self.samples = self.nbytes = 0
        self.seconds = self.loop_seconds = 0.0
        self.times: list[float] = []
        self.fastest: dict[int, float] = {}

    def batch(self) -> None:
        """Make a batch and count it."""
        indices = self._drawn()
        begin = time.perf_counter()
        samples = self._samples(indices)
        self.sampler.is_collating = True
        batch, taken = self._watched(lambda: self.collate(samples))
        self.sampler.is_collating = False
        self.seconds += taken
        self.loop_seconds += time.perf_counter() - begin
        self.batches += 1
        self.samples += len(samples)
        self.nbytes += batch_nbytes(batch)
        self.is_list = self.is_list or batch is samples
        if len(self.kept) < _KEPT and self._kept_bytes < _KEPT_BYTES:
            self.kept += samples
            self._kept_bytes += batch_nbytes(samples)

    def _drawn(self) -> list[int]:
        if isinstance(self.dataset, IterableDataset):
            return []
        places = np.arange(self._position, self._position + self.batch_size, dtype=np.int64)
        self._position += self.batch_size
        indices: list[int] = EndlessOrder(len(self.dataset)).at(0, 0, places).tolist()
        return indices

    def _samples(self, indices: list[int]) -> list[Any]:
        if isinstance(self.dataset, IterableDataset):
            return [self._timed(self._next_item) for _ in range(self.batch_size)]
        if _reads_together(self.dataset):
            together: list[Any]
            together, taken = self._watched(lambda: list(self.dataset.__getitems__(indices)))
            self.seconds += taken
            self.times += [taken / len(indices)] * len(indices)
            return together
        if callable(advise := self._advise):
            self.seconds += self._watched(lambda: advise(indices))[1]
        samples = []
        for index in indices:
            with using_key(SampleKey(0, 0, index)):
                samples.append(
                    self._timed(functools.partial(self.dataset.__getitem__, index), index)
                )
        return samples

    def _timed(self, load: Callable[[], Any], index: int | None = None) -> Any:
        sample, taken = self._watched(load)
        self.seconds += taken
        self.times.append(taken)
        number = len(self.times) - 1 if index is None else index
        # A sample that is slow by itself is so each time.
        self.fastest[number] = min(taken, self.fastest.get(number, taken))
        return sample

    def _watched(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """Do some of the user's work, the only part that counts; return how long it took, too."""
        begin = time.perf_counter()
        self.sampler.is_on = True
        done = work()
        self.sampler.is_on = False
        end = time.perf_counter()
        if end - self._said > _SIGN_OF_LIFE:
            self._say(f"looking at {len(self.times)} samples")
            self._said = end
        return done, end - begin

    def _next_item(self) -> Any:
        if self._items is None:
            self._items = iter(self.dataset)
        try:
            return next(self._items)
        except StopIteration:
            self._items = iter(self.dataset)
        try:
            return next(self._items)
        except StopIteration:
            said = f"ends after {len(self.times)} samples and gives none when it is read again"
            text = f"the dataset {said}" if self.times else _EMPTY
            raise OptionError(text) from None


def _reads_together(dataset: Any) -> bool:
    """Whether a whole batch is best asked for at once."""
    says = getattr(dataset, "reads_batches", None)
    if isinstance(says, bool):
        return says and bool(getattr(dataset, "__getitems__", None))
    if getattr(dataset, "advise", None) is not None and hasattr(dataset, "__getitem__"):
        return False
    return bool(getattr(dataset, "__getitems__", None)) and type(dataset).__name__ != "Subset"
