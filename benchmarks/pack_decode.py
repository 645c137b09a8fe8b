"""What does packing with proof (the default check) reach of what all cores can decode?

Measured: pictures a second of ``pack`` with its default check, which decodes every picture, and of
simplejpeg decoding the same files from memory to full RGB arrays that are thrown away, with one
process and with one thread for each core. The pack includes the final sync.
Kept out: imports, reading the files (once before, for all cases), the start of the processes.
Reproduce: ``scripts/bench pack_decode [--data FOLDER]``.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import simplejpeg
from harness import Benchmark, Case, Context, Goal, Stopwatch, main, ratios, read_all, sync
from harness.machine import cores

from sharedds.ingest import pack

_RATE = "img/s"
_CPU = "ms CPU an image"


def pack_store(context: Context) -> Mapping[str, float]:
    """Pack with the default check."""
    read_all(context.data)
    os.sync()
    watch = Stopwatch()
    report = pack(context.data, context.scratch / "out.lmdb", progress=False)
    sync(context.scratch)
    return {_RATE: report.samples / watch.seconds, _CPU: watch.cpu_seconds * 1e3 / report.samples}


def _load(context: Context) -> list[bytes]:
    return [path.read_bytes() for path in read_all(context.data)]


def _work(pictures: list[bytes], turn: Any, ready: Any) -> None:
    simplejpeg.decode_jpeg(pictures[0])
    ready.wait()
    while True:
        with turn.get_lock():
            at = turn.value
            turn.value += 1
        if at >= len(pictures):
            return
        simplejpeg.decode_jpeg(pictures[at])


def decode_in_processes(context: Context) -> Mapping[str, float]:
    """Decode in forked processes, each taking the next picture."""
    pictures = _load(context)
    fork = multiprocessing.get_context("fork")
    turn, ready = fork.Value("q", 0), fork.Barrier(cores() + 1)
    processes = [fork.Process(target=_work, args=(pictures, turn, ready)) for _ in range(cores())]
    for process in processes:
        process.start()
    ready.wait()
    watch = Stopwatch()
    for process in processes:
        process.join()
    return {_RATE: len(pictures) / watch.seconds, _CPU: watch.cpu_seconds * 1e3 / len(pictures)}


def decode_in_threads(context: Context) -> Mapping[str, float]:
    """Decode in threads."""

    def decode(data: bytes) -> None:
        simplejpeg.decode_jpeg(data)

    pictures = _load(context)
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(decode, pictures[: cores()]))
        watch = Stopwatch()
        list(pool.map(decode, pictures))
        return {_RATE: len(pictures) / watch.seconds, _CPU: watch.cpu_seconds * 1e3 / len(pictures)}


_PROCESSES, _THREADS = "decode only, a process for each core", "decode only, a thread for each core"

BENCHMARK = Benchmark(
    file=__file__,
    question="What does packing with proof reach of what all cores can decode?",
    cases=(
        Case(name="sharedds", run=pack_store),
        Case(name=_PROCESSES, run=decode_in_processes),
        Case(name=_THREADS, run=decode_in_threads),
    ),
    goals=(
        Goal(
            text="rate of packing over decoding alone, the better way",
            values=lambda runs: ratios(runs, "sharedds", _RATE, _PROCESSES, _THREADS),
            target=0.9,
        ),
    ),
)

if __name__ == "__main__":
    main(BENCHMARK)
