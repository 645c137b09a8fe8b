"""Class names and labels that come from outside the folder: a list, another store, or a CSV file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import ClassMismatchError, OptionError, SharedDSError, SourceError
from sharedds.packed import encode_text
from sharedds.store import Store

__all__ = ["LabelTable", "load_classes"]


def load_classes(source: str | os.PathLike[str] | Iterable[str]) -> tuple[str, ...]:
    """Return class names in order.

    Args:
        source: Names; or a file: another store (its numbering is taken over), a JSON list, or text
            with one name a line.

    Raises:
        SourceError: The file cannot be read.
        OptionError: It holds no names, or one twice.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        names = _classes_of_file(path)
        where = path
    else:
        names, where = [str(name) for name in source], "classes"
    if not names:
        raise OptionError(f"{where}: no class names in it", path=where)
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise OptionError(f"{where}: class {twice[0]!r} is named twice", path=where)
    return tuple(names)


def _classes_of_file(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            start = file.read(64)
            if b"\xde\xc0\xef\xbe" in start:
                classes = Store(path).classes
                return list(classes) if classes is not None else []
            text = (start + file.read()).decode("utf-8-sig", "surrogateescape")
    except IsADirectoryError:
        classes = Store(path).classes
        return list(classes) if classes is not None else []
    except OSError as error:
        raise SourceError(f"{path}: class names cannot be read ({error.strerror})", path=path) from error
    if text.lstrip().startswith("["):
        try:
            return [str(name) for name in json.loads(text)]
        except ValueError as error:
            raise OptionError(f"{path}: not a JSON list ({error})", path=path) from error
    return [line for line in text.splitlines() if line.strip()]


class LabelTable:
    """Labels by path, from a CSV file with the columns ``path`` and ``label``.

    Kept as two arrays of 8 bytes a row: the hash of each path, sorted, and its label.

    Args:
        path: The file. Paths in it are relative to the folder that is packed, with ``/``. Labels are
            class names, or class numbers if all of them are integers and no classes are given.
        classes: Class names that fix the numbering; without them the names are sorted.

    Raises:
        SourceError: The file cannot be read, or lacks a column.
        ClassMismatchError: A label is not in ``classes``.
        OptionError: A path is named twice with different labels.
    """

    def __init__(self, path: str | os.PathLike[str], classes: tuple[str, ...] | None = None) -> None:
        self.path = os.fspath(path)
        hashes: list[npt.NDArray[np.uint64]] = []
        numbers: dict[str, int] = {}
        labels: list[npt.NDArray[np.int64]] = []
        for block in self._blocks():
            hashes.append(
                np.array([xxhash.xxh3_64_intdigest(encode_text(p)) for p, _ in block], np.uint64)
            )
            labels.append(np.array([numbers.setdefault(n, len(numbers)) for _, n in block], np.int64))
        if not hashes:
            raise SourceError(f"{self.path}: no rows in it", path=self.path)
        self.classes, renumber = self._number(list(numbers), classes)
        all_hashes = np.concatenate(hashes)
        order = np.argsort(all_hashes, kind="stable")
        self._hashes = all_hashes[order]
        self._labels = renumber[np.concatenate(labels)][order]
        same = self._hashes[1:] == self._hashes[:-1]
        if np.any(same & (self._labels[1:] != self._labels[:-1])):
            raise OptionError(f"{self.path}: a path is named twice, with different labels", path=self.path)

    def __len__(self) -> int:
        return len(self._hashes)

    def content(self) -> bytes:
        """Return bytes that change when a path or a label does."""
        return self._hashes.tobytes() + self._labels.tobytes()

    def label_of(self, path: bytes) -> int | None:
        """Return the label of a path, or None when the file does not name it."""
        value = np.uint64(xxhash.xxh3_64_intdigest(path))
        at = int(np.searchsorted(self._hashes, value))
        if at < len(self._hashes) and self._hashes[at] == value:
            return int(self._labels[at])
        return None

    def _number(
        self, names: list[str], classes: tuple[str, ...] | None
    ) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
        if classes is None:
            if all(name.isdecimal() and str(int(name)) == name for name in names):
                top = max(int(name) for name in names)
                if top < 1_000_000:
                    return tuple(map(str, range(top + 1))), np.array([int(n) for n in names], np.int64)
            classes = tuple(sorted(names, key=encode_text))
        number = {name: i for i, name in enumerate(classes)}
        unknown = [name for name in names if name not in number]
        if unknown:
            raise ClassMismatchError(
                f"{self.path}: labels {unknown[:5]} are not among the {len(classes)} classes "
                f"{list(classes[:5])}{'...' if len(classes) > 5 else ''}; add them or mend the file",
                path=self.path,
            )
        return classes, np.array([number[name] for name in names], np.int64)

    def _blocks(self, rows: int = 65_536) -> Iterable[list[tuple[str, str]]]:
        try:
            with open(self.path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                reader = csv.DictReader(file)
                if not {"path", "label"} <= set(reader.fieldnames or ()):
                    raise SourceError(
                        f"{self.path}: the first line must name the columns path and label, it has "
                        f"{reader.fieldnames}",
                        path=self.path,
                    )
                block: list[tuple[str, str]] = []
                for row in reader:
                    if row["path"] is None or row["label"] is None:
                        raise SourceError(f"{self.path}, line {reader.line_num}: too few columns", path=self.path)
                    block.append((row["path"].removeprefix("./"), row["label"]))
                    if len(block) == rows:
                        yield block
                        block = []
                if block:
                    yield block
        except SharedDSError:
            raise
        except (OSError, csv.Error) as error:
            raise SourceError(f"{self.path}: labels cannot be read ({error})", path=self.path) from error
