"""Small files of the system, read so that nothing in them is ever an error.

"No information" (another system, no such file, not allowed, garbage) is a normal answer.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT", "kilobytes", "megabytes", "named_number", "system_text", "whole_number"]

#: Below it are the files of the system; tests hand over a folder of made-up ones.
ROOT = Path("/")
#: No number of the system has more digits; those of 64 bits have 20.
_MOST_DIGITS = 20


def system_text(path: Path) -> str:
    """Return the text of a file of the system; nothing where there is none to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # none here, not allowed, the process has just ended
        return ""


def whole_number(text: str | None) -> int | None:
    """Return the number that a text is; None for "max", a sign, nothing or anything else."""
    text = (text or "").strip()
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


def named_number(text: str, name: str) -> int | None:
    """Return the number in the line ``name number`` of a text."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return whole_number(words[1])
    return None


def kilobytes(text: str, name: str) -> int | None:
    """Return the bytes of the line ``name:  1234 kB`` of a text."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == f"{name}:" and words[2] == "kB":
            number = whole_number(words[1])
            return None if number is None else number * 1024
    return None


def megabytes(count: int | None) -> str:
    """Return bytes as text for people; ``unknown`` for None."""
    return "unknown" if count is None else f"{count / 1e6:,.1f} MB"
