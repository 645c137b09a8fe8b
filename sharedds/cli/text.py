"""Plain text for people: sizes, tables, notes; anything that a file name may hold is made printable."""

from __future__ import annotations

import sys

import click

__all__ = ["Table", "decimal_size", "echo", "note"]


def echo(text: str) -> None:
    """Print a line on stdout, whatever the encoding of the terminal."""
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def note(text: str) -> None:
    """Print a line that a person should notice on stderr."""
    encoding = sys.stderr.encoding or "ascii"
    click.echo(f"note: {text}".encode(encoding, "backslashreplace").decode(encoding), err=True)


def decimal_size(size: float) -> str:
    """Return a size such as ``1.2 GB``; units are powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


class Table:
    """A table of text in aligned columns; numbers to the right."""

    def __init__(self, *header: str) -> None:
        self._rows: list[tuple[str, ...]] = [header]

    def add(self, *cells: str) -> None:
        """Add a row with a cell for each column."""
        self._rows.append(cells)

    def print(self, indent: str = "    ") -> None:
        """Print it, with a rule below the header."""
        widths = [max(len(row[i]) for row in self._rows) for i in range(len(self._rows[0]))]
        rule = tuple("-" * width for width in widths)
        for row in (self._rows[0], rule, *self._rows[1:]):
            cells = [
                cell.rjust(width) if cell[:1].isdigit() and i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            echo((indent + "  ".join(cells)).rstrip())
