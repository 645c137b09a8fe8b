"""Runs a benchmark: one process decides what runs next, and each run has a process of its own.

In quick mode that is a fork.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.cases import Benchmark, Case, Context, Goal, GoalRow, Result, Row, Runs
from harness.clock import Elsewhere
from harness.forked import run_forked
from harness.machine import machine_facts
from harness.summary import update_table
from harness.tables import as_text, write_readme

__all__ = ["main"]

_HERE = Path(__file__).resolve().parents[1]
_RESULTS = _HERE / "results"
_PREPARE = "(prepare)"
_MISSING = 3  # a rival's way to say that something it needs is not installed
_LONGEST, _LONGEST_MAKING = 300, 1200  # seconds that a run of a rival, or its preparation, may take
_CALM = 0.1  # others take at most this share of the CPUs
_RENDERED, _QUICK_RENDERED = (400, 500), (20, 96)  # pictures, longer side in pixels


class _RivalError(Exception):
    """A rival cannot run here; the text says why."""


def _options(benchmark: Benchmark) -> argparse.Namespace:
    module = sys.modules["__main__"]
    parser = argparse.ArgumentParser(
        prog=f"scripts/bench {benchmark.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="class folders of pictures, or what the benchmark makes its data from",
    )
    parser.add_argument("--data-name", default="", help="what the result calls the data")
    parser.add_argument("--work", type=Path, help="where to work, on the disk to measure")
    parser.add_argument(
        "--peers", help="a Python interpreter that has the rivals; without, they are left out"
    )
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        help="repeat a run so often while others take over a tenth of the CPUs",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny input, one round: only to see that it works"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help=f"by default benchmarks/results/{benchmark.name}.json, or none if quick",
    )
    parser.add_argument(
        "--note", action="append", default=[], help="a sentence to keep with the result"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main(benchmark: Benchmark) -> None:
    """Run a benchmark as the command line says, or one case of it as a child process."""
    options = _options(benchmark)
    if options.case:
        _run_one(benchmark, options)
        return
    parent = options.work.resolve() if options.work else None
    with tempfile.TemporaryDirectory(prefix="sharedds-bench-", dir=parent) as folder:
        work = Path(folder)
        data, described = _find_data(benchmark, options, work)
        before = os.getloadavg()[0]
        measured = _run_rounds(benchmark, options, data=data, work=work)
        runs, elsewhere = measured.runs, measured.elsewhere
        result = Result(
            name=benchmark.name,
            question=benchmark.question,
            when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            data=described,
            quick=options.quick,
            facts=machine_facts(work, options.peers),
            rows=tuple(_rows(runs)),
            goals=tuple(_judge(goal, runs, quick=options.quick) for goal in benchmark.goals),
            load=(before, os.getloadavg()[0]),
            elsewhere=(statistics.median(elsewhere), max(elsewhere)),
            patience=options.patience,
            left_out=tuple(measured.left_out),
            missing=tuple(measured.missing.items()),
            notes=tuple(options.note),
        )
    print(as_text(asdict(result)))
    target = options.json or (None if options.quick else _RESULTS / f"{benchmark.name}.json")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", "utf-8")
        if target.parent.resolve() == _RESULTS:
            write_readme(_RESULTS)
            update_table(_HERE.parent / "README.md", _RESULTS)


def _run_one(benchmark: Benchmark, options: argparse.Namespace) -> None:
    context = Context(
        data=options.data, work=options.work, scratch=options.scratch, quick=options.quick
    )
    print(json.dumps(_measured(benchmark, options.case, context)))


def _measured(benchmark: Benchmark, name: str, context: Context) -> dict[str, float]:
    """Run one case, or the preparation, in this process."""
    if name == _PREPARE:
        if benchmark.prepare is not None:
            benchmark.prepare(context)
        return {}
    case = next(case for case in benchmark.cases if case.name == name)
    return {} if case.run is None else dict(case.run(context))


def _find_data(benchmark: Benchmark, options: argparse.Namespace, work: Path) -> tuple[Path, str]:
    """Return the folder of pictures and what the result calls it."""
    if not benchmark.needs_pictures and options.data is None:
        return work, "made by the benchmark"
    if options.data is not None:
        data = options.data.resolve()
    else:
        count, side = _QUICK_RENDERED if options.quick else _RENDERED
        data = work / "pictures"
        script = str(_HERE / "harness" / "pictures.py")
        subprocess.run([sys.executable, script, str(data), str(count), str(side)], check=True)
    files = [path for path in data.rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    name = options.data_name or (
        "pictures rendered by the benchmark" if options.data is None else "own pictures"
    )
    return data, f"{name} ({len(files):,} files, {megabytes:,.0f} MB)"


@dataclass(slots=True)
class _Measured:
    """The figures, the cases left out, those that could not run, and what others took."""

    runs: dict[str, dict[str, list[float]]]
    left_out: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    elsewhere: list[float] = field(default_factory=list)


def _run_rounds(
    benchmark: Benchmark, options: argparse.Namespace, *, data: Path, work: Path
) -> _Measured:
    rounds = options.rounds or (1 if options.quick else benchmark.rounds)
    cases = [case for case in benchmark.cases if case.run is not None or options.peers]
    left_out = [case.name for case in benchmark.cases if case not in cases]
    cases = cases[: benchmark.quick_cases] if options.quick else cases
    measured = _Measured({case.name: defaultdict(list) for case in cases}, left_out)
    if benchmark.prepare is not None:
        _child(benchmark, Case(name=_PREPARE), options, data=data, work=work)
    _make_stores(benchmark, cases, options, measured, data=data, work=work)
    for number in range(rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            if case.name in measured.missing or number >= (case.rounds or rounds):
                continue
            try:
                share, figures = _calm_run(benchmark, case, options, data=data, work=work)
            except _RivalError as error:
                _give_up(measured, case, str(error))
                continue
            measured.elsewhere.append(share)
            for figure, value in figures.items():
                measured.runs[case.name][figure].append(value)
            print(f"round {number + 1}/{rounds}: {case.name}", file=sys.stderr, flush=True)
    return measured


def _make_stores(
    benchmark: Benchmark,
    cases: list[Case],
    options: argparse.Namespace,
    measured: _Measured,
    *,
    data: Path,
    work: Path,
) -> None:
    """Make what rivals keep over all rounds, each folder once."""
    made: dict[str, str] = {}
    for case in cases:
        if not case.keeps:
            continue
        if case.keeps not in made:
            (work / case.keeps).mkdir()
            made[case.keeps] = ""
            if case.makes:
                making = replace(case, rival=case.makes)
                try:
                    _child(benchmark, making, options, data=data, work=work, most=_LONGEST_MAKING)
                except _RivalError as error:
                    made[case.keeps] = str(error)
                print(f"made: {case.keeps}", file=sys.stderr, flush=True)
        if made[case.keeps]:
            _give_up(measured, case, made[case.keeps])


def _give_up(measured: _Measured, case: Case, reason: str) -> None:
    """Leave a rival out from now on, with what it has shown before: half its rounds would lie."""
    print(f"{case.name}: {reason}", file=sys.stderr, flush=True)
    measured.missing[case.name] = reason
    measured.runs.pop(case.name, None)


def _calm_run(
    benchmark: Benchmark, case: Case, options: argparse.Namespace, *, data: Path, work: Path
) -> tuple[float, dict[str, float]]:
    """Run a case, again where others took much of the CPUs; of several runs the calmest counts."""
    tried: list[tuple[float, dict[str, float]]] = []
    while not tried or (tried[-1][0] > _CALM and len(tried) <= options.patience):
        watch = Elsewhere()
        figures = _child(benchmark, case, options, data=data, work=work)
        tried.append((watch.share, figures))
    return min(tried, key=lambda run: run[0])


def _child(
    benchmark: Benchmark,
    case: Case,
    options: argparse.Namespace,
    *,
    data: Path,
    work: Path,
    most: float = _LONGEST,
) -> dict[str, float]:
    """Run a case in a process of its own; the last line it prints are its figures."""
    scratch = work / "scratch"
    scratch.mkdir()
    try:
        if case.rival:
            return _rival(case, options.peers, data, work / (case.keeps or "scratch"), most)
        if options.quick and hasattr(os, "fork"):
            context = Context(data=data, work=work, scratch=scratch, quick=True)
            try:
                return run_forked(lambda: _measured(benchmark, case.name, context), work)
            except SystemExit as error:
                raise SystemExit(f"{benchmark.name}, {case.name}: failed\n{error}") from None
        command = [sys.executable, benchmark.file, "--case", case.name]
        command += ["--data", str(data), "--work", str(work), "--scratch", str(scratch)]
        command += ["--quick"] if options.quick else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{benchmark.name}, {case.name}: failed\n{done.stdout}\n{done.stderr}")
        return _figures(done.stdout)
    finally:
        shutil.rmtree(scratch)


def _rival(case: Case, peers: str, data: Path, folder: Path, most: float) -> dict[str, float]:
    """Run a rival; it finds the harness as ``harness``."""
    script, *rest = case.rival
    command = [peers, str(_HERE / "rivals" / script), str(data), str(folder), *rest]
    with tempfile.TemporaryDirectory(prefix="rival-", ignore_cleanup_errors=True) as temporary:
        environment = {**os.environ, "PYTHONPATH": str(_HERE), "TMPDIR": temporary}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, timeout=most
            )
        except subprocess.TimeoutExpired as error:
            raise _RivalError(f"failed: no end after {most:.0f} s") from error
    if done.returncode == _MISSING:
        raise _RivalError(f"not installed: {done.stdout.strip().splitlines()[-1]}")
    if done.returncode:
        print(done.stderr, file=sys.stderr, flush=True)
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise _RivalError(f"failed: {last}")
    return _figures(done.stdout)


def _figures(text: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads(text.strip().splitlines()[-1])
    return figures


def _rows(runs: Runs) -> list[Row]:
    return [
        Row(
            case=case,
            figure=figure,
            median=statistics.median(values),
            low=min(values),
            high=max(values),
            rounds=len(values),
        )
        for case, figures in runs.items()
        for figure, values in figures.items()
    ]


def _judge(goal: Goal, runs: Runs, *, quick: bool) -> GoalRow:
    untold = GoalRow(text=goal.text, target=goal.target, at_least=goal.at_least)
    one = not goal.needs_one or any(case in runs for case in goal.needs_one)
    if not one or any(case not in runs for case in goal.needs):
        return untold
    try:
        values = goal.values(runs)
    except KeyError:  # a case that quick mode leaves out
        if quick:
            return untold
        raise
    if quick and not values:  # a figure that it leaves out
        return untold
    median = statistics.median(values)
    met = median >= goal.target if goal.at_least else median <= goal.target
    return GoalRow(
        text=goal.text,
        target=goal.target,
        at_least=goal.at_least,
        median=median,
        low=min(values),
        high=max(values),
        met=met,
    )
