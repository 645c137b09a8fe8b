"""Checks a store: every checksum, every entry, the digest; with ``untrusted`` the structure of the file first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import CorruptDataError, SharedDSError, StoreFormatError
from sharedds.handles import open_environment
from sharedds.progress import Progress
from sharedds.store.layout import CHUNK_KEY, CHUNKS, WIDE_ROW, ColumnSpec
from sharedds.store.reader import Store
from sharedds.store.seal import DERIVED_COLUMNS, digest_lines, digest_of

__all__ = ["Problem", "VerifyReport", "verify"]

_ROWS = 16_384


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
        untrusted: The file may be hostile: walk all its pages first (each used once, every number in
            range), and only then let LMDB itself open it.
        progress: True or False to show a bar; by default after two seconds.

    Returns:
        A report naming the sample, key, field and source file of each damaged value.

    Raises:
        StoreError: The file cannot be opened as a store at all.
    """
    store = Store(path)
    check = _Check(store)
    if untrusted:
        store._open.pages.check()  # noqa: SLF001 - one room
    check.columns()
    with Progress("verifying", total=store.header.entries, unit="values", enabled=progress) as bar:
        check.entries(bar)
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


class _Check:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.opened = store._open  # noqa: SLF001 - one room
        self.problems: list[Problem] = []
        self.count = 0
        self.bytes = 0
        self.lines: list[str] = []

    def report(self, text: str, *, sample: int | None = None, field: str | None = None) -> None:
        self.count += 1
        if len(self.problems) < 1000:
            key = self.key_of(sample)
            root = self.store.attrs.get("root")
            source = f"{root}/{key}" if key is not None and root else None
            self.problems.append(Problem(text=text, sample=sample, key=key, field=field, source=source))

    def key_of(self, sample: int | None) -> str | None:
        if sample is None or not self.store.header.keyed:
            return None
        try:
            return self.store.key(sample)
        except SharedDSError:
            return None

    def columns(self) -> None:
        for spec in self.store.header.columns:
            content = xxhash.xxh3_128()
            column = self.opened.column(spec.name)
            for index in range(spec.segments):
                try:
                    data = column.segment_bytes(index)
                    column.check_segment(index, data)
                except (CorruptDataError, StoreFormatError) as error:
                    self.report(str(error), field=spec.name)
                    continue
                content.update(data)
            if spec.name not in DERIVED_COLUMNS and not _is_wide(spec):
                self.lines.append(digest_lines(spec, content.hexdigest()))

    def owners(self) -> Iterator[tuple[int, str]]:
        """Yield (sample, field) of each entry, in order."""
        names = list(self.opened.chunked)
        for sample in range(len(self.store)):
            for name in names:
                start, stop = self.opened.entry_range(sample, name)
                for _ in range(start, stop):
                    yield sample, name

    def entries(self, bar: Progress) -> None:
        if not self.opened.chunked:
            return
        table = self.opened.entries
        content, counts = xxhash.xxh3_128(), xxhash.xxh3_128()
        owners = self.owners()
        leaves = self._tree_entries()
        size, at = self.opened.file.size, 0
        spans: list[npt.NDArray[np.uint64]] = []
        while at < len(table):
            rows: npt.NDArray[np.uint64] = table[at : at + _ROWS]
            content.update(np.ascontiguousarray(rows[:, 1:]).tobytes())
            spans.append(rows[:, :2])
            for offset, length, checksum in rows.tolist():
                sample, name = next(owners, (None, None))
                if next(leaves, None) != (offset, length):
                    self.report("the table of entries and the tree disagree", sample=sample, field=name)
                if offset + length > size:
                    self.report("lies outside the file", sample=sample, field=name)
                elif xxhash.xxh3_64_intdigest(self.opened.file.view[offset : offset + length]) != checksum:
                    self.report("fails its checksum", sample=sample, field=name)
                self.bytes += length
                bar.advance(1, nbytes=length)
            at += len(rows)
        if next(leaves, None) is not None:
            self.report("the tree holds values that the table of entries does not name")
        self._overlaps(spans)
        self.lines.append(f"@entries {content.hexdigest()}")
        if not self.store.header.one_entry_each:
            first = np.asarray(self.store.column("@first"))
            counts.update(np.diff(first).astype("<u4").tobytes())
            self.lines.append(f"@counts {counts.hexdigest()}")

    def _tree_entries(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of each value of the tree, its keys checked to be those expected."""
        tree = self.opened.pages.database(CHUNKS)
        if tree is None:
            return
        previous = b""
        for keys, offsets, lengths in self.opened.pages.fixed_items(tree, CHUNK_KEY.size):
            for key, offset, length in zip(keys, offsets.tolist(), lengths.tolist(), strict=True):
                if (text := key.tobytes()) <= previous:
                    self.report("keys of the tree are out of order")
                previous = text
                yield offset, length

    def _overlaps(self, spans: list[npt.NDArray[np.uint64]]) -> None:
        if not spans:
            return
        table = np.concatenate(spans)
        table = table[np.argsort(table[:, 0], kind="stable")]
        for at in np.flatnonzero(table[:-1, 0] + table[:-1, 1] > table[1:, 0]).tolist():
            self.report(f"two values overlap at offset {int(table[at + 1, 0])}")

    def wide_rows(self) -> None:
        for spec in self.store.header.columns:
            if not _is_wide(spec):
                continue
            column = self.opened.column(spec.name)
            for row in range(spec.rows):
                try:
                    column.check_row(row)
                except SharedDSError:
                    self.report("fails its checksum", sample=row, field=spec.name)
                self.bytes += spec.row_bytes

    def digest(self) -> None:
        found = digest_of(self.store.header.fields, self.lines)
        if found != self.store.digest and not self.count:
            self.report(f"the content digest is {found}, the header says {self.store.digest}")

    def with_lmdb(self) -> None:
        """Let LMDB itself count: its view of the file must be ours."""
        with open_environment(self.store.path, readonly=True, lock=False, max_dbs=3, create=False) as env:
            database = env.open_db(CHUNKS.encode(), create=False)
            with env.begin(database) as transaction:
                entries = transaction.stat(database)["entries"]
        if entries != self.store.header.entries:
            self.report(f"LMDB counts {entries} values, the header says {self.store.header.entries}")


def _is_wide(spec: ColumnSpec) -> bool:
    return not spec.checksums and spec.row_bytes >= WIDE_ROW


