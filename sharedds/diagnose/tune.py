"""Finds the plan that loads a dataset fastest on this machine, within a memory limit.

Plans are tried in rounds: each round runs every plan that is still in the race once, in a random
order, in a process of its own. Plans that are behind beyond the noise leave; more workers join
while the most so far were the best. What seems to be best in the end has to beat the default plan
once more, in pairs of its own that had no part in choosing it. If it does not, the default stays.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from sharedds.diagnose.comparing import FEWEST_PAIRS, Comparison, Settings, compare, standing
from sharedds.diagnose.race import LEAST_GAIN, ROUNDS, Race, first_candidates
from sharedds.diagnose.target import Target, load_target
from sharedds.diagnose.telling import Telling
from sharedds.diagnose.trial import PATIENCE, SILENT, Trial, TrialOptions, run_trials
from sharedds.diagnose.tuned_report import Candidate, TuneReport
from sharedds.errors import OptionError, WorkerError
from sharedds.host.machine import look
from sharedds.loader.budget import parse_memory
from sharedds.loader.plan import LoaderPlan
from sharedds.loader.tuned import tuned_key, write_tuned

__all__ = ["tune"]

BATCH_SIZE = 32

_MOST_WORKERS = 64
_MOST_PAIRS = 12  # that decide between the default and another plan
_OVERHEAD = 1.6  # seconds that a trial takes beside those it measures, at first


def tune(
    target: Any,
    *,
    max_memory: float | str | None = None,
    batch_size: int | None = None,
    seconds: float = 120.0,
    transform: str | None = None,
    dry_run: bool = False,
    patience: float = PATIENCE,
    progress: bool | None = None,
    seed: int = 0,
) -> TuneReport:
    """Find the fastest plan for a dataset on this machine, and keep it for ``plan="tuned"``.

    Args:
        target: A store, a folder of images, ``"module:attribute"``, ``"file.py:attribute"``, or a
            dataset, DataLoader, class or function itself.
        max_memory: What trainer, workers and batches may hold together: bytes, or text such as
            "8GiB" or "50%"; None for no limit.
        batch_size: Samples in a batch; None for that of the DataLoader the target is, else 32.
        seconds: How long to try, in all.
        transform: ``"module:attribute"`` of a transform for the dataset.
        dry_run: Whether to find the plan without keeping it.
        patience: Seconds without a sign of life after which a trial counts as hanging.
        progress: True or False to tell how far it is; by default after two seconds.
        seed: Of the order in which plans are tried.

    Returns:
        What was found; ``print`` it.

    Raises:
        OptionError: An option makes no sense, or the target is no dataset.
        SourceError: There is no such target, or the plan cannot be kept.
        WorkerError: No plan could be tried: the dataset fails, or the memory limit is too low.
    """
    if not seconds > 0:
        raise OptionError(f"seconds={seconds}: more than 0 is expected")
    if not patience > 0:
        raise OptionError(f"patience={patience}: more than 0 is expected")
    if batch_size is not None and batch_size < 1:
        raise OptionError(f"batch_size={batch_size}: 1 or more is expected")
    chosen = load_target(target, transform=transform)
    machine = look()
    ceiling = None if max_memory is None else parse_memory(max_memory, machine)
    with Telling("tuning", seconds=seconds, enabled=progress) as telling:
        tuning = _Tuning(chosen, batch_size, seconds, ceiling, machine.cpus.count, telling, seed)
        tuning.patience = patience
        report = tuning.run()
    key, path, note = "", None, ""
    try:
        key = tuned_key(report.fingerprint, machine)
    except OptionError as error:
        note = f"{error}: pass the arguments below to build_loader"
    if key and not dry_run:
        path = write_tuned(key, LoaderPlan.from_dict(report.plan), measured=report.summary())
    return report.kept(key=key, path=None if path is None else str(path), note=note)


class _Tuning:
    """Runs a race."""

    def __init__(
        self,
        target: Target,
        batch_size: int | None,
        seconds: float,
        ceiling: int | None,
        cpus: int,
        telling: Telling,
        seed: int,
    ) -> None:
        self.target = target
        self.batch_size = batch_size
        self.seconds = seconds
        self.ceiling = ceiling
        self.cpus = cpus
        self.telling = telling
        self.patience = PATIENCE
        self.slice = min(2.0, max(0.2, seconds / 60))
        self._random = random.Random(seed)  # noqa: S311 - an order, no secret
        self._begin = time.monotonic()
        self._spent: list[float] = []
        self._plans: dict[Settings, dict[str, Any]] = {}
        self._fingerprint = ""
        self._settled_size = batch_size

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._begin + self.seconds - time.monotonic()

    def cost(self, trials: int) -> float:
        """Return how long so many trials take, as far as is known."""
        each = median(self._spent) if self._spent else self.slice + _OVERHEAD
        return each * trials

    def run(self) -> TuneReport:
        """Find the best plan."""
        race = self._start()
        has_varied = False
        stopped = "one plan was left"
        while len(race.alive) > 1:
            # What is left must do for one more round, and then for the decision.
            needed = self.cost(len(race.alive)) + self.cost(3 * FEWEST_PAIRS)
            if self.left < needed and len(race.rounds) > 1:
                stopped = "the time was over"
                break
            race.record(self._round(race.alive, f"round {len(race.rounds)}"))
            if len(race.rounds) <= ROUNDS:
                continue
            race.drop_those_behind()
            if race.grow():
                continue
            if not has_varied:
                has_varied = True
                race.vary()
                continue
            if all(len(ratios) >= ROUNDS for ratios in self._of_alive(race)):
                stopped = "more workers or deeper prefetching did not help any further"
                break
        return self._decide(race, stopped)

    def _of_alive(self, race: Race) -> list[list[float]]:
        found = standing(race.rounds, race.baseline)
        return [found.get(settings, []) for settings in race.alive]

    def _start(self) -> Race:
        """Learn what the default plan is, and set up the race."""
        options = self._options(None)
        [trial] = run_trials(self.target, [options], tick=self._tick("the default plan"))
        if trial.error is not None or trial.plan is None:
            raise WorkerError(_failure(self.target.name, trial))
        self._settled_size = trial.batch_size
        self._fingerprint = trial.fingerprint
        default = Settings(
            engine=trial.plan["engine"] if trial.num_workers else "process",
            num_workers=trial.num_workers,
            prefetch_factor=trial.plan["prefetch_factor"],
            threads_per_worker=trial.plan["threads_per_worker"],
        )
        self._plans[default] = trial.plan
        race = Race(
            default=default,
            ceiling=self.ceiling,
            most_workers=min(_MOST_WORKERS, max(4 * self.cpus, default.num_workers)),
            shares=trial.whole_batches,
        )
        race.record({default: trial})
        for settings in first_candidates(default, self.cpus, shares=race.shares):
            race.add(settings)
        return race

    def _options(self, settings: Settings | None) -> TrialOptions:
        asked = {} if settings is None else settings.arguments()
        return TrialOptions(
            **asked,
            batch_size=self._settled_size,
            default_batch_size=BATCH_SIZE,
            seconds=self.slice,
            patience=self.patience,
            seed=self._random.randrange(1 << 30),
        )

    def _tick(self, what: str) -> Any:
        return lambda phase: self.telling.tell(what)

    def _round(self, plans: Sequence[Settings], name: str) -> dict[Settings, Trial]:
        """Try each plan once, in a random order."""
        order = list(plans)
        self._random.shuffle(order)
        return dict(zip(order, self._try(order, name), strict=True))

    def _try(self, order: Sequence[Settings], name: str) -> list[Trial]:
        begin = time.monotonic()
        what = f"{name}, {len(order)} trials"
        self.telling.expect(max(self.left, self.cost(len(order))))
        options = [self._options(settings) for settings in order]
        trials = run_trials(self.target, options, tick=self._tick(what))
        for settings, trial in zip(order, trials, strict=True):
            if trial.plan is not None:
                self._plans.setdefault(settings, trial.plan)
        self._spent.append((time.monotonic() - begin) / len(order))
        return trials

    def _decide(self, race: Race, stopped: str) -> TuneReport:
        """Let the plan that seems best and the default meet once more, in pairs."""
        challenger = race.best()
        comparison: Comparison | None = None
        best = race.default
        if not race.alive:
            raise WorkerError(_nothing_left(self.target.name, race))
        if race.default not in race.out and challenger != race.default:
            comparison = self._pairs(race, challenger)
            if comparison.wins(LEAST_GAIN):
                best = challenger
        if race.default in race.out:  # perhaps only since it met the other one
            if not race.alive:
                raise WorkerError(_nothing_left(self.target.name, race))
            best = challenger if challenger in race.alive else race.best()
            comparison = None
        means = race.means()
        candidates = tuple(
            Candidate(
                settings=settings,
                samples_per_second=race.rate(settings),
                memory=race.memory.get(settings),
                rounds=sum(settings in rates for rates in race.rounds),
                relative=math.exp(means[settings]) if settings in means else None,
                left_because=race.out.get(settings, ""),
            )
            for settings in sorted(
                {*race.alive, *race.out},
                key=lambda s: (
                    *(s.num_workers > 0, s.engine, s.threads_per_worker),
                    *(s.num_workers, s.prefetch_factor or 0),
                ),
            )
        )
        return TuneReport(
            target=self.target.name,
            fingerprint=self._fingerprint,
            batch_size=self._settled_size or 1,
            cpus=self.cpus,
            max_memory=self.ceiling,
            default=race.default,
            chosen=best,
            challenger=challenger,
            comparison=comparison,
            candidates=candidates,
            stopped=stopped,
            seconds=time.monotonic() - self._begin,
            plan=self._plans[best],
        )

    def _pairs(self, race: Race, challenger: Settings) -> Comparison:
        pairs: list[tuple[float, float]] = []
        comparison = compare(pairs)
        orders = [[challenger, race.default], [race.default, challenger]]
        while len(pairs) < _MOST_PAIRS:
            if pairs and self.left < self.cost(4):
                break
            if len(pairs) >= FEWEST_PAIRS and (
                comparison.wins(LEAST_GAIN) or comparison.factor < 1
            ):
                break
            first, second = self._random.sample(orders, 2)
            order = [*first, *second]
            trials = self._try(order, f"{challenger.label} against the default")
            for begin in (0, 2):
                found = dict(zip(order[begin : begin + 2], trials[begin : begin + 2], strict=True))
                mine = found[challenger].samples_per_second or 0.0
                other = found[race.default].samples_per_second or 0.0
                pairs.append((mine, other))
                race.record(found)
            if challenger in race.out or race.default in race.out:
                return compare([])
            comparison = compare(pairs)
        return comparison


def _failure(name: str, trial: Trial) -> str:
    lines = (trial.details or trial.output).rstrip().splitlines()[-12:]
    text = f"{name}: {trial.error}"
    if trial.error is not None and trial.error.startswith(SILENT):
        text += "; with more patience (--patience SECONDS) it may get there"
    return "\n  ".join([text, *lines])


def _nothing_left(name: str, race: Race) -> str:
    lines = [f"{settings.label}: {reason}" for settings, reason in race.out.items()]
    least = min(race.memory.values(), default=None)
    text = f"{name}: no plan could be kept"
    if least is not None and race.ceiling is not None:
        text += (
            f"; max_memory={race.ceiling / 1e6:,.0f} MB, and the smallest plan takes "
            f"{least / 1e6:,.0f} MB: lower batch_size or raise max_memory"
        )
    return "\n  ".join([text, *lines])
