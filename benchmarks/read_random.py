"""How long does one random read from a warm store take, against LMDB's own ``get``?

Measured: the time of each single call for records of 110 kB in random order, median over the calls
of a run: ``Store.read``, which compares the checksum and returns a view of the file; the checksum
by itself over records it has not just read; and LMDB's ``Transaction.get`` with ``buffers=True``
from the same file (a store is an LMDB file), which returns a view and looks at nothing, alone and
with the same checksum.
Kept out: opening, the first touch of every page (each record is read once before), the disk.
Reproduce: ``scripts/bench read_random``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash
from harness import Benchmark, Case, Context, Goal, Runs, main

from sharedds.store import Store, StoreWriter
from sharedds.store.layout import CHUNK_KEY, CHUNKS

_BYTES = 110_000
_TIME = "µs for a read, median"


def _path(context: Context) -> Path:
    return context.work / "records.lmdb"


def _count(context: Context) -> int:
    return 50 if context.quick else 5_000


def prepare(context: Context) -> None:
    """Write a store of random records."""
    rng = np.random.default_rng(0)
    with StoreWriter(_path(context), schema={"image": "raw"}) as writer:
        for _ in range(_count(context)):
            writer.add({"image": np.frombuffer(rng.bytes(_BYTES), np.uint8)})


def _order(context: Context) -> list[int]:
    return [int(i) for i in np.random.default_rng(1).permutation(_count(context))]


def _time(call: Callable[[int], object], order: Iterable[int]) -> dict[str, float]:
    spent = []
    for index in order:
        started = time.perf_counter_ns()
        call(index)
        spent.append(time.perf_counter_ns() - started)
    spent.sort()
    return {
        _TIME: statistics.median(spent) / 1e3,
        "µs for a read, 99th percentile": spent[len(spent) * 99 // 100] / 1e3,
    }


def read_store(context: Context) -> Mapping[str, float]:
    """Time ``Store.read``."""
    store = Store(_path(context))
    for index in range(len(store)):
        store.read("image", index)
    return _time(lambda index: store.read("image", index), _order(context))


def checksum_alone(context: Context) -> Mapping[str, float]:
    """Time the checksum over views that are there already, each last seen a whole round ago."""
    store = Store(_path(context))
    views = [store.read("image", index) for index in range(len(store))]
    return _time(lambda index: xxhash.xxh3_64_intdigest(views[index]), _order(context))


def _with_lmdb(context: Context, use: Callable[[Any], object]) -> dict[str, float]:
    env = lmdb.open(str(_path(context)), subdir=False, readonly=True, lock=False, max_dbs=3)
    chunks = env.open_db(CHUNKS.encode(), create=False)
    with env.begin(db=chunks, buffers=True) as transaction:
        get: Callable[[bytes], Any] = transaction.get

        def read(index: int) -> None:
            use(get(CHUNK_KEY.pack(index, 0, 0, 0)))

        for index in range(_count(context)):
            xxhash.xxh3_64_intdigest(get(CHUNK_KEY.pack(index, 0, 0, 0)))
        return _time(read, _order(context))


def read_lmdb(context: Context) -> Mapping[str, float]:
    """Time ``Transaction.get``."""
    return _with_lmdb(context, lambda data: data)


def read_lmdb_checked(context: Context) -> Mapping[str, float]:
    """Time ``Transaction.get`` and a checksum of what it returned."""
    return _with_lmdb(context, xxhash.xxh3_64_intdigest)


def _without(runs: Runs) -> list[float]:
    pairs = zip(runs["sharedds"][_TIME], runs["the checksum alone"][_TIME], strict=True)
    return [whole - checksum for whole, checksum in pairs]


BENCHMARK = Benchmark(
    file=__file__,
    question="How long does one random read of 110 kB from a warm store take?",
    cases=(
        Case(name="sharedds", run=read_store),
        Case(name="the checksum alone", run=checksum_alone),
        Case(name="LMDB get, buffers=True", run=read_lmdb),
        Case(name="LMDB get, buffers=True, and the checksum", run=read_lmdb_checked),
    ),
    goals=(
        Goal(
            text="µs for a read, checksum included",
            values=lambda runs: runs["sharedds"][_TIME],
            target=20,
            at_least=False,
        ),
        Goal(text="µs for a read less the checksum", values=_without, target=20, at_least=False),
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=7,
)

if __name__ == "__main__":
    main(BENCHMARK)
