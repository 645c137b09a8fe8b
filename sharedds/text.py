"""Text that any terminal, log or file can take, and sizes as people read them."""

from __future__ import annotations

import re

__all__ = ["decimal_size", "parse_size", "printable"]

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    **dict.fromkeys(("k", "ki"), 1 << 10),
    **dict.fromkeys(("m", "mi"), 1 << 20),
    **dict.fromkeys(("g", "gi"), 1 << 30),
    **dict.fromkeys(("t", "ti"), 1 << 40),
}


def decimal_size(size: float) -> str:
    """Return a size such as ``1.2 GB``; units are powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def parse_size(text: str) -> int | None:
    """Return the bytes in a text such as ``8GiB``; None if it is none.

    ``8GiB`` is binary, and so are ``8Gi``, ``8G`` and ``8g``, as container engines and SLURM mean
    them; ``8GB`` is decimal. A bare number is bytes.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2]])


def printable(text: str, encoding: str | None = None) -> str:
    """Return ``text`` with all that does not print, or that ``encoding`` lacks, as an escape.

    Args:
        text: Anything, a path with undecodable bytes (surrogate escapes) too.
        encoding: Of where it goes; UTF-8 by default.
    """
    name = encoding or "utf-8"
    text = text.encode(name, "backslashreplace").decode(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
