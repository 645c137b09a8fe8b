"""Values that words on the command line stand for: sizes, pixels, bytes, colours, numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from sharedds.errors import OptionError
from sharedds.text import parse_size

__all__ = ["amount", "color", "levels", "nbytes", "numbers", "pixels", "size", "words"]


def size(word: str) -> tuple[int, int]:
    """Return (height, width) of a word such as ``256x128``, or ``256`` for a square."""
    match = re.fullmatch(r"([0-9]{1,9})(?:[xX]([0-9]{1,9}))?", word)
    if match is None:
        raise click.BadParameter(f"{word!r} is not a size such as 256x256 (height x width)")
    return int(match[1]), int(match[2] or match[1])


def pixels(word: str) -> int | None:
    """Return the number in a word such as ``200000000``, ``200_000_000``, ``200M`` or ``none``."""
    text = word.replace("_", "").replace(",", "").lower()
    if text == "none":
        return None
    match = re.fullmatch(r"([0-9]{1,18})(m?)", text)
    if match is None or not int(match[1]):
        raise click.BadParameter(f"{word!r} is neither a number of pixels such as 200M nor none")
    return int(match[1]) * (1_000_000 if match[2] else 1)


def nbytes(word: str) -> int:
    """Return the number of bytes in a word such as ``200000``, ``200kB`` or ``1.5MB``."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([km]?)b?", word.lower())
    if match is None:
        raise click.BadParameter(f"{word!r} is not a number of bytes such as 200000 or 200kB")
    return round(float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2]])


def amount(word: str) -> int:
    """Return the bytes of a word such as ``256MiB``, ``1GB`` or ``2G``."""
    found = parse_size(word)
    if not found:
        raise click.BadParameter(f"{word!r} is not an amount of bytes such as 256MiB or 1GB")
    return found


def color(word: str) -> tuple[int, int, int]:
    """Return red, green and blue of ``white``, ``black``, ``grey`` or of a word as ``ff8800``."""
    from sharedds.ingest.options import color as parse  # noqa: PLC0415 - help stays quick

    try:
        return parse(word)
    except OptionError:
        raise click.BadParameter(
            f"{word!r}: white, black, grey, or hexadecimal such as ff8800"
        ) from None


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[int | float, ...]]:
    """Return what reads a word such as ``96,96,96`` (or ``96`` for all three) as three numbers."""

    def parse(word: str) -> tuple[int | float, ...]:
        try:
            found = [kind(part) for part in re.split(r"[,x]", word)]
        except ValueError:
            found = []
        if len(found) == 1:
            found *= 3
        if len(found) != 3:
            example = "96,96,96" if kind is int else "1,1,2.5"
            raise click.BadParameter(f"{word!r} is not three numbers such as {example}")
        return tuple(found)

    parse.__name__ = "numbers"
    return parse


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text such as ``KVP,ConvolutionKernel``."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def levels(word: str) -> int | str:
    """Return a number of levels, or ``auto``."""
    if word == "auto":
        return word
    if not word.isdecimal() or not int(word):
        raise click.BadParameter(f"{word!r}: a number of levels, or auto")
    return int(word)
