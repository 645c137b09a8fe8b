"""Progress reports: when they appear, what they say, and that they never break the work."""

import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from sharedds.progress import Progress


class Clock:
    """A clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        """Return ``True``."""
        return True


@pytest.fixture(autouse=True)
def _a_plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rich draw the same on every machine."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def run(stream: io.StringIO, *, seconds: float, steps: int = 10, **options: object) -> str:
    """Advance ``steps`` times over so many seconds and return what was written."""
    clock = Clock()
    settings: dict[str, object] = {"label": "packing", "total": steps, "unit": "images"} | options
    with Progress(stream=stream, clock=clock, **settings) as bar:  # type: ignore[arg-type]
        for _ in range(steps):
            clock.now += seconds / steps
            bar.advance(nbytes=1_000_000)
    return stream.getvalue()


def test_short_work_says_nothing() -> None:
    """Under two seconds nothing is written, to a terminal or a log."""
    assert run(Terminal(), seconds=1.9) == ""
    assert run(io.StringIO(), seconds=1.9) == ""


def test_a_terminal_gets_a_bar_after_two_seconds() -> None:
    """The bar holds the label, the count, the bytes, the rate and what is left."""
    text = run(Terminal(), seconds=20.0)
    assert "packing" in text
    assert "━" in text
    assert "1 of 10 images (10 %), 1.0 MB, 0.5 images/s, 500 kB/s, 18 s left" in text
    assert "10 of 10 images (100 %), 10 MB, 0.5 images/s, 500 kB/s, 20 s in all" in text


def test_a_log_gets_a_plain_line_after_two_seconds_then_every_ten() -> None:
    """Lines carry no control codes, and the last one tells the whole."""
    text = run(io.StringIO(), seconds=35.0, steps=35)
    lines = text.splitlines()
    assert len(lines) == 5
    assert lines[0] == "packing: 2 of 35 images (5 %), 2.0 MB, 1 images/s, 1.0 MB/s, 33 s left"
    assert lines[1].startswith("packing: 12 of 35 images")
    assert lines[-1].startswith("packing: 35 of 35 images (100 %)")
    assert lines[-1].endswith("35 s in all")
    assert "\x1b" not in text
    assert "\r" not in text


def test_without_a_total_the_count_alone_is_told() -> None:
    """Nobody knows how much is left, so nothing is said about it."""
    text = run(io.StringIO(), seconds=12.0, total=None)
    assert "2 images, 2.0 MB" in text
    assert "%" not in text
    assert "left" not in text
    assert "10 images" in run(Terminal(), seconds=12.0, total=None)


def test_false_is_silent_and_true_speaks_at_once() -> None:
    """``enabled`` overrides the waiting, in both directions."""
    assert run(Terminal(), seconds=600.0, enabled=False) == ""
    assert run(io.StringIO(), seconds=600.0, enabled=False) == ""
    assert "1 of 10 images" in run(io.StringIO(), seconds=0.1, enabled=True)


def test_the_rate_looks_at_the_last_half_minute() -> None:
    """A slow start does not spoil the estimate for ever."""
    clock, stream = Clock(), io.StringIO()
    with Progress("packing", total=100_000, stream=stream, clock=clock) as bar:
        for _ in range(20):
            clock.now += 10
            bar.advance(1)
        for _ in range(60):
            clock.now += 1
            bar.advance(100)
        assert "100 items/s" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "log"])
def test_no_name_breaks_a_report(stream: io.StringIO) -> None:
    """Undecodable bytes, newlines, control codes and markup come out as harmless text."""
    label = "packing a\udcff\nb\x1b[31m\x07[/red][bold]"
    text = run(stream, seconds=30.0, label=label)
    assert "packing a? b [31m [/red][bold]" in text
    assert "\x1b[31m" not in text
    text.encode("utf-8")


def test_a_log_in_ascii_gets_question_marks() -> None:
    """A stream that cannot write a letter gets another one."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    clock = Clock()
    with Progress("größe", stream=stream, clock=clock, enabled=True) as bar:
        bar.advance()
    assert raw.getvalue().startswith(b"gr??e: 1 items")


def test_a_closed_stream_ends_the_report_not_the_work() -> None:
    """Counting goes on when nobody can be told."""
    for stream in (Terminal(), io.StringIO()):
        clock = Clock()
        with Progress("packing", stream=stream, clock=clock) as bar:
            clock.now += 30
            bar.advance()
            stream.close()
            clock.now += 30
            bar.advance()
        assert bar.count == 2
    with Progress("packing", stream=stream, enabled=True) as bar:
        bar.advance()
    assert bar.count == 1


def test_a_process_without_stderr_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without a console have no standard error at all."""
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("packing", enabled=True) as bar:
        bar.advance(3)
    assert bar.count == 3


def test_an_error_in_the_work_passes_through() -> None:
    """The bar is taken down and the error goes on."""
    clock, stream = Clock(), Terminal()
    with (
        pytest.raises(KeyError, match="mine"),
        Progress("packing", stream=stream, clock=clock) as bar,
    ):
        clock.now += 5
        bar.advance()
        raise KeyError("mine")
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_no_thread_is_started() -> None:
    """A caller with a bar on the screen can still fork safely."""
    clock = Clock()
    before = set(threading.enumerate())
    with Progress("packing", stream=Terminal(), clock=clock, enabled=True) as bar:
        bar.advance()
        assert set(threading.enumerate()) <= before


def test_rich_is_loaded_only_when_a_bar_is_shown() -> None:
    """Short work does not pay for the bar it never shows."""
    code = (
        "import sys\n"
        "from sharedds.progress import Progress\n"
        "with Progress('packing', total=3) as bar:\n"
        "    bar.advance(3)\n"
        "print('rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert done.stderr == ""


def test_standard_output_stays_clean_under_a_real_terminal() -> None:
    """With stderr on a terminal and stdout in a pipe, the pipe gets only what was printed."""
    code = (
        "from sharedds.progress import Progress\n"
        "with Progress('packing', total=3, enabled=True) as bar:\n"
        "    bar.advance(1)\n"
        "    print('result')\n"
        "    bar.advance(2)\n"
    )
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, check=True
        )
        screen = os.read(ours, 1 << 16).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.stdout == b"result\n"
    assert re.search(r"packing .*3 of 3", screen)
