"""Text that any terminal, log or file can take, and sizes as people read them."""

from __future__ import annotations

__all__ = ["decimal_size", "printable"]


def decimal_size(size: float) -> str:
    """Return a size such as ``1.2 GB``; units are powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def printable(text: str, encoding: str | None = None) -> str:
    """Return ``text`` with all that does not print, or that ``encoding`` lacks, as an escape.

    Args:
        text: Anything, a path with undecodable bytes (surrogate escapes) too.
        encoding: Of where it goes; UTF-8 by default.
    """
    name = encoding or "utf-8"
    text = text.encode(name, "backslashreplace").decode(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
