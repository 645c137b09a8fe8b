"""Turns a finished spool into columns, locates every chunk, and writes the header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import SchemaError, StoreFormatError
from sharedds.handles import Passing, map_file
from sharedds.store.header import Header
from sharedds.store.layout import (
    CHUNK_KEY,
    CHUNKS,
    COLUMNS,
    FORMAT_VERSION,
    MAX_HEADER,
    WIDE_ROW,
    ColumnSpec,
    FieldSpec,
    column_key,
    field_columns,
    rows_per_block,
    rows_per_segment,
)
from sharedds.store.pages import Pages, Tree
from sharedds.store.partial import Partial

__all__ = ["DERIVED_COLUMNS", "digest_lines", "digest_of", "seal"]

_ROWS = 1 << 17
_FEW = 1 << 13  # rows of entries: several small arrays are made of each page of the tree

DERIVED_COLUMNS = frozenset({"@entries", "@first", "@key@hash", "@key@order"})


def _layout(
    fields: Sequence[FieldSpec], partial: Partial
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (name, dtype, row shape) of each column that is stored just as it was spooled."""
    wide = {field.name for field in fields if field.wide}
    samples = partial.progress.samples
    for field in fields:
        dimensions = 1
        if field.kind == "ragged" and samples:
            dimensions = partial.log.size(f"{field.name}@shape") // (8 * samples)
        for name, dtype, shape, _ in field_columns(field, dimensions):
            if name not in wide:
                yield name, dtype, shape
    if partial.log.size("@key@ends") > 8:
        yield "@key", "|u1", ()
        yield "@key@ends", "<u8", ()


class _ColumnWriter:
    """Cuts a stream of bytes into segments and puts them in the file."""

    def __init__(
        self, partial: Partial, name: str, dtype: str, shape: tuple[int, ...] = ()
    ) -> None:
        self._partial = partial
        self._name, self._dtype, self._shape = name, dtype, shape
        self._row = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        # system columns stay narrow: their segments are the large ones, whatever the row
        self._rows_each = rows_per_segment(min(self._row, WIDE_ROW - 1))
        self._block = min(self._rows_each, rows_per_block(self._row)) * self._row
        self._buffer = bytearray()
        self._segments = 0
        self._checksums: list[str] = []
        self._bytes = 0
        self._hash = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        self._bytes += len(data)
        self._hash.update(data)
        size = self._rows_each * self._row
        while len(self._buffer) >= size:
            self._put(size)

    def _put(self, size: int) -> None:
        with memoryview(self._buffer)[:size] as segment:
            self._partial.put(COLUMNS, column_key(self._name, self._segments), segment)
            for at in range(0, size, self._block):
                self._checksums.append(xxhash.xxh3_64_hexdigest(segment[at : at + self._block]))
        self._segments += 1
        del self._buffer[:size]

    def finish(self) -> tuple[ColumnSpec, str]:
        """Return the specification and the hash of the content."""
        if self._buffer:
            self._put(len(self._buffer))
        checksums = () if self._name == "@entries" else tuple(self._checksums)
        spec = ColumnSpec(
            self._name,
            self._dtype,
            self._bytes // self._row,
            self._rows_each,
            self._shape,
            checksums,
        )
        return spec, self._hash.hexdigest()


def digest_lines(column: ColumnSpec, content: str) -> str:
    """Return the line of a column in the text that the digest of a store is made of."""
    return f"{column.name} {column.dtype} {list(column.shape)} {column.rows} {content}"


def digest_of(fields: Sequence[FieldSpec], lines: Iterable[str]) -> str:
    """Return the content digest: xxh3-128 over fields and sorted lines of columns and chunks.

    It depends on what is stored, not on where: neither on segments nor on offsets.
    """
    schema = msgspec.json.encode([[f.name, f.kind, f.codec, f.dtype, f.shape] for f in fields])
    text = b"\n".join([schema, *(line.encode() for line in sorted(lines))])
    return xxhash.xxh3_128_hexdigest(text)


def seal(
    partial: Partial,
    fields: tuple[FieldSpec, ...],
    *,
    classes: Sequence[bytes] | None,
    attrs: dict[str, Any],
) -> Header:
    """Write columns, entries and header of a finished spool, and publish the file.

    Raises:
        SchemaError: Two samples have the same key, or the header is too large.
    """
    samples = partial.progress.samples
    columns = [
        ColumnSpec(f.name, f.dtype, samples, rows_per_segment(f.row_bytes), f.shape)
        for f in fields
        if f.wide
    ]
    lines: list[str] = []

    def store(name: str, dtype: str, data: Iterable[bytes], shape: tuple[int, ...] = ()) -> None:
        writer = _ColumnWriter(partial, name, dtype, shape)
        for piece in data:
            writer.write(piece)
        spec, content = writer.finish()
        columns.append(spec)
        if name not in DERIVED_COLUMNS:
            lines.append(digest_lines(spec, content))

    for name, dtype, shape in _layout(fields, partial):
        store(name, dtype, partial.log.read(name), shape)
    keyed = partial.log.size("@key@ends") > 8
    if keyed:
        hashes, order = _key_index(partial)
        store("@key@hash", "<u8", (hashes[part].tobytes() for part in _pieces(order)))
        store("@key@order", "<u8", (part.tobytes() for part in _pieces(order)))
        del hashes, order
    if classes is not None:
        ends = np.cumsum([0, *(len(c) for c in classes)], dtype="<u8")
        store("@classes", "|u1", [b"".join(classes)])
        store("@classes@ends", "<u8", [ends.tobytes()])
    one_each = True
    if "@entries" in partial.log.buffers:
        one_each = all(np.all(np.frombuffer(p, "<u4") == 1) for p in partial.log.read("@counts"))
        if not one_each:
            store("@first", "<u8", _cumulative(partial.log.read("@counts")))
            lines.append(f"@counts {_content(partial.log.read('@counts'))}")
        store("@entries", "<u8", _located(partial), (3,))
        lines.append(f"@entries {_content(partial.log.read('@entries'))}")
    header = Header(
        format="sharedds",
        version=FORMAT_VERSION,
        samples=samples,
        entries=partial.progress.entries,
        digest=digest_of(fields, lines),
        fields=fields,
        columns=tuple(columns),
        one_entry_each=one_each,
        keyed=keyed,
        classes=0 if classes is None else len(classes),
        attrs=attrs,
    )
    text = msgspec.json.encode(header)
    if len(text) > MAX_HEADER:
        raise SchemaError(f"a header of {len(text):,} bytes; {MAX_HEADER:,} is the limit")
    partial.publish(text, xxhash.xxh3_64_digest(text))
    return header


def _content(pieces: Iterable[bytes]) -> str:
    content = xxhash.xxh3_128()
    for piece in pieces:
        content.update(piece)
    return content.hexdigest()


def _pieces(array: npt.NDArray[Any], *, overlap: int = 0) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(array), _ROWS):
        yield array[start : start + _ROWS + overlap]


def _cumulative(counts: Iterable[bytes]) -> Iterator[bytes]:
    yield bytes(8)
    total = np.uint64(0)
    for piece in counts:
        ends = np.cumsum(np.frombuffer(piece, "<u4"), dtype=np.uint64) + total
        total = ends[-1]
        yield ends.astype("<u8").tobytes()


def _rows(pieces: Iterable[bytes], row: int) -> Iterator[bytes]:
    """Cut pieces again: into small ones, none of which ends inside a row."""
    rest, most = b"", _FEW * row
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % row
        rest = data[whole:]
        for at in range(0, whole, most):
            yield data[at : min(at + most, whole)]


def _located(partial: Partial) -> Iterator[bytes]:
    """Yield the entry table: offsets from the pages of the file, the rest from the spool."""
    partial.commit(samples=partial.progress.samples, entries=partial.progress.entries)
    mapped = map_file(partial.data_path)
    pages = Pages(mapped.view, partial.data_path)
    tree = pages.database(CHUNKS)
    leaves = pages.fixed_items(
        tree or Tree(root=None, depth=0, entries=0),
        CHUNK_KEY.size,
        just_written=True,
        passed=Passing(mapped).passed,
    )
    offsets = np.empty(0, np.uint64)
    lengths = np.empty(0, np.uint64)
    for piece in _rows(partial.log.read("@entries"), 16):
        spooled = np.frombuffer(piece, "<u8").reshape(-1, 2)
        found, sizes = [offsets], [lengths]
        have = len(offsets)
        while have < len(spooled):
            leaf = next(leaves, None)
            if leaf is None:
                raise StoreFormatError(f"{partial.path}: chunks are missing", path=partial.path)
            found.append(leaf[1])
            sizes.append(leaf[2])
            have += len(leaf[1])
        offsets, lengths = np.concatenate(found), np.concatenate(sizes)
        count = len(spooled)
        if not np.array_equal(lengths[:count], spooled[:, 0]):
            raise StoreFormatError(f"{partial.path}: chunks and log disagree", path=partial.path)
        table = np.empty((count, 3), "<u8")
        table[:, 0] = offsets[:count]
        table[:, 1:] = spooled
        offsets, lengths = offsets[count:], lengths[count:]
        yield table.tobytes()
    if len(offsets) or next(leaves, None) is not None:
        raise StoreFormatError(f"{partial.path}: chunks beyond the last sample", path=partial.path)


def _key_index(partial: Partial) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the hashes of the keys and the order that sorts them; refuse equal keys.

    16 bytes a sample, and half of that again while they are sorted.
    """
    hashes = np.frombuffer(b"".join(partial.log.read("@key@hash")), "<u8")
    order = np.argsort(hashes, kind="stable").astype("<u8", copy=False)
    equal: set[int] = set()  # samples whose hashes are
    for part in _pieces(order, overlap=1):
        ordered = hashes[part]
        at = np.flatnonzero(ordered[1:] == ordered[:-1])
        equal.update(part[at].tolist(), part[at + 1].tolist())
    if equal:
        text = b"".join(partial.log.read("@key"))
        ends = np.frombuffer(b"".join(partial.log.read("@key@ends")), "<u8").astype(np.int64)
        seen: dict[bytes, int] = {}
        for sample in sorted(equal):
            key = text[ends[sample] : ends[sample + 1]]
            first = seen.setdefault(key, sample)
            if first != sample:
                name = key.decode("utf-8", "backslashreplace")
                raise SchemaError(
                    f"samples {first} and {sample} have the same key {name!r}; keys must be unique",
                    sample=sample,
                    key=name,
                )
    return hashes, order
