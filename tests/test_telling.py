"""What is told of long work on stderr: little, late, and never a failure of its own."""

from __future__ import annotations

import io

from sharedds.diagnose.telling import Telling


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_a_log_gets_a_line_now_and_then() -> None:
    """After two seconds, then every ten, with what is left."""
    clock, stream = Clock(), io.StringIO()
    with Telling("tuning", seconds=60, stream=stream, clock=clock) as telling:
        for clock.now in (1.0, 3.0, 5.0, 14.0):
            telling.tell("round 1")
    assert stream.getvalue().splitlines() == [
        "tuning: round 1, about 57 s left",
        "tuning: round 1, about 46 s left",
    ]


def test_a_terminal_gets_one_line_that_changes() -> None:
    """Whatever is in it: it is no markup and moves no cursor."""
    stream = Terminal()
    with Telling("tuning", seconds=60, stream=stream) as telling:
        telling.tell("reading [red]\x1b[2J")
    assert "[red]\\x1b" in stream.getvalue()


def test_silence_is_kept_and_a_closed_stream_is_no_failure() -> None:
    """The work is what matters."""
    quiet, closed = io.StringIO(), io.StringIO()
    with Telling("tuning", seconds=1, enabled=False, stream=quiet) as telling:
        telling.tell("anything")
    assert not quiet.getvalue()
    with Telling("tuning", seconds=1, enabled=True, stream=closed) as telling:
        closed.close()
        telling.tell("anything")
