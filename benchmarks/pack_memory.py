"""Does the memory of packing depend on the number of files?

Measured: the process that packs, with its default check, looked at every 20 ms in
``/proc/self/smaps_rollup``: the peak of its anonymous memory (heap and stacks: what cannot be
taken back), the peak of its PSS (with mapped files, whose pages the kernel takes back when it
needs them), and ``ru_maxrss`` at the end. Once with 1,000 files, once with 100,000, in two ways:
hard links to the same pictures (so that every picture has many duplicates), and small pictures
that all differ.
Kept out: nothing; the figures are those of the whole process, interpreter and imports included.
Reproduce: ``scripts/bench pack_memory [--data FOLDER]``; it needs room for 100 times the data.
"""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import Benchmark, Case, Context, Goal, Runs, main

from sharedds.ingest import pack
from sharedds.memory import process_memory

_FEW, _MANY = 1_000, 100_000
_QUICK = 20  # so many times fewer in quick mode, and the larger number 20 times fewer again
_ANONYMOUS, _PSS, _RSS = "MB anonymous, peak", "MB PSS, peak", "MB ru_maxrss"


def _count(context: Context, count: int) -> int:
    return count if not context.quick else 20 if count == _FEW else 200


def _link(context: Context, target: Path, count: int) -> None:
    """Fill a folder with hard links to copies of the pictures, in class folders of 1,000."""
    copies = context.work / "copies"
    if not copies.exists():
        shutil.copytree(context.data, copies)
    sources = sorted(path for path in copies.rglob("*") if path.is_file())
    for number in range(count):
        folder = target / f"class{number // 1000:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(sources[number % len(sources)], folder / f"{number:06d}.jpg")


def _differ(context: Context, target: Path, count: int) -> None:
    """Fill a folder with small pictures that differ in a comment."""
    smallest = min(
        (p for p in context.data.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    picture = smallest.read_bytes()
    for number in range(count):
        folder = target / f"class{number // 1000:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        comment = b"%08d" % number
        head = b"\xff\xd8\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        (folder / f"{number:06d}.jpg").write_bytes(head + picture[2:])


def _watch(done: threading.Event, peaks: dict[str, float]) -> None:
    while not done.wait(0.02):
        memory = process_memory()
        peaks[_ANONYMOUS] = max(peaks[_ANONYMOUS], (memory.anonymous or 0) / 1e6)
        peaks[_PSS] = max(peaks[_PSS], (memory.pss or 0) / 1e6)


def _packing(
    fill: Callable[[Context, Path, int], None], count: int
) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        folder = context.scratch / "files"
        pid = os.fork()  # whatever the preparation needs is not counted
        if pid == 0:
            fill(context, folder, _count(context, count))
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("the files could not be made")
        peaks = {_ANONYMOUS: 0.0, _PSS: 0.0}
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(done, peaks))
        watcher.start()
        started = time.perf_counter()
        report = pack(folder, context.scratch / "out.lmdb", progress=False)
        seconds = time.perf_counter() - started
        done.set()
        watcher.join()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        return {**peaks, _RSS: most, "img/s": report.samples / seconds}

    return run


def _more(few: str, many: str, figure: str) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        pairs = zip(runs[few][figure], runs[many][figure], strict=True)
        return [large - small for small, large in pairs]

    return values


_CASES = {
    ("hard links", _FEW): _link,
    ("hard links", _MANY): _link,
    ("small ones that differ", _FEW): _differ,
    ("small ones that differ", _MANY): _differ,
}

BENCHMARK = Benchmark(
    file=__file__,
    question="Does the memory of packing depend on the number of files?",
    cases=tuple(
        Case(name=f"{count:,} files, {kind}", run=_packing(fill, count))
        for (kind, count), fill in _CASES.items()
    ),
    goals=tuple(
        Goal(
            text=f"{figure}: more for {_MANY:,} files than for {_FEW:,}, {kind}",
            values=_more(f"{_FEW:,} files, {kind}", f"{_MANY:,} files, {kind}", figure),
            target=20,
            at_least=False,
        )
        for kind in ("hard links", "small ones that differ")
        for figure in (_ANONYMOUS, _PSS)
    ),
    rounds=2,
)

if __name__ == "__main__":
    main(BENCHMARK)
