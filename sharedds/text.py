"""Text that any terminal, log or file can take."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, encoding: str | None = None) -> str:
    """Return ``text`` with all that does not print, or that ``encoding`` lacks, as an escape.

    Args:
        text: Anything, a path with undecodable bytes (surrogate escapes) too.
        encoding: Of where it goes; UTF-8 by default.
    """
    name = encoding or "utf-8"
    text = text.encode(name, "backslashreplace").decode(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
