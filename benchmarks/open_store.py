"""Does opening a store take longer when it holds more samples?

Measured: in a process that has just imported the package, opening a store that holds one int64 for
each sample, and reading the one of the sample in the middle; then the private memory (USS) of that
process, less what it was before opening. Once from the page cache, once with the file evicted from
it.
Kept out: the start of the interpreter and the import (given as a figure of its own); writing the
stores.
Reproduce: ``scripts/bench open_store``. The stores are written once, sample by sample.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import Benchmark, Case, Context, Goal, Runs, evict, main

from sharedds.store import StoreWriter

_FEW, _MANY = 1_000, 10_000_000
_TIME = "ms to open and read a label"
_CHILD = """
import sys, time, json
begin = time.perf_counter()
from sharedds.store import Store
from sharedds.memory import process_memory
imported = time.perf_counter()
before = process_memory()
started = time.perf_counter()
store = Store(sys.argv[1])
opened = time.perf_counter()
middle = len(store) // 2
right = int(store.column("label")[middle]) == middle
ended = time.perf_counter()
after = process_memory()
assert right
figures = {
    "ms to open and read a label": (ended - started) * 1e3,
    "ms of it to open": (opened - started) * 1e3,
    "ms to import": (imported - begin) * 1e3,
}
if after.uss is not None:
    figures["MB USS more after it"] = (after.uss - before.uss) / 1e6
    figures["MB of it not file pages"] = (after.anonymous - before.anonymous) / 1e6
print(json.dumps(figures))
"""


def _path(context: Context, count: int) -> Path:
    return context.work / f"{count}.lmdb"


def prepare(context: Context) -> None:
    """Write both stores."""
    for count in (_FEW, _MANY):
        rows = count if not context.quick or count == _FEW else 20_000
        with StoreWriter(_path(context, count), schema={"label": "int64"}) as writer:
            for number in range(rows):
                writer.add({"label": number})


def _opening(count: int, *, cold: bool) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        path = _path(context, count)
        if cold:
            evict(path)
        else:
            path.read_bytes()
        command = [sys.executable, "-c", _CHILD, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    return run


def _name(count: int, cold: bool) -> str:
    return f"{count:,} samples, {'evicted' if cold else 'in the page cache'}"


def _extra(runs: Runs) -> list[float]:
    pairs = zip(runs[_name(_FEW, False)][_TIME], runs[_name(_MANY, False)][_TIME], strict=True)
    return [many - few for few, many in pairs]


BENCHMARK = Benchmark(
    file=__file__,
    question="Does opening a store take longer when it holds more samples?",
    cases=tuple(
        Case(name=_name(count, cold), run=_opening(count, cold=cold))
        for cold in (False, True)
        for count in (_FEW, _MANY)
    ),
    goals=(
        Goal(
            text=f"ms to open {_MANY:,} samples and read a label",
            values=lambda runs: runs[_name(_MANY, False)][_TIME],
            target=50,
            at_least=False,
        ),
        Goal(
            text=f"ms more for {_MANY:,} samples than for {_FEW:,} (give or take 1 ms)",
            values=_extra,
            target=1,
            at_least=False,
        ),
        Goal(
            text=f"ms to open {_MANY:,} samples and read a label, evicted",
            values=lambda runs: runs[_name(_MANY, True)][_TIME],
            target=50,
            at_least=False,
        ),
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=7,
)

if __name__ == "__main__":
    main(BENCHMARK)
