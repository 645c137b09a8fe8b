"""Makes one store of sealed shards: their content digest, the file of their keys, the index.

The digest is that of a single file with the same content: the bytes of each column go through one
hash, shard after shard, and what counts through all samples is counted on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import SchemaError
from sharedds.handles import storage_errors
from sharedds.store.columns import Column
from sharedds.store.joined import OpenedShards, content_of
from sharedds.store.layout import ColumnSpec, FieldColumn, field_columns
from sharedds.store.opened import OpenedStore
from sharedds.store.seal import digest_lines, digest_of
from sharedds.store.shard_index import INDEX_VERSION, Edits, KeyFile, Shard, ShardIndex

__all__ = ["digest_of_shards", "index_of_files", "key_order", "shard_name"]

_ROWS = 1 << 17
_NOT_YET = "0" * 32


def shard_name(number: int) -> str:
    """Return the name of a new shard."""
    return f"shard-{number:05d}.lmdb"


def index_of_files(
    folder: str,
    files: Sequence[str],
    *,
    attrs: Mapping[str, Any] | None = None,
    edits: Edits | None = None,
) -> ShardIndex:
    """Describe sealed files of a folder as one store, and write the file of its keys.

    Args:
        folder: Where they are.
        files: Their names, in order.
        attrs: Of the whole; by default those of the first.
        edits: What stands in for columns of the first shards.

    Raises:
        SchemaError: They do not fit together: fields, keys or classes differ, or a key is there
            twice.
        StoreError: One of them cannot be read.
    """
    first: OpenedStore | None = None
    shards, one_each = [], True
    for name in files:
        opened = OpenedStore(os.path.join(folder, name))
        first = opened if first is None else first
        _require_same(first, opened, classes=edits is None or not edits.classes)
        if opened is not first:
            opened.forget()
        header = opened.header
        one_each = one_each and header.one_entry_each
        shards.append(Shard(name, header.samples, header.entries, opened.nbytes, header.digest))
    if first is None:
        raise SchemaError(f"{folder}: a store has at least one shard", path=folder)
    header = first.header
    index = ShardIndex(
        format="sharedds-shards",
        version=INDEX_VERSION,
        samples=sum(shard.samples for shard in shards),
        entries=sum(shard.entries for shard in shards),
        digest=_NOT_YET,
        fields=header.fields,
        shards=tuple(shards),
        one_entry_each=one_each,
        keyed=header.keyed,
        classes=header.classes if first.has_classes else -1,
        keys=None,
        edits=edits,
        attrs=dict(header.attrs if attrs is None else attrs),
    )
    joined = OpenedShards(folder, index)
    if edits is not None and edits.classes:
        index = msgspec.structs.replace(index, classes=joined.side_car().header.classes)
        joined = OpenedShards(folder, index)
    first.forget()
    digest = digest_of_shards(joined)
    keys = _write_keys(folder, joined, digest) if header.keyed else None
    joined.forget()  # a file that is mapped keeps the name it was mapped by
    return msgspec.structs.replace(index, digest=digest, keys=keys)


def _require_same(first: OpenedStore, other: OpenedStore, *, classes: bool) -> None:
    mine, theirs = first.header, other.header
    what = ""
    if content_of(mine.fields) != content_of(theirs.fields):
        what = "other fields"
    elif mine.keyed != theirs.keyed and mine.samples and theirs.samples:
        what = "keys, or none, where the other has none, or keys"
    elif classes and _classes(first) != _classes(other):
        what = "other class names"
    elif _dimensions(first) != _dimensions(other):
        what = "arrays of another number of dimensions"
    if what:
        raise SchemaError(
            f"{other.path} has {what} than {first.path}: they cannot be one store",
            path=other.path,
        )


def _classes(opened: OpenedStore) -> list[str] | None:
    return list(opened.text("@classes")) if opened.has_classes else None


def _dimensions(opened: OpenedStore) -> list[int]:
    ragged = (f.name for f in opened.header.fields if f.kind == "ragged")
    return [opened.specs[f"{name}@shape"].shape[0] for name in ragged]


# --- the digest ---


def digest_of_shards(joined: OpenedShards) -> str:
    """Return the content digest, that of a single file with the same content.

    All columns are read, of chunks only lengths and checksums.

    Raises:
        CorruptDataError: A column fails its checksum.
    """
    lines = []
    for field in joined.header.fields:
        dimensions = 1
        if field.kind == "ragged":
            dimensions = joined.shard(0).specs[f"{field.name}@shape"].shape[0]
        edited = joined.is_edited(field.name)
        lines += [
            _line(joined, spec, edited=edited)
            for spec in field_columns(field, dimensions)
            if not (field.wide and spec.name == field.name)  # its checksums stand for it
        ]
    if joined.header.keyed:
        edited = joined.is_edited("@key")
        lines.append(_line(joined, FieldColumn("@key", "|u1"), edited=edited))
        lines.append(_line(joined, FieldColumn("@key@ends", "<u8", (), 1), edited=edited))
    if joined.has_classes:
        source = joined.side_car() if joined.is_edited("@classes") else joined.shard(0)
        for name in ("@classes", "@classes@ends"):
            column = source.column(name)
            content = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(column[:]).tobytes())
            lines.append(digest_lines(source.specs[name], content))
    if joined.chunked:
        lines += _lines_of_entries(joined)
    return digest_of(joined.header.fields, lines)


def _line(joined: OpenedShards, spec: FieldColumn, *, edited: bool) -> str:
    """Hash one column of all parts; ends are counted on from part to part."""
    places, part = joined.parts(edited=edited)
    content, rows, base = xxhash.xxh3_128(), 0, 0
    for number in range(len(places.bounds) - 1):
        last, begin = 0, 0
        for segment in _segments(part(number).column(spec.name)):
            if spec.more_rows == 1:  # where rows end: the first one is 0 in each part
                begin = 1 if number and not last else 0
                last = int(segment[-1]) if len(segment) else last
                segment = segment[begin:] + np.uint64(base)
            content.update(np.ascontiguousarray(segment).data if segment.size else b"")
            rows += len(segment)
        base += last
    described = ColumnSpec(spec.name, spec.dtype, rows, 1, spec.shape)
    return digest_lines(described, content.hexdigest())


def _segments(column: Column) -> Iterator[npt.NDArray[Any]]:
    for number in range(column.segments):
        yield column.segment(number)
        column.release(number)


def _lines_of_entries(joined: OpenedShards) -> Iterator[str]:
    entries, counts = xxhash.xxh3_128(), xxhash.xxh3_128()
    for number in range(len(joined.index.shards)):
        shard = joined.shard(number)
        for segment in _segments(shard.column("@entries")):
            for at in range(0, len(segment), _ROWS):
                entries.update(segment[at : at + _ROWS, 1:].tobytes())
        counts.update(np.diff(shard.entry_bounds()).astype("<u4").tobytes())
    yield f"@entries {entries.hexdigest()}"
    if not joined.header.one_entry_each:
        yield f"@counts {counts.hexdigest()}"


# --- the keys ---


def key_order(joined: OpenedShards) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the hashes of all keys, sorted, and the samples in that order: 16 bytes for each.

    Raises:
        SchemaError: A key is there twice.
    """
    places, part = joined.parts(edited=joined.is_edited("@key"))
    hashes, order = [np.empty(0, "<u8")], [np.empty(0, "<u8")]
    for number, base in enumerate(places.bounds[:-1]):
        if places.bounds[number + 1] > base:
            opened = part(number)
            hashes.append(np.array(opened.column("@key@hash")))
            order.append(np.asarray(opened.column("@key@order")) + np.uint64(base))
    both = np.concatenate(hashes), np.concatenate(order)
    sorting = np.argsort(both[0], kind="stable")
    found, samples = both[0][sorting], both[1][sorting]
    equal = np.flatnonzero(found[1:] == found[:-1])
    seen: dict[bytes, int] = {}
    keys = joined.text("@key")
    for sample in sorted({int(samples[at + n]) for at in equal.tolist() for n in (0, 1)}):
        key = keys.bytes(sample)
        other = seen.setdefault(key, sample)
        if other != sample:
            name = key.decode("utf-8", "backslashreplace")
            raise SchemaError(
                f"{joined.path}: samples {other} and {sample} have the same key {name!r}; keys "
                "must be unique",
                path=joined.path,
                sample=sample,
                key=name,
            )
    return found, samples


def _write_keys(folder: str, joined: OpenedShards, digest: str) -> KeyFile:
    hashes, order = key_order(joined)
    name = f"keys-{digest}.index"
    path = os.path.join(folder, name)
    content = xxhash.xxh3_64()
    with storage_errors(folder):
        with open(f"{path}.new", "wb") as file:
            for array in (hashes, order):
                data = np.ascontiguousarray(array, "<u8")
                content.update(data.data if data.size else b"")
                data.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
    return KeyFile(name, 16 * len(hashes), content.hexdigest())
