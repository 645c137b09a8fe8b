"""The doctor: what the machine allows, what a dataset would cost in workers, and what it does."""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharedds.diagnose.examine import Examined, examine, examined
from sharedds.diagnose.fixes import fix_of
from sharedds.diagnose.growth import Growth, filled, grown, growth_of, may_grow
from sharedds.diagnose.hazards import Hazard
from sharedds.diagnose.isolated import run_isolated
from sharedds.diagnose.report import DoctorReport, Verdict, by_reason, reason_of, where_of
from sharedds.diagnose.target import Opened, Target, load_target
from sharedds.diagnose.trial import PATIENCE, SILENT, Trial, TrialOptions, run_trial
from sharedds.errors import OptionError
from sharedds.host.machine import Machine
from sharedds.host.machine import machine as look

__all__ = ["doctor"]

_SECONDS = 3.0  # of each trial
_MOST_WORKERS = 4
_BATCH_SIZE = 8
_LONGER = 5  # times that, where a worker seems to keep what it reads

_ITERABLE = (
    Hazard(
        kind="iterable",
        path="dataset",
        what="an IterableDataset: measured with a plain DataLoader, since build_loader needs a "
        "map-style one, whose samples are read by number",
        is_note=True,
    ),
)

#: What is being done, steps done, steps in all.
Tick = Callable[[str, int, int], None]


def doctor(
    target: Any,
    *,
    num_workers: int | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
    start_method: str | None = None,
    measure: bool = True,
    transform: str | None = None,
    patience: float = PATIENCE,
    tick: Tick | None = None,
) -> DoctorReport:
    """Find out what a dataset costs its workers, and what in it does not survive a new process.

    The dataset is made in a process of its own, looked at there, and then loaded by real workers,
    once for each start method, each time in another fresh process. A dataset that is an object
    already is looked at where it lies, since a forked worker pays for its pages as they are.

    Args:
        target: A store, a folder of images, ``"module:attribute"``, ``"file.py:attribute"``, or a
            dataset. See :func:`~sharedds.diagnose.target.load_target`.
        num_workers: How many workers to measure; None for one for each CPU, up to four.
        batch_size: Samples in a batch; None for that of the DataLoader the target is, else 8.
        samples: How many samples to read in each trial; None reads for three seconds.
        start_method: How workers will be started; None for the platform's best.
        measure: Whether to start workers at all.
        transform: ``"module:attribute"`` of a transform for the dataset.
        patience: Seconds without a sign of life after which a process counts as hanging.
        tick: Called several times a second with what is being done, how many steps are done, and
            how many there are.

    Raises:
        OptionError: The target is no dataset or cannot be made, or an option makes no sense.
        SourceError: There is no such file.
    """
    if not patience > 0:
        raise OptionError(f"patience={patience}: more than 0 is expected")
    made = load_target(target, transform=transform)
    paths = [made.source] if made.kind in ("store", "folder") else []
    machine = look(paths)
    chosen = _checked(num_workers, batch_size, samples, start_method, machine)
    workers = num_workers or max(1, min(_MOST_WORKERS, machine.cpus.count))
    plans = _planned(machine, chosen, workers, samples) if measure else []
    plans = [replace(each, patience=patience) for each in plans]
    found = _examined(made, patience, _step(tick, 0, len(plans) + 1))
    if plans and found.samples == 0:
        raise OptionError(f"{made.name}: the dataset is empty: there is nothing to load")
    if found.is_iterable:
        plans = _of_torch_only(plans)
    size = batch_size or found.batch_size or _BATCH_SIZE
    trials = []
    for number, options in enumerate(plans, 1):
        step = _step(tick, number, len(plans) + 1)
        trials.append(run_trial(made, replace(options, batch_size=size), tick=step))
    growing = _longer(made, trials, found, _step(tick, len(plans), len(plans) + 1))
    hazards = found.audit.hazards + _unsendable(found)
    verdict = _verdict(hazards, trials)
    if verdict != "failed":
        hazards = _failing(made, trials, found, hazards) + hazards + growing
        verdict = "hazards" if hazards else "safe"
    return DoctorReport(
        target=made.name,
        kind=found.kind,
        samples=found.samples,
        verdict=verdict,
        machine=machine,
        start_method=chosen,
        num_workers=workers,
        hazards=hazards,
        notes=found.audit.notes + (_ITERABLE if found.is_iterable and trials else ()),
        pickle=found.pickle,
        trials=tuple(trials),
        is_whole=found.audit.is_whole,
    )


def _checked(
    num_workers: int | None,
    batch_size: int | None,
    samples: int | None,
    start_method: str | None,
    machine: Machine,
) -> str:
    for name, value in (
        ("num_workers", num_workers),
        ("batch_size", batch_size),
        ("samples", samples),
    ):
        if value is not None and (isinstance(value, bool) or value < 1):
            raise OptionError(f"{name}={value!r}: a number from 1 on is expected")
    available = machine.start_methods.available
    if start_method is not None and start_method not in available:
        raise OptionError(
            f"start_method={start_method!r}: this platform has {', '.join(available)}"
        )
    return start_method or available[0]


def _examined(target: Target, patience: float, tick: Callable[[str], None] | None) -> Examined:
    if target.kind == "object" and not (_makes_one(target.value) and _can_be_sent(target)):
        return examined(examine(_opened(target), tick or (lambda _: None)))
    finished = run_isolated("examine", {}, target.recipe, patience=patience, tick=tick)
    if finished.error is not None or not finished.results:
        error = finished.error or f"{target.name}: nothing was found out about it"
        raise OptionError(_with_advice(error))
    return examined(finished.results[0])


def _with_advice(error: str) -> str:
    """An error, and what helps where a process seems to hang."""
    more = "; with more patience (--patience SECONDS) it may get there"
    return error + more if error.startswith(SILENT) else error


def _makes_one(value: Any) -> bool:
    """Whether it is a class or function that makes a dataset."""
    return isinstance(value, type) or (
        callable(value) and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))
    )


def _can_be_sent(target: Target) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            target.recipe(Path(folder))
        except OptionError:
            return False
    return True


def _opened(target: Target) -> Opened:
    """Open an object; a transform is set on a copy of it, not on the object of the caller."""
    if target.transform is None:
        return target.open()
    plain = replace(target, transform=None).open()
    try:
        twin = copy.copy(plain.dataset)
    except Exception as error:  # the user's code
        raise OptionError(
            f"--transform: the dataset cannot be copied ({type(error).__name__}: {error})"
        ) from error
    opened = replace(target, value=twin).open()
    return replace(opened, collate_fn=plain.collate_fn, batch_size=plain.batch_size)


def _planned(
    machine: Machine, chosen: str, workers: int, samples: int | None
) -> list[TrialOptions]:
    """The trials: the chosen way first, the others, and a plain DataLoader at last."""
    options = TrialOptions(
        loader="sharedds",
        start_method=chosen,
        num_workers=workers,
        engine="process",
        prefetch_factor=2 if workers else None,
        new_memory=True,  # a worker then holds what the dataset keeps, and nothing else
        samples=samples,
        seconds=None if samples else _SECONDS,
        memory_share=0.2,
    )
    others = [each for each in machine.start_methods.available if each != chosen]
    usual = multiprocessing.get_all_start_methods()[0]  # what torch takes by itself
    return [
        options,
        *(replace(options, start_method=each) for each in others),
        replace(options, loader="torch", engine=None, start_method=usual),
    ]


def _of_torch_only(plans: Sequence[TrialOptions]) -> list[TrialOptions]:
    """A plain DataLoader by each start method, for what build_loader does not take."""
    return [replace(each, loader="torch", engine=None) for each in plans if each.loader != "torch"]


def _step(tick: Tick | None, done: int, total: int) -> Callable[[str], None] | None:
    return None if tick is None else lambda phase: tick(phase, done, total)


def _unsendable(found: Examined) -> tuple[Hazard, ...]:
    """What cannot be pickled for a reason that its objects do not show."""
    error = found.pickle.error
    if error is None or any(hazard.spawn is None for hazard in found.audit.hazards):
        return ()
    path, _, reason = error.partition(": ")
    what = f"cannot be sent to a worker by spawn or forkserver ({reason})"
    fix = fix_of("handle", path)
    return (Hazard(kind="pickle", path=path, what=what, fix=fix, spawn=None),)


def _longer(
    target: Target, trials: list[Trial], found: Examined, tick: Callable[[str], None] | None
) -> tuple[Hazard, ...]:
    """Measure longer where a worker seems to keep what it reads; forked ones grow by copying."""
    failed: list[Hazard] = []
    for number, trial in enumerate(trials):
        if trial.options.start_method == "fork" or not may_grow(trial):
            continue
        asked = trial.options
        more = replace(
            asked,
            samples=asked.samples and asked.samples * _LONGER,
            seconds=asked.seconds and asked.seconds * _LONGER,
        )
        longer = run_trial(target, more, tick=tick)
        places = found.audit.may_grow
        if longer.error is not None:
            failed.append(_growing(grown(trial), places, reason_of(longer.error)))
            continue
        trials[number] = longer
        growth = growth_of(longer, found.samples)
        if growth is None and places:
            growth = filled(longer, found.samples)
        return () if growth is None else (_growing(growth, places),)
    return tuple(failed[:1])


def _growing(growth: Growth, places: Sequence[str], error: str = "") -> Hazard:
    guess = f"; it may be kept in {', '.join(places[:3])}" if places else ""
    if error:
        later = f"; measured for longer, it failed ({error})"
    elif growth.per_1000:
        later = f" and goes on at {growth.per_1000 / 1e6:,.1f} MB for 1,000"
    else:
        later = ", as it read all that there are"
    return Hazard(
        kind="growth",
        path=places[0] if places else "dataset",
        what=f"a worker grew by {growth.nbytes / 1e6:,.0f} MB over {growth.samples:,} "
        f"samples{later}{guess}",
        fix=fix_of("growth", "dataset"),
        fork=growth.nbytes,
        spawn=growth.nbytes,
    )


def _failing(
    target: Target, trials: Sequence[Trial], found: Examined, hazards: Sequence[Hazard]
) -> tuple[Hazard, ...]:
    """What no hazard explains of the trials that failed; the chosen way comes first."""
    cannot_be_sent = any(hazard.spawn is None for hazard in hazards)
    if cannot_be_sent and target.kind == "object":  # not even to the process of a trial
        return ()
    unexplained = [
        trial
        for number, trial in enumerate(trials)
        if trial.error is not None
        and not (cannot_be_sent and trial.options.start_method != "fork")
        and not (number and trial.options.loader == "torch" and found.pickle.plain_error)
    ]
    return tuple(
        Hazard(
            kind="start",
            path="dataset",
            what=f"workers fail ({', '.join(map(where_of, failed))}): {_with_advice(reason)}",
            fix=fix_of("start", "dataset"),
            breaks=any(each.options.start_method == "fork" for each in failed),
            spawn=0 if all(each.options.start_method == "fork" for each in failed) else None,
        )
        for reason, failed in by_reason(unexplained).items()
    )


def _verdict(hazards: Sequence[Hazard], trials: Sequence[Trial]) -> Verdict:
    if (
        trials
        and all(trial.error is not None for trial in trials)
        and not any(hazard.spawn is None for hazard in hazards)
    ):
        return "failed"
    return "hazards" if hazards else "safe"
