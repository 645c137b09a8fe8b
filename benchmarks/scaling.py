"""What do more workers bring, and when does the trainer's process become the limit?

Measured: img/s in the middle of an epoch, by the number of workers, processes and threads. Photos
as they were packed, read with 1 and with 2 workers, as in ``train_photos``. Then more workers than
this machine has CPUs: instead of reading and decoding, a worker sleeps 2 ms for each image, which
releases the interpreter as decoders do, and hands over a batch of 64 images, uint8, 224 × 224, of
memory that it does not write. What is left is all that the loader does; the CPU time of the
trainer's process is given as a share of one CPU (with threads that is everything).
Kept out: packing; starting workers and the first batches; the tail of an epoch.
Reproduce: ``scripts/bench scaling --data FOLDER``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from harness import Benchmark, Case, Context, Goal, Runs, main
from harness.figures import BATCH, RATE, SIDE
from harness.training import ENGINES, Form, ours

from sharedds import RandomResizedCrop, build_loader

_FORM = Form(name="photos", repeat=2)
_SLEEP = 0.002  # seconds for an image
_WORKERS = (1, 4, 16, 64) if "--quick" not in sys.argv else (1, 2)
_EACH, _QUICK_EACH = 24, 5  # batches of each worker
_SHARE = "CPUs the trainer takes"
_WHO = {"process": "processes", "thread": "threads"}


class Sleeping:
    """Samples that take time and no CPU."""

    makes_batches = True

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(_SLEEP)
        return torch.zeros(1, dtype=torch.uint8).expand(3, SIDE, SIDE), index

    def load_batch(
        self, indices: Sequence[int], empty: Callable[..., torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return a batch of images that nobody wrote, and their numbers."""
        time.sleep(_SLEEP * len(indices))
        images = empty((len(indices), 3, SIDE, SIDE), torch.uint8, channels_last=True)
        return [images, torch.as_tensor(np.asarray(indices, np.int64))]


def _sleeping(engine: str, workers: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        warnings.filterwarnings("ignore")  # more workers than CPUs
        each = _QUICK_EACH if context.quick else _EACH
        size = 4 if context.quick else BATCH
        dataset: Any = Sleeping(workers * each * size)
        loader = build_loader(
            dataset, batch_size=size, shuffle=True, num_workers=workers, engine=engine
        )
        begin, end = 2 * workers, (each - 2) * workers
        seen = np.zeros(len(dataset), np.int64)
        began = seconds = cpu = 0.0
        for number, (_, indices) in enumerate(loader, 1):
            seen[np.asarray(indices)] += 1
            if number == begin:
                began, cpu = time.perf_counter(), time.process_time()
            elif number == end:
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        if not (seen == 1).all():
            raise SystemExit("not every image came once")
        return {RATE: (end - begin) * size / seconds, _SHARE: cpu / seconds}

    return run


def _simulated(engine: str, workers: int) -> str:
    return f"simulated, {_WHO[engine]}: {workers} workers"


def _photos(engine: str, workers: int) -> Case:
    case = ours(_FORM, engine, lambda: RandomResizedCrop(SIDE, flip=0.5), workers)
    return Case(name=f"photos, {_WHO[engine]}: {workers} workers", run=case.run)


def _cases(engine: str) -> tuple[Case, ...]:
    return (
        *(_photos(engine, workers) for workers in (1, 2)),
        *(
            Case(name=_simulated(engine, workers), run=_sleeping(engine, workers))
            for workers in _WORKERS
        ),
    )


def _gain(many: str, few: str, times: float) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        pairs = zip(runs[many][RATE], runs[few][RATE], strict=True)
        return [own / rest / times for own, rest in pairs]

    return values


def _goals(engine: str) -> tuple[Goal, ...]:
    one, two = (f"photos, {_WHO[engine]}: {workers} workers" for workers in (1, 2))
    few, many = (_simulated(engine, workers) for workers in (_WORKERS[0], _WORKERS[-1]))
    return (
        Goal(
            text=f"{_WHO[engine]}: img/s of 2 workers over those of 1, photos",
            values=_gain(two, one, 1),
            target=1.85,
            needs=(one, two),
        ),
        Goal(
            text=f"{_WHO[engine]}: img/s a worker of {_WORKERS[-1]} over those of 1, simulated",
            values=_gain(many, few, _WORKERS[-1] / _WORKERS[0]),
            target=0.9,
            needs=(few, many),
        ),
        Goal(
            text=f"{_WHO[engine]}: {_SHARE}, with {_WORKERS[-1]} workers, simulated",
            values=lambda runs: runs[many][_SHARE],
            target=0.5,
            at_least=False,
            needs=(many,),
        ),
    )


BENCHMARK = Benchmark(
    file=__file__,
    question="What do more workers bring, and when does the trainer become the limit?",
    cases=tuple(case for engine in ENGINES for case in _cases(engine)),
    quick_cases=4,
    goals=tuple(goal for engine in ENGINES for goal in _goals(engine)),
    prepare=_FORM.prepare,
)

if __name__ == "__main__":
    main(BENCHMARK)
