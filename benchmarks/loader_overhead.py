"""What does the loader itself cost, against torch's with the same workers?

Measured: wall time for each batch, and CPU time of trainer and workers together, in the middle of
an epoch in shuffled order over samples that cost nothing: one integer, or a tensor of ten numbers
that is there already, collated as torch does by default. The plain ``DataLoader`` seeds nothing; of
ours the rate is given with the global generators left alone ("off", the same work), seeded for each
batch and for each sample (what it does by default).
Kept out: starting the workers and the first batches; the work of real samples, which take a hundred
to ten thousand times as long.
Reproduce: ``scripts/bench loader_overhead``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import Benchmark, Case, Context, Goal, Runs, main, tree_cpu_seconds
from torch.utils.data import DataLoader, Dataset

from sharedds.loader import build_loader

_BATCHES, _FEW_BATCHES, _QUICK = 10_000, 3_000, 64
_WARM = 32
_TAIL = 8  # batches that workers have made in advance at the end
_RATE, _CPU = "batches/s", "us CPU a batch"
_PLAIN, _MODES = "torch", ("off", "batch", "sample")
_NUMBERS, _NUMBER, _TENSORS = "64 integers", "1 integer", "64 small tensors"


class _Samples(Dataset[Any]):
    """Samples that cost nothing: their number, or always the same tensor."""

    def __init__(self, count: int, tensor: torch.Tensor | None) -> None:
        self.count = count
        self.tensor = tensor

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return index if self.tensor is None else self.tensor


def _loading(what: str, mode: str, workers: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        many = _FEW_BATCHES if workers or mode == "sample" else _BATCHES
        batches = _QUICK if context.quick else many
        size = int(what.split()[0])
        data = _Samples(batches * size, torch.ones(10) if what == _TENSORS else None)
        options: dict[str, Any] = {"batch_size": size, "shuffle": True, "num_workers": workers}
        loader: Any = (
            DataLoader(data, **options)
            if mode == _PLAIN
            else build_loader(data, **options, seed_globals=mode)
        )
        iterator = iter(loader)
        for _ in range(_WARM):
            next(iterator)
        count = batches - _WARM - _TAIL
        cpu, begin = tree_cpu_seconds(), time.perf_counter()
        for _ in range(count):
            next(iterator)
        seconds, cpu = time.perf_counter() - begin, tree_cpu_seconds() - cpu
        if sum(1 for _ in iterator) != _TAIL:
            raise RuntimeError("the epoch has another length")
        return {_RATE: count / seconds, _CPU: cpu * 1e6 / count}

    return run


def _name(what: str, mode: str, workers: int) -> str:
    who = "torch" if mode == _PLAIN else f"sharedds, {mode!r}"
    return f"{what}, {workers} workers, {who}"


def _rates(what: str, mode: str, workers: int) -> Callable[[Runs], list[float]]:
    def values(runs: Runs) -> list[float]:
        ours, plain = (runs[_name(what, who, workers)][_RATE] for who in (mode, _PLAIN))
        return [own / other for own, other in zip(ours, plain, strict=True)]

    return values


_CASES = (
    *((_NUMBERS, mode, workers) for workers in (0, 2) for mode in (_PLAIN, *_MODES)),
    *((what, mode, 2) for what in (_NUMBER, _TENSORS) for mode in (_PLAIN, "off", "sample")),
)

BENCHMARK = Benchmark(
    quick_cases=4,
    file=__file__,
    question="What does the loader itself cost, against torch's with the same workers?",
    cases=tuple(Case(name=_name(*case), run=_loading(*case)) for case in _CASES),
    goals=tuple(
        Goal(
            text=f"rate over torch's: {what}, {workers} workers, seed_globals={mode!r}",
            values=_rates(what, mode, workers),
            target=1.0,
        )
        for what, mode, workers in _CASES
        if mode != _PLAIN
    ),
    needs_pictures=False,
    rounds=5,
)

if __name__ == "__main__":
    main(BENCHMARK)
