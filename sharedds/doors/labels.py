"""What labels a source has: whole numbers, measures, or names that get numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from sharedds.doors.reading import reading
from sharedds.errors import ClassMismatchError, OptionError
from sharedds.packed import encode_text

__all__ = ["LabelReader", "as_number", "beside", "is_whole"]

_MAX_CLASSES = 1_000_000
_MAX_DIGITS = 18


def as_number(text: str) -> int | None:
    """Return the whole number that a text is; None where it is none, or is written oddly."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if str(number) == text else None


def beside(folder: str) -> tuple[str, ...] | None:
    """Return the names in ``classes.txt`` of a folder, one a line; None where there is none.

    It is what an export writes for formats that have numbers for labels, and no names.
    """
    path = os.path.join(folder, "classes.txt")
    if not os.path.isfile(path):
        return None
    with reading(path), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return tuple(line.removesuffix("\n") for line in file)


class LabelReader:
    """Turns labels as a source has them into those of a store.

    First every label is shown to :meth:`see`, then :meth:`settle` decides, then :meth:`value` turns
    each into what is stored.

    Args:
        classes: Names that fix the numbering, where somebody gave them.
    """

    def __init__(self, classes: Sequence[str] | None = None) -> None:
        self.classes = None if classes is None else tuple(classes)
        self.kind = ""
        self._numbers: dict[str, int] = {}
        self._names: dict[str, None] = {}
        self._whole, self._measures, self._seen = True, True, False
        self._low, self._high = 0, 0

    def see(self, label: str | int) -> None:
        """Take notice of a label.

        Raises:
            OptionError: There are over a million different names.
        """
        self._seen = True
        number = label if isinstance(label, int) else as_number(label)
        if number is not None:
            self._low, self._high = min(self._low, number), max(self._high, number)
            label = str(number)
        else:
            self._whole = False
            self._measures = self._measures and _is_measure(str(label))
        names = self._names
        if len(names) <= _MAX_CLASSES:
            names[str(label)] = None

    def settle(self, where: str) -> None:
        """Decide how labels are stored: sets ``kind`` (empty without any) and ``classes``.

        Raises:
            ClassMismatchError: Labels that are not among the given classes.
            OptionError: More different names than are taken for classes.
        """
        if not self._seen:
            self.classes = None
            return
        self.kind = "int64"
        if self._whole and not self._by_name():
            if self.classes is not None and not 0 <= self._low <= self._high < len(self.classes):
                raise ClassMismatchError(
                    f"{where}: labels from {self._low} to {self._high}, and {len(self.classes):,} "
                    "class names are given",
                    path=where,
                )
            return
        if self.classes is None and self._measures:
            self.kind = "float64"
            return
        if len(self._names) > _MAX_CLASSES:
            raise OptionError(f"{where}: over {_MAX_CLASSES:,} different labels", path=where)
        if self.classes is None:
            self.classes = tuple(sorted(self._names, key=encode_text))
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = [name for name in self._names if name not in self._numbers]
        if unknown:
            raise ClassMismatchError(
                f"{where}: labels {unknown[:5]} are not among the {len(self.classes):,} classes "
                f"{list(self.classes[:5])}; add them or mend the source",
                path=where,
            )

    def value(self, label: str | int) -> int | float:
        """Return what is stored for a label.

        Raises:
            ValueError: It was not seen, and is none of the classes.
        """
        if self._numbers:
            number = self._numbers.get(str(label))
            if number is None:
                raise ValueError(f"{str(label)[:50]!r} is none of the classes")
            return number
        return float(label) if self.kind == "float64" else int(label)

    def _by_name(self) -> bool:
        """Whether numbers are names of classes: all of them are among those that are given."""
        if self.classes is None:
            return False
        known = set(self.classes)
        return all(name in known for name in self._names)


def is_whole(text: str) -> bool:
    """Whether a text is nothing but digits and a sign, such as 007: a name, if no number."""
    return text.strip().removeprefix("-").removeprefix("+").isdigit()


def _is_measure(text: str) -> bool:
    if is_whole(text) or "_" in text:
        return False
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
