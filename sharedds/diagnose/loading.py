"""One loader at work, measured from within its process: speed, first batch, memory over samples."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from sharedds.diagnose.target import Opened
from sharedds.errors import OptionError
from sharedds.host.cpus import usable_cpus
from sharedds.loader.build import build_loader
from sharedds.loader.facts import fingerprint_of
from sharedds.loader.heap import give_back
from sharedds.loader.planning import makes_whole_batches
from sharedds.memory import ProcessMemory, process_memory, process_tree
from sharedds.order import Shuffled

__all__ = ["EndlessOrder", "EndlessSampler", "batch_nbytes", "cpu_seconds", "measure_loading"]

Integers = npt.NDArray[np.int64]

_ENDLESS = 1 << 40
_SIGN_OF_LIFE = 0.5  # seconds
_MOST_POINTS = 256


@dataclass(frozen=True, slots=True)
class EndlessOrder:
    """Every sample once, in a random order, then again in another one, and so on without an end.

    So that a short dataset shows the speed of a loader and not that of its last batches.

    Args:
        samples: How many there are.
    """

    samples: int

    @property
    def count(self) -> int:
        """Draws in an epoch: more than anybody reads."""
        return _ENDLESS

    @property
    def repeats(self) -> bool:
        """A sample comes again in each round."""
        return True

    def at(self, seed: int, epoch: int, positions: Integers) -> Integers:
        """Return the index (int64) at each position."""
        rounds, places = np.divmod(positions, self.samples)
        indices = np.empty_like(positions)
        for number in np.unique(rounds).tolist():
            mine = rounds == number
            indices[mine] = Shuffled(self.samples).at(seed, epoch + number, places[mine])
        return indices

    def facts(self) -> dict[str, int | str]:
        """Return kind and count."""
        return {"kind": "endless", "count": self.samples}


class EndlessSampler(Sampler[int]):
    """The same order for a loader of torch.

    Args:
        samples: How many there are.
        seed: Of the order.
    """

    def __init__(self, samples: int, seed: int = 0) -> None:
        self.order = EndlessOrder(samples)
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        begin = 0
        while True:
            places = np.arange(begin, begin + 1024, dtype=np.int64)
            yield from self.order.at(self.seed, 0, places).tolist()
            begin += 1024


class _AgainAndAgain(Sampler[Any]):
    """A sampler of the user's, begun anew whenever it ends."""

    def __init__(self, own: Iterable[Any]) -> None:
        self._own = own

    def __iter__(self) -> Iterator[Any]:
        while True:
            is_empty = True
            for index in self._own:
                is_empty = False
                yield index
            if is_empty:
                return


def batch_nbytes(batch: Any) -> int:
    """Return how many bytes of data a batch holds: tensors, arrays, bytes and text in it."""
    if isinstance(batch, torch.Tensor):
        return batch.nelement() * batch.element_size()
    if isinstance(batch, np.ndarray | np.generic):
        return int(batch.nbytes)
    if isinstance(batch, bytes | bytearray | memoryview | str):
        return len(batch)
    if isinstance(batch, Mapping):
        return sum(batch_nbytes(part) for part in batch.values())
    if isinstance(batch, list | tuple | set):
        return sum(batch_nbytes(part) for part in batch)
    return 0


def build(opened: Opened, options: Mapping[str, Any]) -> Any:
    """Build the loader that the options of a trial ask for."""
    dataset = opened.dataset
    size = options["batch_size"]
    asked = {
        name: options[name]
        for name in ("num_workers", "prefetch_factor", "pin_memory")
        if options[name] is not None
    }
    if options["loader"] == "sharedds":
        for name in ("engine", "start_method", "max_memory", "threads_per_worker"):
            if options[name] is not None:
                asked[name] = options[name]
        has_length = hasattr(dataset, "__len__")  # what has none is refused by the loader
        order: Any = EndlessOrder(len(dataset)) if has_length else None
        loader = build_loader(
            dataset,
            batch_size=size,
            sampler=order,
            seed=options["seed"],
            collate_fn=opened.collate_fn,
            worker_init_fn=opened.worker_init_fn,
            **asked,
        )
        loader._keeps_buffers = not options["new_memory"]
        return loader
    workers = asked.get("num_workers", 0)
    if workers and options["start_method"] is not None:
        asked["multiprocessing_context"] = options["start_method"]
    if not workers:
        asked.pop("prefetch_factor", None)
    if not isinstance(dataset, IterableDataset):
        own = opened.sampler
        asked["sampler"] = (
            EndlessSampler(len(dataset), options["seed"]) if own is None else _AgainAndAgain(own)
        )
    return DataLoader(
        dataset,
        batch_size=size,
        collate_fn=opened.collate_fn,
        worker_init_fn=opened.worker_init_fn,
        persistent_workers=bool(workers),
        **asked,
    )


def measure_loading(
    opened: Opened, options: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Run one loader and measure it.

    Args:
        opened: The dataset.
        options: The fields of :class:`~sharedds.diagnose.trial.TrialOptions`.
        say: Told what is being done, at least twice a second while it goes on.

    Returns:
        The fields of :class:`~sharedds.diagnose.trial.Trial` that were measured.
    """
    if options["batch_size"] is None:
        options = {**options, "batch_size": opened.batch_size or options["default_batch_size"]}
    if hasattr(opened.dataset, "__len__") and not len(opened.dataset):
        raise OptionError("the dataset is empty: there is nothing to load")
    say("building the loader")
    give_back()  # of a trial before this one
    older = {process.pid for process in psutil.Process().children(recursive=True)}
    begin = time.perf_counter()
    loader = build(opened, options)
    reading = _Reading(loader, options, say, older)
    say("waiting for the first batch")
    reading.next()
    first = time.perf_counter() - begin
    plan = getattr(loader, "plan", None)
    workers = plan.num_workers if plan is not None else loader.num_workers
    is_thread = plan is not None and plan.engine == "thread"
    reading.look()
    for _ in range(workers):  # until each worker has shown what it has begun with
        reading.next()
    reading.run()
    result = reading.result() | {
        "first_batch_seconds": first,
        "num_workers": workers,
        "engine": "thread" if is_thread else "process",
        "plan": plan.to_dict() if plan is not None else None,
        "fingerprint": fingerprint_of(opened.dataset),
        "whole_batches": plan is not None
        and makes_whole_batches(opened.dataset, options["batch_size"], opened.collate_fn),
    }
    say("ending the loader")
    reading.close()
    del loader, reading
    gc.collect()
    return result


class _Reading:
    """Reads batches, counts them, and looks at the memory of all processes now and then."""

    def __init__(
        self,
        loader: Any,
        options: Mapping[str, Any],
        say: Callable[[str], None],
        older: Collection[int] = (),
    ) -> None:
        self.loader = loader
        self.options = options
        self.say = say
        self._older = older  # such as the fork server of a trial before this one
        self.batches = self.samples = self.nbytes = 0
        self.is_list = False
        self.points: list[dict[str, Any]] = []
        self.waits: list[float] = []
        self._begin = time.perf_counter()
        self._said = self._look_due = 0.0
        self._spacing = 0
        self._window: tuple[int, int, int, float, float, float] | None = None
        self._end: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self._batches: Any = iter(loader)

    def next(self) -> None:
        """Take one batch."""
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self.batches:
                raise OptionError("the dataset is empty: there is nothing to load") from None
            self._batches = iter(self.loader)
            try:
                batch = next(self._batches)
            except StopIteration:
                raise OptionError(
                    f"the dataset ends after {self.samples} samples and gives none when it is "
                    "read again"
                ) from None
        self.batches += 1
        self.is_list = self.is_list or _is_uncollated(batch)
        self.samples += self._count(batch)
        self.nbytes += batch_nbytes(batch)
        now = time.perf_counter()
        if now - self._said > _SIGN_OF_LIFE:
            self.say(f"loading: {self.samples} samples")
            self._said = now

    def _count(self, batch: Any) -> int:
        if not isinstance(getattr(self.loader, "dataset", None), IterableDataset):
            return int(self.options["batch_size"])
        part = batch
        while isinstance(part, Mapping | list | tuple) and len(part):
            if isinstance(part, list | tuple) and not isinstance(part[0], torch.Tensor | Mapping):
                return len(part)
            part = next(iter(part.values())) if isinstance(part, Mapping) else part[0]
        return len(part) if isinstance(part, torch.Tensor) and part.dim() else 1

    def run(self) -> None:
        """Read for as long, or as many samples, as the options say."""
        seconds, samples = self.options["seconds"], self.options["samples"]
        cpu, machine = cpu_seconds(), _machine_seconds()
        begin = last = time.perf_counter()
        self._window = (self.batches, self.samples, self.nbytes, begin, cpu, machine)
        while True:
            self.next()
            now = time.perf_counter()
            self.waits.append(now - last)
            enough = self.batches - self._window[0] >= 3
            if enough and seconds is not None and now - begin >= seconds:
                break
            if samples is not None and self.samples >= samples:
                break
            if now >= self._look_due:
                self.look()
            last = time.perf_counter()
        self._end = (time.perf_counter(), cpu_seconds(), _machine_seconds())
        self.look()

    def look(self) -> None:
        """Measure the memory of all processes; at most a small share of the time."""
        begin = time.perf_counter()
        workers = self._worker_pids()
        left_out = () if workers else self._older  # only workers need what runs already
        used = {memory.pid: memory for memory in process_tree() if memory.pid not in left_out}
        own = process_memory()
        self.points.append(
            {
                "samples": self.samples,
                "seconds": begin - self._begin,
                "workers": [_uss(used.get(pid)) for pid in workers],
                "trainer": own.uss,
                "pss": sum(memory.pss or 0 for memory in used.values()),
                "irrevocable": sum(
                    (memory.anonymous or 0) + (memory.shared_memory or 0)
                    for memory in used.values()
                ),
            }
        )
        if len(self.points) > _MOST_POINTS:  # every second one will do, from now on too
            del self.points[1::2]
            self._spacing += 1
        end = time.perf_counter()
        share = self.options["memory_share"]
        self._look_due = end + max(0.05, (end - begin) / share) * 2**self._spacing

    def _worker_pids(self) -> list[int]:
        inner = getattr(self._batches, "_inner", self._batches)
        pids = [getattr(worker, "pid", None) for worker in getattr(inner, "_workers", ())]
        return [pid for pid in pids if isinstance(pid, int)]

    def result(self) -> dict[str, Any]:
        """Return what was measured, of the time after the first batches."""
        if self._window is None:
            raise OptionError("nothing was read yet")
        batches, samples, nbytes, begin, cpu, machine = self._window
        end, cpu_end, machine_end = self._end
        own = max(0.0, cpu_end - cpu)
        others = max(0.0, machine_end - machine - own) / (end - begin)
        return {
            "batches": self.batches - batches,
            "samples": self.samples - samples,
            "bytes": self.nbytes - nbytes,
            "seconds": end - begin,
            "cpu_seconds": own,
            # What others do on CPUs that this process may not use is no business of ours.
            "others_busy": others if usable_cpus().count == os.cpu_count() else None,
            "longest_wait": max(self.waits),
            "samples_read": self.samples,
            "batch_size": self.options["batch_size"],
            "uncollated": self.is_list,
            "points": self.points,
        }

    def close(self) -> None:
        """Let go of the workers."""
        self._batches = None
        self.loader = None


def _is_uncollated(batch: Any) -> bool:
    """Whether it is a list of samples; torch's collate also makes lists, of stacked fields."""
    is_list = isinstance(batch, list) and len(batch) > 0
    return is_list and isinstance(batch[0], tuple | list | Mapping)


def _uss(memory: ProcessMemory | None) -> int | None:
    return memory.uss if memory is not None else None


def _machine_seconds() -> float:
    """CPU time of all processes of the machine, in seconds."""
    times = psutil.cpu_times()
    idle = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(value for name, value in times._asdict().items() if name not in idle))


def cpu_seconds() -> float:
    """CPU time of this process and of all below it that live, in seconds."""
    own = os.times()
    total = own.user + own.system
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system
    return total
