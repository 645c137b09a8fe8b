"""Is ``max_memory`` kept while training, and what does a plain ``DataLoader`` take for the same?

Measured, from outside, every 50 ms: the memory of the training process and all below it, as
proportional memory (PSS) in all, and the part of it that the kernel cannot take back (anonymous and
shm); the peak of both. Two jobs: the photos with a crop and a flip, batch 64; samples of 100 MB (a
volume each, made by the worker), batch 2. A step takes 20 ms. Each with ``build_loader`` under
budgets of 1, 2 and 4 GiB, and with torch's ``DataLoader`` with 2 and 4 workers and what it does by
itself. A budget that is refused before the start counts as kept, and the case says so with a rate
of 0: the nearest plan is in the error.
Kept out: packing.
Reproduce: ``scripts/bench memory_budget --data FOLDER``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import Benchmark, Case, Context, Goal, Runs, main
from torch.utils.data import DataLoader

from sharedds import ImageDataset, build_loader
from sharedds.errors import OptionError
from sharedds.memory import process_tree

_Run = Callable[[Context], Mapping[str, float]]

_GIB = 1 << 30
_PEAK, _OWN, _RATE = "GiB PSS, peak", "GiB anonymous and shm, peak", "samples/s"
_PHOTOS, _VOLUMES = "photos", "100 MB samples"
_BUDGETS = (1, 2, 4)
_PLAIN = (2, 4)
_SECONDS, _QUICK_SECONDS = 12.0, 1.0
_STEP = 0.02


class _Volumes:
    """Samples of 100 MB that cost little to make."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((100, 1000, 1000), index % 251, dtype=torch.uint8)


def _crop(image: torch.Tensor) -> torch.Tensor:
    """A random square of 224 pixels, at times mirrored."""
    top, left = (int(torch.randint(0, max(1, side - 223), ())) for side in image.shape[-2:])
    part = image[..., top : top + 224, left : left + 224]
    part = torch.nn.functional.pad(part, (0, 224 - part.shape[-1], 0, 224 - part.shape[-2]))
    return part.flip(-1) if torch.rand(()) < 0.5 else part


def _train(job: str, data: str, budget: str, workers: str, seconds: str) -> None:
    """Train for a while and print how many samples came in a second."""
    dataset: Any = ImageDataset(data, transform=_crop) if job == _PHOTOS else _Volumes()
    batch_size = 64 if job == _PHOTOS else 2
    loader: Any
    if budget == "none":
        loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=int(workers))
    else:
        try:
            loader = build_loader(
                dataset, batch_size=batch_size, shuffle=True, max_memory=int(budget) * _GIB
            )
        except OptionError as error:
            print(f"refused: {error}", file=sys.stderr)
            print(0.0)
            return
    count, begin, end = 0, 0.0, 0.0
    while not end or end - begin < float(seconds):
        for batch in loader:
            count += len(batch[0] if isinstance(batch, list | tuple) else batch)
            time.sleep(_STEP)
            end = time.perf_counter()
            if not begin:  # the first batch is the start of the workers
                begin, count = end, 0
            if end - begin >= float(seconds):
                break
    print(count / (end - begin))


def _running(job: str, budget: int | None, workers: int) -> _Run:
    def run(context: Context) -> Mapping[str, float]:
        words = (job, str(context.data), str(budget or "none"), str(workers))
        seconds = _QUICK_SECONDS if context.quick else _SECONDS
        command = [sys.executable, __file__, "--train", *words, str(seconds)]
        peak = own = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            while child.poll() is None:
                time.sleep(0.05)
                try:
                    tree = process_tree(child.pid)
                except OSError:  # it has just ended
                    break
                peak = max(peak, sum(one.pss or 0 for one in tree))
                own = max(own, sum((one.anonymous or 0) + (one.shared_memory or 0) for one in tree))
            text = child.communicate()[0]
        if child.returncode:
            raise SystemExit("training failed")
        return {_PEAK: peak / _GIB, _OWN: own / _GIB, _RATE: float(text.split()[-1])}

    return run


def _name(job: str, budget: int | None, workers: int) -> str:
    if budget is None:
        return f"{job}, torch, {workers} workers"
    return f"{job}, sharedds, {budget} GiB"


def _share(name: str, budget: int) -> Callable[[Runs], list[float]]:
    return lambda runs: [peak / budget for peak in runs[name][_PEAK]]


_JOBS = tuple(
    (job, budget, workers)
    for job in (_PHOTOS, _VOLUMES)
    for budget, workers in (*((size, 0) for size in _BUDGETS), *((None, n) for n in _PLAIN))
)

BENCHMARK = Benchmark(
    quick_cases=1,
    file=__file__,
    question="Is max_memory kept while training, and what does a plain DataLoader take?",
    cases=tuple(Case(name=_name(*job), run=_running(*job)) for job in _JOBS),
    goals=tuple(
        Goal(
            text=f"peak PSS of the tree over the budget: {_name(job, budget, workers)}",
            values=_share(_name(job, budget, workers), budget),
            target=1.0,
            at_least=False,
            needs=(_name(job, budget, workers),),
        )
        for job, budget, workers in _JOBS
        if budget is not None
    ),
    rounds=3,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _train(*sys.argv[2:])
    else:
        main(BENCHMARK)
