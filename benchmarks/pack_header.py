"""How fast are files copied into a store, against copying the folder and the rivals' writers?

Measured: from the first look at the folder to the moment everything is on disk (a final ``sync
-f`` for all; a store is synced before it gets its name). Pictures keep their bytes and only their
headers are looked at; the rivals store the bytes without looking. Rates are of pictures.
Kept out: the start of the interpreter and imports; reading the source from disk (read once
before).
Reproduce: ``scripts/bench pack_header [--data FOLDER] [--peers PYTHON]``; the rivals are set up in
``benchmarks/rivals/``. Every other case runs on its own as well.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from harness import Benchmark, Case, Context, Goal, Stopwatch, main, ratios, read_all, sync

from sharedds.ingest import pack

_RATE = "img/s, synced"


def pack_store(context: Context) -> Mapping[str, float]:
    """Pack with ``check="header"``."""
    read_all(context.data)
    os.sync()
    watch = Stopwatch()
    report = pack(context.data, context.scratch / "out.lmdb", check="header", progress=False)
    written = watch.seconds
    sync(context.scratch)
    synced, cpu = watch.seconds, watch.cpu_seconds
    return {
        _RATE: report.samples / synced,
        "img/s before the sync": report.samples / written,
        "ms CPU an image": cpu * 1e3 / report.samples,
        "MB on disk": report.bytes / 1e6,
    }


def copy_folder(context: Context) -> Mapping[str, float]:
    """Copy the folder with ``cp -r``."""
    files = len(read_all(context.data))
    os.sync()
    watch = Stopwatch()
    subprocess.run(["cp", "-r", str(context.data), str(context.scratch / "copy")], check=True)
    written = watch.seconds
    sync(context.scratch)
    synced, cpu = watch.seconds, watch.cpu_seconds
    return {
        _RATE: files / synced,
        "img/s before the sync": files / written,
        "ms CPU an image": cpu * 1e3 / files,
    }


_RIVALS = {
    "MDS": "write_mds.py",
    "HF datasets": "write_hf.py",
    "WebDataset": "write_webdataset.py",
    "ArrayRecord": "write_array_record.py",
}

BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are files copied into a store?",
    cases=(
        Case(name="sharedds", run=pack_store),
        Case(name="cp -r", run=copy_folder),
        *(Case(name=name, rival=(script, "copy", "1")) for name, script in _RIVALS.items()),
    ),
    goals=(
        Goal(
            text="rate over that of cp -r",
            values=lambda runs: ratios(runs, "sharedds", _RATE, "cp -r"),
            target=0.5,
        ),
        Goal(
            text="rate over the best of MDS, HF datasets, WebDataset",
            values=lambda runs: ratios(runs, "sharedds", _RATE, "MDS", "HF datasets", "WebDataset"),
            target=1.0,
            needs=("MDS", "HF datasets", "WebDataset"),
        ),
    ),
)

if __name__ == "__main__":
    main(BENCHMARK)
