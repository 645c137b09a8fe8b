"""Parquet files, and datasets that Hugging Face ``datasets`` saved: read in batches of rows."""

from __future__ import annotations

import abc
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sharedds.codecs import sniff
from sharedds.doors.arrow_columns import (
    BAD_VALUE,
    Column,
    difference,
    features_of,
    plan_columns,
    pyarrow,
    value_of,
)
from sharedds.doors.labels import LabelReader
from sharedds.doors.outgoing import PICTURE_ENDINGS
from sharedds.doors.reading import file_facts, listed, read_json, reading, within
from sharedds.doors.stream import Contents, Item, Keys
from sharedds.errors import (
    ClassMismatchError,
    DecodeError,
    OptionError,
    SharedDSError,
    SourceError,
)
from sharedds.text import printable

__all__ = ["ArrowRows", "Parquet", "SavedDataset"]

_BATCH_BYTES = 16 << 20
_MOST_ROWS = 1_000
_LARGEST_BATCH = 4096
_PARTS = re.compile(r"(.+?)-\d{5}-of-\d{5}.*\.parquet\Z")


class ArrowRows(abc.ABC):
    """What Parquet and Arrow files have in common; see their two classes below.

    Args:
        root: The file or folder.
        files: The files, in order.
        classes: Names that fix the numbering, for labels that are text.
    """

    format = "arrow"

    def __init__(
        self, root: str, files: Sequence[str], *, classes: Sequence[str] | None = None
    ) -> None:
        pyarrow()
        self.root = root
        self._files = list(files)
        if not self._files:
            raise SourceError(f"{printable(root)}: no files of this format in it", path=root)
        self._labels = LabelReader(classes)
        self._given = None if classes is None else tuple(classes)
        self._columns: list[Column] = []
        self._by_path = True
        self._count = 0
        self._schema: Any = None

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Read every column but the pictures once."""
        schema, first = self._start()
        self._schema = schema
        self._require_alike(self._files[0], schema)
        features = self._features(schema)
        self._columns = plan_columns(schema, features, first)
        pictures = [column for column in self._columns if column.kind == "keep"]
        if not pictures:
            raise SourceError(
                f"{printable(self.root)}: no column holds the bytes of pictures; columns: "
                f"{', '.join(schema.names[:12])}",
                path=self.root,
            )
        keys = Keys()
        for batch in self._batches(self._without_bytes(schema)):
            self._count += batch.num_rows
            advance(batch.num_rows)
            for column in self._columns:
                if column.kind != "keep":
                    column.look(batch.column(column.name), self._labels)
            self._look_at_paths(batch, pictures[0], keys)
        self._by_path = self._by_path and len(keys) == self._count and not keys.twice()
        classes = self._settle()
        facts = [file_facts(path) for path in self._files]
        return Contents(
            pictures=tuple(column.field for column in pictures),
            fields={c.field: c.kind for c in self._columns if c.kind != "keep"},
            classes=classes,
            samples=self._count,
            nbytes=sum(size for _, size, _ in facts),
            files=tuple(facts),
            attrs={
                "columns": {column.field: column.name for column in self._columns},
                "class_names": {
                    c.field: list(c.names)
                    for c in self._columns
                    if c.names is not None and c.field != "label"
                },
            },
        )

    def items(self) -> Iterator[Item]:
        """Yield the rows, file by file."""
        number = 0
        for batch in self._batches(None):
            columns = [(column, batch.column(column.name)) for column in self._columns]
            for row in range(batch.num_rows):
                yield self._item(number, [(c, values[row]) for c, values in columns])
                number += 1

    def _item(self, number: int, row: list[tuple[Column, Any]]) -> Item:
        pictures: dict[str, bytes | str | None] = {}
        values: dict[str, Any] = {}
        path, reason, size = "", "", 0
        for column, scalar in row:
            try:
                value = scalar.as_py()
            except BAD_VALUE as error:  # such as text that is no UTF-8, or times beyond all years
                reason = reason or f"{column.name}: {error}"
                continue
            if column.kind == "keep":
                data, name = _picture(column, value)
                if column.field == "image":
                    path = name
                pictures[column.field] = data if data is not None else self._file(name)
                size += len(data or b"")
                continue
            try:
                if column.field == "label":
                    values["label"] = self._label(column, value)
                else:
                    values[column.field] = value_of(column, value)
            except BAD_VALUE as error:
                reason = reason or f"{column.name}: {error}"
        main = pictures.get("image")
        if self._by_path:
            key = path
        else:
            found = PICTURE_ENDINGS.get(sniff(main)) if isinstance(main, bytes) else None
            key = f"{number:08d}.{found[0]}" if found else f"{number:08d}"
        if main is None and path:
            reason = reason or f"no bytes, and no file {printable(path)} in its folder"
        return Item(key=key, pictures=pictures, values=values, nbytes=size, reason=reason)

    def _file(self, name: str) -> str | None:
        """Return the file that stands for bytes that are not there; never one elsewhere."""
        folder = self.root if os.path.isdir(self.root) else os.path.dirname(self.root)
        path = within(folder, name)
        return path if path is not None and os.path.isfile(path) else None

    def _label(self, column: Column, value: Any) -> Any:
        if value is None:
            raise ValueError("missing")
        if column.names is not None:
            if not -1 <= value < len(column.names):
                raise ValueError(f"{value}, and there are {len(column.names):,} classes")
            return value
        return self._labels.value(value if isinstance(value, (int, str)) else repr(value))

    def _settle(self) -> tuple[str, ...] | None:
        label = next((column for column in self._columns if column.field == "label"), None)
        if label is None:
            return None
        if label.names is not None:
            label.kind = "int64"
            if self._given is not None and self._given != label.names:
                raise ClassMismatchError(
                    f"{printable(self.root)}: its labels have names of their own, "
                    f"{list(label.names[:5])}, which differ from classes="
                )
            return label.names
        self._labels.settle(self.root)
        label.kind = self._labels.kind or "json"
        return self._labels.classes

    def _look_at_paths(self, batch: Any, picture: Column, keys: Keys) -> None:
        """Find out whether the paths that go with pictures can be keys: all there, all relative."""
        if not self._by_path or not picture.struct:
            self._by_path = False
            return
        parts = batch.column(picture.name)
        at = parts.type.get_field_index("path")
        try:
            names = parts.field(at).to_pylist() if at >= 0 else [None]
        except BAD_VALUE:  # told of its sample
            names = [None]
        for name in names:
            if not isinstance(name, str) or not name or _climbs(name):
                self._by_path = False
                return
            keys.see(name)

    def _without_bytes(self, schema: Any) -> list[str]:
        """Return the columns of the first pass; of pictures only their paths."""
        names = []
        for column in self._columns:
            if column.kind != "keep":
                names.append(column.name)
            elif column.struct and schema.field(column.name).type.get_field_index("path") >= 0:
                names.append(f"{column.name}.path")
        return names

    def _features(self, schema: Any) -> dict[str, Any]:
        return features_of(schema.metadata)

    @abc.abstractmethod
    def _start(self) -> tuple[Any, Any]:
        """Return the schema, and the first rows."""

    @abc.abstractmethod
    def _batches(self, columns: list[str] | None) -> Iterator[Any]:
        """Yield the rows in parts; all columns, or only some."""

    def _require_alike(self, path: str, schema: Any) -> None:
        """Refuse a file whose columns are not those of the first one."""
        problem = difference(self._schema, schema)
        if problem:
            raise DecodeError(f"{printable(path)}: {problem}", path=path)

    @contextlib.contextmanager
    def _arrow_errors(self, path: str) -> Iterator[None]:
        library = pyarrow()
        with reading(path):
            try:
                yield
            except SharedDSError:
                raise
            except (library.ArrowException, ValueError, TypeError) as error:
                text = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise DecodeError(
                    f"{printable(path)}: damaged, or not what its ending says ({text})", path=path
                ) from error


class Parquet(ArrowRows):
    """Parquet files.

    Args:
        root: A file, or a folder of files (or with a folder ``data`` of them).
        split: The first part of their names, where there are several: ``train-00000-of-00003``.
        classes: Names that fix the numbering, for labels that are text.
    """

    format = "parquet"

    def __init__(
        self, root: str, *, split: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        super().__init__(root, _parquet_files(root, split), classes=classes)

    def _start(self) -> tuple[Any, Any]:
        path = self._files[0]
        with self._arrow_errors(path):
            file = _open_parquet(path)
            first = next(file.iter_batches(batch_size=4), None)
            return file.schema_arrow, first

    def _batches(self, columns: list[str] | None) -> Iterator[Any]:
        for path in self._files:
            with self._arrow_errors(path):
                file = _open_parquet(path)
                self._require_alike(path, file.schema_arrow)
                for group in range(file.num_row_groups):
                    about = file.metadata.row_group(group)
                    each = max(1, about.total_byte_size // max(1, about.num_rows))
                    rows = _LARGEST_BATCH if columns is not None else _BATCH_BYTES // each
                    yield from file.iter_batches(
                        batch_size=max(1, min(_LARGEST_BATCH, rows)),
                        row_groups=[group],
                        columns=columns,
                        use_threads=False,
                    )


class SavedDataset(ArrowRows):
    """A dataset that ``save_to_disk`` wrote, or one file of Arrow.

    Args:
        root: The folder, or a file.
        split: Which of a ``DatasetDict``.
        classes: Names that fix the numbering, for labels that are text.
    """

    format = "huggingface"

    def __init__(
        self, root: str, *, split: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        self._folder, files = _saved_files(root, split)
        super().__init__(root, files, classes=classes)

    def _features(self, schema: Any) -> dict[str, Any]:
        found = super()._features(schema)
        path = os.path.join(self._folder, "dataset_info.json")
        if not found and os.path.isfile(path):
            info = read_json(path, limit=64 << 20)
            features = info.get("features") if isinstance(info, dict) else None
            return features if isinstance(features, dict) else {}
        return found

    def _start(self) -> tuple[Any, Any]:
        with self._arrow_errors(self._files[0]):
            reader = _open_arrow(self._files[0])
            first = next(iter(_parts(reader)), None)
            return reader.schema, None if first is None else first.slice(0, 4)

    def _batches(self, columns: list[str] | None) -> Iterator[Any]:
        for path in self._files:
            with self._arrow_errors(path):
                reader = _open_arrow(path)
                self._require_alike(path, reader.schema)
                for batch in _parts(reader):
                    batch.validate(full=True)  # offsets in a file are not to be trusted
                    for start in range(0, batch.num_rows, _MOST_ROWS):
                        yield batch.slice(start, _MOST_ROWS)


def _picture(column: Column, value: Any) -> tuple[bytes | None, str]:
    if not column.struct:
        return value, ""
    value = value or {}
    return value.get("bytes"), value.get("path") or ""


def _climbs(name: str) -> bool:
    return any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name


def _open_parquet(path: str) -> Any:
    """Open a Parquet file; its columns are read as they are needed."""
    return pyarrow().parquet.ParquetFile(path, pre_buffer=False)


def _open_arrow(path: str) -> Any:
    """Open a file of Arrow, mapped: as a stream of batches, or with an index of them."""
    library = pyarrow()
    with open(path, "rb") as file:
        indexed = file.read(6) == b"ARROW1"
    mapped = library.memory_map(path)
    return library.ipc.open_file(mapped) if indexed else library.ipc.open_stream(mapped)


def _parts(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader


def _parquet_files(root: str, split: str | None) -> list[str]:
    if not os.path.isdir(root):
        return [root]
    found = listed(root, ".parquet")
    data = os.path.join(root, "data")
    if not found and os.path.isdir(data):
        found = listed(data, ".parquet")
    parts = {path: _PARTS.match(os.path.basename(path)) for path in found}
    splits = sorted({match[1] if match else "" for match in parts.values()})
    if split is None:
        if len(splits) < 2:
            return found
        raise OptionError(
            f"{printable(root)} holds {', '.join(map(repr, splits))}; say which with split= "
            "(--split)",
            path=root,
        )
    chosen = [path for path, match in parts.items() if match and match[1] == split]
    if not chosen:
        raise OptionError(f"{printable(root)}: no split {split!r}; it has {splits}", path=root)
    return chosen


def _saved_files(root: str, split: str | None) -> tuple[str, list[str]]:
    """Return the folder of a saved dataset, and its files in order."""
    if not os.path.isdir(root):
        return os.path.dirname(root), [root]
    folder = root
    several = os.path.join(root, "dataset_dict.json")
    if os.path.isfile(several):
        said = read_json(several, limit=1 << 20)
        splits = said.get("splits", []) if isinstance(said, dict) else []
        splits = [name for name in splits if isinstance(name, str)]
        if split is None and len(splits) != 1:
            raise OptionError(
                f"{printable(root)} holds {', '.join(map(repr, splits))}; say which with split= "
                "(--split)",
                path=root,
            )
        wanted = splits[0] if split is None else split
        inner = within(root, wanted) if wanted in splits else None
        if inner is None:
            raise OptionError(f"{printable(root)}: no split {wanted!r}; it has {splits}", path=root)
        folder = inner
    elif split is not None:
        raise OptionError(f"{printable(root)} has no splits", path=root)
    state = read_json(os.path.join(folder, "state.json"), limit=64 << 20)
    if not isinstance(state, dict) or state.get("_indices_data_files"):
        raise SourceError(
            f"{printable(folder)}: saved with an order beside it; in Python, save it after "
            "flatten_indices()",
            path=folder,
        )
    names = [part.get("filename") for part in state.get("_data_files") or () if part]
    files = [within(folder, name) if isinstance(name, str) else None for name in names]
    known = [path for path in files if path is not None]
    if len(known) != len(files) or not known:
        raise DecodeError(f"{printable(folder)}: state.json names no files of it", path=folder)
    return folder, known
