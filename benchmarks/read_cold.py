"""How fast are random batches read from a store that is not in memory, against plain LMDB?

Measured: batches of 64 random records of 110 kB, every byte touched by its checksum; no record
twice in a run. ``Store.read_many`` asks the kernel for the whole batch first; LMDB's
``Transaction.get`` reads the same file (a store is an LMDB file) record by record, with its
readahead and without. As the limit, ``pread`` of the same places after asking for all of them,
without any store.
Before each run the file is evicted while nothing maps it, and mincore says that at most 1 % of it
is still in the page cache. A virtual disk may be cached by its host all the same; this is so for
all cases.
Kept out: opening, and the pages of the tree and of the tables that the first batch brings in.
Reproduce: ``scripts/bench read_cold [--work FOLDER]``; it needs 3 GB on the disk to be measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash
from harness import Benchmark, Case, Context, Goal, evict, main, ratios

from sharedds.store import Store, StoreWriter
from sharedds.store.layout import CHUNK_KEY, CHUNKS

_BYTES = 110_000
_BATCH = 64
_RATE = "records/s"


def _path(context: Context) -> Path:
    return context.work / "records.lmdb"


def _count(context: Context) -> int:
    return 400 if context.quick else 27_000


def prepare(context: Context) -> None:
    """Write a store of random records."""
    rng = np.random.default_rng(0)
    with StoreWriter(_path(context), schema={"image": "raw"}) as writer:
        for _ in range(_count(context)):
            writer.add({"image": np.frombuffer(rng.bytes(_BYTES), np.uint8)})


def _measure(context: Context, left: float, read: Callable[[list[int]], int]) -> dict[str, float]:
    """Time all batches but the first; ``read`` returns the bytes it touched."""
    batches = 4 if context.quick else 41
    order = np.random.default_rng(2).permutation(_count(context))[: batches * _BATCH]
    wanted = order.reshape(batches, _BATCH).tolist()
    read(wanted[0])
    started = time.perf_counter()
    touched = sum(read(batch) for batch in wanted[1:])
    seconds = time.perf_counter() - started
    if touched != (batches - 1) * _BATCH * _BYTES:
        raise SystemExit(f"{touched} bytes were read")
    return {
        _RATE: (batches - 1) * _BATCH / seconds,
        "% in the page cache before": left * 100,
    }


def read_store(context: Context) -> Mapping[str, float]:
    """Read with ``Store.read_many``."""
    left = evict(_path(context))
    store = Store(_path(context))
    return _measure(
        context, left, lambda batch: sum(len(data) for data in store.read_many("image", batch))
    )


def _lmdb(*, readahead: bool) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        left = evict(_path(context))
        env = lmdb.open(
            str(_path(context)),
            subdir=False,
            readonly=True,
            lock=False,
            readahead=readahead,
            max_dbs=3,
        )
        chunks = env.open_db(CHUNKS.encode(), create=False)
        with env.begin(db=chunks, buffers=True) as transaction:
            get: Callable[[bytes], Any] = transaction.get

            def read(batch: list[int]) -> int:
                touched = 0
                for index in batch:
                    data = get(CHUNK_KEY.pack(index, 0, 0, 0))
                    xxhash.xxh3_64_intdigest(data)
                    touched += len(data)
                return touched

            return _measure(context, left, read)

    return run


def read_places(context: Context) -> Mapping[str, float]:
    """Read the same places of the file, asked for first, with ``pread``."""
    places = np.asarray(Store(_path(context)).column("@entries"))[:, :2].tolist()
    left = evict(_path(context))
    descriptor = os.open(_path(context), os.O_RDONLY)

    def read(batch: list[int]) -> int:
        wanted = sorted(tuple(places[index]) for index in batch)
        for offset, length in wanted:
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
        touched = 0
        for offset, length in wanted:
            data = os.pread(descriptor, length, offset)
            xxhash.xxh3_64_intdigest(data)
            touched += len(data)
        return touched

    return _measure(context, left, read)


_READAHEAD, _PLAIN = "LMDB get, readahead", "LMDB get, readahead off"

BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are random batches read from a store that is not in memory?",
    cases=(
        Case(name="sharedds", run=read_store),
        Case(name=_READAHEAD, run=_lmdb(readahead=True)),
        Case(name=_PLAIN, run=_lmdb(readahead=False)),
        Case(name="limit: the same places, asked for, then pread", run=read_places),
    ),
    goals=(
        Goal(
            text="rate over the better of LMDB with and without readahead",
            values=lambda runs: ratios(runs, "sharedds", _RATE, _READAHEAD, _PLAIN),
            target=5,
        ),
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=5,
)

if __name__ == "__main__":
    main(BENCHMARK)
