"""How fast are pictures shrunk and encoded anew while packing, against the rivals' writers?

Measured: decode, shrink to at most 512 pixels (antialiased), encode as JPEG of quality 90 with
4:2:0, write, sync; from the first look at the folder to the end of the sync. The rivals get the
same work done by Pillow (``thumbnail``, ``save``), each as many ways as it offers: one process,
and two where its writer or its documentation has them.
Kept out: the start of interpreters and imports (except those of worker processes); reading the
source from disk.
Reproduce: ``scripts/bench pack_reencode [--data FOLDER] [--peers PYTHON]``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness import Benchmark, Case, Context, Goal, Stopwatch, main, ratios, read_all, sync

from sharedds.ingest import pack

_RATE = "img/s, synced"
_CPU = "ms CPU an image"


def pack_store(context: Context) -> Mapping[str, float]:
    """Pack with the pictures encoded anew."""
    read_all(context.data)
    os.sync()
    watch = Stopwatch()
    out = context.scratch / "out.lmdb"
    report = pack(context.data, out, codec="jpeg", max_side=512, quality=90, progress=False)
    sync(context.scratch)
    return {
        _RATE: report.samples / watch.seconds,
        _CPU: watch.cpu_seconds * 1e3 / report.samples,
        "MB on disk": report.bytes / 1e6,
    }


_SCRIPTS = {
    "HF datasets": "write_hf.py",
    "ArrayRecord": "write_array_record.py",
    "MDS": "write_mds.py",
}
_RIVALS = tuple(
    Case(
        name=f"{name} + Pillow, {n} process{'es' if n > 1 else ''}",
        rival=(script, "shrink", str(n)),
    )
    for name, script in _SCRIPTS.items()
    for n in (1, 2)
)
_ALL = tuple(case.name for case in _RIVALS)
_ONE = tuple(name for name in _ALL if name.endswith("1 process"))

BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are pictures shrunk and encoded anew while packing?",
    cases=(Case(name="sharedds", run=pack_store), *_RIVALS),
    goals=(
        Goal(
            text="rate over the best rival, 1 or 2 processes",
            values=lambda runs: ratios(runs, "sharedds", _RATE, *_ALL),
            target=1.3,
            needs=_ALL,
        ),
        Goal(
            text="rate over the best rival as it comes (1 process)",
            values=lambda runs: ratios(runs, "sharedds", _RATE, *_ONE),
            target=1.3,
            needs=_ONE,
        ),
    ),
    rounds=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
