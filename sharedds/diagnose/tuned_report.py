"""What a tuning found: a table, a chart, plain values."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, replace
from typing import Any

from sharedds.diagnose.comparing import FEWEST_PAIRS, Comparison, Settings
from sharedds.text import printable

__all__ = ["Candidate", "TuneReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that was tried.

    Attributes:
        settings: The plan.
        samples_per_second: The median over its rounds; None if it never got through one.
        memory: The most it held, trainer and workers together, in bytes the system cannot drop.
        rounds: How often it was tried.
        relative: Its rate over the default's in the same rounds.
        left_because: Why it was not tried any more; empty for those that stayed to the end.
    """

    settings: Settings
    samples_per_second: float | None
    memory: int | None
    rounds: int
    relative: float | None
    left_because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """What :func:`tune` found; print it.

    Attributes:
        target: What was loaded.
        fingerprint: What the kept plan belongs to; empty if the dataset does not say.
        batch_size: Samples in a batch.
        cpus: CPUs this process may use.
        max_memory: The limit, in bytes; None without one.
        default: The plan that the loader chooses by itself.
        chosen: The plan that was found.
        challenger: What seemed best before it met the default once more.
        comparison: How that went; None if nothing seemed better than the default.
        candidates: All that were tried.
        stopped: Why the trying ended.
        seconds: How long it took.
        plan: The chosen plan as plain values.
        key: Dataset and machine that it was kept for; empty if they cannot be told apart.
        path: The file it is kept in; None if it is not.
        note: What else there is to know.
    """

    target: str
    fingerprint: str
    batch_size: int
    cpus: int
    max_memory: int | None
    default: Settings
    chosen: Settings
    challenger: Settings
    comparison: Comparison | None
    candidates: tuple[Candidate, ...]
    stopped: str
    seconds: float
    plan: dict[str, Any]
    key: str = ""
    path: str | None = None
    note: str = ""

    def kept(self, *, key: str, path: str | None, note: str) -> TuneReport:
        """Return the same with where the plan is kept."""
        return replace(self, key=key, path=path, note=note)

    @property
    def arguments(self) -> dict[str, Any]:
        """The chosen plan as arguments of :func:`~sharedds.build_loader`."""
        return self.chosen.arguments()

    def summary(self) -> dict[str, Any]:
        """Return by what the plan was chosen, for the file it is kept in."""
        everything = self.to_dict()
        names = ("target", "batch_size", "max_memory", "default", "chosen", "comparison")
        return {name: everything[name] for name in (*names, "candidates", "stopped")}

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        plain = asdict(self) | {"arguments": self.arguments}
        if self.comparison is not None and self.comparison.pairs < 2:
            plain["comparison"] |= {"low": None, "high": None}  # JSON knows no infinity
        return plain

    def headline(self) -> str:
        """Return what was found, in a sentence or two."""
        of = {each.settings: each for each in self.candidates}
        rate = of[self.chosen].samples_per_second or 0.0
        found = f"{self.chosen.label}: {rate:,.0f} samples/s"
        if self.chosen == self.default:
            text = f"The default plan stays, {found}."
            if self.comparison is not None and self.comparison.pairs:
                text += (
                    f" {_capital(self.challenger.label)} seemed better, but in "
                    f"{self.comparison.pairs} more pairs {_outcome(self.comparison)}."
                )
            else:
                text += " No other plan was faster beyond the noise."
            return text
        if self.comparison is None:
            return f"{_capital(found)}. The default plan ({self.default.label}) did not run."
        low, high = self.comparison.low, self.comparison.high
        return (
            f"{_capital(found)}, {100 * (self.comparison.factor - 1):+.0f} % against the default "
            f"({self.default.label}). In {self.comparison.pairs} pairs: between "
            f"{100 * (low - 1):+.0f} % and {100 * (high - 1):+.0f} %."
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 80, *, bar: str = "#") -> str:
        """Return it as lines for people, with a chart of throughput and memory.

        Args:
            width: Characters in a line.
            bar: What bars are made of.
        """
        head = f"{self.target}: {self.headline()}"
        lines = [*textwrap.wrap(printable(head), width), "", *self._chart(width, bar), ""]
        lines += textwrap.wrap(f"stopped after {self.seconds:.0f} s: {self.stopped}", width)
        for note in self._left():
            lines += textwrap.wrap(printable(note), width, subsequent_indent="  ")
        if self.path is not None:
            kept = f'kept for build_loader(..., plan="tuned") in {self.path}'
            lines += textwrap.wrap(printable(kept), width, subsequent_indent="  ")
            lines += textwrap.wrap(
                f"It was found with batches of {self.batch_size}, and is taken for batches of any "
                "size: tune again for much larger or smaller ones.",
                width,
                subsequent_indent="  ",
            )
        elif self.note:
            lines += textwrap.wrap(self.note, width, subsequent_indent="  ")
        call = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        hand = f"the same by hand: build_loader(..., {call})"
        lines += textwrap.wrap(hand, width, subsequent_indent="  ")
        return "\n".join(lines)

    def _chart(self, width: int, bar: str) -> list[str]:
        shown = [each for each in self.candidates if each.samples_per_second is not None]
        names = [each.settings.label for each in shown]
        wide = max(map(len, names), default=0)
        room = max(6, (width - wide - 27) // 2)
        fastest = max((each.samples_per_second or 0 for each in shown), default=1)
        largest = max((each.memory or 0 for each in shown), default=1) or 1
        limit = "" if self.max_memory is None else f" (limit {self.max_memory / 1e6:,.0f} MB)"
        lines = [f"    {'plan':<{wide}}  {'samples/s':<{room + 8}}  memory{limit}"]
        for name, each in zip(names, shown, strict=True):
            mark = "*" if each.settings == self.chosen else " "
            base = "=" if each.settings == self.default else " "
            rate, memory = each.samples_per_second or 0.0, each.memory or 0
            rates = _bar(rate / fastest, room, bar)
            held = _bar(memory / largest, room, bar)
            line = f"  {mark}{base}{name:<{wide}}  {rate:>6,.0f}  {rates:<{room}}  "
            lines.append(f"{line}{memory / 1e6:>6,.0f} MB  {held}".rstrip())
        lines.append("  * chosen   = default")
        return lines

    def _left(self) -> list[str]:
        reasons: dict[str, list[str]] = {}
        for each in self.candidates:
            if each.left_because and each.left_because != "slower":
                reasons.setdefault(each.left_because, []).append(each.settings.label)
        return [f"{reason}: {'; '.join(labels)}" for reason, labels in reasons.items()]


def _bar(share: float, room: int, mark: str) -> str:
    return mark * max(1, round(share * room)) if share > 0 else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _outcome(comparison: Comparison) -> str:
    percent = 100 * (comparison.factor - 1)
    if comparison.pairs < FEWEST_PAIRS and comparison.factor > 1:
        return f"there was no time to make sure ({percent:+.0f} %): give it more seconds"
    if comparison.factor <= 1:
        return f"it was slower ({percent:+.0f} %)"
    if comparison.low <= 1:
        return f"it was not faster beyond the noise ({percent:+.0f} %)"
    return f"it gained too little to be worth a change ({percent:+.1f} %)"
