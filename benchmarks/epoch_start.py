"""How long until the first batch of an epoch over 10^9 samples, and how much memory?

Measured: in a process that has just imported what it needs, from asking for an epoch to holding
the indices of its first batch of 64; then the next 100 batches; then the private memory (USS) of
that process, less what it was before. Our order, shuffled, over a thousand and over 10^9 samples;
beside it torch's RandomSampler in a BatchSampler over 10^6 and 10^8 samples, since over 10^9 it
needs more memory than many machines have.
Kept out: the start of the interpreter and the imports; loading samples.
Reproduce: ``scripts/bench epoch_start``. Needs about 5 GB of memory for torch's 10^8.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping

from harness import Benchmark, Case, Context, Goal, main

_FEW, _MANY = 1_000, 10**9
_TORCH_FEW, _TORCH_MANY = 10**6, 10**8
_TIME = "ms to the first batch"
_MEMORY = "MB USS more after it"

_OURS = """
from sharedds.order import EpochOrder, Shuffled
def epoch(count):
    order = EpochOrder(sampling=Shuffled(count), batch_size=64, seed=0, epoch=1)
    return (batch.indices for batch in order)
"""
_TORCHS = """
from torch.utils.data import BatchSampler, RandomSampler
def epoch(count):
    return iter(BatchSampler(RandomSampler(range(count)), batch_size=64, drop_last=False))
"""
_CHILD = """
import sys, time, json
from itertools import islice
from sharedds.memory import process_memory
before = process_memory()
started = time.perf_counter()
batches = epoch(int(sys.argv[1]))
first = next(batches)
reached = time.perf_counter()
after = process_memory()
assert len(first) == 64
begun = time.perf_counter()
more = sum(1 for _ in islice(batches, 100))
ended = time.perf_counter()
figures = {
    "ms to the first batch": (reached - started) * 1e3,
}
if more:
    figures["ms for each batch after it"] = (ended - begun) * 1e3 / more
if after.uss is not None:
    figures["MB USS more after it"] = (after.uss - before.uss) / 1e6
print(json.dumps(figures))
"""


def _starting(setup: str, count: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        size = min(count, 10**6) if context.quick and setup == _TORCHS else count
        command = [sys.executable, "-c", setup + _CHILD, str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    return run


def _name(who: str, count: int) -> str:
    return f"{who}, {count:,} samples"


BENCHMARK = Benchmark(
    file=__file__,
    question="How long until the first batch of an epoch over 10^9 samples, and how much memory?",
    cases=(
        *(
            Case(name=_name("sharedds", count), run=_starting(_OURS, count))
            for count in (_FEW, _MANY)
        ),
        *(
            Case(name=_name("torch RandomSampler", count), run=_starting(_TORCHS, count), rounds=3)
            for count in (_TORCH_FEW, _TORCH_MANY)
        ),
    ),
    goals=(
        Goal(
            text=f"ms to the first batch of {_MANY:,} samples, shuffled",
            values=lambda runs: runs[_name("sharedds", _MANY)][_TIME],
            target=50,
            at_least=False,
        ),
        Goal(
            text=f"MB of memory more for an epoch over {_MANY:,} samples, shuffled",
            values=lambda runs: runs[_name("sharedds", _MANY)].get(_MEMORY, [0.0]),
            target=1,
            at_least=False,
        ),
    ),
    needs_pictures=False,
    rounds=7,
)

if __name__ == "__main__":
    main(BENCHMARK)
