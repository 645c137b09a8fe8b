"""Checks a store: the structure of the file where it is not trusted, all checksums, the digest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import lmdb
import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import (
    SampleKeyError,
    SchemaError,
    SharedDSError,
    StoreError,
    StoreFormatError,
)
from sharedds.handles import Passing, open_environment
from sharedds.progress import Progress
from sharedds.store.joined import OpenedShards
from sharedds.store.layout import CHUNK_KEY, CHUNKS
from sharedds.store.opened import OpenedStore
from sharedds.store.pages import Tree
from sharedds.store.reader import Store
from sharedds.store.seal import DERIVED_COLUMNS, digest_lines, digest_of
from sharedds.store.sharding import digest_of_shards, key_order
from sharedds.store.structure import check_structure

__all__ = ["Problem", "VerifyReport", "verify"]

T = TypeVar("T")

_ROWS = 16_384
_SHOWN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong: what, and whose."""

    text: str
    sample: int | None = None
    key: str | None = None
    field: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a check found.

    Attributes:
        path: The store.
        samples: Samples in it.
        entries: Stored values that were compared with their checksums.
        bytes: Bytes of these values.
        digest: The content digest in the header.
        problems: What is wrong, the first 1,000.
        problem_count: How many things are wrong.
    """

    path: str
    samples: int
    entries: int
    bytes: int
    digest: str
    problems: tuple[Problem, ...]
    problem_count: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem_count == 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "ok": self.ok}


def verify(
    path: str | os.PathLike[str], *, untrusted: bool = False, progress: bool | None = None
) -> VerifyReport:
    """Compare everything in a store with its checksums.

    Args:
        path: The store.
        untrusted: The file may be hostile: walk all its pages first (each used once, every number
            in range), and only then let LMDB itself open it.
        progress: True or False to show a bar; by default after two seconds.

    Returns:
        A report naming the sample, key, field and source file of each damaged value.

    Raises:
        StoreError: The file cannot be opened as a store at all, or with ``untrusted`` its structure
            is wrong.
    """
    store = Store(path)
    opened = store.opened
    if isinstance(opened, OpenedShards):
        return _verify_shards(opened, untrusted=untrusted, progress=progress)
    return _verify_file(store, opened, untrusted=untrusted, progress=progress)


def _verify_file(
    store: Store, opened: OpenedStore, *, untrusted: bool, progress: bool | None
) -> VerifyReport:
    check = _Check(store, opened)
    if untrusted:
        check_structure(opened.pages, Passing(opened.file).passed)
    check.columns()
    with Progress("verifying", total=store.header.entries, unit="values", enabled=progress) as bar:
        check.entries(bar)
    check.keys()
    check.arrays()
    check.wide_rows()
    check.digest()
    if untrusted and not check.count:
        check.with_lmdb()
    return VerifyReport(
        path=store.path,
        samples=len(store),
        entries=store.header.entries,
        bytes=check.bytes,
        digest=store.digest,
        problems=tuple(check.problems),
        problem_count=check.count,
    )


def _verify_shards(joined: OpenedShards, *, untrusted: bool, progress: bool | None) -> VerifyReport:
    """Check each file by itself, then that together they are what the index says."""
    problems: list[Problem] = []
    count = nbytes = 0
    for number, base in enumerate(joined.samples.bounds[:-1]):
        shard = joined.index.shards[number]
        try:
            joined.shard(number)  # compared with the index
            store = Store(os.path.join(joined.path, shard.file))
            opened = store.opened
            if not isinstance(opened, OpenedStore):
                raise StoreFormatError(f"{store.path} is a folder, not a shard", path=store.path)
            one = _verify_file(store, opened, untrusted=untrusted, progress=progress)
        except StoreError as error:
            count += 1
            problems.append(Problem(text=str(error)))
            continue
        count, nbytes = count + one.problem_count, nbytes + one.bytes
        for found in one.problems[: max(0, _SHOWN - len(problems))]:
            sample = None if found.sample is None else found.sample + base
            problems.append(replace(found, text=f"{shard.file}: {found.text}", sample=sample))
    if not count:
        for text in _problems_of_whole(joined):
            count += 1
            problems.append(Problem(text=text))
    return VerifyReport(
        path=joined.path,
        samples=joined.index.samples,
        entries=joined.index.entries,
        bytes=nbytes,
        digest=joined.index.digest,
        problems=tuple(problems),
        problem_count=count,
    )


def _problems_of_whole(joined: OpenedShards) -> Iterator[str]:
    edits = joined.index.edits
    try:
        if edits is not None:
            joined.side_car()
            for found in verify(os.path.join(joined.path, edits.file), progress=False).problems:
                yield f"{edits.file}: {found.text}"
        digest = digest_of_shards(joined)
        if digest != joined.index.digest:
            yield f"the content digest is {digest}, the index says {joined.index.digest}"
        if joined.header.keyed:
            mine, order = joined.key_index()
            hashes, samples = key_order(joined)
            if not np.array_equal(mine, hashes) or not np.array_equal(order, samples):
                yield "the file of the keys does not agree with the keys"
    except (StoreError, SchemaError) as error:
        yield str(error)


class _Check:
    """One check under way: what was found so far."""

    def __init__(self, store: Store, opened: OpenedStore) -> None:
        self.store = store
        self.opened = opened
        self.problems: list[Problem] = []
        self.count = 0
        self.bytes = 0
        self.lines: list[str] = []
        self.damaged = False  # the tree or the counts cannot be followed to their end

    def report(self, text: str, *, sample: int | None = None, field: str | None = None) -> None:
        self.count += 1
        if len(self.problems) < _SHOWN:
            key = None if sample is None else self.opened.key_of(sample)
            root = self.store.attrs.get("root")
            source = f"{root}/{key}" if key is not None and root else None
            self.problems.append(
                Problem(text=text, sample=sample, key=key, field=field, source=source)
            )

    def report_error(self, error: SharedDSError) -> None:
        self.report(str(error), sample=error.sample, field=error.field)

    def columns(self) -> None:
        """Compare each block with its checksum, and note the content for the digest."""
        for spec in self.store.header.columns:
            content = xxhash.xxh3_128()
            column = self.opened.column(spec.name)
            for index in range(spec.segments):
                try:
                    data = column.segment_bytes(index)
                except StoreError as error:
                    self.report_error(error)
                    continue
                for block in column.blocks_of(index):
                    try:
                        column.check_block(block)
                    except StoreError as error:
                        self.report_error(error)
                content.update(data)
                column.release(index)
            if spec.name not in DERIVED_COLUMNS and not spec.wide:
                self.lines.append(digest_lines(spec, content.hexdigest()))

    def entries(self, bar: Progress) -> None:
        """Compare the table of entries with the tree, and each value with its checksum."""
        if not self.opened.chunked:
            return
        try:
            self._entries(bar)
        except StoreError as error:  # the table itself is damaged
            self.report_error(error)

    def _entries(self, bar: Progress) -> None:
        table = self.opened.column("@entries")
        content = xxhash.xxh3_128()
        owners, leaves = self._until_damaged(self._owners()), self._until_damaged(self._leaves())
        view, size = self.opened.file.view, self.opened.file.size
        passing = Passing(self.opened.file)
        spans: list[npt.NDArray[np.uint64]] = []
        for at in range(0, len(table), _ROWS):
            rows: npt.NDArray[np.uint64] = table[at : at + _ROWS]
            content.update(np.ascontiguousarray(rows[:, 1:]).tobytes())
            spans.append(rows[:, :2])
            for offset, length, checksum in rows.tolist():
                sample, number, name = next(owners, None) or (None, None, None)
                leaf = next(leaves, None)
                if not self.damaged and leaf != (sample, number, offset, length):
                    self.report("table and tree disagree", sample=sample, field=name)
                elif offset + length > size:
                    self.report("lies outside the file", sample=sample, field=name)
                elif xxhash.xxh3_64_intdigest(view[offset : offset + length]) != checksum:
                    self.report("fails its checksum", sample=sample, field=name)
                passing.passed(offset, length)
                self.bytes += length
                bar.advance(1, nbytes=length)
        if next(leaves, None) is not None:
            self.report("the tree holds values that the table of entries does not name")
        self._overlaps(spans)
        self.lines.append(f"@entries {content.hexdigest()}")
        if not self.store.header.one_entry_each:
            first = np.asarray(self.store.column("@first"))
            counts = xxhash.xxh3_128_hexdigest(np.diff(first).astype("<u4").tobytes())
            self.lines.append(f"@counts {counts}")

    def _until_damaged(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the items; when they cannot be followed any more, report it and end."""
        try:
            yield from items
        except StoreError as error:
            self.damaged = True
            self.report_error(error)

    def _owners(self) -> Iterator[tuple[int, int, str]]:
        """Yield (sample, number of the field, its name) of each entry, in order."""
        chunked = self.store.header.chunked
        for sample in range(len(self.store)):
            for number, field in enumerate(chunked):
                start, stop = self.opened.entry_range(sample, field.name)
                for _ in range(start, stop):
                    yield sample, number, field.name

    def _leaves(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (sample, number of the field, offset, length) of each value of the tree."""
        pages = self.opened.pages
        previous = b""
        tree = pages.database(CHUNKS) or Tree(None, 0, 0)
        for keys, offsets, lengths in pages.fixed_items(tree, CHUNK_KEY.size):
            for row, offset, length in zip(keys, offsets.tolist(), lengths.tolist(), strict=True):
                key = row.tobytes()
                if key <= previous:
                    raise pages.error("keys of the tree are out of order")
                previous = key
                sample, number, _, _ = CHUNK_KEY.unpack(key)
                yield sample, number, offset, length

    def _overlaps(self, spans: list[npt.NDArray[np.uint64]]) -> None:
        if not spans:
            return
        table = np.concatenate(spans)
        table = table[np.argsort(table[:, 0], kind="stable")]
        for at in np.flatnonzero(table[:-1, 0] + table[:-1, 1] > table[1:, 0]).tolist():
            self.report(f"two values overlap at offset {int(table[at + 1, 0])}")

    def keys(self) -> None:
        """Compare the index of the keys with the keys."""
        damaged = any((problem.field or "").startswith("@key") for problem in self.problems)
        if not self.store.header.keyed or damaged:
            return  # damaged columns are reported already
        try:
            keys, hashes = self.opened.text("@key"), np.asarray(self.opened.column("@key@hash"))
            order = np.asarray(self.opened.column("@key@order"))
            if not np.array_equal(np.sort(order), np.arange(len(order))):
                self.report("the order of the keys is none", field="@key@order")
                return
            for sample, value in zip(order.tolist(), hashes.tolist(), strict=True):
                if xxhash.xxh3_64_intdigest(keys.bytes(sample)) != value:
                    self.report("its key cannot be found", sample=sample, field="@key@hash")
        except StoreError as error:
            self.report_error(error)
            return
        if np.any(hashes[1:] < hashes[:-1]):
            self.report("the hashes of the keys are out of order", field="@key@hash")

    def arrays(self) -> None:
        """Compare what is stored about each array with the number of its blocks."""
        for field in self.store.header.fields:
            if field.kind != "blocks":
                continue
            for sample in range(len(self.store)):
                try:
                    self.store.array(sample, field.name)
                except SampleKeyError:
                    continue
                except StoreError as error:
                    self.report_error(error)

    def wide_rows(self) -> None:
        """Compare each long row with its checksum."""
        for spec in self.store.header.columns:
            column = self.opened.column(spec.name)
            for row in range(spec.rows if spec.wide else 0):
                try:
                    column[row]
                except StoreError as error:
                    self.report_error(error)
                self.bytes += spec.row_bytes

    def digest(self) -> None:
        """Compare the digest of what was found with the one in the header."""
        found = digest_of(self.store.header.fields, self.lines)
        if found != self.store.digest and not self.count:
            self.report(f"the content digest is {found}, the header says {self.store.digest}")

    def with_lmdb(self) -> None:
        """Let LMDB itself count: its view of the file must be ours."""
        path, claimed = self.store.path, self.store.header.entries
        try:
            with (
                open_environment(path, readonly=True, lock=False, max_dbs=3, create=False) as env,
                env.begin(env.open_db(CHUNKS.encode(), create=False)) as transaction,
            ):
                entries = transaction.stat()["entries"]
        except (lmdb.Error, StoreError) as error:
            self.report(f"LMDB cannot read it ({error})")
            return
        if entries != claimed:
            self.report(f"LMDB counts {entries} values, the header says {claimed}")
