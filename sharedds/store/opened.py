"""What one process knows of an open store: the mapped file, its header, its columns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import (
    CorruptDataError,
    IncompleteStoreError,
    SampleKeyError,
    SharedDSError,
    StoreChangedError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles import MappedFile, absolute_path, map_file
from sharedds.store.columns import Column, RaggedColumn, TextColumn
from sharedds.store.header import Header, parse_header
from sharedds.store.layout import (
    COLUMNS,
    HEADER,
    HEADER_KEY,
    PROGRESS_KEY,
    SEAL_KEY,
    ColumnSpec,
    FieldSpec,
    column_key,
)
from sharedds.store.pages import Pages, Tree, is_lmdb
from sharedds.store.partial import is_partial, partial_path
from sharedds.store.shard_index import holds_shards

__all__ = ["OpenedStore", "holds_store", "open_file", "resolve"]

_LONG = 256 << 10  # bytes of an entry
_TOGETHER = 64 << 10  # bytes of the column of entries that are read at once
_NEAR = 16 << 10  # bytes between entries that are fetched along


def holds_store(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has an index of shards, or a ``data.mdb`` that begins like an LMDB file."""
    if holds_shards(absolute_path(folder)):
        return True
    inside = os.path.join(absolute_path(folder), "data.mdb")
    with contextlib.suppress(OSError):
        if os.path.isfile(inside):  # to open a pipe could wait for ever
            with open(inside, "rb") as file:
                return is_lmdb(file.read(32))
    return False


def resolve(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of the data file: the path itself, or ``data.mdb`` in a folder.

    A folder of shards stands for itself.

    Raises:
        StoreNotFoundError: Nothing is there.
        IncompleteStoreError: It is the working folder of an unfinished pack.
        StoreFormatError: A folder without a store.
    """
    full = absolute_path(path)
    if os.path.isdir(full):
        inside = os.path.join(full, "data.mdb")
        if holds_shards(full):
            return full
        if holds_store(full):
            return inside
        if is_partial(full):
            raise IncompleteStoreError(
                f"{full}: incomplete, this is the working folder of an unfinished pack; "
                "run the same pack again to finish it",
                path=full,
            )
        if os.path.lexists(inside):
            return inside  # whoever opens it says what is wrong with it
        raise StoreFormatError(f"{full}: a folder without a store (no data.mdb in it)", path=full)
    partial = partial_path(full)
    if not os.path.lexists(full) and is_partial(partial):
        raise StoreNotFoundError(
            f"{full}: no such store; {partial} holds an unfinished pack, run the same pack again "
            "to finish it",
            path=full,
        )
    return full


def open_file(path: str, digest: str | None = None) -> OpenedStore:
    """Open a store of one file.

    Args:
        path: The file.
        digest: The content that is wanted; by default what is there.

    Raises:
        StoreChangedError: It holds other content.
    """
    opened = OpenedStore(path)
    if digest not in (None, opened.header.digest):
        raise StoreChangedError(
            f"{path} was replaced by another store since this object was made "
            f"(digest {opened.header.digest}, expected {digest}); make the dataset anew",
            path=path,
        )
    return opened


class OpenedStore:
    """An open store, in one process.

    Raises:
        StoreNotFoundError: Nothing is there.
        StoreFormatError: Not a store, another version, or damaged structure.
        SourceError: It cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: MappedFile = map_file(path)
        self.pages = Pages(self.file.view, path)
        self.header = self._read_header()
        self.specs: dict[str, ColumnSpec] = {spec.name: spec for spec in self.header.columns}
        self.fields: dict[str, FieldSpec] = {field.name: field for field in self.header.fields}
        self.chunked = {field.name: at for at, field in enumerate(self.header.chunked)}
        self._columns: dict[str, Column] = {}
        self._address: int = np.frombuffer(self.file.view, np.uint8).ctypes.data
        self._sound: dict[int, bytearray] = {}  # entries compared before, 4,096 to a page
        self._tree = self.pages.database(COLUMNS) or Tree(None, 0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.file.size

    @property
    def has_classes(self) -> bool:
        """Whether there are class names."""
        return "@classes" in self.specs

    def release(self) -> None:
        """Let go of the pages of the file that were touched."""
        self.file.release(0, self.file.size)

    def forget(self) -> None:
        """Let go of the columns, which refer back to this: it ends with whoever still reads it."""
        self._columns.clear()

    def _read_header(self) -> Header:
        tree = self.pages.database(HEADER) or Tree(None, 0, 0)
        if self.pages.find(tree, PROGRESS_KEY) is not None:
            raise IncompleteStoreError(
                f"{self.path}: incomplete, an unfinished pack; run the same pack again to finish "
                "it",
                path=self.path,
            )
        text, seal = self._bytes(tree, HEADER_KEY), self._bytes(tree, SEAL_KEY)
        if text is None:
            raise StoreFormatError(
                f"{self.path}: an LMDB file, but not a store of sharedds", path=self.path
            )
        if seal is None or seal != xxhash.xxh3_64_digest(text):
            raise StoreFormatError(
                f"{self.path}: the header fails its checksum; the file was damaged after packing, "
                "restore it from a copy or pack it again",
                path=self.path,
            )
        return parse_header(text, self.path, self.file.size)

    def _bytes(self, tree: Tree, key: bytes) -> memoryview | None:
        found = self.pages.find(tree, key)
        return None if found is None else self.file.view[found[0] : found[0] + found[1]]

    def _locate(self, name: str, segment: int) -> tuple[int, int]:
        found = self.pages.find(self._tree, column_key(name, segment))
        if found is None:
            raise StoreFormatError(
                f"{self.path}: column {name!r}, segment {segment} is missing; the file is damaged",
                path=self.path,
                field=name,
            )
        return found

    def column(self, name: str) -> Column:
        """Return a column, also one of the system's.

        Raises:
            SampleKeyError: No such column.
        """
        column = self._columns.get(name)
        if column is None:
            spec = self.specs.get(name)
            if spec is None:
                known = ", ".join(n for n in self.specs if "@" not in n) or "none"
                raise SampleKeyError(
                    f"{self.path}: no column {name!r}; columns: {known}", path=self.path, field=name
                )
            rows = self.column(f"{name}@xxh3") if spec.wide else None
            column = Column(spec, self._locate, self.file, self.path, rows)
            self._columns[name] = column
        return column

    def ragged(self, name: str, *, shaped: bool = False) -> RaggedColumn:
        """Return the rows of different lengths that a field consists of."""
        shapes = self.column(f"{name}@shape") if shaped else None
        return RaggedColumn(self.column(name), self.column(f"{name}@ends"), shapes)

    def text(self, name: str) -> TextColumn:
        """Return packed strings."""
        return TextColumn(self.column(name), self.column(f"{name}@ends"))

    def find(self, key: bytes) -> int | None:
        """Return the number of the sample with a key: a binary search in the file."""
        hashes, order, keys = self.column("@key@hash"), self.column("@key@order"), self.text("@key")
        value = np.uint64(xxhash.xxh3_64_intdigest(key))
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if hashes[middle] < value else (low, middle)
        while low < len(hashes) and hashes[low] == value:
            if keys.bytes(order[low]) == key:
                return int(order[low])
            low += 1
        return None

    def entry_range(self, sample: int, field: str) -> tuple[int, int]:
        """Return the numbers of the first entry of (sample, field) and of the one behind."""
        at = sample * len(self.chunked) + self.chunked[field]
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

    def entry_bounds(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the first entry of every (sample, field), and the end.

        Raises:
            StoreFormatError: They are damaged.
        """
        entries = self.header.entries
        if self.header.one_entry_each:
            return np.arange(entries + 1)
        first = np.asarray(self.column("@first"))
        if first[0] != 0 or first[-1] != entries or np.any(first[1:] < first[:-1]):
            raise StoreFormatError(
                f"{self.path}: the numbers of the entries are damaged",
                path=self.path,
                field="@first",
            )
        return first.astype(np.int64)

    def entry(self, number: int, sample: int, field: str) -> memoryview:
        """Return the bytes of an entry, compared with their checksum.

        Raises:
            CorruptDataError: They differ.
            StoreChangedError: The file was cut short; the column of entries asks for that.
        """
        offset, length, checksum = self.column("@entries")[number].tolist()
        if offset + length <= self.file.size:
            data = self.file.view[offset : offset + length]
            if xxhash.xxh3_64_intdigest(data) == checksum:
                return data
        what = "fails its checksum: the file was damaged after packing"
        raise self.corrupt(sample, field, what)

    def entries(
        self, first: int, numbers: Sequence[int], sample: int, field: str, *, once: bool = False
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield the bytes of many entries and their address, each compared with its checksum.

        It is compared just before, and so at hand for whoever reads it. The address is good for as
        long as the bytes are kept.

        All are asked for first, so that the kernel fetches them together.

        Args:
            first: What the numbers count from.
            numbers: Ascending.
            sample: Of all of them, for errors.
            field: Of all of them, for errors.
            once: Compare those over 256 KiB only the first time in this process: a region of a
                long raw block is copied faster than the block can be compared.

        Raises:
            CorruptDataError: One differs.
            StoreChangedError: The file was cut short; the column of entries asks for that.
        """
        rows = self._rows(first, numbers)
        if len(rows) > 1 and not (once and self._all_seen(first, numbers, rows)):
            self.file.advise(_joined(rows))
        view, size, start = self.file.view, self.file.size, self._address
        for number, (offset, length, checksum) in zip(numbers, rows.tolist(), strict=True):
            data = view[offset : offset + length]
            if once and length > _LONG:
                if self._seen(first + number):
                    yield data, start + offset
                    continue
                if offset + length <= size and xxhash.xxh3_64_intdigest(data) == checksum:
                    self._remember(first + number)
                    yield data, start + offset
                    continue
            elif offset + length <= size and xxhash.xxh3_64_intdigest(data) == checksum:
                yield data, start + offset
                continue
            what = "fails its checksum: the file was damaged after packing"
            raise self.corrupt(sample, field, what)

    def _rows(self, first: int, numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Return offset, length and checksum of entries: one copy where they lie together."""
        column = self.column("@entries")
        low, high = numbers[0], numbers[-1] + 1
        if (high - low) * 24 <= _TOGETHER:
            rows: npt.NDArray[np.uint64] = column[first + low : first + high]
            return rows if len(rows) == len(numbers) else rows[np.asarray(numbers) - low]
        gathered: npt.NDArray[np.uint64] = column[np.asarray(numbers) + first]
        return gathered

    def _seen(self, number: int) -> bool:
        """Whether an entry was found sound before."""
        page = self._sound.get(number >> 12)
        return page is not None and bool(page[number & 4095])

    def _all_seen(self, first: int, numbers: Sequence[int], rows: npt.NDArray[np.uint64]) -> bool:
        """Whether all are long and were found sound: a part of each is read, wherever it lies."""
        return bool(rows[:, 1].min() > _LONG) and all(self._seen(first + n) for n in numbers)

    def _remember(self, number: int) -> None:
        self._sound.setdefault(number >> 12, bytearray(4096))[number & 4095] = 1

    def corrupt(self, sample: int, field: str, what: str) -> CorruptDataError:
        """Return the error about a damaged value."""
        key = self.key_of(sample)
        return CorruptDataError(
            f"{self.path}: sample {sample}{f' ({key})' if key else ''}, field {field!r} {what}; "
            "restore the file from a copy or pack it again",
            path=self.path,
            sample=sample,
            key=key,
            field=field,
        )

    def key_of(self, sample: int) -> str | None:
        """Return the key of a sample for a report, None where it has none or it is damaged too."""
        if not self.header.keyed:
            return None
        try:
            return self.text("@key")[sample]
        except SharedDSError:
            return None

    def advise(self, numbers: Iterable[int]) -> None:
        """Tell the kernel that these entries are read soon; it fetches them meanwhile."""
        wanted = np.fromiter(numbers, np.int64)
        if wanted.size:
            self.file.advise(self._spans(wanted))

    def _spans(
        self, wanted: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> Iterator[tuple[int, int]]:
        rows = self.column("@entries")[wanted]
        for offset, length, _ in rows[np.argsort(rows[:, 0])].tolist():
            yield offset, length


def _joined(rows: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of what to fetch; neighbours are one range."""
    (start, length, _), *others = sorted(rows.tolist())
    end = start + length
    for offset, length, _ in others:
        if offset - end > _NEAR:
            yield start, end - start
            start = offset
        end = max(end, offset + length)
    yield start, end - start
