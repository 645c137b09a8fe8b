"""What a benchmark is made of, and what comes out of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "Benchmark",
    "Case",
    "Context",
    "Goal",
    "GoalRow",
    "Result",
    "Row",
    "Runs",
    "against",
    "ratios",
]

# case -> figure -> one value for each round, in the order of the rounds
Runs = Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where one run of one case works.

    Args:
        data: Class folders of pictures.
        work: What the preparation made; the same for all cases and rounds.
        scratch: An empty folder for this run alone.
        quick: Tiny input: to see that the benchmark works, not to measure.
    """

    data: Path
    work: Path
    scratch: Path
    quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration, run in a fresh process each time.

    Args:
        name: What the result calls it.
        run: Measures once and returns figures by name, the unit being the name ("img/s").
        rival: Instead of ``run``: a script in ``rivals/`` with its arguments, for the interpreter
            of ``--peers``. It gets the folders of data and scratch before them. What is not
            installed there, or fails, is said in the result and stops nothing.
        keeps: A folder of ``work`` that a rival gets instead of an empty one, kept over all rounds.
        makes: The script with its arguments that fills ``keeps``, once before the first round.
        rounds: Run only in the first so many rounds; None for all.
    """

    name: str
    run: Callable[[Context], Mapping[str, float]] | None = None
    rival: tuple[str, ...] = ()
    keeps: str = ""
    makes: tuple[str, ...] = ()
    rounds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Something to reach.

    Args:
        text: The goal in words.
        values: Its figure in each round.
        target: What the median is compared with.
        at_least: Whether more is better.
        needs: Cases without which it cannot be told.
        needs_one: Cases of which at least one must have run.
    """

    text: str
    values: Callable[[Runs], list[float]]
    target: float
    at_least: bool = True
    needs: tuple[str, ...] = ()
    needs_one: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One question.

    Args:
        file: ``__file__`` of the benchmark.
        question: What is asked, one sentence.
        cases: Run in this order, backwards in every other round.
        goals: What to reach.
        prepare: Makes what all cases share, in ``work``; runs once, in a process of its own.
        needs_pictures: Whether the cases read ``data``.
        rounds: By default.
        quick_cases: In quick mode only the first so many; a goal that needs others is not told.
    """

    file: str
    question: str
    cases: tuple[Case, ...]
    goals: tuple[Goal, ...] = ()
    prepare: Callable[[Context], None] | None = None
    needs_pictures: bool = True
    rounds: int = 5
    quick_cases: int | None = None

    @property
    def name(self) -> str:
        """Name of the benchmark: that of its file."""
        return Path(self.file).stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one case over all rounds."""

    case: str
    figure: str
    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRow:
    """How far a goal was reached; ``median`` is None where its cases were left out."""

    text: str
    target: float
    at_least: bool
    median: float | None = None
    low: float | None = None
    high: float | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything one run of a benchmark found."""

    name: str
    question: str
    when: str
    data: str
    quick: bool
    facts: dict[str, Any]
    rows: tuple[Row, ...]
    goals: tuple[GoalRow, ...]
    load: tuple[float, float]
    elsewhere: tuple[float, float]  # share of the CPUs that others took: median and worst run
    patience: int  # how often a run was repeated while that share was over a tenth
    left_out: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()  # rivals that could not run, and why
    notes: tuple[str, ...] = field(default=())


def ratios(runs: Runs, case: str, figure: str, *others: str) -> list[float]:
    """Return, for each round, the figure of ``case`` over the largest one of the others."""
    rounds = zip(runs[case][figure], *(runs[o][figure] for o in others), strict=True)
    return [own / max(rest) for own, *rest in rounds]


def against(
    runs: Runs,
    case: str,
    figure: str,
    others: Sequence[str],
    best: Callable[[Iterable[float]], float] = max,
) -> list[float]:
    """Return, for each round, the figure of ``case`` over the best of those others that ran.

    Another case with fewer rounds counts by its median.
    """
    own = runs[case][figure]
    found = [runs[other][figure] for other in others if figure in runs.get(other, {})]
    full = [v if len(v) == len(own) else [statistics.median(v)] * len(own) for v in found]
    return [value / best(rest) for value, *rest in zip(own, *full, strict=True)]
