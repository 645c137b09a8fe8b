"""The numbers of class folders.

Names are numbered in bytewise order of the whole name, ``sorted(names, key=os.fsencode)``, unless a
reference list or the names themselves give the numbers. Names are compared byte for byte: two that
differ only in how an accent is composed are two classes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sharedds.errors import ClassMismatchError, OptionError
from sharedds.packed import encode_text

__all__ = [
    "ClassNumbers",
    "check_reference",
    "class_name",
    "decode_text",
    "is_numeric_mismatch",
]

MAX_NUMERIC = 1_000_000
"""The highest class number that a folder name may ask for."""

# As long as a file name may be; Python refuses to read endless numbers.
_NUMBER = re.compile(rb"[0-9]{1,255}")


class ClassNumbers:
    """Gives each class name a number when it is met first.

    Args:
        reference: Names in the order of their numbers, or None.
        numeric: Each name is its number.
    """

    def __init__(self, reference: Sequence[str] | None = None, *, numeric: bool = False) -> None:
        self._numeric = numeric
        self._reference = reference
        self._numbers: dict[bytes, int] = {}
        self._met: dict[bytes, None] = {}
        self._names: dict[int, bytes] = {}
        if reference is not None:
            self._numbers = {encode_text(name): i for i, name in enumerate(reference)}

    @property
    def met(self) -> Iterable[bytes]:
        """The names met so far, each once, in the order they were met."""
        return self._met

    def meet(self, name: bytes) -> int:
        """Return the number of a class: final, or to be translated as :meth:`finish` says.

        A name that the reference list lacks gets -1 for now; :meth:`finish` will raise.

        Raises:
            OptionError: Numeric, and the name is no number, too large, or another name is the same
                number.
        """
        if name in self._met:
            return self._numbers.get(name, -1)
        self._met[name] = None
        if self._reference is not None:
            return self._numbers.get(name, -1)
        number = self._parse(name) if self._numeric else len(self._numbers)
        self._numbers[name] = number
        return number

    def _parse(self, name: bytes) -> int:
        text = decode_text(name)
        if not _NUMBER.fullmatch(name):
            raise OptionError(
                f"numeric_classes: the folder {text!r} is not a number; rename or move it, or let "
                "the classes be numbered by name"
            )
        number = int(name)
        if number > MAX_NUMERIC:
            raise OptionError(
                f"numeric_classes: the folder {text!r} asks for a class number above "
                f"{MAX_NUMERIC:,}; let the classes be numbered by name"
            )
        other = self._names.setdefault(number, name)
        if other != name:
            raise OptionError(
                f"numeric_classes: the folders {decode_text(other)!r} and {text!r} are the same "
                "number; merge or rename one of them"
            )
        return number

    def finish(self) -> tuple[tuple[str, ...], npt.NDArray[np.int64] | None]:
        """Return the class names by number, and the translation of the numbers given so far.

        The translation is None when the numbers given are final, else an int64 array: the number
        given is the index, the final number the value. Numeric names leave gaps, which get their
        number as the name.

        Raises:
            ClassMismatchError: Names were met that the reference list lacks.
        """
        if self._reference is not None:
            unknown = [decode_text(name) for name in self._met if name not in self._numbers]
            if unknown:
                raise ClassMismatchError(
                    f"the reference list of classes lacks {_shorten(unknown)}; it has "
                    f"{_shorten(self._reference)}. Remove or rename these folders, or add them to "
                    "the reference"
                )
            return tuple(self._reference), None
        if self._numeric:
            count = max(self._names, default=-1) + 1
            return tuple(decode_text(self._names.get(i, b"%d" % i)) for i in range(count)), None
        given = list(self._numbers)
        final = sorted(given)
        names = tuple(map(decode_text, final))
        if given == final:
            return names, None
        rank = {name: i for i, name in enumerate(final)}
        return names, np.fromiter((rank[name] for name in given), np.int64, len(given))


def class_name(folder: bytes, *, whole: bool) -> bytes | None:
    """Return the class of the files in a folder, or None if they have none.

    A folder whose name starts with a dot never is a class, nor is what lies in it.

    Args:
        folder: Path relative to the root; empty for the root itself.
        whole: The class is the whole folder (``x/s1``), not its first part.
    """
    parts = folder.split(b"/")
    if not whole:
        del parts[1:]
    visible = itertools.takewhile(lambda part: not part.startswith(b"."), parts)
    return b"/".join(visible) or None


def check_reference(classes: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return a reference list of class names as a tuple.

    Raises:
        OptionError: It is one string, holds something else than strings, or a name twice.
    """
    if classes is None:
        return None
    if isinstance(classes, (str, bytes)):
        raise OptionError(f"classes must be a list of names, not one string: {classes!r}")
    names = tuple(classes)
    seen = set()
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"classes must hold strings, not {type(name).__name__}: {name!r}")
        if name in seen:
            raise OptionError(f"classes holds the name {name!r} twice; each must be there once")
        seen.add(name)
    return names


def is_numeric_mismatch(classes: Sequence[str]) -> bool:
    """Whether all names are integers, but some class has another number than its name says."""
    names = [encode_text(name) for name in classes]
    return all(map(_NUMBER.fullmatch, names)) and any(int(n) != i for i, n in enumerate(names))


def decode_text(name: bytes) -> str:
    """Return a file name as text; undecodable bytes become surrogate escapes."""
    return name.decode("utf-8", "surrogateescape")


def _shorten(names: Sequence[str], limit: int = 10) -> str:
    """Return names for a message: all of them, or the first ones and how many more there are."""
    text = ", ".join(map(repr, names[:limit])) or "no names"
    more = len(names) - limit
    return text if more <= 0 else f"{text} and {more:,} more"
