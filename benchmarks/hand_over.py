"""What does it cost to hand a batch from a worker to the trainer, in new memory or in kept buffers?

Measured: pictures a second, and CPU time of trainer and workers together for each batch, in the
middle of an epoch over pictures that cost nothing: 64 x 3 x 224 x 224 bytes a batch, always the
same array, stacked by torch. The trainer copies each batch to a place of its own, as to a device.
"new" is our loader with memory that is new for each batch, as with torch's; "kept" is how it works
by default.
Kept out: starting the workers and the first batches; reading and decoding; training.
Reproduce: ``scripts/bench hand_over``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import Benchmark, Case, Context, Goal, Runs, main, tree_cpu_seconds
from torch.utils.data import DataLoader, Dataset

from sharedds.loader import build_loader

_BATCHES, _WARM, _TAIL = 200, 16, 8
_QUICK_BATCHES, _QUICK_WARM = 12, 2
_SIZE, _SHAPE = 64, (3, 224, 224)
_RATE, _CPU = "img/s", "ms CPU a batch"
_TORCH, _NEW, _KEPT = "torch", "sharedds, new", "sharedds, kept"
_WORKERS = (1, 2)


class _Pictures(Dataset[Any]):
    """Pictures that are there already, with a label."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.picture = torch.randint(0, 256, _SHAPE, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.picture, index


def _loader(who: str, batches: int, workers: int) -> Any:
    data = _Pictures(batches * _SIZE)
    if who == _TORCH:
        return DataLoader(data, batch_size=_SIZE, num_workers=workers)
    loader = build_loader(data, batch_size=_SIZE, num_workers=workers, pin_memory=False)
    loader._keeps_buffers = who == _KEPT
    return loader


def _handing(who: str, workers: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        batches, warm = (_QUICK_BATCHES, _QUICK_WARM) if context.quick else (_BATCHES, _WARM)
        iterator = iter(_loader(who, batches, workers))
        place = torch.empty((_SIZE, *_SHAPE), dtype=torch.uint8)
        for _ in range(warm):
            place.copy_(next(iterator)[0])
        count = batches - warm - _TAIL
        cpu, begin = tree_cpu_seconds(), time.perf_counter()
        for _ in range(count):
            place.copy_(next(iterator)[0])
        seconds, cpu = time.perf_counter() - begin, tree_cpu_seconds() - cpu
        if sum(1 for _ in iterator) != _TAIL:
            raise RuntimeError("the epoch has another length")
        return {_RATE: count * _SIZE / seconds, _CPU: cpu * 1e3 / count}

    return run


def _name(who: str, workers: int) -> str:
    return f"{_count(workers)}, {who}"


def _count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}"


def _over(figure: str, workers: int, other: str) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        ours, theirs = (runs[_name(who, workers)][figure] for who in (_KEPT, other))
        return [own / rest for own, rest in zip(ours, theirs, strict=True)]

    return values


BENCHMARK = Benchmark(
    file=__file__,
    question="What does it cost to hand a batch over, in new memory or in kept buffers?",
    cases=tuple(
        Case(name=_name(who, workers), run=_handing(who, workers))
        for workers in _WORKERS
        for who in (_TORCH, _NEW, _KEPT)
    ),
    goals=(
        *(
            Goal(
                text=f"rate over that with new memory, {_count(workers)}",
                values=_over(_RATE, workers, _NEW),
                target=1.3,
            )
            for workers in _WORKERS
        ),
        Goal(
            text="CPU time over that with new memory, 2 workers",
            values=_over(_CPU, 2, _NEW),
            target=0.7,
            at_least=False,
        ),
    ),
    needs_pictures=False,
    rounds=5,
    quick_cases=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
