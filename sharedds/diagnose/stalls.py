"""Who waits for whom in a training loop: does the loader bound it, or the training step?"""

from __future__ import annotations

import collections
import statistics
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import torch

from sharedds.diagnose.utilisation import UtilisationWatch, accelerator_in_use, utilisation_reader
from sharedds.errors import OptionError

__all__ = ["StallMeter", "StallReport"]

T = TypeVar("T")

#: From this share of the time on, waiting bounds the loop; up to the other one it does not matter.
_LOADER_BOUND, _COMPUTE_BOUND = 0.20, 0.05
#: Medians are those of so many of the last steps.
_KEPT = 4096
#: Fewer steps show little.
_FEW = 20
#: Waits come in bursts if a tenth of the steps has this share of all waiting.
_BURST = 0.8
#: An accelerator as busy as this has nothing to wait for.
_BUSY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """What a :class:`StallMeter` has found; print it as one screen.

    The first step of each loop stands apart: there workers start, and training warms up.

    Attributes:
        verdict: "loader-bound" if the loop waits for 20 % of its time or more, "compute-bound" if
            for 5 % or less, else "balanced"; "not measured" before the second step.
        steps: Steps that were measured.
        loops: How many loops they were in.
        first_batch_seconds: Seconds until the first batch of a loop, the median; None without one.
        waited: Seconds in ``next()``.
        stepped: Seconds in the body of the loop.
        median_wait: Seconds; of the last 4,096 steps.
        median_step: Seconds; of the last 4,096 steps.
        burst: The share of all waiting that was done in the longest tenth of the waits.
        accelerator: What this process computes on besides the CPU; None for nothing.
        is_synchronized: Whether each step was measured until the accelerator was done with it.
        utilisation: Share of time in which the accelerator was busy, a hint; None if not told.
    """

    verdict: str
    steps: int
    loops: int
    first_batch_seconds: float | None
    waited: float
    stepped: float
    median_wait: float
    median_step: float
    burst: float
    accelerator: str | None = None
    is_synchronized: bool = False
    utilisation: float | None = None

    @property
    def wait_share(self) -> float:
        """Share of the time in which the loop waited for a batch; what a perfect loader saves."""
        passed = self.waited + self.stepped
        return self.waited / passed if passed > 0 else 0.0

    @property
    def step_share(self) -> float:
        """Share of the time in the body of the loop."""
        return 1.0 - self.wait_share if self.waited + self.stepped > 0 else 0.0

    @property
    def most_to_win(self) -> float:
        """How many times as fast the loop would be with a loader that costs nothing."""
        return 1 / self.step_share if self.step_share > 0 else 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before believing the figures."""
        notes = []
        if 0 < self.steps < _FEW:
            notes.append(f"only {self.steps} steps: go on for longer to be sure")
        if self.verdict != "compute-bound" and self.burst >= _BURST and self.steps >= _FEW:
            notes.append(
                f"the waits come in bursts: a tenth of the steps has {self.burst:.0%} of them; a "
                "larger prefetch_factor evens out slow batches, if it is not the same ones each "
                "time (a slow file, the end of a shard)"
            )
        if self.accelerator is not None and not self.is_synchronized:
            notes.append(
                f"{self.accelerator} computes on while the body of the loop is left: the time in "
                "the body is a lower bound of the step's, and what can be won an upper bound; "
                "StallMeter(loader, synchronize=True) waits for each step, and tells exactly"
            )
        busy = (self.utilisation or 0.0) >= _BUSY
        if busy and self.verdict == "loader-bound" and not self.is_synchronized:
            notes.append(
                f"{self.accelerator} was busy all the same: it has work while the loop waits, so "
                "less can be won than it seems"
            )
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return asdict(self) | {
            "wait_share": self.wait_share,
            "step_share": self.step_share,
            "most_to_win": self.most_to_win,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        if not self.steps:
            return "not measured: the loop has not come to its second step"
        meaning = {
            "loader-bound": "the loop waits for its batches; a faster loader pays",
            "balanced": "the loop waits now and then; a faster loader gains a little",
            "compute-bound": "batches are there when they are needed; look at the step itself",
        }[self.verdict]
        loops = "" if self.loops == 1 else f" in {self.loops} loops"
        passed = self.waited + self.stepped
        first = f"{self.first_batch_seconds or 0:.2f} s"
        rows = [
            ("measured", f"{self.steps:,} steps{loops}, {passed:.2f} s"),
            ("first batch", f"{first} after the loop began; left out below"),
            ("waited in next()", _part(self.waited, self.wait_share, self.median_wait)),
            ("in the loop body", _part(self.stepped, self.step_share, self.median_step)),
            (
                "most to be won",
                f"{self.wait_share:.0%} of the time: {self.most_to_win:.2f} times as fast",
            ),
        ]
        if self.accelerator is not None:
            busy = "its load is not told here"
            if self.utilisation is not None:
                busy = f"busy {self.utilisation:.0%} of the time (a hint, by its driver)"
            rows.append(("accelerator", f"{self.accelerator}, {busy}"))
        lines = [f"  {name:<18}  {text}" for name, text in rows]
        notes = [
            textwrap.fill(note, 79, initial_indent="  note: ", subsequent_indent="    ")
            for note in self.notes
        ]
        return "\n".join([f"{self.verdict}: {meaning}", *lines, *notes])


def _part(seconds: float, share: float, median: float) -> str:
    return f"{seconds:.2f} s ({share:.0%}), median {median * 1e3:,.1f} ms a step"


class StallMeter(Generic[T]):
    """Times a training loop: how long it waits for batches, how long its body takes.

    ::

        meter = sharedds.StallMeter(loader)
        for batch in meter:
            train(batch)
        print(meter.report())

    Any iterable will do. It may be gone through several times; figures add up. Each step costs
    about a microsecond.

    The verdict is "loader-bound" if the loop waits for 20 % of its time or more, "compute-bound" if
    for 5 % or less, else "balanced". A loader that costs nothing would save just the time waited,
    so that share is the most that can be won; the rest is the step's own.

    An accelerator computes on after Python has handed out the work, so ``next()`` may be asked
    while it is still at the step before. Without ``synchronize`` the share of waiting is then an
    upper bound; the report says so, with the accelerator's load where that can be read.

    Args:
        iterable: A loader, or any other iterable.
        synchronize: Wait at the end of each step until the accelerator is done: exact figures, at
            the price of what overlapped.

    Raises:
        OptionError: ``iterable`` cannot be gone through.
    """

    def __init__(self, iterable: Iterable[T], *, synchronize: bool = False) -> None:
        given: Any = iterable
        if not isinstance(given, Iterable) and not hasattr(given, "__getitem__"):
            raise OptionError(f"StallMeter({given!r}): a loader or another iterable is expected")
        self._iterable = iterable
        self._synchronize = synchronize
        self._steps = self._loops = 0
        self._waited = self._stepped = 0.0
        self._firsts: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self._pairs: collections.deque[tuple[float, float]] = collections.deque(maxlen=_KEPT)
        self._load: UtilisationWatch | None = None

    def __len__(self) -> int:
        """Return the length of the iterable."""
        return len(self._iterable)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """What else is asked of a loader (``state_dict``, ``set_epoch``) is asked of it."""
        if name.startswith("_"):
            raise AttributeError(f"StallMeter has no attribute {name!r}")
        return getattr(self._iterable, name)

    def __iter__(self) -> Iterator[T]:
        """Begin a loop."""
        if self._load is None:
            self._load = UtilisationWatch(utilisation_reader())
        is_first = True
        asked = time.perf_counter()
        with self._load:
            for batch in self._iterable:
                came = time.perf_counter()
                yield batch
                if self._synchronize:
                    _synchronize()
                done = time.perf_counter()
                if is_first:
                    is_first = False
                    self._loops += 1
                    self._firsts.append(came - asked)
                else:
                    self._note(came - asked, done - came)
                asked = time.perf_counter()

    def _note(self, waited: float, stepped: float) -> None:
        self._steps += 1
        self._waited += waited
        self._stepped += stepped
        self._pairs.append((waited, stepped))

    def report(self) -> StallReport:
        """Return what was measured so far; a step that a ``break`` left is not counted."""
        pairs = tuple(self._pairs)
        waits = sorted((pair[0] for pair in pairs), reverse=True)
        share = self._waited / max(self._waited + self._stepped, 1e-12)
        if not self._steps:
            verdict = "not measured"
        elif share >= _LOADER_BOUND:
            verdict = "loader-bound"
        else:
            verdict = "compute-bound" if share <= _COMPUTE_BOUND else "balanced"
        tenth = waits[: -(-len(waits) // 10)]
        return StallReport(
            verdict=verdict,
            steps=self._steps,
            loops=self._loops,
            first_batch_seconds=statistics.median(self._firsts) if self._firsts else None,
            waited=self._waited,
            stepped=self._stepped,
            median_wait=statistics.median(waits) if waits else 0.0,
            median_step=statistics.median(pair[1] for pair in pairs) if pairs else 0.0,
            burst=sum(tenth) / max(sum(waits), 1e-12),
            accelerator=accelerator_in_use(),
            is_synchronized=self._synchronize,
            utilisation=self._load.mean if self._load is not None else None,
        )


def _synchronize() -> None:
    if accelerator_in_use() is not None:
        torch.accelerator.synchronize()
