"""How far a long task is, told on stderr, and only when it is long.

On a terminal a bar appears after two seconds; elsewhere (a log file, a batch system) a plain line
is written after two seconds, then every ten. Short work says nothing. No thread is started, so that
the caller stays free to fork, and a stream that fails ends the report, never the work.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

__all__ = ["Progress"]

_FIRST_AFTER = 2.0
_BAR_EVERY = 0.1
_LINE_EVERY = 10.0
_RATE_OVER = 30.0  # seconds that the rate looks back


class Progress:
    """Report the progress of one task, from one thread; a context manager.

    ::

        with Progress("packing", total=len(paths), unit="images") as bar:
            for path in paths:
                bar.advance(nbytes=pack(path))

    Args:
        label: What is being done.
        total: How many units there are; ``None`` when nobody knows. May be set later.
        unit: What is counted, in the plural.
        enabled: ``None``: report when the work turns out to be long. ``True``: from the start.
            ``False``: never.
        stream: Where to write; ``sys.stderr`` by default.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        label: str,
        *,
        total: int | None = None,
        unit: str = "items",
        enabled: bool | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.count = 0
        self.nbytes = 0
        self._label = _one_line(label)
        self._unit = _one_line(unit)
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream  # None under pythonw
        self._silent = enabled is False or self._stream is None
        self._terminal = not self._silent and _is_terminal(self._stream)
        self._every = _BAR_EVERY if self._terminal else _LINE_EVERY
        self._shown = False
        self._bar: RichProgress | None = None
        self._started = clock()
        delay = 0.0 if enabled else _FIRST_AFTER
        self._next = float("inf") if self._silent else self._started + delay
        # (time, count, bytes) of earlier reports, oldest first
        self._marks: deque[tuple[float, int, int]] = deque([(self._started, 0, 0)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown and not self._silent:
            self._report(self._clock(), last=True)
        if self._bar is not None:
            self._guarded(self._bar.stop)

    def advance(self, count: int = 1, *, nbytes: int = 0) -> None:
        """Note that ``count`` more units are done, of ``nbytes`` bytes together."""
        self.count += count
        self.nbytes += nbytes
        now = self._clock()
        if now >= self._next:
            self._report(now)
            self._next = float("inf") if self._silent else now + self._every

    def _report(self, now: float, *, last: bool = False) -> None:
        """Show the state at ``now`` on whatever there is to show it on."""
        self._shown = True
        facts = self._facts(now, last=last)
        if self._terminal:
            self._guarded(lambda: self._draw(facts))
        else:
            self._guarded(lambda: self._write(f"{self._label}: {facts}\n"))
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, self.count, self.nbytes))
        while len(self._marks) > 2 and now - self._marks[1][0] > _RATE_OVER:
            self._marks.popleft()

    def _guarded(self, write: Callable[[], None]) -> None:
        """Write; a broken stream or a closed terminal ends the report and nothing else."""
        try:
            write()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._silent = True

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()

    def _draw(self, facts: str) -> None:
        if self._bar is None:
            self._bar = _new_bar(self._stream)
            self._bar.add_task(self._label, total=self.total, facts="")
            self._bar.start()
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=self.count, total=self.total, facts=facts, refresh=True)

    def _facts(self, now: float, *, last: bool) -> str:
        """Return, for example, ``1,200 of 5,000 images (24 %), 110 MB, 540 images/s, 7 s left``."""
        done = f"{self.count:,} {self._unit}"
        if self.total:
            share = 100 * self.count // self.total
            done = f"{self.count:,} of {self.total:,} {self._unit} ({share} %)"
        since, count, nbytes = (self._started, 0, 0) if last else self._marks[0]
        seconds = max(now - since, 1e-9)
        rate = (self.count - count) / seconds
        parts = [done]
        if self.nbytes:
            parts.append(_size(self.nbytes))
        parts.append(f"{_number(rate)} {self._unit}/s")
        if self.nbytes:
            parts.append(f"{_size((self.nbytes - nbytes) / seconds)}/s")
        if last:
            parts.append(f"{_duration(now - self._started)} in all")
        elif self.total and rate:
            parts.append(f"{_duration(max(self.total - self.count, 0) / rate)} left")
        return ", ".join(parts)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _new_bar(stream: TextIO) -> RichProgress:
    """Make a bar that draws only when told to; rich is loaded here, so short work never pays."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        console=Console(file=stream),
        auto_refresh=False,
        # Standard output may be a pipe whose reader wants no progress in it.
        redirect_stdout=False,
    )


def _one_line(text: str) -> str:
    """Return ``text`` without what a terminal would obey or an encoder refuse."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() else " " for char in plain)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return (
                f"{nbytes:.0f} {unit}"
                if nbytes >= 10 or unit == "bytes"
                else f"{nbytes:.1f} {unit}"
            )
        nbytes /= 1000
    return f"{nbytes:,.1f} TB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
