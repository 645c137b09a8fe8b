"""Do two workers read regions of slides twice as fast as one, and what do 200 slides cost a worker?

Measured: 200 slides of 4,096² pixels with levels and tissue, made of photos (``--data`` names class
folders; without, parts are drawn), JPEG tiles of 256², quality 90. ``SlideDataset`` with
``UniformPatches(512)``, batches of 32: regions/s with one worker and with two, over at least 10 s
after the first 10 batches. Then the private memory (USS) of the worker that has most, after 2,000
regions and after 20,000, in random order over all slides, with the default cache of decoded tiles.
Kept out: packing; starting workers.
Reproduce: ``scripts/bench slide_workers --data FOLDER``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Benchmark, Case, Context, Goal, Runs, main
from harness.mosaic import mosaic_of
from harness.slides import TILE
from harness.weigh import tree

from sharedds import SlideDataset, UniformPatches, build_loader, pack

_RATE, _FEW, _MANY = "regions/s", "MB USS, early", "MB USS, late"
_BATCH = 32
_CACHE = 64.0  # MiB of decoded tiles that a worker may keep


def prepare(context: Context) -> None:
    """Make the slides and pack them."""
    folder = context.work / "slides"
    folder.mkdir()
    count, side = (6, 600) if context.quick else (200, 4_096)
    rng = np.random.default_rng(0)
    for number in range(count):
        picture = mosaic_of(context.data, side, rng, parts=24)
        picture.tiffsave(
            str(folder / f"{number:03d}.tif"),
            tile=True,
            tile_width=TILE,
            tile_height=TILE,
            compression="jpeg",
            Q=90,
            pyramid=True,
        )
    pack(folder, _store(context), kind="slide", codec="keep", progress=False)


def _store(context: Context) -> Path:
    return context.work / "slides.lmdb"


def _batches(context: Context, workers: int) -> Iterator[Any]:
    data = SlideDataset(_store(context), patch=UniformPatches(512, per_case=100))
    loader = build_loader(
        data, batch_size=_BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )
    while True:
        yield from loader


def _rate(workers: int) -> Case:
    def run(context: Context) -> Mapping[str, float]:
        batches = _batches(context, workers)
        for _ in range(10 if not context.quick else 1):
            next(batches)
        begin, count, spent = time.perf_counter(), 0, 0.0
        while spent < (0.5 if context.quick else 10):
            count += len(next(batches)["image"])
            spent = time.perf_counter() - begin
        return {_RATE: count / spent}

    return Case(name=f"{workers} workers" if workers > 1 else "1 worker", run=run)


def _private() -> float:
    """Return the MB of private memory of the process below this one that has most."""
    most = 0
    for pid in tree()[1:]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib = [int(x.split()[1]) for x in lines if x.startswith(("Private_Clean", "Private_Dirty"))]
        most = max(most, sum(kib))
    return most * 1024 / 1e6


def _memory(context: Context) -> Mapping[str, float]:
    batches = _batches(context, 2)
    early, late = (3, 9) if context.quick else (2_000 // _BATCH, 20_000 // _BATCH)
    figures = {}
    for name, more in ((_FEW, early), (_MANY, late - early)):
        for _ in itertools.islice(batches, more):
            pass
        figures[name] = _private()
    return figures


def _twice(runs: Runs) -> list[float]:
    pairs = zip(runs["2 workers"][_RATE], runs["1 worker"][_RATE], strict=True)
    return [two / one for two, one in pairs]


def _grown(runs: Runs) -> list[float]:
    found = runs["memory"]
    return [late - early for early, late in zip(found[_FEW], found[_MANY], strict=True)]


BENCHMARK = Benchmark(
    file=__file__,
    question="Do two workers read regions of slides twice as fast as one, in flat memory?",
    cases=(_rate(1), _rate(2), Case(name="memory", run=_memory)),
    goals=(
        Goal(
            text="regions/s, 2 workers over 1",
            values=_twice,
            target=1.8,
            needs=("1 worker", "2 workers"),
        ),
        Goal(
            text="MB USS of a worker that 18,000 more regions of 200 slides add",
            values=_grown,
            target=20.0 + _CACHE * 1.048576,
            at_least=False,
            needs=("memory",),
        ),
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=3,
    quick_cases=1,
)

if __name__ == "__main__":
    main(BENCHMARK)
