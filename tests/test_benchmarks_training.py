"""The other half of the benchmarks run, beside ``test_benchmarks``, which tests what they share."""

from __future__ import annotations

from pathlib import Path

import pytest
from running_benchmarks import TRAINING, check_that_it_runs


@pytest.mark.parametrize("name", TRAINING)
def test_a_benchmark_runs_and_says_where(name: str, tmp_path: Path) -> None:
    """Each one gives figures above zero, its goals, and the facts of the machine."""
    check_that_it_runs(name, tmp_path)
