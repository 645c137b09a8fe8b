"""Class names and labels from outside the folder: a list, another store, or a CSV file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import ClassMismatchError, OptionError, SharedDSError, SourceError
from sharedds.handles import absolute_path
from sharedds.ingest.options import shown
from sharedds.packed import PackedStrings, encode_text
from sharedds.store import Store

__all__ = ["NO_LABEL", "LabelTable", "load_classes"]

NO_LABEL = -1

_LMDB_MAGIC = b"\xde\xc0\xef\xbe"
_ROWS = 1 << 16
_MAX_NUMBERED = 1_000_000


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
        where = absolute_path(source)
        names = _classes_of_file(where)
    else:
        where = "classes"
        names = _listed(source)
    if not names:
        raise OptionError(f"{where}: no class names in it", path=where)
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise OptionError(
                f"{where}: class names are text, not {type(name).__name__} ({shown(name)})",
                path=where,
            )
        if name in seen:
            raise OptionError(f"{where}: the class {name!r} is named twice", path=where)
        seen.add(name)
    return tuple(names)


def _listed(source: object) -> list[str]:
    """Return the names of a list, in its order; what has none, or no order, is refused."""
    if not isinstance(source, Iterable) or isinstance(source, (bytes, Mapping, Set)):
        raise OptionError(
            f"classes {shown(source)}: a list of names in order, or the path of a file or store"
        )
    names = []
    for name in source:
        if not isinstance(name, str):
            raise OptionError(
                f"classes: class names are text, not {type(name).__name__} ({shown(name)}); pass a "
                "list of names, such as the .classes of a dataset"
            )
        names.append(name)
    return names


def _classes_of_file(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            start = file.read(64)
            text = b"" if _LMDB_MAGIC in start else start + file.read()
    except IsADirectoryError:
        start, text = _LMDB_MAGIC, b""
    except OSError as error:
        raise SourceError(
            f"{path}: class names cannot be read ({error.strerror})", path=path
        ) from error
    if _LMDB_MAGIC in start:
        classes = Store(path).classes
        return [] if classes is None else list(classes)
    names = text.decode("utf-8-sig", "surrogateescape")
    if names.lstrip().startswith("["):
        try:
            listed = json.loads(names)
        except ValueError as error:
            if path.lower().endswith(".json"):
                raise OptionError(f"{path}: not a JSON list ({error})", path=path) from error
        else:
            return list(listed)
    lines = (line.removesuffix("\r") for line in names.split("\n"))
    return [line for line in lines if line.strip()]


class LabelTable:
    """Labels by path, from a CSV file with the columns ``path`` and ``label``.

    Kept as two arrays of 8 bytes a row: the hash of each path, sorted, and its label.

    Args:
        path: The file. Paths in it are relative to the folder that is packed, with ``/``. Labels
            are class names, or class numbers if all are integers and no classes are given.
        classes: Class names that fix the numbering; without them the names are sorted.

    Raises:
        SourceError: The file cannot be read, or lacks a column or a value.
        ClassMismatchError: A label is not in ``classes``.
        OptionError: A path is named twice with different labels.
    """

    def __init__(
        self, path: str | os.PathLike[str], classes: tuple[str, ...] | None = None
    ) -> None:
        self.path = absolute_path(path)
        hashes: list[npt.NDArray[np.uint64]] = []
        numbers: dict[str, int] = {}
        labels: list[npt.NDArray[np.int64]] = []
        for block in self._blocks():
            hashes.append(_hashes(encode_text(name) for name, _ in block))
            labels.append(
                np.array([numbers.setdefault(n, len(numbers)) for _, n in block], np.int64)
            )
        if not hashes:
            raise SourceError(f"{self.path}: no rows in it", path=self.path)
        self.classes, renumber = self._number(list(numbers), classes)
        unsorted = np.concatenate(hashes)
        order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[order]
        self._labels = renumber[np.concatenate(labels)][order]
        same = self._hashes[1:] == self._hashes[:-1]
        clash = same & (self._labels[1:] != self._labels[:-1])
        if np.any(clash):
            name = self._name_of(self._hashes[1:][clash][0])
            raise OptionError(
                f"{self.path}: the path {name!r} is named twice, with different labels",
                path=self.path,
            )

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, paths: PackedStrings) -> tuple[npt.NDArray[np.int64], int, str]:
        """Find the label of each path.

        Returns:
            The labels, int64 (N,), ``NO_LABEL`` where the file does not name the path; how many
            rows name a path that is not among ``paths``; and one such path.
        """
        labels = np.full(len(paths), NO_LABEL, np.int64)
        met = np.zeros(len(self._hashes), np.bool_)
        for start in range(0, len(paths), _ROWS):
            stop = min(start + _ROWS, len(paths))
            wanted = _hashes(paths.bytes(i) for i in range(start, stop))
            first = np.searchsorted(self._hashes, wanted)
            near = np.minimum(first, len(self._hashes) - 1)
            found = self._hashes[near] == wanted
            labels[start:stop][found] = self._labels[near[found]]
            met[near[found]] = True
        first = np.searchsorted(self._hashes, self._hashes)  # a path may have several rows
        missing = self._hashes[~met[first]]
        return labels, len(missing), self._name_of(missing[0]) if len(missing) else ""

    def _name_of(self, value: np.uint64) -> str:
        """Return the path that has this hash; the file is read again, to name it in a message."""
        for block in self._blocks():
            for name, _ in block:
                if xxhash.xxh3_64_intdigest(encode_text(name)) == int(value):
                    return name
        return ""

    def _number(
        self, names: list[str], classes: tuple[str, ...] | None
    ) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
        if classes is None:
            if all(
                n.isascii() and n.isdecimal() and len(n) < 8 and str(int(n)) == n for n in names
            ):
                top = max(map(int, names))
                if top < _MAX_NUMBERED:
                    return tuple(map(str, range(top + 1))), np.array(names, np.int64)
            classes = tuple(sorted(names, key=encode_text))
        number = {name: i for i, name in enumerate(classes)}
        unknown = [name for name in names if name not in number]
        if unknown:
            more = "..." if len(classes) > 5 else ""
            raise ClassMismatchError(
                f"{self.path}: labels {unknown[:5]} are not among the {len(classes)} classes "
                f"{list(classes[:5])}{more}; add them or mend the file",
                path=self.path,
            )
        return classes, np.array([number[name] for name in names], np.int64)

    def _blocks(self) -> Iterator[list[tuple[str, str]]]:
        """Read the file in blocks of (path, label)."""
        try:
            with open(
                self.path, encoding="utf-8-sig", errors="surrogateescape", newline=""
            ) as file:
                reader = csv.DictReader(file)
                if not {"path", "label"} <= set(reader.fieldnames or ()):
                    raise SourceError(
                        f"{self.path}: the first line must name the columns path and label, it has "
                        f"{reader.fieldnames}",
                        path=self.path,
                    )
                block: list[tuple[str, str]] = []
                for row in reader:
                    if not row["path"] or not row["label"]:
                        raise SourceError(
                            f"{self.path}, line {reader.line_num}: a path and a label are expected",
                            path=self.path,
                        )
                    block.append((row["path"].removeprefix("./"), row["label"]))
                    if len(block) == _ROWS:
                        yield block
                        block = []
                if block:
                    yield block
        except SharedDSError:
            raise
        except (OSError, csv.Error, UnicodeError) as error:
            raise SourceError(
                f"{self.path}: labels cannot be read ({error})", path=self.path
            ) from error


def _hashes(names: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, names), np.uint64)
