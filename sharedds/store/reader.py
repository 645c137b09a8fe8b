"""Reads a store: a path and a few numbers until first used, then one mapping shared by the process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.codecs import decode
from sharedds.errors import (
    CorruptDataError,
    DecodeError,
    IncompleteStoreError,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    SharedDSError,
    StoreChangedError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles import MappedFile, absolute_path, map_file, per_process
from sharedds.packed import encode_text
from sharedds.store.arrays import ArrayMeta, ChunkedArray, LevelMeta, parse_meta
from sharedds.store.columns import Column, RaggedColumn, TextColumn
from sharedds.store.layout import (
    COLUMNS,
    HEADER,
    HEADER_KEY,
    SEAL_KEY,
    ColumnSpec,
    FieldSpec,
    Header,
    column_key,
    parse_header,
)
from sharedds.store.pages import Pages, Tree
from sharedds.store.partial import partial_path

__all__ = ["Store", "resolve"]


def resolve(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of the data file: the path itself, or ``data.mdb`` in a folder.

    Raises:
        StoreNotFoundError: Nothing is there.
        IncompleteStoreError: It is the working folder of an unfinished pack.
        StoreFormatError: A folder without a store.
    """
    full = absolute_path(path)
    if os.path.isdir(full):
        inside = os.path.join(full, "data.mdb")
        if os.path.isfile(inside):
            return inside
        if os.path.exists(os.path.join(full, "state.json")):
            raise IncompleteStoreError(
                f"{full}: incomplete, this is the working folder of an unfinished pack; "
                "run the same pack again to finish it",
                path=full,
            )
        raise StoreFormatError(f"{full}: a folder without a store (no data.mdb in it)", path=full)
    if not os.path.exists(full):
        hint = "check the spelling"
        if os.path.isdir(partial_path(full)):
            hint = f"{partial_path(full)} holds an unfinished pack; run the same pack again to finish it"
        raise StoreNotFoundError(f"{full}: no such store; {hint}", path=full)
    return full


class _Opened:
    """What one process knows of an open store."""

    def __init__(self, path: str) -> None:
        self.file: MappedFile = map_file(path)
        self.pages = Pages(self.file.view, path)
        self.path = path
        self.header = self._read_header()
        self.specs: dict[str, ColumnSpec] = {spec.name: spec for spec in self.header.columns}
        self.columns: dict[str, Column] = {}
        self.fields: dict[str, FieldSpec] = {f.name: f for f in self.header.fields}
        self.chunked = {f.name: i for i, f in enumerate(self.header.chunked)}
        self.stride = len(self.chunked)
        tree = self.pages.database(COLUMNS)
        self._columns: Tree = tree if tree is not None else Tree(None, 0, 0)
        if self.header.entries and "@entries" not in self.specs:
            raise StoreFormatError(f"{path}: the header is damaged (no table of entries)", path=path)
        expected = self.header.samples * self.stride
        if self.header.one_entry_each and self.header.entries != expected:
            raise StoreFormatError(
                f"{path}: the header is damaged ({self.header.entries} entries, {expected} expected)", path=path
            )

    def _read_header(self) -> Header:
        tree = self.pages.database(HEADER)
        found = self.pages.find(tree, HEADER_KEY) if tree is not None else None
        if tree is None or found is None:
            if tree is not None and self.pages.find(tree, b"progress") is not None:
                raise IncompleteStoreError(
                    f"{self.path}: incomplete, an unfinished pack; run the same pack again to finish it",
                    path=self.path,
                )
            raise StoreFormatError(
                f"{self.path}: an LMDB file, but not a store of sharedds", path=self.path
            )
        text = self.file.view[found[0] : found[0] + found[1]]
        sealed = self.pages.find(tree, SEAL_KEY)
        seal = self.file.view[sealed[0] : sealed[0] + sealed[1]] if sealed is not None else None
        if seal is None or seal != xxhash.xxh3_64_digest(text):
            raise StoreFormatError(
                f"{self.path}: the header fails its checksum; the file was damaged after packing",
                path=self.path,
            )
        return parse_header(text, self.path)

    def locate(self, name: str, segment: int) -> tuple[int, int]:
        found = self.pages.find(self._columns, column_key(name, segment))
        if found is None:
            raise StoreFormatError(
                f"{self.path}: column {name!r}, segment {segment} is missing", path=self.path, field=name
            )
        return found

    def column(self, name: str) -> Column:
        column = self.columns.get(name)
        if column is None:
            spec = self.specs.get(name)
            if spec is None:
                known = ", ".join(n for n in self.specs if "@" not in n) or "none"
                raise SampleKeyError(
                    f"{self.path}: no column {name!r}; columns: {known}", path=self.path, field=name
                )
            rows = self.column(f"{name}@xxh3") if f"{name}@xxh3" in self.specs else None
            column = Column(spec, self.locate, self.file.view, self.path, rows)
            self.columns[name] = column
        return column

    def ragged(self, name: str, *, shaped: bool = False) -> RaggedColumn:
        shapes = self.column(f"{name}@shape") if shaped else None
        return RaggedColumn(self.column(name), self.column(f"{name}@ends"), shapes)

    def text(self, name: str) -> TextColumn:
        return TextColumn(self.column(name), self.column(f"{name}@ends"))

    def entry_range(self, sample: int, field: str) -> tuple[int, int]:
        """Return the numbers of the first entry of (sample, field) and of the one after the last."""
        at = sample * self.stride + self.chunked[field]
        if self.header.one_entry_each:
            return at, at + 1
        first = self.column("@first")
        start, stop = int(first[at]), int(first[at + 1])
        if not 0 <= start <= stop <= self.header.entries:
            raise StoreFormatError(
                f"{self.path}: sample {sample}, field {field!r}: its entries are damaged",
                path=self.path,
                sample=sample,
                field=field,
            )
        return start, stop

    @property
    def entries(self) -> Column:
        return self.columns.get("@entries") or self.column("@entries")


class Store:
    """A sealed store, opened read-only.

    It holds a path; the file is mapped on first use, once for each process, whoever opens it. It
    pickles to a few hundred bytes and may be made before workers start, by any start method.

    Every value read is compared with its checksum, so damage is an error and never wrong data.

    Args:
        path: The file, or a folder with ``data.mdb``. ``~`` is expanded; a relative path stays right
            when the process changes its folder.

    Raises:
        StoreNotFoundError: Nothing is there; nothing is created.
        StoreFormatError: Not a store, another version, or damaged structure.

    Example:
        >>> store = Store("photos.lmdb")  # doctest: +SKIP
        >>> len(store), store[0]["image"].shape, store.column("label")[:3]  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = resolve(path)
        self._digest = self._open.header.digest

    @per_process
    def _open(self) -> _Opened:
        opened = _Opened(self.path)
        expected = self.__dict__.get("_digest")
        if expected is not None and expected != opened.header.digest:
            raise StoreChangedError(
                f"{self.path} was replaced by another store since this object was made "
                f"(digest {opened.header.digest}, expected {expected}); make the dataset anew",
                path=self.path,
            )
        return opened

    def __len__(self) -> int:
        return self._open.header.samples

    @property
    def header(self) -> Header:
        """The header, as read and checked."""
        return self._open.header

    @property
    def attrs(self) -> dict[str, Any]:
        """What the writer kept in the header."""
        return self._open.header.attrs

    @property
    def digest(self) -> str:
        """The content digest: equal for equal content, however it was packed."""
        return self._open.header.digest

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in schema order."""
        return tuple(self._open.fields)

    @property
    def classes(self) -> TextColumn | None:
        """Class names by number, or None when the store has none."""
        return self._open.text("@classes") if "@classes" in self._open.specs else None

    def column(self, name: str) -> Column:
        """Return the column of a scalar or fixed-shape field.

        Raises:
            SampleKeyError: No such column.
        """
        return self._open.column(name)

    def texts(self, name: str) -> TextColumn:
        """Return the column of a ``str`` field."""
        return self._open.text(self._field(name, "text").name)

    def _field(self, name: str, *kinds: str) -> FieldSpec:
        field = self._open.fields.get(name)
        if field is None or (kinds and field.kind not in kinds):
            known = ", ".join(f"{f.name} ({f.codec or f.kind})" for f in self._open.header.fields)
            raise SampleKeyError(
                f"{self.path}: no such field here: {name!r}; fields: {known}", path=self.path, field=name
            )
        return field

    def _position(self, index: int) -> int:
        count = self._open.header.samples
        position = index + count if index < 0 else index
        if not 0 <= position < count:
            raise SampleIndexError(
                f"{self.path}: no sample {index}, there are {count}", path=self.path, sample=index
            )
        return position

    # --- keys ---

    def key(self, index: int) -> str:
        """Return the key of a sample (its number where the store has no keys)."""
        position = self._position(index)
        return self._open.text("@key")[position] if self._open.header.keyed else str(position)

    def index_of(self, key: str | bytes | os.PathLike[Any]) -> int:
        """Return the number of the sample with this key: a binary search in the file.

        Raises:
            SampleKeyError: No sample has it.
        """
        wanted = encode_text(key)
        if self._open.header.keyed:
            hashes, order = self.column("@key@hash"), self.column("@key@order")
            keys = self._open.text("@key")
            value = np.uint64(xxhash.xxh3_64_intdigest(wanted))
            low, high = 0, len(hashes)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if hashes[middle] < value else (low, middle)
            while low < len(hashes) and hashes[low] == value:
                if keys.bytes(int(order[low])) == wanted:
                    return int(order[low])
                low += 1
        text = wanted.decode("utf-8", "backslashreplace")
        raise SampleKeyError(f"{self.path}: no sample with the key {text!r}", path=self.path, key=text)

    # --- stored bytes ---

    def read(self, field: str, index: int) -> memoryview:
        """Return the stored bytes of a field of one chunk, such as an image: a view of the file.

        Raises:
            SampleIndexError: No such sample.
            SampleKeyError: No such field, or the sample has no value there.
            CorruptDataError: The bytes fail their checksum.
        """
        opened = self._open
        if field not in opened.chunked:
            self._field(field, "image", "blocks")
        position = self._position(index)
        start, stop = opened.entry_range(position, field)
        if stop - start != 1:
            what = "no value" if start == stop else f"{stop - start} chunks, use array()"
            raise SampleKeyError(
                f"{self.path}: sample {position}, field {field!r} has {what}",
                path=self.path,
                sample=position,
                field=field,
            )
        return self._entry(start, position, field)

    def _entry(self, number: int, sample: int, field: str) -> memoryview:
        opened = self._open
        offset, length, checksum = opened.entries[number].tolist()
        if offset + length <= opened.file.size:
            data = opened.file.view[offset : offset + length]
            if xxhash.xxh3_64_intdigest(data) == checksum:
                return data
        raise self._corrupt(sample, field, "fails its checksum: the file was damaged after packing")

    def _corrupt(self, sample: int, field: str, what: str) -> CorruptDataError:
        key = None
        try:
            key = self.key(sample) if self._open.header.keyed else None
        except SharedDSError:  # the keys are damaged too; the number has to do
            key = None
        return CorruptDataError(
            f"{self.path}: sample {sample}{f' ({key})' if key else ''}, field {field!r} {what}; "
            "restore the file from a copy or pack it again",
            path=self.path,
            sample=sample,
            key=key,
            field=field,
        )

    def read_many(self, field: str, indices: Sequence[int]) -> list[memoryview]:
        """Return the stored bytes of many samples: all are asked for first, then read in file order."""
        positions = [self._position(int(i)) for i in indices]
        self.advise(field, positions)
        order = sorted(range(len(positions)), key=positions.__getitem__)
        values: list[memoryview] = [memoryview(b"")] * len(positions)
        for at in order:
            values[at] = self.read(field, positions[at])
        return values

    def advise(self, field: str, indices: Sequence[int]) -> None:
        """Tell the kernel that these samples are read soon; it fetches them while the caller goes on."""
        opened = self._open
        if field in opened.chunked:
            ranges = [opened.entry_range(self._position(int(i)), field) for i in indices]
            opened.file.advise(self._spans(number for span in ranges for number in range(*span)))

    def _spans(self, numbers: Any) -> Iterator[tuple[int, int]]:
        entries = self._open.entries
        wanted = np.fromiter(numbers, np.int64)
        if wanted.size:
            for offset, length, _ in np.sort(entries[wanted], axis=0).tolist():
                yield offset, length

    # --- samples ---

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample: a dict of decoded fields (images as (H, W, C) arrays)."""
        position = self._position(index)
        return {name: self.value(name, position) for name in self._open.fields}

    def value(self, name: str, index: int) -> Any:
        """Return one field of one sample, decoded."""
        opened = self._open
        field, position = self._field(name), self._position(index)
        if field.kind in ("image", "blocks"):
            start, stop = opened.entry_range(position, name)
            if start == stop and not (field.kind == "blocks" and len(self._meta(field, position))):
                return None
            if field.kind == "blocks":
                return self.array(position, name)[()]
            data = self._entry(start, position, name)
            try:
                return decode(data, mode="keep", max_pixels=None)
            except DecodeError as error:
                raise self._corrupt(position, name, f"does not decode ({error})") from error
        if field.kind == "column":
            column = opened.column(name)
            column.check_row(position)
            value = column[position]
            return value.item() if not field.shape else value
        if field.kind == "ragged":
            return opened.ragged(name, shaped=True)[position]
        if field.kind == "text":
            return opened.text(name)[position]
        data = opened.ragged(name)[position].tobytes()
        return msgspec.json.decode(data) if field.kind == "json" else data

    def _meta(self, field: FieldSpec, position: int) -> bytes:
        return self._open.text(f"{field.name}@meta").bytes(position)

    def array(self, index: int, field: str) -> ChunkedArray:
        """Return an array for reading by regions: only the blocks that a region touches are decoded.

        An image is an array of one block, decoded here.

        Raises:
            SampleKeyError: No such field, or the sample has no value there.
        """
        position = self._position(index)
        spec = self._field(field, "image", "blocks")
        what = f"{self.path}: sample {position}, field {field!r}"
        if spec.kind == "image":
            image = self.value(field, position)
            if image is None:
                raise SampleKeyError(f"{what} has no value", path=self.path, sample=position, field=field)
            return _whole(image, what)
        record = self._meta(spec, position)
        if not record:
            raise SampleKeyError(f"{what} has no value", path=self.path, sample=position, field=field)
        meta = parse_meta(record, what)
        start, stop = self._open.entry_range(position, field)
        starts = np.cumsum([start, *(level.blocks for level in meta.levels)])
        if starts[-1] != stop:
            raise StoreFormatError(f"{what}: {stop - start} blocks, its shape needs {starts[-1] - start}")

        def read_blocks(level: int, numbers: list[int]) -> list[memoryview]:
            wanted = [int(starts[level]) + n for n in numbers]
            if len(wanted) > 1:
                self._open.file.advise(self._spans(wanted))
            return [self._entry(number, position, field) for number in wanted]

        return ChunkedArray(meta, spec.codec, read_blocks, what)

    def __repr__(self) -> str:
        return f"Store({self.path!r})"


def _whole(image: npt.NDArray[Any], what: str) -> ChunkedArray:
    meta = ArrayMeta(image.dtype.newbyteorder("<").str, (LevelMeta(image.shape, image.shape),))
    data = memoryview(np.ascontiguousarray(image)).cast("B")
    return ChunkedArray(meta, "raw", lambda _level, _numbers: [data], what)
