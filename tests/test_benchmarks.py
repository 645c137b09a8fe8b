"""The benchmarks run, on tiny input and without rivals, so that they never rot."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
FACTS = {"cpu", "cores", "memory_gib", "kernel", "python", "disk", "libraries", "rivals"}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as ``scripts/bench`` does; measuring coverage would double its time."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=plain)


def test_there_are_benchmarks() -> None:
    """The tests below have something to run."""
    assert {"pack_header", "read_cold"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_says_where(name: str, tmp_path: Path) -> None:
    """Each one gives figures above zero, its goals, and the facts of the machine."""
    target = tmp_path / "result.json"
    done = run(name, "--quick", "--json", str(target), "--work", str(tmp_path))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(target.read_text("utf-8"))
    assert result["name"] == name
    assert result["quick"] is True
    assert result["facts"].keys() >= FACTS
    assert result["rows"]
    assert result["goals"]
    for row in result["rows"]:
        assert row["low"] <= row["median"] <= row["high"]
        assert row["rounds"] == 1
    rates = [row["median"] for row in result["rows"] if "/s" in row["figure"]]
    assert all(rate > 0 for rate in rates)
    assert [path.name for path in tmp_path.iterdir()] == [
        "result.json"
    ]  # it cleans up after itself


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_says_what_it_measures(name: str) -> None:
    """The text at the top has the three things a reader needs."""
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    for word in ("Measured:", "Kept out:", f"Reproduce: ``scripts/bench {name}"):
        assert word in text


def test_results_are_of_real_runs() -> None:
    """What is kept in ``results`` was measured, not tried out, and names no folder of a machine."""
    for path in (FOLDER / "results").glob("*.json"):
        text = path.read_text("utf-8")
        result = json.loads(text)
        assert result["quick"] is False
        assert result["name"] == path.stem
        assert result["rows"]
        assert f"[{path.stem}]" in (FOLDER / "results" / "README.md").read_text("utf-8")
