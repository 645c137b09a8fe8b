"""What one process knows of a sharded store: its index, and the shards that were read lately.

It answers what :class:`~sharedds.store.opened.OpenedStore` answers, with samples and entries
numbered through all shards. A shard is opened when something of it is asked for; of those that
stay open the number is bounded. One that is closed lets go of its descriptors and its map at once,
unless somebody holds a view into it: then with that view.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import (
    CorruptDataError,
    SampleKeyError,
    SharedDSError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles import map_file, per_process
from sharedds.store.header import Header
from sharedds.store.joined_columns import JoinedColumn, JoinedRagged, JoinedText, Places
from sharedds.store.layout import FORMAT_VERSION, FieldColumn, FieldSpec, field_columns
from sharedds.store.opened import OpenedStore
from sharedds.store.shard_index import Edits, Shard, ShardIndex, read_index

__all__ = ["OpenedShards", "content_of", "open_shards"]

_OPEN = 128  # shards; each has a map and two descriptors


class _OpenedShard(OpenedStore):
    """A shard; its samples are named by their numbers in the whole."""

    def __init__(self, path: str, base: int) -> None:
        super().__init__(path)
        self._base = base

    def key_of(self, sample: int) -> str | None:
        """Return the key of a sample, by its number in the whole."""
        return super().key_of(sample - self._base)


def open_shards(path: str, digest: str | None = None) -> OpenedShards:
    """Open a sharded store; of the shards none is touched.

    Args:
        path: The folder.
        digest: The content that is wanted; by default what is there.

    Raises:
        StoreFormatError: The index is damaged.
        StoreChangedError: There is no such content any more.
    """
    return OpenedShards(path, read_index(path, digest))


def content_of(fields: Iterable[FieldSpec]) -> list[tuple[object, ...]]:
    """Return what a digest knows of a schema; the rest may differ among shards."""
    return [(f.name, f.kind, f.codec, f.dtype, f.shape) for f in fields]


class OpenedShards:
    """An open sharded store, in one process.

    Args:
        path: The folder.
        index: What is in it.
    """

    def __init__(self, path: str, index: ShardIndex) -> None:
        self.path = path
        self.index = index
        self.header = Header(
            format="sharedds",
            version=FORMAT_VERSION,
            samples=index.samples,
            entries=index.entries,
            digest=index.digest,
            fields=index.fields,
            columns=(),
            one_entry_each=index.one_entry_each,
            keyed=index.keyed,
            classes=max(0, index.classes),
            attrs=index.attrs,
        )
        self.fields: dict[str, FieldSpec] = {field.name: field for field in index.fields}
        self.chunked = {field.name: at for at, field in enumerate(self.header.chunked)}
        self.samples = Places(shard.samples for shard in index.shards)
        self.entry_places = Places(shard.entries for shard in index.shards)
        self._open: OrderedDict[int, OpenedStore] = OrderedDict()
        self._side_car: OpenedStore | None = None
        self._keys: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None = None
        self._columns: dict[str, JoinedColumn] = {}

    @per_process
    def _lock(self) -> threading.RLock:
        """What threads take turns by: one for a fork too, which may meet another thread with it."""
        return threading.RLock()

    # --- files ---

    def shard(self, number: int) -> OpenedStore:
        """Return a shard, opened and compared with the index.

        Raises:
            StoreFormatError: It is missing, cut short, damaged, or another file.
        """
        with self._lock:
            opened = self._open.get(number)
            if opened is not None:
                self._open.move_to_end(number)
                return opened
            shard = self.index.shards[number]
            opened = self._checked(shard, self.samples.bounds[number])
            self._open[number] = opened
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)[1].forget()
            return opened

    def side_car(self) -> OpenedStore:
        """Return the file with the columns that stand in for others."""
        with self._lock:
            if self._side_car is None:
                edits = self.index.edits
                if edits is None:
                    raise self._wrong(self.path, "nothing of it was edited")
                self._side_car = self._checked(edits, 0)
            return self._side_car

    def _checked(self, part: Shard | Edits, base: int) -> OpenedStore:
        path = os.path.join(self.path, part.file)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            raise self._wrong(path, "is missing") from None
        except OSError as error:
            raise self._wrong(path, f"cannot be reached ({error.strerror})") from error
        if size != part.bytes:
            what = f"has {size:,} bytes, the index says {part.bytes:,}: cut short, or exchanged"
            raise self._wrong(path, what)
        try:
            opened = _OpenedShard(path, base)
        except StoreNotFoundError:
            raise self._wrong(path, "is missing") from None
        header = opened.header
        wanted = (part.digest, part.samples)
        if (header.digest, header.samples) != wanted:
            raise self._wrong(
                path,
                f"was exchanged: it holds {header.samples:,} samples of digest {header.digest}, "
                f"the index says {part.samples:,} of {part.digest}",
            )
        if isinstance(part, Shard):
            same = content_of(header.fields) == content_of(self.index.fields)
            if not same or header.entries != part.entries or header.keyed != self.index.keyed:
                raise self._wrong(path, "has other fields, entries or keys than the index says")
        return opened

    def _wrong(self, path: str, what: str) -> StoreFormatError:
        return StoreFormatError(
            f"{path}: this shard of {self.path} {what}; put back the right file from a copy, or "
            "pack the store again",
            path=path,
        )

    def parts(self, *, edited: bool) -> tuple[Places, Callable[[int], OpenedStore]]:
        """Return where samples are, and what opens a part: a shard, or first what stands in."""
        edits = self.index.edits
        if not edited or edits is None:
            return self.samples, self.shard
        covered, _ = self.samples.find(edits.samples)
        rest = (shard.samples for shard in self.index.shards[covered:])

        def open_part(part: int) -> OpenedStore:
            return self.side_car() if part == 0 else self.shard(part - 1 + covered)

        return Places((edits.samples, *rest)), open_part

    def is_edited(self, name: str) -> bool:
        """Whether a side-car stands in for a field, or for ``@key`` or ``@classes``."""
        edits = self.index.edits
        if edits is None:
            return False
        system = {"@key": edits.keys, "@classes": edits.classes}
        return system.get(name, name in edits.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        extra = (part.bytes for part in (self.index.keys, self.index.edits) if part is not None)
        return sum(shard.bytes for shard in self.index.shards) + sum(extra)

    def release(self) -> None:
        """Let go of the pages of the shards that are open."""
        with self._lock:
            opened = list(self._open.values())
        for shard in opened:
            shard.release()

    def forget(self) -> None:
        """Let go of all that is open: maps end here, and not when garbage is collected."""
        with self._lock:
            for opened in (*self._open.values(), self._side_car):
                if opened is not None:
                    opened.forget()
            self._open.clear()
            self._columns.clear()
            self._side_car = None

    # --- columns ---

    @property
    def has_classes(self) -> bool:
        """Whether there are class names."""
        return self.index.classes >= 0

    def column(self, name: str) -> JoinedColumn:
        """Return a column with a row for each sample, or that of the entries.

        Raises:
            SampleKeyError: No such column.
        """
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._joined(name)
        return found

    def _joined(self, name: str) -> JoinedColumn:
        if name == "@entries" and self.chunked:
            spec, places = FieldColumn(name, "<u8", (3,)), self.entry_places
            _, part = self.parts(edited=False)
        else:
            spec = self._described(name)
            places, part = self.parts(edited=self.is_edited(name.partition("@")[0]))
        dtype = np.dtype(spec.dtype)
        return JoinedColumn(
            name, dtype, spec.shape, self.path, places, lambda number: part(number).column(name)
        )

    def _described(self, name: str) -> FieldColumn:
        field = self.fields.get(name.partition("@")[0])
        if field is not None:
            dimensions = 1
            if field.kind == "ragged":
                dimensions = self.shard(0).specs[f"{field.name}@shape"].shape[0]
            for spec in field_columns(field, dimensions):
                if spec.name == name and spec.more_rows == 0:
                    return spec
        known = ", ".join(f.name for f in self.index.fields if f.kind == "column") or "none"
        raise SampleKeyError(
            f"{self.path}: no column {name!r}; columns: {known}", path=self.path, field=name
        )

    def ragged(self, name: str, *, shaped: bool = False) -> JoinedRagged:
        """Return the rows of different lengths that a field consists of."""
        places, part = self.parts(edited=self.is_edited(name))
        dtype = np.dtype(self.fields[name].dtype)
        return JoinedRagged(
            name, dtype, self.path, places, lambda n: part(n).ragged(name, shaped=shaped)
        )

    def text(self, name: str) -> JoinedText:
        """Return packed strings."""
        field = name.removesuffix("@meta")
        if name == "@classes":
            source = self.side_car() if self.is_edited(name) else self.shard(0)
            classes = source.text(name)
            return JoinedText(name, self.path, Places([len(classes)]), lambda _: classes)
        if name != "@key" and field not in self.fields:
            raise SampleKeyError(f"{self.path}: no texts {name!r}", path=self.path, field=name)
        places, part = self.parts(edited=self.is_edited(field))
        return JoinedText(name, self.path, places, lambda number: part(number).text(name))

    def find(self, key: bytes) -> int | None:
        """Return the number of the sample with a key: a binary search in the file of the keys."""
        hashes, order = self.key_index()
        value = np.uint64(xxhash.xxh3_64_intdigest(key))
        at = int(np.searchsorted(hashes, value))
        keys = self.text("@key")
        while at < len(hashes) and hashes[at] == value:
            if keys.bytes(int(order[at])) == key:
                return int(order[at])
            at += 1
        return None

    def key_index(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the sorted hashes of the keys, and the samples in that order; both are mapped."""
        with self._lock:
            if self._keys is None:
                named = self.index.keys
                if named is None:
                    raise self._wrong(self.path, "has no keys")
                path = os.path.join(self.path, named.file)
                try:
                    file = map_file(path)
                except StoreNotFoundError:
                    raise self._wrong(path, "is missing") from None
                sound = file.size == named.bytes
                sound = sound and xxhash.xxh3_64_hexdigest(file.view) == named.checksum
                file.release(0, file.size)
                if not sound:
                    raise self._wrong(path, "(the keys) is damaged or exchanged")
                both = np.frombuffer(file.view, "<u8").reshape(2, -1)
                self._keys = both[0], both[1]
            return self._keys

    # --- entries ---

    def entry_bounds(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the first entry of every (sample, field), and the end."""
        found = [np.zeros(1, np.int64)]
        for number, base in enumerate(self.entry_places.bounds[:-1]):
            found.append(self.shard(number).entry_bounds()[1:] + base)
        return np.concatenate(found)

    def entry_range(self, sample: int, field: str) -> tuple[int, int]:
        """Return the numbers of the first entry of (sample, field) and of the one behind."""
        part, row = self.samples.find(sample)
        start, stop = self.shard(part).entry_range(row, field)
        base = self.entry_places.bounds[part]
        return base + start, base + stop

    def entry(self, number: int, sample: int, field: str) -> memoryview:
        """Return the bytes of an entry, compared with their checksum."""
        part, at = self.entry_places.find(number)
        return self.shard(part).entry(at, sample, field)

    def entries(
        self, first: int, numbers: Sequence[int], sample: int, field: str, *, once: bool = False
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield the bytes of many entries of one sample, each compared just before."""
        part, _ = self.samples.find(sample)
        at = first - self.entry_places.bounds[part]
        return self.shard(part).entries(at, numbers, sample, field, once=once)

    def advise(self, numbers: Iterable[int]) -> None:
        """Tell the kernel that these entries are read soon, shard by shard."""
        for part, wanted in self.entry_places.split(numbers):
            self.shard(part).advise(wanted)

    def corrupt(self, sample: int, field: str, what: str) -> CorruptDataError:
        """Return the error about a damaged value."""
        return self.shard(self.samples.find(sample)[0]).corrupt(sample, field, what)

    def key_of(self, sample: int) -> str | None:
        """Return the key of a sample for a report, None where it has none or it is damaged too."""
        if not self.header.keyed:
            return None
        try:
            return self.text("@key")[sample]
        except SharedDSError:
            return None
