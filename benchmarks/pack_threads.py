"""Threads or processes for packing: which way gets proved pictures to the writer faster?

Measured: pictures a second through everything before the writer: read the file, look at its
header, decode it whole as proof, hand the bytes to one consumer in order, which takes their
checksum as the writer does. With the threads that ``pack`` uses, and with the same function in
processes that send the bytes back in batches of 8. And ``pack`` as a whole with 1, 2 and 3
threads.
Kept out: imports, the start of the processes (they are warmed up), reading the source from disk.
Reproduce: ``scripts/bench pack_threads [--data FOLDER]``.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor

import xxhash
from harness import Benchmark, Case, Context, Goal, Stopwatch, main, ratios, read_all, sync

from sharedds.ingest import ImageRecipe, pack
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.images.prepare import ImageResult, Ingester

_RATE = "img/s"
_CPU = "ms CPU an image"
_INGESTER = Ingester(ImageRecipe())  # one for each process


def _consume(results: Iterable[ImageResult]) -> int:
    count = 0
    for result in results:
        if isinstance(result.value, bytes):
            xxhash.xxh3_64_intdigest(result.value)
            count += 1
    return count


def _figures(watch: Stopwatch, count: int) -> dict[str, float]:
    return {_RATE: count / watch.seconds, _CPU: watch.cpu_seconds * 1e3 / count}


def _threads(workers: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        items = [(os.fsencode(path), path.stat().st_size) for path in read_all(context.data)]
        watch = Stopwatch()
        return _figures(watch, _consume(run_in_order(_INGESTER, items, workers=workers)))

    return run


def _prepare_one(path: bytes) -> ImageResult:
    return _INGESTER(path)


def in_processes(context: Context) -> Mapping[str, float]:
    """Prepare in two processes."""
    paths = [os.fsencode(path) for path in read_all(context.data)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        _consume(pool.map(_prepare_one, paths[:16], chunksize=8))
        watch = Stopwatch()
        count = _consume(pool.map(_prepare_one, paths, chunksize=8))
        rate = count / watch.seconds
    return {_RATE: rate, _CPU: watch.cpu_seconds * 1e3 / count}


def _whole(workers: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        read_all(context.data)
        os.sync()
        watch = Stopwatch()
        report = pack(context.data, context.scratch / "out.lmdb", workers=workers, progress=False)
        sync(context.scratch)
        return _figures(watch, report.samples)

    return run


BENCHMARK = Benchmark(
    file=__file__,
    question="Which way gets proved pictures to the writer faster: threads or processes?",
    cases=(
        Case(name="1 thread", run=_threads(1)),
        Case(name="2 threads", run=_threads(2)),
        Case(name="3 threads", run=_threads(3)),
        Case(name="2 processes", run=in_processes),
        Case(name="whole pack, 1 thread", run=_whole(1)),
        Case(name="whole pack, 2 threads", run=_whole(2)),
        Case(name="whole pack, 3 threads", run=_whole(3)),
    ),
    goals=(
        Goal(
            text="rate of 2 threads over 2 processes",
            values=lambda runs: ratios(runs, "2 threads", _RATE, "2 processes"),
            target=0.95,
        ),
    ),
)

if __name__ == "__main__":
    main(BENCHMARK)
