"""How much faster is the second epoch over photos whose decoded pictures are kept?

Measured: batches of 64 images, uint8, 224 × 224, with labels, of photos as packed: each once in
random order, a random part of it resized (``RandomResizedCrop``) and flipped half of the time, by
2 worker processes. img/s in the middle of the first and of the second epoch of one loader: from
each worker's first batch to three quarters. The cache is as large as all decoded pictures together,
in memory or in a file on the disk of ``--work``. Each run checks that in the second epoch
every picture came from the cache. Without a cache a picture is decoded at the smallest scale that
serves its view, with one at full size: that is what the first epoch pays. An epoch has each picture
twice, under two names, so that there are enough batches.
Kept out: packing; reading from disk (the store is read once before each run); starting workers and
the first two batches; the tail of an epoch.
Reproduce: ``scripts/bench decoded_cache --data FOLDER``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from harness import Benchmark, Case, Context, Goal, Runs, main
from harness.epoch import batch_size
from harness.figures import BATCH, SIDE, WORKERS
from harness.training import Form

import sharedds

_FORM = Form(name="photos", repeat=2)
_FIRST, _SECOND = "img/s, first epoch", "img/s, second epoch"
_PLAIN, _MEMORY, _FILE = "no cache", "cache in memory", "cache in a file"


def _rate(loader: Any) -> float:
    """Read an epoch; return images a second in the middle of it."""
    begin, end = WORKERS, max(WORKERS + 1, len(loader) * 3 // 4)
    images, began, rate = 0, 0.0, 0.0
    for number, (pictures, _) in enumerate(loader, 1):
        images += len(pictures)
        if number == begin:
            began, images = time.perf_counter(), 0
        elif number == end:
            rate = images / (time.perf_counter() - began)
    return rate


def _room(store: str) -> int:
    """Bytes that all decoded pictures take, and a little more."""
    room = 1 << 20
    for sample in sharedds.ImageDataset(store):
        room += sample[0].numel() + 256
    return room


def _running(name: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        store = str(_FORM.store(context))
        with open(store, "rb") as file:
            while file.read(4 << 20):
                pass
        dataset = sharedds.ImageDataset(
            store,
            view=sharedds.RandomResizedCrop(SIDE, flip=0.5),
            cache=None if name == _PLAIN else _room(store),
            cache_folder=context.scratch if name == _FILE else None,
        )
        loader = sharedds.build_loader(
            dataset, batch_size=batch_size(len(dataset)), shuffle=True, num_workers=WORKERS
        )
        figures = {figure: _rate(loader) for figure in (_FIRST, _SECOND)}
        stats = loader.stats().cache
        if stats is not None and stats.hits < len(dataset):
            raise SystemExit(f"{stats.hits} of {len(dataset)} pictures came from the cache")
        return figures

    return run


def _second_over(name: str, other: str, figure: str) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        pairs = zip(runs[name][_SECOND], runs[other][figure], strict=True)
        return [second / first for second, first in pairs]

    return values


BENCHMARK = Benchmark(
    file=__file__,
    question=f"How fast is an epoch of decoded pictures, in batches of {BATCH}, against decoding?",
    cases=tuple(Case(name=name, run=_running(name)) for name in (_PLAIN, _MEMORY, _FILE)),
    goals=tuple(
        Goal(
            text=f"{name}: img/s of the second epoch over {what}",
            values=_second_over(name, other, figure),
            target=target,
            needs=(name, other),
        )
        for name in (_MEMORY, _FILE)
        for what, other, figure, target in (
            ("the first", name, _FIRST, 4.0),
            ("that without a cache", _PLAIN, _SECOND, 2.0),
        )
    ),
    prepare=_FORM.prepare,
)

if __name__ == "__main__":
    main(BENCHMARK)
