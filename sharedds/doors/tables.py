"""A CSV or TSV file: a picture a row, named by its path, with its label and further columns."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sharedds.doors.labels import LabelReader, as_number, is_whole
from sharedds.doors.reading import file_facts, reading, within
from sharedds.doors.stream import TWICE, Contents, FieldNames, Item, Keys
from sharedds.errors import SharedDSError, SourceError
from sharedds.text import printable

__all__ = ["Table"]

_PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
_LABELS = ("label", "class", "target", "category")
_MARKS = ",\t;"


class Table:
    """Pictures from a table; the first line names the columns.

    Args:
        root: The file. Columns are separated by commas, tabs or semicolons.
        images: The folder that its paths are relative to; by default that of the file.
        classes: Names that fix the numbering.
    """

    format = "csv"

    def __init__(
        self, root: str, *, images: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        self.root = root
        self._images = images or os.path.dirname(root)
        self._labels = LabelReader(classes)
        self._columns: dict[str, tuple[str, str]] = {}  # column: field and kind
        self._keys = Keys()
        self._mark = ","
        self._path = self._label = ""

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Read the table once: which columns are numbers, and which labels there are."""
        count, whole, real = 0, dict[str, bool](), dict[str, bool]()
        header = self._header()
        others = [name for name in header if name not in (self._path, self._label)]
        for row in self._rows(header):
            count += 1
            advance(1)
            self._keys.see(self._key(row))
            if self._label and row[self._label]:
                self._labels.see(row[self._label])
            for name in others:
                value = row[name] or ""
                if whole.get(name, True):
                    whole[name] = as_number(value) is not None
                if not whole[name] and real.get(name, True):
                    real[name] = _is_real(value)
        self._labels.settle(self.root)
        names = FieldNames()
        for name in others:
            kind = "int64" if whole.get(name) else "float64" if real.get(name) else "str"
            self._columns[name] = (names.give(name), kind)
        fields = dict(self._columns.values())
        if self._labels.kind:
            fields["label"] = self._labels.kind
        return Contents(
            pictures=("image",),
            fields=fields,
            classes=self._labels.classes,
            samples=count,
            nbytes=self._some_bytes(header, count),
            files=(file_facts(self.root),),
            attrs={"columns": {field: name for name, (field, _) in self._columns.items()}},
        )

    def items(self) -> Iterator[Item]:
        """Yield the rows in the order of the file."""
        self._keys.start()
        for row in self._rows(self._header()):
            yield self._item(row, known=False)

    def _key(self, row: dict[str, str]) -> str:
        name = (row[self._path] or "").strip().replace("\\", "/")
        if os.path.isabs(name):
            name = os.path.relpath(name, self._images)
        return os.path.normpath(name) if name else ""

    def _item(self, row: dict[str, str], *, known: bool = True) -> Item:
        key = self._key(row)
        if not key:
            return Item(key="", reason=f"a row without {self._path}")
        path = within(self._images, key)
        if path is None:
            return Item(
                key=key,
                reason=f"lies outside {printable(self._images)}; images= (--images) names another "
                "folder",
            )
        if not known and self._keys.again(key):
            return Item(key=key, reason=TWICE)
        if self._labels.kind and not row[self._label]:
            return Item(key=key, reason=f"no {self._label} in its row")
        values: dict[str, Any] = {}
        try:
            for column, (field, kind) in self._columns.items():
                text = row[column] or ""
                values[field] = text if kind == "str" else (int if kind == "int64" else _real)(text)
            if self._labels.kind:
                values["label"] = self._labels.value(row[self._label])
        except ValueError as error:  # the file has changed since
            return Item(key=key, reason=str(error))
        try:
            size = os.stat(path).st_size
        except OSError as error:
            return Item(key=key, reason=f"cannot be read ({error.strerror})")
        return Item(key=key, pictures={"image": path}, values=values, nbytes=size)

    def _some_bytes(self, header: list[str], count: int) -> int:
        """Return about how many bytes all pictures have, from the first hundred."""
        total = seen = 0
        for row in self._rows(header):
            total, seen = total + self._item(row).nbytes, seen + 1
            if seen == 100:
                break
        return total * count // max(seen, 1)

    def _header(self) -> list[str]:
        with reading(self.root), open(self.root, **_AS_TEXT) as file:
            first = file.readline(1 << 20)
        self._mark = max(_MARKS, key=first.count)
        try:
            header = next(csv.reader([first], delimiter=self._mark), [])
        except csv.Error as error:
            raise self._damaged(error) from error
        by_name = {name.strip().lower(): name for name in header}
        self._path = next((by_name[name] for name in _PATHS if name in by_name), "")
        self._label = next((by_name[name] for name in _LABELS if name in by_name), "")
        if not self._path or len(set(header)) != len(header) or len(header) > 250:
            raise SourceError(
                f"{printable(self.root)}: the first line must name the columns, one of them "
                f"{', '.join(_PATHS[:4])}, none of them twice; it has {header[:10]}",
                path=self.root,
            )
        return header

    def _rows(self, header: list[str]) -> Iterator[dict[str, str]]:
        try:
            with reading(self.root), open(self.root, **_AS_TEXT) as file:
                rows = csv.reader(file, delimiter=self._mark)
                next(rows, None)
                for row in rows:
                    if not row:
                        continue
                    if len(row) != len(header):
                        raise SourceError(
                            f"{printable(self.root)}, line {rows.line_num}: {len(row)} values, and "
                            f"{len(header)} columns",
                            path=self.root,
                        )
                    yield dict(zip(header, row, strict=True))
        except SharedDSError:
            raise
        except (csv.Error, UnicodeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(f"{printable(self.root)}: cannot be read ({error})", path=self.root)


_AS_TEXT: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": ""}


def _real(text: str) -> float:
    return float(text) if text else float("nan")


def _is_real(text: str) -> bool:
    """Whether a text is a number; not 007, nor what has more digits than a number holds."""
    if as_number(text) is None and (is_whole(text) or "_" in text):
        return False
    try:
        _real(text)
    except ValueError:
        return False
    return True
