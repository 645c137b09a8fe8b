"""Trials: a loader built in a fresh process, run for a while, and measured.

Each begins with a process of its own, so none inherits what another has warmed up, leaked or
broken, and each sees the dataset as a training script would: made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np

from sharedds.diagnose.isolated import MAKING, Finished, run_isolated
from sharedds.diagnose.target import Target
from sharedds.errors import OptionError

__all__ = ["PATIENCE", "SILENT", "MemoryPoint", "Trial", "TrialOptions", "run_trial", "run_trials"]

PATIENCE = 60.0

#: How the errors begin of what seems to hang.
SILENT = ("no sign of life", "not a word")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Which loader to try, and for how long.

    Attributes:
        loader: "sharedds" for :func:`~sharedds.build_loader`, "torch" for a plain DataLoader.
        start_method: "fork", "forkserver" or "spawn"; None for the loader's own choice.
        num_workers: Workers; None for the plan's choice (torch's DataLoader: 0).
        batch_size: Samples in a batch; None for that of the DataLoader the target is, else the
            next.
        default_batch_size: Samples in a batch if nobody says.
        engine: "process" or "thread" (sharedds only); None for the plan's choice.
        prefetch_factor: Batches each worker prepares; None for the loader's choice.
        threads_per_worker: Threads that make one batch (sharedds only); None for the loader's
            choice.
        pin_memory: Whether to pin; None for the loader's choice.
        max_memory: A budget for the loader (sharedds only), in bytes or words.
        samples: How many to read at most; None for no limit.
        seconds: How long to read at most, after the first batches; None for no limit.
        memory_share: The share of the time that measuring memory may take.
        patience: Seconds without a sign of life after which a trial counts as hanging; a trial
            that computes or reads lives.
        seed: Of the order in which samples are read.
        new_memory: Whether each batch takes new memory, and none is kept for the next (sharedds
            only).
    """

    loader: Literal["sharedds", "torch"] = "sharedds"
    start_method: str | None = None
    num_workers: int | None = None
    batch_size: int | None = None
    default_batch_size: int = 1
    engine: str | None = None
    prefetch_factor: int | None = None
    threads_per_worker: int | None = None
    pin_memory: bool | None = None
    max_memory: float | str | None = None
    samples: int | None = None
    seconds: float | None = None
    memory_share: float = 0.03
    patience: float = PATIENCE
    seed: int = 0
    new_memory: bool = False

    def __post_init__(self) -> None:
        if self.samples is None and self.seconds is None:
            raise OptionError("a trial needs an end: samples or seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Memory at one moment of a trial, in bytes.

    Attributes:
        samples: Samples that the loader had handed out.
        seconds: Since the trial began to read.
        workers: Private memory (USS) of each worker process; None where it is not told.
        trainer: Private memory of the process that uses the loader.
        pss: Of all processes together.
        irrevocable: The part of ``pss`` that the system cannot drop: anonymous and shared memory.
    """

    samples: int
    seconds: float
    workers: tuple[int | None, ...]
    trainer: int | None
    pss: int
    irrevocable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one trial measured; nothing but ``options`` and ``error`` if it failed.

    Attributes:
        options: What was asked for.
        error: What went wrong, in one line; None if nothing did.
        details: The traceback or the stack that belongs to it.
        output: The end of what the process printed.
        num_workers: Workers that the loader had.
        engine: "process" or "thread".
        batch_size: Samples in a batch.
        first_batch_seconds: From building the loader to its first batch.
        samples: Samples read in the measured time, which begins after one batch of each worker.
        batches: Batches of the same time.
        bytes: Bytes of data in these batches.
        seconds: That time.
        cpu_seconds: CPU time of all processes of the loader in it.
        others_busy: CPUs that other programs kept busy meanwhile; None if it is not known.
        longest_wait: The longest time without a batch, in seconds.
        samples_read: Samples read in all.
        uncollated: Whether batches are lists, since the samples do not stack.
        points: Memory over the samples.
        plan: The loader's plan as plain values; None for torch's DataLoader.
        fingerprint: What tells the dataset from others; empty if it does not say.
        whole_batches: Whether the dataset makes whole batches, without code of the user for each
            sample: then several threads can make one.
    """

    options: TrialOptions
    error: str | None = None
    details: str = ""
    output: str = ""
    num_workers: int = 0
    engine: str = "process"
    batch_size: int = 1
    first_batch_seconds: float | None = None
    samples: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    others_busy: float | None = None
    longest_wait: float = 0.0
    samples_read: int = 0
    uncollated: bool = False
    points: tuple[MemoryPoint, ...] = ()
    plan: dict[str, Any] | None = field(default=None, hash=False)
    fingerprint: str = ""
    whole_batches: bool = False

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second after the first batches."""
        return self.samples / self.seconds if self.seconds else None

    @property
    def batches_per_second(self) -> float | None:
        """Batches per second after the first ones."""
        return self.batches / self.seconds if self.seconds else None

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes of data per second."""
        return self.bytes / self.seconds if self.seconds else None

    @property
    def cpus_busy(self) -> float | None:
        """How many CPUs all processes together kept busy."""
        return self.cpu_seconds / self.seconds if self.seconds else None

    @property
    def peak_pss(self) -> int | None:
        """The most that all processes together held, in bytes of PSS."""
        return max((point.pss for point in self.points), default=None)

    @property
    def peak_irrevocable(self) -> int | None:
        """The most of it that the system could not drop."""
        return max((point.irrevocable for point in self.points), default=None)

    @property
    def worker_uss_first(self) -> int | None:
        """Mean private memory of a worker after the first batch."""
        known = [mean for _, mean in self._means()]
        return known[0] if known else None

    @property
    def worker_uss_last(self) -> int | None:
        """Mean private memory of a worker at the end."""
        known = [mean for _, mean in self._means()]
        return known[-1] if known else None

    @property
    def growth_per_1000(self) -> int | None:
        """Bytes by which a worker's private memory grows with each 1,000 samples it has read.

        A straight line through all but the first fifth of the points; None if there are too few.
        """
        means = self._means()
        kept = means[len(means) // 5 :]
        if len(kept) < 3 or not self.num_workers:
            return None
        # of the samples that one worker has read
        read = np.array([samples for samples, _ in kept], np.float64) / self.num_workers
        used = np.array([mean for _, mean in kept], np.float64)
        if np.ptp(read) == 0:
            return None
        return round(float(np.polyfit(read, used, 1)[0]) * 1000)

    def _means(self) -> list[tuple[int, int]]:
        means = []
        for point in self.points:
            known = [uss for uss in point.workers if uss is not None]
            if known and len(known) == len(point.workers):
                means.append((point.samples, round(sum(known) / len(known))))
        return means

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self) | {
            "samples_per_second": self.samples_per_second,
            "cpus_busy": self.cpus_busy,
            "peak_pss": self.peak_pss,
            "peak_irrevocable": self.peak_irrevocable,
            "worker_uss_first": self.worker_uss_first,
            "worker_uss_last": self.worker_uss_last,
            "growth_per_1000": self.growth_per_1000,
        }


def run_trial(
    target: Target, options: TrialOptions, *, tick: Callable[[str], None] | None = None
) -> Trial:
    """Run one trial in a fresh process.

    Args:
        target: What to load.
        options: How.
        tick: Called several times a second with what the process does.

    Returns:
        What was measured. Whatever the user's code does (raise, crash, hang, end the process) is
        told in ``error``; an exception comes only from ``tick`` or Ctrl-C, after which nothing of
        the trial is left.
    """
    return run_trials(target, [options], tick=tick)[0]


def run_trials(
    target: Target,
    options: Sequence[TrialOptions],
    *,
    tick: Callable[[str], None] | None = None,
) -> list[Trial]:
    """Run several trials one after another in one fresh process, which saves its start.

    A trial that takes the process with it does not take those after it: they get another one.

    Args:
        target: What to load.
        options: Of each trial.
        tick: Called several times a second with what the process does.

    Returns:
        One for each of the options.
    """
    trials: list[Trial] = []
    while len(trials) < len(options):
        left = options[len(trials) :]
        finished = run_isolated(
            "trials",
            {"trials": [asdict(each) for each in left]},
            target.recipe,
            patience=max(each.patience for each in left),
            tick=tick,
        )
        for each, result in zip(left, finished.results, strict=False):
            trials.append(_trial(each, result, finished.output))
        if finished.error is not None and len(trials) < len(options):
            trials.append(_failed(options[len(trials)], finished))
            if finished.phase in ("starting", MAKING):  # no other options would change that
                trials += [_failed(each, finished) for each in options[len(trials) :]]
    return trials


def _failed(options: TrialOptions, finished: Finished) -> Trial:
    return Trial(
        options=options,
        error=finished.error,
        details=finished.details,
        output=finished.output,
    )


def _trial(options: TrialOptions, result: dict[str, Any], output: str) -> Trial:
    known = {each.name for each in fields(Trial)} - {"options", "points", "output"}
    given = {name: value for name, value in result.items() if name in known}
    points = tuple(
        MemoryPoint(**{**point, "workers": tuple(point["workers"])})
        for point in result.get("points", ())
    )
    return Trial(options=options, output=output, points=points, **given)
