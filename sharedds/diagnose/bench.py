"""The isolation test: a loader alone, where the time of its samples goes, and what bounds it."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from sharedds.diagnose.isolated import run_isolated
from sharedds.diagnose.target import load_target
from sharedds.diagnose.telling import Telling
from sharedds.diagnose.trial import PATIENCE, SILENT, Trial, TrialOptions, run_trial
from sharedds.diagnose.verdict import StageCost, Verdict, judge
from sharedds.errors import OptionError, WorkerError
from sharedds.host.cpus import usable_cpus
from sharedds.text import printable

__all__ = ["BenchReport", "SlowSample", "bench"]

BATCH_SIZE = 32
_STARTS = 6.0  # seconds that starting processes takes, about
_SHOWN_PLACES = 5
_WORTH_A_NOTE = 0.01  # of the time of a sample, in reading
_WORTH_A_LOOK = 0.08  # of the time of a sample, in code that fits no stage


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSample:
    """A sample that took long.

    Attributes:
        index: Its number.
        key: What the dataset calls it.
        milliseconds: How long it took to load.
    """

    index: int
    key: str
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What :func:`bench` found; print it.

    Attributes:
        target: What was loaded.
        verdict: What bounds the loader.
        loader: The loader alone, measured in a process of its own.
        stages: What each stage costs a sample; transfer only where there are worker processes.
        samples: How many samples the stages were measured on.
        median_ms: Time that half of the samples stay below, in one thread.
        p95_ms: Time that 95 % of them stay below.
        slowest: The slowest ones, the slowest first.
        other_places: Where time that fits no stage is spent: pairs (place, share of a sample).
        cpus: CPUs this process may use.
        cpus_reason: What limits them; empty for the bare number.
        notes: What else a reader should know.
    """

    target: str
    verdict: Verdict
    loader: Trial
    stages: tuple[StageCost, ...]
    samples: int
    median_ms: float
    p95_ms: float
    slowest: tuple[SlowSample, ...]
    other_places: tuple[tuple[str, float], ...]
    cpus: int
    cpus_reason: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self) | {"loader": self.loader.to_dict()}

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 80) -> str:
        """Return it as lines for people.

        Args:
            width: Characters in a line.
        """
        loader, verdict = self.loader, self.verdict
        kind = "thread" if loader.engine == "thread" else "worker process"
        plural = "" if loader.num_workers == 1 else "es" if kind.endswith("s") else "s"
        who = f"{loader.num_workers} {kind}{plural}" if loader.num_workers else "no workers"
        rate = _number(loader.samples_per_second or 0)
        batches = _number(loader.batches_per_second or 0)
        data = _size(loader.bytes_per_second or 0)
        lines = [
            *textwrap.wrap(
                f"{printable(self.target)}: {rate} samples/s with {who}, batch size "
                f"{loader.batch_size}",
                width,
                subsequent_indent="  ",
            ),
            "",
            *textwrap.wrap(_sentence(f"{verdict.headline}. {verdict.text}"), width),
            *textwrap.wrap(f"What would help: {verdict.advice}", width, subsequent_indent="  "),
            "",
            f"  loader alone  {rate} samples/s, {batches} batches/s, {data}/s",
            f"  first batch   after {loader.first_batch_seconds or 0:.2f} s",
            f"  longest wait  {loader.longest_wait:.2f} s for a batch",
            f"  memory        {_size(loader.peak_irrevocable or 0)} that the system cannot drop",
        ]
        if loader.cpus_busy is not None:
            others = ""
            if loader.others_busy is not None:
                others = f", {loader.others_busy:.1f} by other programs"
            lines.append(
                f"  CPUs          {loader.cpus_busy:.1f} of {self.cpus} busy with it{others}"
            )
        counts = [f"{workers}" for workers, _ in verdict.expected]
        rates = [f"{rate:,.0f}" for _, rate in verdict.expected]
        wide = [max(len(a), len(b)) for a, b in zip(counts, rates, strict=True)]
        lines += [
            "",
            "what to expect of other numbers of workers",
            "  workers    " + "  ".join(a.rjust(n) for a, n in zip(counts, wide, strict=True)),
            "  samples/s  " + "  ".join(a.rjust(n) for a, n in zip(rates, wide, strict=True)),
            *([] if loader.num_workers == 0 else ["  (0: with torch.set_num_threads(1))"]),
            "",
            f"where the time of a sample goes ({self.samples:,} samples, one thread)",
            f"  {'stage':<9}  share        ms  computing  waiting",
        ]
        for stage in self.stages:
            lines.append(
                f"  {stage.name:<9}  {100 * stage.share:>3.0f} %  {stage.milliseconds:>8.3f}  "
                f"{stage.computing:>9.3f}  {stage.waiting:>7.3f}"
            )
        if self.other_places:
            lines += ["", "in code that fits no stage"]
            lines += [
                f"  {100 * share:>3.0f} %  {_shortened(place, width - 9)}"
                for place, share in self.other_places
            ]
        if self.slowest:
            usual = f"median {self.median_ms:.3g} ms, 95 % below {self.p95_ms:.3g} ms"
            lines += ["", f"slowest samples ({usual})"]
            lines += [
                f"  {slow.milliseconds:>8.3g} ms  {_shortened(slow.key, width - 15)}"
                for slow in self.slowest
            ]
        if self.notes:
            lines.append("")
        for note in self.notes:
            lines += textwrap.wrap(f"note: {note}", width, subsequent_indent="  ")
        return "\n".join(lines)


def bench(
    target: Any,
    *,
    num_workers: int | None = None,
    batch_size: int | None = None,
    seconds: float = 10.0,
    transform: str | None = None,
    slowest: int = 5,
    patience: float = PATIENCE,
    progress: bool | None = None,
) -> BenchReport:
    """Measure a loader alone, without any training, and tell what bounds it.

    The dataset is made and loaded in fresh processes, first by one thread that is looked at every
    few milliseconds, to tell the stages apart; then by the loader.

    Args:
        target: A store, a folder of images, ``"module:attribute"``, ``"file.py:attribute"``, or a
            dataset, DataLoader, class or function itself.
        num_workers: Workers; None lets the plan choose.
        batch_size: Samples in a batch; None for that of the DataLoader the target is, else 32.
        seconds: How long to measure, in all; starting comes on top.
        transform: ``"module:attribute"`` of a transform for the dataset.
        slowest: How many of the slowest samples to name.
        patience: Seconds without a sign of life after which a process counts as hanging.
        progress: True or False to tell how far it is; by default after two seconds.

    Returns:
        What was found; ``print`` it.

    Raises:
        OptionError: An option makes no sense, or the target is no dataset.
        SourceError: There is no such target.
        WorkerError: The dataset failed; the text says how.
    """
    if not seconds > 0:
        raise OptionError(f"seconds={seconds}: more than 0 is expected")
    if not patience > 0:
        raise OptionError(f"patience={patience}: more than 0 is expected")
    if batch_size is not None and batch_size < 1:
        raise OptionError(f"batch_size={batch_size}: 1 or more is expected")
    if num_workers is not None and num_workers < 0:
        raise OptionError(f"num_workers={num_workers}: 0 or more is expected")
    chosen = load_target(target, transform=transform)
    with Telling("measuring", seconds=seconds + _STARTS, enabled=progress) as telling:
        finished = run_isolated(
            "profile",
            {
                "batch_size": batch_size,
                "default_batch_size": BATCH_SIZE,
                "seconds": seconds * 0.4,
                "transfer_seconds": seconds * 0.15,
            },
            chosen.recipe,
            patience=patience,
            tick=telling.tell,
        )
        if finished.error is not None or len(finished.results) < 2:
            raise WorkerError(
                _failure(chosen.name, finished.error, finished.details, finished.output)
            )
        profile, transfer = finished.results[:2]
        is_iterable = profile["is_iterable"]  # which only torch's own loader takes
        if is_iterable and num_workers is None:
            num_workers = min(2, usable_cpus().count)
        options = TrialOptions(
            loader="torch" if is_iterable else "sharedds",
            num_workers=num_workers,
            batch_size=profile["batch_size"],
            seconds=seconds * 0.45,
            # A batch is one word, and its samples may have to be waited for.
            patience=max(patience, 3e-3 * profile["p95_ms"] * profile["batch_size"]),
        )
        trial = run_trial(chosen, options, tick=telling.tell)
    if trial.error is not None:
        raise WorkerError(_failure(chosen.name, trial.error, trial.details, trial.output))
    return _report(chosen.name, profile, transfer, trial, slowest)


def _failure(name: str, error: str | None, details: str, output: str) -> str:
    text = f"{name}: {error or 'the process said nothing'}"
    if error is not None and error.startswith(SILENT):
        text += "; with more patience (--patience SECONDS) it may get there"
    lines = (details or output).rstrip().splitlines()[-12:]
    return "\n  ".join([text, *lines]) if lines else text


def _report(
    name: str, profile: dict[str, Any], transfer: dict[str, Any], trial: Trial, slowest: int
) -> BenchReport:
    sends = trial.num_workers > 0 and trial.engine == "process"
    collating = profile["stages"]["collate"]["cpu"] / profile["samples"]
    sending = max(0.0, transfer.get("seconds_per_sample", 0.0) - collating)
    stages = _stages(
        profile, 1000 * sending if sends else 0.0, sends=sends and "error" not in transfer
    )
    share = usable_cpus()
    verdict = judge(
        stages,
        rate=trial.samples_per_second or 0.0,
        workers=trial.num_workers,
        threads=trial.engine == "thread",
        cpus=share.count,
        busy=trial.cpus_busy,
        others=trial.others_busy,
        sending=1000 * sending,
        one_thread_rate=profile["samples"] / profile["loop_seconds"],
    )
    notes = []
    if trial.uncollated:
        notes.append(
            "the samples have different shapes and do not stack: batches are lists, which are slow "
            "to send; pass your transform (--transform module:attribute)"
        )
    if "error" in transfer and sends:
        notes.append(f"what the transfer costs could not be measured: {transfer['error']}")
    read, reads = profile["storage_bytes"], stages[0].share >= _WORTH_A_NOTE
    if reads and read is not None and read < 0.01 * profile["bytes"]:
        notes.append(
            "nearly all of it came from memory (the page cache); data that does not fit there "
            "is waited for longer"
        )
    whole = sum(profile["stages"][stage]["wall"] for stage in profile["stages"])
    other = next((stage.share for stage in stages if stage.name == "other"), 0.0)
    places: tuple[tuple[str, float], ...] = ()
    if other >= _WORTH_A_LOOK:
        places = tuple(
            (place, spent / whole) for place, spent in profile["other_places"][:_SHOWN_PLACES]
        )
    return BenchReport(
        target=name,
        verdict=verdict,
        loader=trial,
        stages=stages,
        samples=profile["samples"],
        median_ms=profile["median_ms"],
        p95_ms=profile["p95_ms"],
        slowest=tuple(
            SlowSample(index=slow["index"], key=slow["name"], milliseconds=slow["ms"])
            for slow in profile["slowest"][:slowest]
        ),
        other_places=places,
        cpus=share.count,
        cpus_reason=share.reason,
        notes=tuple(notes),
    )


def _stages(profile: dict[str, Any], sending: float, *, sends: bool) -> tuple[StageCost, ...]:
    """Return the cost of each stage: shares of the looks, of the time that samples really took."""
    spent = profile["stages"]
    wall = sum(each["wall"] for each in spent.values()) or 1e-9
    delay = sum(each["delay"] for each in spent.values())
    cpu = sum(each["cpu"] for each in spent.values())
    # What is neither computing nor waiting for a CPU. The clocks are not read at one instant, so
    # the parts are brought to what the whole says.
    waits = {
        name: max(0.0, each["wall"] - each["cpu"] - each["delay"]) for name, each in spent.items()
    }
    waited = min(1.0, max(0.0, wall - cpu - delay) / (sum(waits.values()) or 1e-9))
    own = {name: each["cpu"] + waited * waits[name] for name, each in spent.items()}
    # Looking slows the samples down a little; their own clock has not seen it.
    per_sample = 1000 * profile["seconds"] * max(0.0, 1 - delay / wall) / profile["samples"]
    scale = per_sample / (sum(own.values()) or 1e-9)
    whole = per_sample + sending
    stages = [
        StageCost(
            name=name,
            milliseconds=scale * own[name],
            computing=scale * each["cpu"],
            waiting=scale * waited * waits[name],
            share=scale * own[name] / whole,
        )
        for name, each in spent.items()
    ]
    if sends:
        stages.insert(
            -1,
            StageCost(
                name="transfer",
                milliseconds=sending,
                computing=sending,
                waiting=0.0,
                share=sending / whole,
            ),
        )
    return tuple(stages)


# --- words ---------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.1f} TB"


def _shortened(text: str, width: int) -> str:
    """Return the end of a long name: it is what tells files apart."""
    text = printable(text)
    width = max(width, 20)
    return text if len(text) <= width else "..." + text[3 - width :]
