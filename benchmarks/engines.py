"""Who should make batches: processes, threads, or several threads in a process?

Measured: images for each second in the middle of a loop over batches of 64 random crops of 224
pixels, decoded from JPEG, uint8, while training does what stands in the case: nothing; a loop in
Python, which holds the interpreter (the worst case for threads beside it); or multiplying matrices
on one core, which releases it. The step is an amount of work, not of time: what slows it down
counts. Two CPUs make batches in each case; one more trains, if there is one.
Kept out: starting the workers and the first batches; the disk, since the file is in the page cache.
Reproduce: ``scripts/bench engines``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import Benchmark, Case, Context, Goal, Runs, main, ratios

from sharedds import ImageDataset, RandomResizedCrop, WeightedSampling, build_loader, pack

_RATE = "img/s"
_SIDE, _QUICK_SIDE = 224, 32
_BATCH, _QUICK_BATCH = 64, 8
_BATCHES, _QUICK_BATCHES = 60, 8
_WARM, _QUICK_WARM = 8, 2
_TURNS = 1_000_000  # some 30 ms
_SIZE, _PRODUCTS = 512, 8

_PROCESSES, _THREADS = "2 processes", "2 threads"
_MAKERS: dict[str, dict[str, Any]] = {
    _PROCESSES: {"num_workers": 2},
    _THREADS: {"num_workers": 2, "engine": "thread"},
    "1 process of 2 threads": {"num_workers": 1, "threads_per_worker": 2},
    "no worker, 2 threads": {"num_workers": 0, "threads_per_worker": 2},
}


def _loop() -> None:
    for _ in range(_TURNS):
        pass


def _multiply() -> None:
    matrix = torch.ones(_SIZE, _SIZE)
    for _ in range(_PRODUCTS):
        matrix = (matrix @ matrix).sigmoid_()


_STEPS: dict[str, Callable[[], None]] = {
    "no step": lambda: None,
    "a loop in Python": _loop,
    "matrices": _multiply,
}


def _prepare(context: Context) -> None:
    pack(context.data, context.work / "pictures.lmdb", progress=False)


def _training(maker: str, step: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        torch.set_num_threads(1)
        quick = context.quick
        size = _QUICK_BATCH if quick else _BATCH
        count, warm = (_QUICK_BATCHES, _QUICK_WARM) if quick else (_BATCHES, _WARM)
        view = RandomResizedCrop(_QUICK_SIDE if quick else _SIDE, flip=0.5)
        data = ImageDataset(context.work / "pictures.lmdb", view=view)
        draws = WeightedSampling([1.0] * len(data), count * size)
        loader: Any = build_loader(data, batch_size=size, sampler=draws, **_MAKERS[maker])
        train = _STEPS[step]
        begin = 0.0
        for number, _ in enumerate(loader):
            train()
            if number + 1 == warm:
                begin = time.perf_counter()
        return {_RATE: (count - warm) * size / (time.perf_counter() - begin)}

    return run


def _name(maker: str, step: str) -> str:
    return f"{maker}, {step}"


def _over_processes(maker: str, step: str) -> Callable[[Runs], list[float]]:
    return lambda runs: ratios(runs, _name(maker, step), _RATE, _name(_PROCESSES, step))


BENCHMARK = Benchmark(
    file=__file__,
    question="Who should make batches: processes, threads, or several threads in a process?",
    cases=tuple(
        Case(name=_name(maker, step), run=_training(maker, step))
        for step in _STEPS
        for maker in _MAKERS
    ),
    goals=tuple(
        Goal(
            text=f"rate over that of 2 processes: {maker}, {step}",
            values=_over_processes(maker, step),
            target=1.0,
        )
        for step in _STEPS
        for maker in _MAKERS
        if maker != _PROCESSES
    ),
    prepare=_prepare,
    rounds=5,
    quick_cases=2,
)

if __name__ == "__main__":
    main(BENCHMARK)
