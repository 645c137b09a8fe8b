"""Runs a benchmark in quick mode and looks at its result; two files of tests share the names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import unmeasured

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.py")))
#: What begins like this has a file of tests of its own, so that two processes share the work.
_OF_TRAINING = (
    "first_batch",
    "foreground",
    "hand_over",
    "index_memory",
    "memory_budget",
    "segmentation",
    "start_up",
    "train_",
    "volume_",
)
TRAINING = tuple(name for name in NAMES if name.startswith(_OF_TRAINING))
OTHERS = tuple(name for name in NAMES if not name.startswith(_OF_TRAINING))
_FACTS = {"cpu", "cores", "memory_gib", "kernel", "python", "disk", "libraries", "rivals"}


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as ``scripts/bench`` does; measuring coverage would double its time."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=unmeasured())


def check_that_it_runs(name: str, folder: Path) -> None:
    """Run a benchmark and look at its figures, its goals and the facts of the machine.

    Args:
        name: Of the benchmark.
        folder: An empty one, where it works.
    """
    target = folder / "result.json"
    done = _run(name, "--quick", "--json", str(target), "--work", str(folder))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(target.read_text("utf-8"))
    assert result["name"] == name
    assert result["quick"] is True
    assert result["facts"].keys() >= _FACTS
    assert result["rows"]
    assert result["goals"]
    for row in result["rows"]:
        assert row["low"] <= row["median"] <= row["high"]
        assert row["rounds"] == 1
    rates = [row["median"] for row in result["rows"] if "/s" in row["figure"]]
    assert all(rate > 0 for rate in rates)
    assert [path.name for path in folder.iterdir()] == ["result.json"]  # it cleans up after itself
