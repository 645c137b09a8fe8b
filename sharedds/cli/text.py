"""Plain text for people: lines, sizes, tables; whatever a file name holds, it can be printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

import click

__all__ = ["Table", "complain", "decimal_size", "echo", "note", "plain", "shares"]


def plain(text: str, encoding: str | None = None) -> str:
    """Return ``text`` with all that does not print, or that ``encoding`` lacks, as an escape."""
    name = encoding or "utf-8"
    text = text.encode(name, "backslashreplace").decode(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _write(text: str, stream: TextIO) -> None:
    # Through the encoding of the stream as it is, which may know less than click believes.
    click.echo(plain(text, stream.encoding).encode(stream.encoding or "utf-8"), file=stream)


def echo(text: str) -> None:
    """Print a line on stdout."""
    _write(text, sys.stdout)


def complain(text: str) -> None:
    """Print a line on stderr."""
    _write(text, sys.stderr)


def note(text: str) -> None:
    """Print something that a person should know, on stderr."""
    complain(f"note: {text}")


def decimal_size(size: float) -> str:
    """Return a size such as ``1.2 GB``; units are powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


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
        self._rows.append(tuple(map(plain, cells)))

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
