"""What all benchmarks share: fresh processes, interleaved rounds, machine facts, results."""

from harness.cases import Benchmark, Case, Context, Goal, Runs, against, ratios
from harness.clock import Stopwatch, tree_cpu_seconds
from harness.files import evict, read_all, resident_share, sync
from harness.run import main

__all__ = [
    "Benchmark",
    "Case",
    "Context",
    "Goal",
    "Runs",
    "Stopwatch",
    "against",
    "evict",
    "main",
    "ratios",
    "read_all",
    "resident_share",
    "sync",
    "tree_cpu_seconds",
]
