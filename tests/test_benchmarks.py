"""The benchmarks run, on tiny input and without rivals, so that they never rot."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_benchmarks import FOLDER, NAMES, OTHERS, TRAINING, check_that_it_runs

sys.path.insert(0, str(FOLDER))

from harness import against
from harness.epoch import batch_size, read_epoch
from harness.figures import FIRST, OWN, RATE, TOTAL
from harness.summary import BEGIN, END, speed_table, update_table


def test_there_are_benchmarks() -> None:
    """The tests below have something to run."""
    assert {"pack_header", "read_cold"} <= set(NAMES)


@pytest.mark.parametrize("name", OTHERS)
def test_a_benchmark_runs_and_says_where(name: str, tmp_path: Path) -> None:
    """Each one gives figures above zero, its goals, and the facts of the machine."""
    check_that_it_runs(name, tmp_path)


def test_each_benchmark_is_run_by_one_file_of_tests() -> None:
    """Those of training have a file of their own, and none is in both or in neither."""
    assert sorted([*OTHERS, *TRAINING]) == list(NAMES)


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


# --- what the benchmarks of reading share ---------------------------------------------------------


def _runs(**cases: list[float]) -> dict[str, dict[str, list[float]]]:
    return {name: {RATE: values} for name, values in cases.items()}


def test_the_best_rival_is_the_best_of_each_round() -> None:
    """Not one rival for all rounds: who is best may change."""
    runs = _runs(ours=[4.0, 6.0], one=[2.0, 1.0], two=[1.0, 3.0])
    assert against(runs, "ours", RATE, ("one", "two")) == [2.0, 2.0]


def test_a_rival_with_fewer_rounds_counts_by_its_median() -> None:
    """Slow ones run in the first rounds alone; they still count in the others."""
    runs = _runs(ours=[4.0, 6.0, 8.0], one=[2.0, 2.0])
    assert against(runs, "ours", RATE, ("one", "gone")) == [2.0, 3.0, 4.0]


def _batches(labels: list[int], *, side: int = 224) -> Iterator[tuple[Any, Any]]:
    size = batch_size(len(labels))
    for start in range(0, len(labels), size):
        own = np.array(labels[start : start + size])
        yield np.zeros((len(own), side, side, 3), np.uint8), own


def test_an_epoch_gives_speed_and_memory() -> None:
    """The clock runs in the middle, memory is looked at in the end."""
    labels = [0, 1] * 20
    figures = read_epoch(lambda: _batches(labels), np.array([20, 20]))
    assert figures.keys() == {RATE, TOTAL, OWN, FIRST}
    assert figures[RATE] > 0
    assert figures[TOTAL] >= figures[OWN] > 1


@pytest.mark.parametrize("labels", [[0, 1] * 19, [0] * 21 + [1] * 19, [0, 1] * 21])
def test_an_epoch_without_each_image_once_counts_for_nothing(labels: list[int]) -> None:
    """Too few, one in the place of another, too many."""
    with pytest.raises(SystemExit, match="of 40 images"):
        read_epoch(lambda: _batches(labels), np.array([20, 20]))


def test_a_batch_of_another_size_counts_for_nothing() -> None:
    """A rival that does less work is no rival."""
    with pytest.raises(SystemExit, match="a batch"):
        read_epoch(lambda: _batches([0] * 40, side=128), np.array([40]))


_WITH_RIVALS = """
from harness import Benchmark, Case, Goal, against, main

main(
    Benchmark(
        file=__file__,
        question="?",
        cases=(
            Case(name="ours", run=lambda context: {"img/s": 2.0}),
            Case(name="good", rival=("GOOD",), keeps="good", makes=("GOOD", "make")),
            Case(name="absent", rival=("ABSENT",)),
            Case(name="broken", rival=("BROKEN",)),
        ),
        goals=tuple(
            Goal(
                text=who,
                values=lambda runs: against(runs, "ours", "img/s", ("good", "absent", "broken")),
                target=1,
                needs_one=(who,),
            )
            for who in ("good", "absent")
        ),
        needs_pictures=False,
    )
)
"""
_GOOD = """
import sys, pathlib
made = pathlib.Path(sys.argv[2]) / "made"
if sys.argv[3:] == ["make"]:
    made.write_text("1.0")
    print("{}")
else:
    print('{"img/s": %s}' % made.read_text())
"""


@pytest.fixture
def with_rivals(tmp_path: Path) -> dict[str, Any]:
    """The result of a benchmark with a rival that runs, one not installed and one that fails."""
    text = _WITH_RIVALS
    scripts = {"GOOD": _GOOD, "ABSENT": "print('lib'); raise SystemExit(3)", "BROKEN": "1 / 0"}
    for name, script in scripts.items():
        (tmp_path / f"{name}.py").write_text(script)
        text = text.replace(name, str(tmp_path / f"{name}.py"))
    (tmp_path / "bench.py").write_text(text)
    target = tmp_path / "result.json"
    command = [sys.executable, str(tmp_path / "bench.py"), "--rounds", "2"]
    command += ["--json", str(target), "--peers", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return result


def test_a_rival_that_is_missing_or_fails_is_said(with_rivals: dict[str, Any]) -> None:
    """With the reason, and never as a figure."""
    reasons = dict(with_rivals["missing"])
    assert reasons["absent"] == "not installed: lib"
    assert reasons["broken"].startswith("failed: ZeroDivisionError")
    assert {row["case"]: row["rounds"] for row in with_rivals["rows"]} == {"ours": 2, "good": 2}


def test_a_goal_is_told_of_the_rivals_that_ran(with_rivals: dict[str, Any]) -> None:
    """And not told where none of those it needs did."""
    assert [goal["median"] for goal in with_rivals["goals"]] == [2.0, None]


def _write_results(folder: Path) -> None:
    def row(case: str, figure: str, median: float) -> dict[str, Any]:
        return {"case": case, "figure": figure, "median": median, "low": median, "high": median}

    names = (
        "sharedds, processes",
        "sharedds, threads",
        "limit: decode only, 2 processes",
        "Rival, x",
    )
    rows = [row(name, RATE, 100.0 * (4 - at)) for at, name in enumerate(names)]
    rows += [row(name, figure, 500.0) for name in names for figure in (TOTAL, OWN)]
    goal = {"text": f"{names[0]}: {TOTAL}, over that of the smallest", "median": 0.5}
    simulated = [
        row(f"{what}: {workers} workers", RATE, 10.0 * workers)
        for what, most in (("photos, processes", 2), ("simulated, processes", 64))
        for workers in (1, most)
    ]
    for name, rows_, goals in (("train_raw", rows, [goal]), ("scaling", simulated, [])):
        result = {"name": name, "question": "?", "when": "now", "rows": rows_, "goals": goals}
        (folder / f"{name}.json").write_text(json.dumps(result))


def test_the_table_has_a_row_for_what_was_measured(tmp_path: Path) -> None:
    """A question without a result has none."""
    _write_results(tmp_path)
    ours = "400 img/s (processes), 0.50 × the least memory"
    assert speed_table(tmp_path).splitlines()[2:] == [
        f"| decoded 256², 224² parts | {ours} | Rival: 100 img/s | decode only: 200 |",
        "| 2 workers over 1; 64 over 1, decoding simulated | 2.00 ×; 64.0 × | | |",
    ]


def test_the_table_in_the_readme_is_current() -> None:
    """``scripts/bench`` writes it anew with every result that is kept."""
    text = (FOLDER.parent / "README.md").read_text("utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert BEGIN in text
    assert END in text
    assert shown == speed_table(FOLDER / "results")


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    """And nothing else of the file changes, however often."""
    _write_results(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        update_table(readme, tmp_path)
    assert readme.read_text() == f"before\n{BEGIN}\n{speed_table(tmp_path)}\n{END}\nafter\n"


def test_every_question_is_drawn_and_shown_on_one_page(tmp_path: Path) -> None:
    """A picture for each result that there is."""
    plots = pytest.importorskip("harness.plots", exc_type=ImportError)
    _write_results(tmp_path)
    pictures = plots.draw_all(tmp_path)
    assert [path.name for path in pictures] == ["train_raw.png", "scaling.png"]
    page = (tmp_path / "plots.md").read_text("utf-8")
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"](plots/{path.name})" in page
