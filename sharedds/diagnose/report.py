"""The doctor's report as text: the verdict first, then the tables, then the fixes as code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sharedds.diagnose.hazards import Hazard
from sharedds.diagnose.pickles import PIPE, PickleSize
from sharedds.diagnose.trial import Trial
from sharedds.host.machine import Machine
from sharedds.text import decimal_size, printable

__all__ = [
    "HAZARD_HEADER",
    "TRIAL_HEADER",
    "DoctorReport",
    "Verdict",
    "by_reason",
    "failures",
    "hazard_rows",
    "headline",
    "pickle_text",
    "price_texts",
    "reason_of",
    "remarks",
    "size_text",
    "trial_rows",
    "where_of",
]

_NARROWEST = 60
_MOST_FIXES = 8
_RAISED = re.compile(r"[A-Za-z_][\w.]*(: |$)")  # the name of an exception begins the line
_MANY_SAMPLES = 5_000  # that a worker reads, after which it has long come to rest

HAZARD_HEADER = ("where", "each forked worker", "each spawned worker")
TRIAL_HEADER = (
    *("loader", "start", "first batch", "worker", "per 1,000"),
    *("all (PSS)", "samples/s"),
)


Verdict = Literal["safe", "hazards", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """What :func:`doctor` found; print it.

    Attributes:
        target: What was looked at.
        kind: The class of the dataset.
        samples: How many samples it has; None if it does not say.
        verdict: "safe"; "hazards"; or "failed", where no worker could load a sample.
        machine: What this process may use here.
        start_method: How workers would be started.
        num_workers: How many workers were measured, and what prices are told for.
        hazards: What costs memory or does not survive a new process, the dearest first.
        notes: What is good to know and decides nothing.
        pickle: The size of the dataset's pickle.
        trials: Real workers, measured; the chosen start method first. Empty if not measured.
        is_whole: Whether there was time to look at everything that the dataset holds.
    """

    target: str
    kind: str
    samples: int | None
    verdict: Verdict
    machine: Machine
    start_method: str
    num_workers: int
    hazards: tuple[Hazard, ...]
    notes: tuple[Hazard, ...]
    pickle: PickleSize
    trials: tuple[Trial, ...] = ()
    is_whole: bool = True

    @property
    def exit_code(self) -> int:
        """0 safe, 1 hazards, 2 could not run."""
        return {"safe": 0, "hazards": 1, "failed": 2}[self.verdict]

    @property
    def cost_of_all(self) -> int:
        """The most that all workers together pay for the hazards, in bytes."""
        fork = sum(hazard.fork for hazard in self.hazards)
        spawn = sum(hazard.spawn or 0 for hazard in self.hazards)
        return max(fork, spawn) * self.num_workers

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plain = {
            name: getattr(self, name)
            for name in ("target", "kind", "samples", "verdict", "start_method", "num_workers")
        }
        return plain | {
            "exit_code": self.exit_code,
            "cost_of_all": self.cost_of_all,
            "machine": self.machine.to_dict(),
            "hazards": [hazard.to_dict() for hazard in self.hazards],
            "notes": [hazard.to_dict() for hazard in self.notes],
            "pickle": asdict(self.pickle),
            "trials": [trial.to_dict() for trial in self.trials],
            "is_whole": self.is_whole,
        }

    def text(self, width: int = 80) -> str:
        """Return the verdict, the tables and the fixes, in lines of about ``width`` characters."""
        return _as_text(self, width)

    def __str__(self) -> str:
        return self.text()


def _as_text(report: DoctorReport, width: int = 80) -> str:
    """Return the whole report in lines of at most ``width`` characters, code left as it is.

    Args:
        report: The report.
        width: Characters in a line; 60 at the least.
    """
    width = max(width, _NARROWEST)
    lines = [*_wrapped(headline(report), width), *_wrapped(_facts(report), width, "  ")]
    if report.hazards:
        rows = [
            (hazard.path, *price_texts(hazard, report.num_workers)) for hazard in report.hazards
        ]
        lines += ["", *_table(HAZARD_HEADER, rows, width)]
    lines += ["", *_wrapped(pickle_text(report.pickle), width)]
    if report.trials:
        lines += ["", f"Measured, {_counted(report.num_workers, 'worker')}:"]
        lines += ["", *_table(TRIAL_HEADER, trial_rows(report.trials), width)]
        for line in (*failures(report.trials), *remarks(report)):
            lines += _wrapped(line, width, "  ")
    told: dict[tuple[str, str], int] = {}
    for number, hazard in enumerate(report.hazards[:_MOST_FIXES], 1):
        first = told.setdefault((hazard.kind, hazard.what), number)
        what = hazard.what if first == number else f"as {first}"
        lines += ["", *_wrapped(f"{number}. {hazard.path}: {what}", width, "   ", 3)]
        if first == number:
            lines += [f"       {line}".rstrip() for line in hazard.fix.splitlines()]
    if (left := len(report.hazards) - _MOST_FIXES) > 0:
        lines += ["", f"... and {left} more (--json lists all)"]
    if report.notes:
        lines += ["", "Good to know:"]
        for note in report.notes:
            lines += _wrapped(f"- {note.path}: {note.what}", width, "  ", 2)
    return "\n".join(printable(line) for line in lines)


def headline(report: DoctorReport) -> str:
    """Return the verdict in one sentence."""
    name = f"{report.target} ({report.kind})" if report.kind != report.target else report.target
    if report.verdict == "failed":
        return f"FAILED: no worker could load a batch of {name}"
    if report.verdict == "safe":
        return f"SAFE: nothing was found in {name} that costs its workers memory or breaks in them"
    text = f"{_counted(len(report.hazards), 'HAZARD', 'HAZARDS')} in {name}"
    if report.cost_of_all:
        workers = _counted(report.num_workers, "worker")
        text += f": with {workers} up to {size_text(report.cost_of_all)} of memory"
    if any(hazard.spawn is None and hazard.kind != "start" for hazard in report.hazards):
        text += "; it cannot be sent to workers of spawn or forkserver"
    elif report.trials and report.trials[0].error is not None:
        text += f"; workers by {report.start_method} fail"
    return text


def _facts(report: DoctorReport) -> str:
    machine = report.machine
    parts = []
    if report.samples is not None:
        parts.append(_counted(report.samples, "sample"))
    parts.append(f"workers by {report.start_method}")
    parts.append(_counted(machine.cpus.count, "CPU"))
    if machine.memory.available is not None:
        parts.append(f"{size_text(machine.memory.available)} of memory left")
    if machine.shared_memory is not None:
        parts.append(f"{size_text(machine.shared_memory.free)} free in /dev/shm")
    if machine.accelerator is not None:
        parts.append(f"{machine.accelerator.count} × {machine.accelerator.kind}")
    if not report.is_whole:
        parts.append("there was no time to look at everything it holds")
    return ", ".join(parts)


def pickle_text(size: PickleSize) -> str:
    """Return what a person should know of the size of the pickle."""
    if size.error is not None:
        return f"Pickle: impossible ({size.error})"
    about = "" if size.is_whole else "about "
    text = f"Pickle: {about}{size_text(size.nbytes)}"
    if size.largest is not None and size.largest_nbytes > PIPE:
        text += f", most of it {size.largest} ({size_text(size.largest_nbytes)})"
    if size.nbytes > PIPE:
        text += f"; above {PIPE // 1000} kB, workers of a plain DataLoader start one after another"
    if size.plain_error is not None:
        text += f"; a plain DataLoader cannot send it: {size.plain_error}"
    return text


def price_texts(hazard: Hazard, num_workers: int) -> tuple[str, str]:
    """Return what a forked and a spawned worker pay for a hazard, as words."""
    if hazard.repeats:
        share = f"repeats {hazard.repeated_share(num_workers):.0%}"
        return share, share
    if hazard.kind == "cache":
        return "grows", "grows"
    if hazard.kind == "start":
        return "fails" if hazard.breaks else "", "fails" if hazard.spawn is None else ""
    fork = "breaks" if hazard.breaks else size_text(hazard.fork)
    if hazard.spawn is None:
        return fork, "cannot start"
    if hazard.kind == "device":
        return fork, "opens a context"
    if hazard.kind in ("handle", "lock", "iterator"):
        return fork, "opens a copy" if hazard.kind == "handle" else "gets a copy"
    spawn = size_text(hazard.spawn)
    if hazard.shared:
        spawn = f"{size_text(hazard.shared)} shared"
    return fork, spawn


def hazard_rows(report: DoctorReport) -> list[tuple[str, ...]]:
    """Return the cells of the table of prices."""
    return [(each.path, *price_texts(each, report.num_workers)) for each in report.hazards]


def trial_rows(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Return the cells of the table of measurements."""
    rows: list[tuple[str, ...]] = []
    for trial in trials:
        start = trial.options.start_method or ""
        if trial.error is not None:
            rows.append((trial.options.loader, start, "failed", "", "", "", ""))
            continue
        growth, rate = trial.growth_per_1000, trial.samples_per_second
        rows.append(
            (
                trial.options.loader,
                start,
                _known(trial.first_batch_seconds, "{:.1f} s"),
                "" if trial.worker_uss_first is None else size_text(trial.worker_uss_first),
                "" if growth is None else _signed(growth),
                "" if trial.peak_pss is None else size_text(trial.peak_pss),
                _known(rate, "{:,.0f}"),
            )
        )
    return rows


def failures(trials: Sequence[Trial]) -> list[str]:
    """Return why trials failed, the same reason once."""
    reasons = by_reason(trials).items()
    return [f"{', '.join(map(where_of, failed))}: {reason}" for reason, failed in reasons]


def by_reason(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the trials that failed by the reason, in one line."""
    reasons: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.error is not None:
            reasons.setdefault(reason_of(trial.error), []).append(trial)
    return reasons


def where_of(trial: Trial) -> str:
    """Return the loader and the start method of a trial."""
    return f"{trial.options.loader} by {trial.options.start_method}"


def reason_of(error: str) -> str:
    """Return the line of an error that says what happened: in a traceback, the last one."""
    lines = [line for line in error.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent" in line]
    raised = [line for line in lines[starts[-1] + 1 :] if _RAISED.match(line)] if starts else []
    last = raised[-1] if raised else lines[0].strip() if lines else "no reason was given"
    return last.removeprefix("sharedds.errors.")


def remarks(report: DoctorReport) -> list[str]:
    """Return what the figures of the table mean."""
    read = sorted(
        trial.samples_read // max(1, trial.num_workers)
        for trial in report.trials
        if trial.error is None
    )
    if not read:
        return []
    text = "worker: its private memory at first; per 1,000: what it grew by for so many samples"
    if read[0] < _MANY_SAMPLES:
        few = f"{read[0]:,}" if read[0] == read[-1] else f"{read[0]:,} to {read[-1]:,}"
        text += f" (each read {few}: some of it is warming up)"
    texts = [f"{text}."]
    held = [trial for trial in report.trials if trial.worker_uss_last is not None]
    if held:
        most = max(held, key=lambda trial: trial.worker_uss_last or 0)
        texts.append(
            f"At the end a worker held {size_text(most.worker_uss_last or 0)} ({where_of(most)})."
        )
    copied = [hazard.path for hazard in report.hazards if hazard.fork and hazard.kind != "growth"]
    grows = any(
        trial.options.start_method == "fork" and (trial.growth_per_1000 or 0) > 50_000
        for trial in report.trials
    )
    if copied and grows:
        texts.append(
            f"Forked workers grow as they read {', '.join(copied[:3])}: page by page, "
            "they get copies of their own."
        )
    return texts


def size_text(size: float) -> str:
    """Return a size such as ``1.2 GB``, and ``0`` without a unit."""
    return decimal_size(size) if size else "0"


def _signed(size: int) -> str:
    return "0" if abs(size) < 50_000 else f"{'+' if size > 0 else '-'}{size_text(abs(size))}"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _wrapped(text: str, width: int, indent: str = "", first: int | None = None) -> list[str]:
    begin = indent if first is None else indent[first:]
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Lines of a table; the first column gives way where it is too wide."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    widths[0] = min(widths[0], max(12, width - sum(widths[1:]) - 2 * len(widths)))
    for row in (header, tuple("-" * each for each in widths), *rows):
        cells = [_shortened(row[0], widths[0]).ljust(widths[0])]
        cells += [
            cell.ljust(each) if i < 2 and len(header) > 4 else cell.rjust(each)
            for i, (cell, each) in enumerate(zip(row[1:], widths[1:], strict=True), 1)
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def _shortened(text: str, width: int) -> str:
    """The end of a path says more than its beginning."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]
