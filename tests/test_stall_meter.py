"""A loop is timed: the verdict agrees with who waits for whom, and says what could be won."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import sharedds
from sharedds.diagnose import stalls
from sharedds.diagnose.stalls import StallMeter, StallReport
from sharedds.diagnose.utilisation import UtilisationWatch, utilisation_reader
from sharedds.errors import OptionError


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the meter."""
    made = Clock()
    monkeypatch.setattr(stalls, "time", made)
    return made


def timed(clock: Clock, waits: list[float], step: float, loops: int = 1) -> StallReport:
    """Go through batches that take so long, with steps that take so long."""

    class Batches:
        def __iter__(self) -> Iterator[int]:
            for number, wait in enumerate(waits):
                clock.now += wait
                yield number

    meter = StallMeter(Batches())
    for _ in range(loops):
        for _ in meter:
            clock.now += step
    return meter.report()


def test_a_slow_loader_is_found_and_priced(clock: Clock) -> None:
    """3 of 4 seconds are waited: at most, the loop gets four times as fast."""
    report = timed(clock, [50.0] + [3.0] * 30, step=1.0)
    assert report.verdict == "loader-bound"
    assert report.wait_share == 0.75
    assert report.most_to_win == 4
    assert (report.median_wait, report.median_step) == (3, 1)
    assert "75% of the time: 4.00 times as fast" in str(report)


@pytest.mark.parametrize(
    ("wait", "verdict"),
    [(0.0, "compute-bound"), (0.05, "compute-bound"), (0.1, "balanced"), (0.25, "loader-bound")],
)
def test_the_thresholds_are_those_it_states(clock: Clock, wait: float, verdict: str) -> None:
    """Shares of the time of 5 % and 20 %."""
    assert timed(clock, [wait] * 101, step=1.0).verdict == verdict


def test_the_first_batch_of_each_loop_stands_apart(clock: Clock) -> None:
    """Workers start there; it would make any short loop look bound by its loader."""
    report = timed(clock, [100.0] + [0.0] * 10, step=1.0, loops=3)
    assert report.verdict == "compute-bound"
    assert (report.steps, report.loops) == (30, 3)
    assert report.first_batch_seconds == 100
    assert report.waited == 0


def test_waits_that_come_in_bursts_are_told(clock: Clock) -> None:
    """Each tenth batch is late: then a deeper queue helps, and the report says so."""
    report = timed(clock, [9.0 if step % 10 == 5 else 0.0 for step in range(100)], step=1.0)
    assert any("bursts" in note for note in report.notes)
    even = timed(clock, [0.9] * 100, step=1.0)
    assert not even.notes


def test_a_step_that_was_left_by_a_break_is_not_counted(clock: Clock) -> None:
    """Nobody knows how long it would have taken; any iterable will do."""
    meter = StallMeter(itertools.count())
    for number in meter:
        clock.now += 1
        if number == 5:
            break
    assert meter.report().steps == 4
    assert meter.report().stepped == 4
    assert any("only 4 steps" in note for note in meter.report().notes)


def test_nothing_is_said_of_nothing() -> None:
    """Before the second step there is no verdict."""
    meter = StallMeter([1])
    assert str(meter.report()).startswith("not measured")
    assert list(meter) == [1]
    assert meter.report().verdict == "not measured"
    assert len(meter) == 1


def test_an_asynchronous_accelerator_is_told() -> None:
    """Python is done with a step before the GPU is: what can be won is an upper bound."""
    figures: dict[str, Any] = {"steps": 100, "loops": 1, "first_batch_seconds": 1.0, "burst": 0.1}
    figures |= {"waited": 5.0, "stepped": 5.0, "median_wait": 0.05, "median_step": 0.05}
    figures |= {"verdict": "loader-bound", "accelerator": "cuda"}
    text = " ".join(str(StallReport(**figures, utilisation=0.97)).split())
    assert "lower bound" in text
    assert "busy 97% of the time (a hint" in text
    assert "less can be won" in text
    exact = StallReport(**figures, is_synchronized=True)
    assert not exact.notes
    assert "not told" in str(exact)


def test_a_report_is_data(clock: Clock) -> None:
    """As JSON, with what follows from the figures."""
    report = timed(clock, [1.0] * 30, step=1.0)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["wait_share"] == data["step_share"] == 0.5
    assert data["verdict"] == "loader-bound"


def test_what_else_is_asked_of_a_loader_is_asked_of_it() -> None:
    """A script that saves the state of its loader may save that of the meter."""
    meter: Any = StallMeter([1, 2])
    assert meter.count(2) == 1
    assert not hasattr(meter, "no_such_thing")
    with pytest.raises(OptionError, match="iterable is expected"):
        StallMeter(SimpleNamespace())


def test_it_is_a_public_name() -> None:
    """As sharedds.StallMeter."""
    assert sharedds.StallMeter is StallMeter


def test_without_a_gpu_nothing_is_read() -> None:
    """No thread is started, nothing is known."""
    if (read := utilisation_reader()) is not None:
        pytest.skip(f"a GPU is in use: {read()}")
    with UtilisationWatch(None) as watch:
        pass
    assert watch.mean is None


def test_a_driver_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before still counts."""
    monkeypatch.setattr("sharedds.diagnose.utilisation._EVERY", 0.0)
    answers = iter([0.5, None, 1.0])
    ended: list[bool] = []

    def read() -> float | None:
        try:
            return next(answers)
        except StopIteration:
            ended.append(True)
            raise RuntimeError from None

    watch = UtilisationWatch(read)
    with watch:
        while not ended:
            pass
    assert watch.mean == 0.75
