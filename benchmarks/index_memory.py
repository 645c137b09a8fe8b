"""What does an index of paths and labels cost, by number of samples, workers and start method?

Measured: a process makes an index, gives it to a loader with batches of 1,024, and reads 200,000
random samples; a sample is the label and the length of the path together. After that, of the whole
tree of processes: proportional memory (PSS), the part of it that is no page of a file (anonymous
and shm), private memory (USS) of the worker that has most; and the time from asking for the first
batch to having it. All indexes use torch's own loader, so that start methods compare; one case
uses that of this package. "empty" has no index: what torch and the processes cost by themselves.
Kept out: making the index (a figure of its own); and a full garbage collection, which under fork
gives a worker 35 MB of copies of objects that it shares otherwise, whatever the index is: one is
done before the first batch, or it would fall into a worker or not as the number of modules that
were imported before decides. "HF datasets" runs under the interpreter of
``--peers``, whose torch is another one: its total is compared after taking off what "empty" costs
there and adding what it costs here.
Reproduce: ``scripts/bench index_memory``. By default four workers, 1,000 and 10 million samples,
and rivals under fork alone. The matrix is chosen by ``--samples 1000,1000000,10000000``,
``--workers 0,2,4,8``, ``--start fork,spawn,forkserver`` and ``--rivals fork,spawn,forkserver`` (the
start methods under which rivals run; ``none`` for no rivals). 10 million samples in lists take
5 GB under fork and 7 GB and a minute under spawn.

Each case is this file once more, with ``--train``: then it needs nothing but torch, and only for an
index of this package the package.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Benchmark, Case, Context, Goal, Runs, main
from torch.utils.data import DataLoader, RandomSampler

_READ, _BATCH, _CLASSES, _MB = 200_000, 1_024, 1_000, 1e6
_QUICK = 2_000  # samples, and how many of them are read
_STARTS = ("fork", "spawn", "forkserver")
_OURS = ("sharedds", "sharedds, build_loader")
_RIVALS = ("list of tuples", "ImageFolder", "NumPy bytes", "pickled in a tensor")
_PEERS = ("HF datasets",)  # under another interpreter, with an empty dataset of its own
_PEERS_EMPTY = "empty, peers"
_TOTAL, _PRIVATE = "MB PSS in all", "MB USS a worker, the most"
_OWN, _FIRST = "MB PSS anonymous and shm", "s to the first batch"


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the matrix."""

    index: str
    samples: int
    workers: int
    start: str

    @property
    def name(self) -> str:
        """What the result calls it."""
        how = f"{self.workers} workers, {self.start}" if self.workers else "no workers"
        return f"{self.index}: {self.samples:,} samples, {how}"

    def beside(self, index: str, samples: int | None = None) -> str:
        """Return the name of another index (or number of samples), all else equal."""
        return Setting(index, samples or self.samples, self.workers, self.start).name

    def words(self, index: str, most: int = 1 << 62) -> tuple[str, ...]:
        """Return the arguments of :func:`train`."""
        return index, str(min(self.samples, most)), str(self.workers), self.start

    @property
    def case(self) -> Case:
        """The case of the benchmark."""
        if self.index in _PEERS or self.index == _PEERS_EMPTY:
            index = self.index.partition(", peers")[0]
            here = f"../{Path(__file__).name}"  # seen from the folder of the rivals
            return Case(name=self.name, rival=(here, "--train", *self.words(index)))
        return Case(name=self.name, run=_running(self))


def _running(setting: Setting) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        words = setting.words(setting.index, _QUICK if context.quick else 1 << 62)
        command = [sys.executable, __file__, str(context.data), str(context.scratch), "--train"]
        command += [*words, str(_QUICK if context.quick else _READ)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return figures

    return run


def _settings(
    samples: Sequence[int],
    workers: Sequence[int],
    starts: Sequence[str],
    rivals: Sequence[str],
    names: Sequence[str],
) -> Iterator[Setting]:
    """Yield the cells; 0 workers start in no way, so they come once."""
    for number in workers:
        for start in starts if number else starts[:1]:
            for count in samples:
                yield Setting("empty", count, number, start)
                yield from (Setting(index, count, number, start) for index in _OURS)
                if start in rivals and (count > 1000 or len(samples) == 1):
                    yield from (Setting(index, count, number, start) for index in names)


def _goals(settings: Sequence[Setting]) -> Iterator[Goal]:
    """Yield what is to be reached by the largest index, for each start method."""
    most = max(setting.samples for setting in settings)
    least = min(setting.samples for setting in settings)
    names = {setting.name for setting in settings}
    for setting in settings:
        if setting.index != "sharedds" or setting.samples != most or not setting.workers:
            continue
        where = f"{setting.workers} workers, {setting.start}"
        few, empty = setting.beside("sharedds", least), setting.beside("empty")
        if few != setting.name:
            yield Goal(
                text=f"MB USS a worker more for {most:,} samples than for {least:,}, {where}",
                values=_more(setting.name, few, _PRIVATE),
                target=10,
                at_least=False,
                needs=(setting.name, few),
            )
        yield Goal(
            text=f"MB anonymous and shm more than without an index, {most:,} samples, {where}",
            values=_more(setting.name, empty, _OWN),
            target=30,
            at_least=False,
            needs=(setting.name, empty),
        )
        yield Goal(
            text=f"s to the first batch over those without an index, {most:,} samples, {where}",
            values=_over(setting.name, empty, _FIRST),
            target=1.2,
            at_least=False,
            needs=(setting.name, empty),
        )
        for rival in (*_RIVALS, *_PEERS):
            other = setting.beside(rival)
            if other in names:
                base = (empty, setting.beside(_PEERS_EMPTY)) if rival in _PEERS else ()
                yield Goal(
                    text=f"MB PSS over those of {rival}, {most:,} samples, {where}",
                    values=_over(setting.name, other, _TOTAL, *base),
                    target=1,
                    at_least=False,
                    needs=(setting.name, other, *base),
                )


def _more(name: str, other: str, figure: str) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        pairs = zip(runs[name][figure], runs[other][figure], strict=True)
        return [own - rest for own, rest in pairs]

    return values


def _over(name: str, other: str, figure: str, *base: str) -> Callable[[Runs], list[float]]:
    """Return ratios; with ``base`` the other one moves from its own empty dataset to ours."""

    def values(runs: Runs) -> list[float]:
        others = runs[other][figure]
        if base:
            ours, theirs = runs[base[0]][figure], runs[base[1]][figure]
            others = [a + b - c for a, b, c in zip(others, ours, theirs, strict=True)]
        return [own / rest for own, rest in zip(runs[name][figure], others, strict=True)]

    return values


def _named(name: str) -> Setting:
    """Return the cell of a name."""
    index, _, rest = name.rpartition(": ")
    samples, how, *start = rest.split(", ")
    workers = how.split()[0].replace("no", "0")
    count = int(samples.split()[0].replace(",", ""))
    return Setting(index, count, int(workers), start[0] if start else _STARTS[0])


def _chosen() -> tuple[Setting, ...]:
    """Take the options of this benchmark out of the command line and return the cells."""
    if "--case" in sys.argv:  # a child, which runs what its name says
        return (_named(sys.argv[sys.argv.index("--case") + 1]),)
    everything = (*_RIVALS, *_PEERS, _PEERS_EMPTY)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    quick = "--quick" in sys.argv
    parser.add_argument("--samples", default="1000,10000000")
    parser.add_argument("--workers", default="2" if quick else "4")
    parser.add_argument("--start", default="fork" if quick else "fork,spawn,forkserver")
    parser.add_argument("--rivals", default="fork")
    options, sys.argv[1:] = parser.parse_known_args()
    return tuple(
        _settings(
            [int(word) for word in options.samples.split(",")],
            [int(word) for word in options.workers.split(",")],
            options.start.split(","),
            options.rivals.split(","),
            _RIVALS[:1] if quick else everything,
        )
    )


# --- one case: what a process with this index costs ----------------------------------------------


def _path_of(number: int, count: int) -> tuple[str, int]:
    """Return path and label of a sample, as in a large folder of classes."""
    label = number * _CLASSES // max(count, _CLASSES)
    folder = f"n{label * 7919 % 10**8:08d}"
    return f"train/{folder}/{folder}_{number * 2654435761 % 10**8:08d}.JPEG", label


def samples(count: int) -> Iterator[tuple[str, int]]:
    """Yield path and label of every sample."""
    return (_path_of(number, count) for number in range(count))


class Empty:
    """No index: what everything else costs."""

    def __init__(self, count: int, scratch: Path) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Tuples(Empty):
    """A list of (path, label)."""

    def __init__(self, count: int, scratch: Path) -> None:
        super().__init__(count, scratch)
        self.samples = list(samples(count))

    def __getitem__(self, index: int) -> int:
        path, label = self.samples[index]
        return label + len(path)


class ImageFolder(Tuples):
    """What torchvision keeps: the same, and the labels once more."""

    def __init__(self, count: int, scratch: Path) -> None:
        super().__init__(count, scratch)
        self.targets = [label for _, label in self.samples]


class NumpyBytes(Empty):
    """Paths in an array of bytes of one length, labels in another."""

    def __init__(self, count: int, scratch: Path) -> None:
        super().__init__(count, scratch)
        longest = max((len(path) for path, _ in samples(min(count, 1000))), default=1)
        self.paths = np.fromiter((path.encode() for path, _ in samples(count)), f"S{longest}")
        self.labels = np.fromiter((label for _, label in samples(count)), np.int64)

    def __getitem__(self, index: int) -> int:
        return int(self.labels[index]) + len(self.paths[index].decode())


class PickledTensor(Empty):
    """Every item pickled, all in one tensor, which torch shares between processes."""

    def __init__(self, count: int, scratch: Path) -> None:
        super().__init__(count, scratch)
        items = [np.frombuffer(pickle.dumps(item, -1), np.uint8) for item in samples(count)]
        self.ends = torch.from_numpy(np.cumsum([len(item) for item in items]))
        self.data = torch.from_numpy(np.concatenate(items))

    def __getitem__(self, index: int) -> int:
        start = int(self.ends[index - 1]) if index else 0
        path, label = pickle.loads(self.data[start : int(self.ends[index])].numpy().tobytes())
        return int(label) + len(path)


class HuggingFace(Empty):
    """An Arrow table on disk, mapped."""

    def __init__(self, count: int, scratch: Path) -> None:
        super().__init__(count, scratch)
        import datasets  # type: ignore[import-not-found] # noqa: PLC0415 - of the rivals

        datasets.disable_progress_bars()
        self.table = datasets.Dataset.from_generator(
            _rows, gen_kwargs={"count": count}, cache_dir=str(scratch)
        )

    def __getitem__(self, index: int) -> int:
        row = self.table[index]
        return int(row["label"]) + len(row["path"])


def _rows(count: int) -> Iterator[dict[str, Any]]:
    return ({"path": path, "label": label} for path, label in samples(count))


def __getattr__(name: str) -> Any:
    """Make the index of this package when it is asked for; workers find it here by its name."""
    if name != "Lazy":
        raise AttributeError(name)
    from sharedds import LazyDataset  # noqa: PLC0415 - only where the package is

    class Lazy(LazyDataset[int]):
        """Records of path and label."""

        def load(self, item: tuple[str, int]) -> int:
            path, label = item
            return label + len(path)

    Lazy.__qualname__ = "Lazy"
    globals()["Lazy"] = Lazy
    return Lazy


def _lazy(count: int, scratch: Path) -> Any:
    return __getattr__("Lazy")(samples(count))


INDEXES: dict[str, Callable[[int, Path], Any]] = {
    "empty": Empty,
    "sharedds": _lazy,
    "sharedds, build_loader": _lazy,
    "list of tuples": Tuples,
    "ImageFolder": ImageFolder,
    "NumPy bytes": NumpyBytes,
    "pickled in a tensor": PickledTensor,
    "HF datasets": HuggingFace,
}


def loader_of(name: str, dataset: Any, workers: int, start: str, read: int = _READ) -> Any:
    """Return the loader: torch's own, or the one of this package."""
    method = start if workers else None
    if name == "sharedds, build_loader":
        from sharedds import build_loader  # noqa: PLC0415 - only where the package is

        return build_loader(
            dataset,
            batch_size=_BATCH,
            shuffle=True,
            num_workers=workers,
            start_method=method,
            persistent_workers=workers > 0,  # weighed after an epoch, too
        )
    return DataLoader(
        dataset,
        batch_size=_BATCH,
        sampler=RandomSampler(dataset, replacement=True, num_samples=read + _BATCH),
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=workers > 0,
    )


def weigh(pid: int) -> dict[str, float]:
    """Return the kernel's figures of a process, in MB."""
    figures = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            figures[name] = int(rest.split()[0]) * 1024 / _MB
    return figures


def tree() -> list[int]:
    """Return this process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _epochs(loader: Any) -> Iterator[Any]:
    """Yield batches without end: an order of this package ends when each sample was read."""
    while True:
        yield from loader


def train(
    scratch: Path, name: str, count: int, workers: int, start: str, read: int = _READ
) -> None:
    """Make the index, read from it, and print the figures."""
    began = time.perf_counter()
    dataset = INDEXES[name](count, scratch)
    made = time.perf_counter()
    loader = loader_of(name, dataset, workers, start, read)
    gc.collect()
    started = time.perf_counter()
    batches = _epochs(loader)
    total = int(next(batches).sum())
    first = time.perf_counter()
    for batch in itertools.islice(batches, read // _BATCH):
        total += int(batch.sum())
    ended = time.perf_counter()
    if total == 0:
        raise SystemExit("nothing was read")
    weights = {pid: weigh(pid) for pid in tree()}
    own = [worker.pid for worker in multiprocessing.active_children() if worker.pid in weights]
    figures = {
        "MB PSS in all": sum(weight["Pss"] for weight in weights.values()),
        "MB PSS anonymous and shm": sum(
            weight["Pss_Anon"] + weight["Pss_Shmem"] for weight in weights.values()
        ),
        "s to the first batch": first - started,
        "s to make the index": made - began,
        f"s for {read:,} samples": ended - first,
    }
    if own:
        private = [weights[pid]["Private_Clean"] + weights[pid]["Private_Dirty"] for pid in own]
        figures["MB USS a worker, the most"] = max(private)
    print(json.dumps(figures))


def _benchmark() -> Benchmark:
    settings = _chosen()
    return Benchmark(
        quick_cases=3,
        file=__file__,
        question=(
            "What does an index of paths and labels cost, by number of samples, workers and start "
            "method?"
        ),
        cases=tuple(setting.case for setting in settings),
        goals=tuple(_goals(settings)),
        needs_pictures=False,
        rounds=1,
    )


if __name__ == "__main__":
    if sys.argv[3:4] == ["--train"]:
        index, samples_, workers_, start_, *read_ = sys.argv[4:]
        train(Path(sys.argv[2]), index, int(samples_), int(workers_), start_, *map(int, read_))
    else:
        main(_benchmark())
