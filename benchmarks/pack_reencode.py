"""How fast are pictures encoded anew while packing, against the rivals' writers?

Measured: decode, shrink to at most 512 pixels (antialiased), encode as JPEG of quality 90 with
4:2:0, write, sync; and the same with 256 x 256 pixels stored as they are (scaled to cover, the
middle cut out). From the first look at the folder to the end of the sync. The rivals get the same
work done by Pillow (``thumbnail``, ``save``; ``draft``, ``fit``), each as many ways as it offers:
one process, and two where its writer or its documentation has them.
Kept out: the start of interpreters and imports (except those of worker processes); reading the
source from disk.
Reproduce: ``scripts/bench pack_reencode [--data FOLDER] [--peers PYTHON]``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from harness import Benchmark, Case, Context, Goal, Stopwatch, main, ratios, read_all, sync

from sharedds.ingest import pack

_RATE = "img/s, synced"
_CPU = "ms CPU an image"
_RAW = ", raw 256x256"


def pack_store(**options: Any) -> Callable[[Context], Mapping[str, float]]:
    """Return what packs with the pictures encoded anew in this way."""

    def run(context: Context) -> Mapping[str, float]:
        read_all(context.data)
        os.sync()
        watch = Stopwatch()
        report = pack(context.data, context.scratch / "out.lmdb", progress=False, **options)
        sync(context.scratch)
        return {
            _RATE: report.samples / watch.seconds,
            _CPU: watch.cpu_seconds * 1e3 / report.samples,
            "MB on disk": report.bytes / 1e6,
        }

    return run


_SCRIPTS = {
    "HF datasets": "write_hf.py",
    "ArrayRecord": "write_array_record.py",
    "MDS": "write_mds.py",
}


def _rivals(work: str, ending: str) -> tuple[Case, ...]:
    return tuple(
        Case(
            name=f"{name} + Pillow, {n} process{'es' if n > 1 else ''}{ending}",
            rival=(script, work, str(n)),
        )
        for name, script in _SCRIPTS.items()
        for n in (1, 2)
    )


_JPEG, _PIXELS = _rivals("shrink", ""), _rivals("pixels", _RAW)
_ALL, _ALL_RAW = (tuple(case.name for case in cases) for cases in (_JPEG, _PIXELS))
_ONE, _ONE_RAW = (
    tuple(name for name in names if "1 process" in name) for names in (_ALL, _ALL_RAW)
)


def _goal(text: str, ours: str, rivals: tuple[str, ...], target: float) -> Goal:
    return Goal(
        text=text,
        values=lambda runs: ratios(runs, ours, _RATE, *rivals),
        target=target,
        needs=rivals,
    )


BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are pictures encoded anew while packing?",
    cases=(
        Case(name="sharedds", run=pack_store(codec="jpeg", max_side=512, quality=90)),
        *_JPEG,
        Case(name=f"sharedds{_RAW}", run=pack_store(codec="raw", size=(256, 256))),
        *_PIXELS,
    ),
    goals=(
        _goal("rate over the best rival, 1 or 2 processes", "sharedds", _ALL, 1.3),
        _goal("rate over the best rival as it comes (1 process)", "sharedds", _ONE, 1.3),
        _goal(
            f"rate over the best rival, 1 or 2 processes{_RAW}", f"sharedds{_RAW}", _ALL_RAW, 1.0
        ),
        _goal(
            f"rate over the best rival as it comes (1 process){_RAW}",
            f"sharedds{_RAW}",
            _ONE_RAW,
            1.3,
        ),
    ),
    rounds=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
