"""Is what ``bench`` says true, and is what ``tune`` chooses never slower?

Measured: on a store of the photos with a random crop: the samples per second that ``bench``
expects of 2 and 4 workers when it has seen one, against what the loader then gives with as many;
and, in ten runs of ``tune``, the rate of the plan that was taken over that of the default plan,
in four pairs of trials afterwards (1 where the default plan was taken itself).
Kept out: packing; starting the workers.
Reproduce: ``scripts/bench advice --data FOLDER`` (a quarter of an hour).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import Benchmark, Case, Context, Goal, Runs, main

from sharedds import bench, pack, tune
from sharedds.diagnose.target import load_target
from sharedds.diagnose.trial import TrialOptions, run_trials

_STORE = "photos.lmdb"
_BATCH, _COUNTS = 32, (2, 4)
_QUICK_BATCH = 4  # an epoch of one batch would start the workers for each
_SECONDS, _TUNING, _PAIRS = 8.0, 60.0, 4
_FACTOR = "times what is expected, or the other way round: {} workers"
_RATIO = "rate over that of the default plan"
_BENCH, _TUNE = "bench, then other workers", "tune, then pairs"


def crop(image: torch.Tensor) -> torch.Tensor:
    """A random square of 224 pixels, at times mirrored; (3, 224, 224) uint8."""
    top, left = (int(torch.randint(0, max(1, side - 223), ())) for side in image.shape[-2:])
    part = image[..., top : top + 224, left : left + 224]
    part = torch.nn.functional.pad(part, (0, 224 - part.shape[-1], 0, 224 - part.shape[-2]))
    return part.flip(-1) if torch.rand(()) < 0.5 else part


def _prepare(context: Context) -> None:
    pack(context.data, context.work / _STORE, check="header", progress=False)


def _batch_size(context: Context) -> int:
    return _QUICK_BATCH if context.quick else _BATCH


def _rates(context: Context, settings: list[dict[str, Any]], seconds: float) -> list[float]:
    target = load_target(str(context.work / _STORE), transform=f"{__file__}:crop")
    size = _batch_size(context)
    options = [TrialOptions(batch_size=size, seconds=seconds, **each) for each in settings]
    trials = run_trials(target, options)
    for trial in trials:
        if trial.error is not None:
            raise SystemExit(trial.error)
    return [trial.samples / trial.seconds for trial in trials]


def _expected(context: Context) -> Mapping[str, float]:
    seconds = 0.3 if context.quick else _SECONDS
    report = bench(
        str(context.work / _STORE),
        num_workers=1,
        batch_size=_batch_size(context),
        seconds=seconds,
        transform=f"{__file__}:crop",
        progress=False,
    )
    expected = dict(report.verdict.expected)
    counts = [count for count in _COUNTS if count in expected][: 1 if context.quick else None]
    measured = _rates(context, [{"num_workers": count} for count in counts], seconds)
    ratios = [rate / expected[count] for count, rate in zip(counts, measured, strict=True)]
    return {
        _FACTOR.format(count): max(ratio, 1 / ratio)
        for count, ratio in zip(counts, ratios, strict=True)
    }


def _chosen(context: Context) -> Mapping[str, float]:
    os.environ["SHAREDDS_CACHE"] = str(context.scratch)
    report = tune(
        str(context.work / _STORE),
        batch_size=_BATCH,
        seconds=_TUNING,
        transform=f"{__file__}:crop",
        dry_run=True,
        progress=False,
        seed=int.from_bytes(os.urandom(4)),
    )
    if report.chosen == report.default:
        return {_RATIO: 1.0}
    pair = [report.chosen.arguments(), report.default.arguments()]
    ratios = []
    for number in range(_PAIRS):
        first, second = _rates(context, pair[:: 1 if number % 2 == 0 else -1], _SECONDS / 2)
        ratios.append(first / second if number % 2 == 0 else second / first)
    return {_RATIO: statistics.median(ratios)}


def _values(case: str, figure: str) -> Callable[[Runs], list[float]]:
    return lambda runs: runs[case][figure]


BENCHMARK = Benchmark(
    quick_cases=1,
    file=__file__,
    question="Is what bench says true, and is what tune chooses never slower?",
    prepare=_prepare,
    cases=(
        Case(name=_BENCH, run=_expected, rounds=3),
        Case(name=_TUNE, run=_chosen),
    ),
    goals=(
        *(
            Goal(
                text=f"rate measured {_FACTOR.format(count)}",
                values=_values(_BENCH, _FACTOR.format(count)),
                target=1.25,
                at_least=False,
                needs=(_BENCH,),
            )
            for count in _COUNTS
        ),
        Goal(
            text="least rate of the plan that tune took over that of the default plan, ten runs",
            values=lambda runs: [min(runs[_TUNE][_RATIO])],
            target=0.97,
            needs=(_TUNE,),
        ),
    ),
    rounds=10,
)

if __name__ == "__main__":
    main(BENCHMARK)
