"""Tuning: a plan is chosen only if it is faster beyond the noise, and then it is kept and used."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import Dataset

from sharedds.cli import main
from sharedds.diagnose import tune as tuning
from sharedds.diagnose.comparing import Settings, compare, noise, standing
from sharedds.diagnose.plots import plot_tuning, require_plots
from sharedds.diagnose.race import Race, first_candidates
from sharedds.diagnose.target import Target, load_target
from sharedds.diagnose.trial import MemoryPoint, Trial, TrialOptions, run_trial
from sharedds.diagnose.tune import tune
from sharedds.errors import MissingExtraError, OptionError, WorkerError
from sharedds.host.cpus import CpuShare
from sharedds.host.machine import look
from sharedds.loader import build_loader
from sharedds.loader.planning import makes_whole_batches

NONE = Settings(engine="process", num_workers=0)
ONE = Settings(engine="process", num_workers=1, prefetch_factor=2)
TWO = Settings(engine="process", num_workers=2, prefetch_factor=2)
FOUR = Settings(engine="process", num_workers=4, prefetch_factor=2)
SHARED = Settings(engine="process", num_workers=1, prefetch_factor=2, threads_per_worker=2)
THREADS = Settings(engine="thread", num_workers=2, prefetch_factor=2)


class Numbers(Dataset[int]):
    """Has a fingerprint, and so a place for its tuned plan."""

    fingerprint = "numbers:64"

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


class Together(Numbers):
    """Makes whole batches, which several threads may share."""

    makes_batches = True

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Return the numbers."""
        return torch.tensor(list(indices))


class Pretended:
    """Answers in place of real trials, which would take minutes.

    Args:
        rate: Samples per second of a plan, before noise.
        scatter: The noise: the standard deviation of the logarithm.
        memory: Bytes that a plan holds.
        fails: Plans that fail.
        whole: Whether the dataset makes whole batches.
    """

    plans: ClassVar[dict[tuple[tuple[str, Any], ...], dict[str, Any]]] = {}

    def __init__(
        self,
        rate: Callable[[Settings], float],
        *,
        scatter: float = 0.0,
        memory: Callable[[Settings], float] = lambda settings: 1e8,
        fails: Sequence[Settings] = (),
        whole: bool = False,
        seed: int = 0,
    ) -> None:
        self.rate, self.scatter, self.memory, self.fails = rate, scatter, memory, fails
        self.whole = whole
        self.random = random.Random(seed)
        self.now = 0.0
        self.tried: list[Settings] = []

    def run_trials(
        self, target: Target, options: Sequence[TrialOptions], *, tick: Callable[[str], None]
    ) -> list[Trial]:
        """Stand in for the function of this name."""
        drift = math.exp(self.random.gauss(0, 0.3))  # others use the machine, for all alike
        self.now += 2.0
        return [self._trial(each, drift) for each in options]

    def _trial(self, options: TrialOptions, drift: float) -> Trial:
        self.now += 1.0
        asked = {
            name: value
            for name in ("engine", "num_workers", "prefetch_factor", "threads_per_worker")
            if (value := getattr(options, name)) is not None
        }
        at = tuple(sorted(asked.items()))
        if at not in self.plans:
            self.plans[at] = build_loader(Numbers(), batch_size=4, **asked).plan.to_dict()
        plan = self.plans[at]
        settings = Settings(
            engine=plan["engine"],
            num_workers=plan["num_workers"],
            prefetch_factor=plan["prefetch_factor"],
            threads_per_worker=plan["threads_per_worker"],
        )
        self.tried.append(settings)
        if settings in self.fails:
            return Trial(options=options, error="no such disk")
        rate = self.rate(settings) * drift * math.exp(self.random.gauss(0, self.scatter))
        held = round(self.memory(settings))
        point = MemoryPoint(
            samples=1, seconds=1.0, workers=(), trainer=held, pss=held, irrevocable=held
        )
        return Trial(
            options=options,
            num_workers=settings.num_workers,
            engine=settings.engine,
            batch_size=4,
            samples=round(rate * 1000),
            seconds=1000.0,
            points=(point,),
            plan=plan,
            fingerprint="numbers:64",
            whole_batches=self.whole,
        )


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Pretended], None]:
    """Let trials be answered by a pretended machine of two CPUs, whose clock it is, too."""
    monkeypatch.setenv("SHAREDDS_CACHE", str(tmp_path / "cache"))
    machine = replace(look(), cpus=CpuShare(2, ""))

    def install(pretended: Pretended) -> None:
        monkeypatch.setattr(tuning, "look", lambda: machine)
        monkeypatch.setattr(tuning, "run_trials", pretended.run_trials)
        monkeypatch.setattr(time, "monotonic", lambda: pretended.now)

    return install


def by_workers(**rates: float) -> Callable[[Settings], float]:
    """Return rates by the number of worker processes; threads are slow."""
    numbers = {int(name[1:]): rate for name, rate in rates.items()}
    most = max(numbers)

    def rate(settings: Settings) -> float:
        slow = 0.5 if settings.engine == "thread" else 1.0
        return slow * numbers.get(settings.num_workers, numbers[most])

    return rate


# --- the choice ----------------------------------------------------------------------------------


def chosen(pretended: Pretended, **options: Any) -> Settings:
    """Tune and return what was chosen."""
    return tune(Numbers(), progress=False, dry_run=True, **options).chosen


def test_a_plan_that_is_faster_is_chosen(pretend: Callable[[Pretended], None]) -> None:
    """No workers at all, where sending costs more than making."""
    pretended = Pretended(by_workers(_0=300, _1=150, _2=200), scatter=0.05)
    pretend(pretended)
    assert chosen(pretended) == NONE


def test_the_default_stays_where_nothing_is_faster(pretend: Callable[[Pretended], None]) -> None:
    """Whatever the noise makes some of them look like, in each of 20 runs."""
    for seed in range(20):
        pretended = Pretended(lambda settings: 100.0, scatter=0.1, seed=seed)
        pretend(pretended)
        assert chosen(pretended, seed=seed) == TWO


def test_the_best_of_some_noisy_rounds_is_often_no_better() -> None:
    """What the test before guards against: the plan with the highest mean is a matter of luck."""
    plans = [NONE, ONE, TWO, FOUR, THREADS]
    wrong = 0
    for seed in range(30):
        noise_of = random.Random(seed)
        means = {
            plan: sum(100 * math.exp(noise_of.gauss(0, 0.1)) for _ in range(3)) for plan in plans
        }
        wrong += max(means, key=means.__getitem__) != TWO
    assert wrong > 10


def test_a_slower_plan_is_never_chosen(pretend: Callable[[Pretended], None]) -> None:
    """Also where its rates scatter far more than they differ."""
    for seed in range(20):
        pretended = Pretended(by_workers(_0=96, _1=97, _2=100, _3=97), scatter=0.15, seed=seed)
        pretend(pretended)
        assert chosen(pretended, seed=seed) == TWO


def by_threads(settings: Settings) -> float:
    """Two threads of one worker are the fastest; more, or more workers, are not."""
    if settings.engine == "thread" or not settings.num_workers:
        return 40.0
    return {(1, 1): 60.0, (1, 2): 200.0}.get(
        (settings.num_workers, settings.threads_per_worker), 100.0
    )


def test_threads_of_a_worker_are_tried_where_they_may_share_a_batch(
    pretend: Callable[[Pretended], None],
) -> None:
    """And only there: code that runs for each sample may not be safe for them."""
    for whole in (True, False):
        pretended = Pretended(by_threads, scatter=0.01, whole=whole)
        pretend(pretended)
        assert chosen(pretended, seconds=300) == (SHARED if whole else TWO)
        assert any(settings.threads_per_worker > 1 for settings in pretended.tried) is whole


def test_threads_of_a_worker_keep_to_the_memory_limit(
    pretend: Callable[[Pretended], None],
) -> None:
    """What holds too much leaves, however fast it is."""

    def memory(settings: Settings) -> float:
        return 4e8 if settings.threads_per_worker > 1 else 1e8

    pretended = Pretended(by_threads, memory=memory, whole=True)
    pretend(pretended)
    report = tune(Numbers(), max_memory="250MB", progress=False, dry_run=True)
    assert report.chosen == TWO
    assert "over the memory limit: no workers, 2 threads; 1 process of 2 threads" in str(report)


def test_more_workers_are_tried_while_they_help(pretend: Callable[[Pretended], None]) -> None:
    """Up to where they do not; the fewest of those that are as fast are chosen."""
    pretended = Pretended(
        by_workers(_0=50, _1=50, _2=100, _3=150, _4=200, _6=201),
        scatter=0.01,
        memory=lambda settings: 1e8 * (1 + settings.num_workers),
    )
    pretend(pretended)
    assert chosen(pretended, seconds=400).num_workers == 4
    assert max(settings.num_workers for settings in pretended.tried) == 6


def test_nothing_over_the_memory_limit_is_chosen(pretend: Callable[[Pretended], None]) -> None:
    """However fast it is; the fastest that fits is."""
    pretended = Pretended(
        by_workers(_0=50, _1=100, _2=200, _3=300),
        memory=lambda settings: 1e8 * (1 + settings.num_workers),
    )
    pretend(pretended)
    report = tune(Numbers(), max_memory="250MB", progress=False, dry_run=True)
    assert report.chosen == ONE
    assert "did not run" in report.headline()
    assert "over the memory limit: 2 processes" in str(report)


def test_a_limit_that_holds_nothing_is_refused_with_what_is_needed(
    pretend: Callable[[Pretended], None],
) -> None:
    """The smallest plan says what it takes."""
    pretend(Pretended(by_workers(_0=100), memory=lambda settings: 4e8))
    with pytest.raises(WorkerError, match="the smallest plan takes 400 MB"):
        tune(Numbers(), max_memory="250MB", progress=False)


@pytest.mark.parametrize("after", [5, 9, 12])
def test_a_default_that_grows_over_the_limit_is_not_kept(
    pretend: Callable[[Pretended], None], after: int
) -> None:
    """Though it did fit in the rounds before it met the other plan."""
    held: list[int] = []

    def memory(settings: Settings) -> float:
        if settings == TWO:
            held.append(1)
        return 4e8 if settings == TWO and len(held) > after else 1e8

    pretended = Pretended(by_workers(_0=110, _1=100, _2=100), scatter=0.3, memory=memory)
    pretend(pretended)
    report = tune(Numbers(), max_memory="250MB", progress=False, dry_run=True)
    grew = len(held) > after
    assert (report.chosen != TWO) or not grew
    assert grew == ("over the memory limit: 2 processes" in str(report))


def test_a_plan_that_fails_is_left_out(pretend: Callable[[Pretended], None]) -> None:
    """And the reason is told."""
    pretended = Pretended(by_workers(_0=100, _1=100, _2=100), fails=[NONE])
    pretend(pretended)
    report = tune(Numbers(), progress=False, dry_run=True)
    assert report.chosen == TWO
    assert "failed: no such disk: no workers" in str(report)


def test_the_time_is_kept(pretend: Callable[[Pretended], None]) -> None:
    """A little is enough for a plan, if not for a better one."""
    for seconds in (5, 40, 120):
        pretended = Pretended(by_workers(_0=300, _2=100), scatter=0.05)
        pretend(pretended)
        report = tune(Numbers(), seconds=seconds, progress=False, dry_run=True)
        assert report.seconds <= seconds + 20
        assert seconds > 5 or report.chosen == TWO


# --- what is kept --------------------------------------------------------------------------------


def test_the_chosen_plan_is_kept_and_used(pretend: Callable[[Pretended], None]) -> None:
    """``plan="tuned"`` takes it, in the same dataset and on the same machine."""
    pretend(Pretended(by_workers(_0=300, _1=150, _2=200), scatter=0.02))
    report = tune(Numbers(), progress=False)
    assert report.path is not None
    assert json.loads(Path(report.path).read_text())["measured"]["chosen"]["num_workers"] == 0
    assert build_loader(Numbers(), plan="tuned").plan.num_workers == 0


def test_threads_of_a_worker_are_kept_and_used(pretend: Callable[[Pretended], None]) -> None:
    """For whole batches and the workers they were found with; else threads are not asked for."""
    pretend(Pretended(by_threads, scatter=0.01, whole=True))
    report = tune(Numbers(), seconds=300, progress=False)
    assert "1 process of 2 threads, prefetch 2" in str(report)
    assert "threads_per_worker=2" in " ".join(str(report).split())
    assert report.path is not None
    kept = json.loads(Path(report.path).read_text())
    assert kept["measured"]["chosen"]["threads_per_worker"] == 2

    def threads(dataset: Any, **options: Any) -> tuple[int, int]:
        plan = build_loader(dataset, plan="tuned", **options).plan
        return plan.num_workers, plan.threads_per_worker

    assert threads(Together(), batch_size=4) == (1, 2)
    assert threads(Numbers(), batch_size=4) == (1, 1)
    assert threads(Together(), batch_size=4, collate_fn=list) == (1, 1)
    assert threads(Together(), batch_size=None) == (1, 1)
    assert threads(Together(), batch_size=4, num_workers=2) == (2, 1)
    assert threads(Together(), batch_size=4, num_workers=2, threads_per_worker=3) == (2, 3)


def test_a_trial_tells_whether_threads_may_share_a_batch() -> None:
    """As the loader would decide: whole batches, collated as torch does; and it uses threads."""
    options = TrialOptions(num_workers=0, threads_per_worker=2, batch_size=4, samples=16)
    whole = run_trial(load_target(Together()), options)
    assert whole.plan is not None
    assert (whole.whole_batches, whole.plan["threads_per_worker"]) == (True, 2)
    assert not makes_whole_batches(Numbers(), 4, None)
    assert not makes_whole_batches(Together(), 4, list)
    assert not makes_whole_batches(Together(), None, None)


def test_a_dry_run_keeps_nothing(pretend: Callable[[Pretended], None], tmp_path: Path) -> None:
    """It only tells."""
    pretend(Pretended(by_workers(_0=300, _2=200)))
    assert tune(Numbers(), progress=False, dry_run=True).path is None
    assert not (tmp_path / "cache").exists()


def test_the_command_prints_a_chart_or_json(
    pretend: Callable[[Pretended], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both of the same report; no line is wider than the screen."""
    (tmp_path / "numbers_here.py").write_text("def make(): return list(range(64))\n")
    target = f"{tmp_path}/numbers_here.py:make"
    pretend(Pretended(by_workers(_0=300, _1=150, _2=200)))
    assert main(["tune", target]) == 0
    shown = capsys.readouterr().out
    assert "*   no workers" in shown.replace("* no", "*   no")
    assert max(map(len, shown.splitlines())) <= 80
    assert "found with batches of 4" in shown
    assert main(["tune", target, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["arguments"] == {"num_workers": 0}
    assert len(told["candidates"]) >= 6


def test_a_real_dataset_is_tuned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once without any pretending, by the fewest trials there are."""
    (tmp_path / "numbers_here.py").write_text("def make(): return list(range(64))\n")
    monkeypatch.setattr(tuning, "first_candidates", lambda default, cpus, **_: [default])
    target = f"{tmp_path}/numbers_here.py:make"
    assert main(["tune", target, "--seconds", "1", "--patience", "30", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"] == told["default"]
    assert told["candidates"][0]["samples_per_second"] > 0
    assert told["candidates"][0]["memory"] > 0


def test_a_picture_needs_the_extra_before_anything_is_tried(
    pretend: Callable[[Pretended], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With it, a file is drawn."""
    pretended = Pretended(by_workers(_0=300, _1=150, _2=200))
    pretend(pretended)
    try:
        require_plots()
    except MissingExtraError:
        assert main(["tune", "math:pi", "--plot", str(tmp_path / "a.png")]) == 1
        assert "pip install 'sharedds[plots]'" in capsys.readouterr().err
        assert not pretended.tried
    else:
        plot_tuning(tune(Numbers(), progress=False), tmp_path / "a.png")
        pretend(Pretended(by_threads, whole=True))
        plot_tuning(tune(Numbers(), progress=False, dry_run=True), tmp_path / "b.svg")
        assert (tmp_path / "b.svg").read_text().count("processes of 2 threads") == 2  # panels
        pretend(pretended)
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        pretended.tried.clear()
        for name, reason in (("none/a.png", "no folder"), ("a.mp3", "no format mp3")):
            assert main(["tune", "math:pi", "--plot", str(tmp_path / name)]) == 1
            assert reason in capsys.readouterr().err
        assert not pretended.tried


@pytest.mark.parametrize(
    "options", [{"seconds": 0}, {"batch_size": 0}, {"max_memory": "much"}, {"patience": 0}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """Before anything is started."""
    with pytest.raises(OptionError):
        tune(Numbers(), **options)


# --- arithmetic ----------------------------------------------------------------------------------


def test_pairs_tell_a_difference_that_all_of_them_show() -> None:
    """Though the rates themselves go up and down with the machine."""
    found = compare([(110, 100), (55, 50), (222, 200), (33, 30)])
    assert found.factor == pytest.approx(1.1, rel=0.01)
    assert found.wins(1.03)
    assert not found.wins(1.2)


def test_few_or_contradicting_pairs_tell_nothing() -> None:
    """A plan that is not shown to be faster does not win."""
    assert not compare([]).wins(1.0)
    assert not compare([(200, 100)]).wins(1.0)
    assert not compare([(200, 100), (201, 100), (202, 100)]).wins(1.0)
    assert not compare([(130, 100), (90, 100), (140, 100), (95, 100)]).wins(1.0)


def test_the_noise_is_that_of_the_plans_together() -> None:
    """Rounds that are slow for all alike do not count."""
    rounds = [{TWO: 100.0 * k, ONE: 50.0 * k, FOUR: 80.0 * k} for k in (1, 3, 2)]
    assert noise(standing(rounds, TWO)) == pytest.approx(0.01)
    rounds[0][ONE] *= 1.5
    assert noise(standing(rounds, TWO)) > 0.1


def test_a_race_begins_with_plans_around_the_cpus() -> None:
    """The default first, no workers, and threads too."""
    plans = list(first_candidates(TWO, 8))
    assert plans[0] == TWO
    assert NONE in plans
    counts = {plan.num_workers for plan in plans if plan.engine == "process"}
    assert counts == {0, 1, 2, 4, 8, 9}
    assert {plan.num_workers for plan in plans if plan.engine == "thread"} == {4, 8}
    assert all(plan.threads_per_worker == 1 for plan in plans)


def test_a_race_begins_with_shared_batches_where_it_may() -> None:
    """As many threads as there are CPUs, in one process or several."""
    plans = set(first_candidates(TWO, 8, shares=True)) - set(first_candidates(TWO, 8))
    assert {(p.engine, p.num_workers, p.threads_per_worker) for p in plans} == {
        ("process", 0, 8),
        ("process", 1, 8),
        ("process", 4, 2),
    }
    assert set(first_candidates(ONE, 1, shares=True)) == set(first_candidates(ONE, 1))


def test_no_more_workers_are_tried_than_memory_allows() -> None:
    """What one worker takes is known before a plan with more is started."""
    race = Race(default=ONE, ceiling=300_000_000, most_workers=64)
    for settings in (ONE, NONE, FOUR):
        race.add(settings)
    options = TrialOptions(seconds=1)

    def trial(rate: int, held: int) -> Trial:
        point = MemoryPoint(
            samples=1, seconds=1.0, workers=(), trainer=held, pss=held, irrevocable=held
        )
        return Trial(options=options, samples=rate, seconds=1.0, points=(point,))

    race.record(
        {ONE: trial(100, 140_000_000), NONE: trial(50, 100_000_000), FOUR: trial(400, 260_000_000)}
    )
    assert not race.grow()
    assert "over the memory limit" in next(iter(race.out.values()))
