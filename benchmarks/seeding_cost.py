"""What does it cost that every sample has random numbers of its own?

Measured: wall and CPU time for each sample of a loader whose samples are one integer, batches of
64, with the global generators of ``random``, NumPy and torch seeded for each sample, for each batch
or not at all; the same where each sample draws one number from ``self.rng``, which is made when it
is first asked for; and with one loader thread, whose global generators are its own, without and
with ten operations of torch on a small tensor in each sample.
Kept out: starting the thread and the first batches; the work of a real sample, which is a hundred
to ten thousand times as long as what is measured here.
Reproduce: ``scripts/bench seeding_cost``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from harness import Benchmark, Case, Context, Goal, Runs, Stopwatch, main, ratios

from sharedds.datasets import LazyDataset
from sharedds.loader import build_loader

_SAMPLES, _QUICK = 60_000, 2_048
_BATCH = 64
_WARM = 8
_TENSOR = torch.ones(10)
_COST = "us a sample"
_CPU = "us CPU a sample"


class _Numbers(LazyDataset[int]):
    """Samples that cost nothing."""

    def load(self, item: str) -> int:
        return len(item)


class _Drawn(LazyDataset[int]):
    """Samples that draw one number from their own generator."""

    def load(self, item: str) -> int:
        return int(self.rng.integers(100))


class _Operated(LazyDataset[int]):
    """Samples that run ten operations of torch."""

    def load(self, item: str) -> int:
        tensor = _TENSOR
        for _ in range(10):
            tensor = tensor.add(1)
        return len(tensor)


def _loading(
    kind: type[LazyDataset[int]], mode: str, *, threads: int = 0
) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        count = _QUICK if context.quick else _SAMPLES
        loader = build_loader(
            kind("x" for _ in range(count)),
            batch_size=_BATCH,
            num_workers=threads,
            engine="thread" if threads else "process",
            seed_globals=mode,
            collate_fn=len,
        )
        batches = iter(loader)
        seen = sum(next(batches) for _ in range(_WARM))
        watch = Stopwatch()
        left = sum(batches)
        seconds, cpu = watch.seconds, watch.cpu_seconds
        if seen + left != count:
            raise RuntimeError(f"{seen + left} samples of {count}")
        return {_COST: seconds / left * 1e6, _CPU: cpu / left * 1e6}

    return run


def _name(what: str, mode: str) -> str:
    return f"{what}, seed_globals={mode!r}"


_PLAIN, _RNG = "no draws", "one draw from self.rng"
_THREAD, _TORCH = "no draws, one thread", "ten torch operations, one thread"
_OFF = _name(_PLAIN, "off")


def _more(case: str, base: str) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        pairs = zip(runs[case][_CPU], runs[base][_CPU], strict=True)
        return [own - without for own, without in pairs]

    return values


def _more_an_operation(runs: Runs) -> list[float]:
    seeding = _more(_name(_THREAD, "sample"), _name(_THREAD, "off"))(runs)
    both = _more(_name(_TORCH, "sample"), _name(_TORCH, "off"))(runs)
    return [(more - seed) / 10 for more, seed in zip(both, seeding, strict=True)]


BENCHMARK = Benchmark(
    quick_cases=4,
    file=__file__,
    question="What does it cost that every sample has random numbers of its own?",
    cases=(
        *(
            Case(name=_name(what, mode), run=_loading(kind, mode, threads=threads))
            for what, kind, threads in (
                (_PLAIN, _Numbers, 0),
                (_RNG, _Drawn, 0),
                (_THREAD, _Numbers, 1),
                (_TORCH, _Operated, 1),
            )
            for mode in ("off", "batch", "sample")
        ),
    ),
    goals=(
        Goal(
            text="us CPU more a sample to seed the global generators for each sample",
            values=_more(_name(_PLAIN, "sample"), _OFF),
            target=30,
            at_least=False,
        ),
        Goal(
            text="us CPU more a sample to seed the global generators for each batch",
            values=_more(_name(_PLAIN, "batch"), _OFF),
            target=4,
            at_least=False,
        ),
        Goal(
            text="us CPU more a sample for a generator of its own that draws once",
            values=_more(_name(_RNG, "off"), _OFF),
            target=15,
            at_least=False,
        ),
        Goal(
            text="us CPU more a sample in a thread to seed for each sample",
            values=_more(_name(_THREAD, "sample"), _name(_THREAD, "off")),
            target=30,
            at_least=False,
        ),
        Goal(
            text="us CPU more an operation of torch in a thread with generators of its own",
            values=_more_an_operation,
            target=10,
            at_least=False,
        ),
        Goal(
            text="times the CPU time of a sample that costs nothing, with all generators seeded",
            values=lambda runs: ratios(runs, _name(_PLAIN, "sample"), _CPU, _OFF),
            target=5,
            at_least=False,
        ),
    ),
    needs_pictures=False,
    rounds=5,
)

if __name__ == "__main__":
    main(BENCHMARK)
