"""What is being done, told on stderr while it takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.status import Status

from sharedds.text import printable

__all__ = ["Telling"]

_EVERY = 10.0  # seconds between two lines where there is no terminal
_FIRST_AFTER = 2.0


class Telling:
    """Tells what is done, and how long it will still take; a context manager.

    On a terminal it is one line that changes; elsewhere a line after two seconds, then every ten.

    Args:
        label: What the whole is called.
        seconds: How long it will take, about.
        enabled: False for silence.
        stream: Where to write; ``sys.stderr`` by default.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        label: str,
        *,
        seconds: float,
        enabled: bool | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream  # None under pythonw
        self._silent = enabled is False or self._stream is None
        self._clock = clock
        self._begin = clock()
        self._end = self._begin + seconds
        self._due = self._begin + (0.0 if enabled else _FIRST_AFTER)
        self._status: Status | None = None
        if not self._silent and _is_terminal(self._stream):
            self._status = Console(file=self._stream).status(printable(label))

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def expect(self, seconds: float) -> None:
        """Say how long it will still take."""
        self._end = self._clock() + seconds

    def tell(self, what: str) -> None:
        """Tell what is done now."""
        if self._silent:
            return
        now = self._clock()
        left = max(1, round(self._end - now))
        text = printable(f"{self._label}: {what}, about {left} s left")
        if self._status is not None:
            self._status.update(text.replace("[", "\\["))
        elif now >= self._due:
            self._due = now + _EVERY
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # the report of progress ends, never the work
                self._silent = True


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
