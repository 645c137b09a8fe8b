"""Plain text for people: lines, sizes, tables; whatever a file name holds, it can be printed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Mapping
from typing import TextIO

import click

from sharedds.text import printable

__all__ = ["Table", "complain", "echo", "note", "shares", "silence"]


def _write(text: str, stream: TextIO | None) -> None:
    if stream is None:  # closed before the program began
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    # Through the encoding of the stream as it is, which may know less than click believes.
    click.echo(printable(text, stream.encoding).encode(stream.encoding or "utf-8"), file=stream)


def echo(text: str) -> None:
    """Print a line on stdout.

    Raises:
        click.ClickException: It cannot be written there: closed, or the disk is full.
    """
    try:
        _write(text, sys.stdout)
    except BrokenPipeError:  # whose reader has seen enough: click ends in silence
        raise
    except (OSError, ValueError) as error:
        raise click.ClickException(silence(sys.stdout, error)) from error


def silence(stream: TextIO | None, error: Exception) -> str:
    """Give up a stream that cannot be written to, and return what to say about it.

    What its buffer holds goes nowhere, lest the interpreter fails over it once more at its end.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
    reason = getattr(error, "strerror", None) or error
    return f"standard output cannot be written ({reason})"


def complain(text: str) -> None:
    """Print a line on stderr, if there is a stderr that takes it."""
    try:
        _write(text, sys.stderr)
    except (OSError, ValueError) as error:
        silence(sys.stderr, error)


def note(text: str) -> None:
    """Print something that a person should know, on stderr."""
    complain(f"note: {text}")


def shares(counts: Mapping[str, int]) -> str:
    """Return counts such as ``RGB (977), L (23)``, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{value} ({count:,})" for value, count in ordered)


class Table:
    """A table of text in aligned columns; numbers to the right.

    Args:
        header: The name of each column.
    """

    def __init__(self, *header: str) -> None:
        self._rows: list[tuple[str, ...]] = [header]

    def add(self, *cells: str) -> None:
        """Add a row with a cell for each column."""
        self._rows.append(tuple(map(printable, cells)))

    def print(self, indent: str = "    ") -> None:
        """Print it, with a rule below the header."""
        columns = list(zip(*self._rows, strict=True))
        widths = [max(map(len, cells)) for cells in columns]
        right = [all(cell[:1].isdigit() for cell in cells[1:]) for cells in columns]
        rule = tuple("-" * width for width in widths)
        for row in (self._rows[0], rule, *self._rows[1:]):
            cells = [
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, right, strict=True)
            ]
            echo((indent + "  ".join(cells)).rstrip())
