"""How long to the first batch, and what does a worker cost?

Measured: with 4 and with 8 workers, the time from asking for a loader to its first batch, in a
training script that has imported all it needs; the same for a second loader of that script; the
private memory (USS) of a worker once each has made five batches and collected its garbage, as each
does sooner or later, and the part of it that belongs to no file, median over the workers; and how
much more memory that belongs to no file there is than without workers, in the script, the workers
and what serves them, each page counted once. Four ways to start the workers of one dataset of
pictures that needs torch, NumPy and Pillow: torch's own loader by fork, spawn and forkserver, and
``build_loader``, whose fork server imports libraries once for all workers.
Kept out: the start of the training script and its imports.
Reproduce: ``scripts/bench start_up --data FOLDER``.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping

from harness import Benchmark, Case, Context, Goal, Runs, main, ratios

_FEW, _MANY = 4, 8
_OURS = "build_loader"
_WAYS = (_OURS, "forkserver", "spawn", "fork") if "--quick" not in sys.argv else (_OURS, "fork")
_TRAINER = """
import gc
import json
import multiprocessing
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from sharedds.datasets import LazyDataset
from sharedds.loader import build_loader
from sharedds.memory import process_memory, process_tree


class Pictures(LazyDataset):
    loaded = 0

    def load(self, item):
        self.loaded += 1
        if self.loaded == 20:  # the last one of each worker
            gc.collect()
        with Image.open(item) as image:
            small = image.convert("RGB").resize((64, 64))
        return torch.from_numpy(np.asarray(small).transpose(2, 0, 1).copy())


def make(dataset, way, workers):
    if way == "build_loader":
        return build_loader(dataset, batch_size=4, num_workers=workers, persistent_workers=True)
    return DataLoader(
        dataset, batch_size=4, num_workers=workers, multiprocessing_context=way,
        persistent_workers=True,
    )


def occupied():
    return sum((c.anonymous or 0) + (c.shared_memory or 0) for c in process_tree())


def main():
    folder, way, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    paths = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
    needed = 4 * 5 * workers
    dataset = Pictures((paths * (needed // len(paths) + 1))[:needed])
    figures = {}
    before = occupied()
    for which in ("the first batch", "the first batch of a second loader"):
        started = time.perf_counter()
        loader = make(dataset, way, workers)
        batches = iter(loader)
        first = next(batches)
        figures[f"s to {which}"] = time.perf_counter() - started
        assert first.shape == (4, 3, 64, 64)
        if which == "the first batch":
            for first in batches:
                pass
            costs = [process_memory(worker.pid) for worker in multiprocessing.active_children()]
            if costs[0].uss is not None:
                figures["MB USS a worker"] = statistics.median(c.uss for c in costs) / 1e6
            if costs[0].private_dirty is not None:
                figures["MB of it not file pages"] = (
                    statistics.median(c.private_dirty for c in costs) / 1e6
                )
                figures["MB not file pages, all together"] = (occupied() - before) / 1e6
        del first, loader, batches
    print(json.dumps(figures))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")  # more workers than CPUs
    main()
"""


@functools.cache
def _measure(context: Context, way: str, workers: int) -> Mapping[str, float]:
    script = context.scratch / "train.py"
    script.write_text(_TRAINER)
    command = [sys.executable, str(script), str(context.data), way, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _starting(way: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        return {
            _figure(name, workers): value
            for workers in (_FEW, _MANY)
            for name, value in _measure(context, way, 1 if context.quick else workers).items()
        }

    return run


def _figure(name: str, workers: int) -> str:
    return f"{name}, {workers} workers"


def _cost(workers: int) -> Callable[[Runs], list[float]]:
    return lambda runs: runs[_OURS].get(_figure("MB USS a worker", workers), [0.0])


def _share_of_spawn(workers: int) -> Callable[[Runs], list[float]]:
    return lambda runs: ratios(runs, _OURS, _figure("s to the first batch", workers), "spawn")


BENCHMARK = Benchmark(
    file=__file__,
    question="How long to the first batch, and what does a worker cost?",
    cases=tuple(Case(name=way, run=_starting(way)) for way in _WAYS),
    goals=tuple(
        goal
        for workers in (_FEW, _MANY)
        for goal in (
            Goal(
                text=f"MB USS a worker, {workers} workers",
                values=_cost(workers),
                target=20,
                at_least=False,
            ),
            Goal(
                text=f"times the time of spawn to the first batch, {workers} workers",
                values=_share_of_spawn(workers),
                target=1 / 3,
                at_least=False,
            ),
        )
    ),
    rounds=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
