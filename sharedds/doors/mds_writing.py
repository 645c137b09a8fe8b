"""A store as MDS shards, as MosaicML's ``streaming`` reads them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from sharedds.doors.outgoing import Leaving, Outgoing
from sharedds.errors import OptionError
from sharedds.ingest.exports.folder import NewFolder
from sharedds.progress import Progress
from sharedds.store.layout import FieldSpec

__all__ = ["write_mds"]

_MOST_BYTES = (1 << 32) - (1 << 20)
_KEY = "__key__"


def write_mds(
    source: Outgoing, out: NewFolder | None, *, shard_size: int, bar: Progress
) -> tuple[int, int]:
    """Write shards, ``index.json`` and ``classes.txt``.

    Args:
        source: What to write.
        out: The folder; None to read only.
        shard_size: Bytes; a shard is made in memory.
        bar: Told of each sample.

    Returns:
        How many files there are, and their bytes of samples.

    Raises:
        OptionError: Shards would be of 4 GiB or more.
    """
    names = source.class_lines()
    columns = _columns(source)
    shards: list[dict[str, Any]] = []
    some: list[bytes] = []
    size = total = 0
    for sample in source.samples():
        data = _encoded(sample, columns)
        if some and size + len(data) > shard_size:
            shards.append(_write(out, len(shards), columns, some, shard_size))
            some, size = [], 0
        some.append(data)
        size, total = size + len(data), total + len(data)
        if size > _MOST_BYTES:
            raise OptionError("MDS shards hold under 4 GiB; give a smaller shard_size")
        bar.advance(1, nbytes=len(data))
    if some:
        shards.append(_write(out, len(shards), columns, some, shard_size))
    if out is not None:
        out.write(b"index.json", json.dumps({"shards": shards, "version": 2}).encode())
        if names is not None:
            out.write(b"classes.txt", names)
    return len(shards), total


class _Column:
    """A column: its encoding, the bytes of every value where they are equal, and how to write."""

    def __init__(
        self, name: str, encoding: str, size: int | None, encode: Callable[[Leaving], bytes]
    ) -> None:
        self.name, self.encoding, self.size, self.encode = name, encoding, size, encode


def _encoded(sample: Leaving, columns: list[_Column]) -> bytes:
    parts = [column.encode(sample) for column in columns]
    sizes = [len(part) for part, column in zip(parts, columns, strict=True) if column.size is None]
    return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts)


def _write(
    out: NewFolder | None, number: int, columns: list[_Column], samples: list[bytes], limit: int
) -> dict[str, Any]:
    """Write a shard; return what the index says of it."""
    name = f"shard.{number:05d}.mds"
    said = {
        "column_encodings": [column.encoding for column in columns],
        "column_names": [column.name for column in columns],
        "column_sizes": [column.size for column in columns],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": limit,
        "version": 2,
    }
    config = json.dumps(said, sort_keys=True).encode()
    start = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = start + np.cumsum([0, *map(len, samples)], dtype=np.int64)
    if offsets[-1] >= 1 << 32:
        raise OptionError("MDS shards hold under 4 GiB; give a smaller shard_size")
    if out is not None:
        with out.create(name.encode()) as file:
            file.write(struct.pack("<I", len(samples)))
            file.write(offsets.astype("<u4").tobytes())
            file.write(config)
            file.writelines(samples)
    raw = {"basename": name, "bytes": int(offsets[-1]), "hashes": {}}
    return {**said, "raw_data": raw, "samples": len(samples), "zip_data": None}


def _columns(source: Outgoing) -> list[_Column]:
    columns = [_picture(source, name) for name in source.pictures]
    columns += [_column(source, field) for field in source.values]
    columns.append(_Column(_KEY, "str", None, lambda sample: _text(sample.name)))
    return sorted(columns, key=lambda column: column.name)


def _picture(source: Outgoing, name: str) -> _Column:
    """JPEG and PNG have encodings; where a field holds several formats, its bytes have to do."""
    formats = source.formats(name)
    encoding = formats.pop() if formats in ({"jpeg"}, {"png"}) else "bytes"
    return _Column(name, encoding, None, lambda sample: sample.pictures[name] or b"")


def _column(source: Outgoing, field: FieldSpec) -> _Column:
    name = field.name
    if field.kind == "text":
        return _Column(name, "str", None, lambda sample: _text(sample.values[name]))
    if field.kind == "bytes":
        return _Column(name, "bytes", None, lambda sample: bytes(sample.values[name]))
    if field.kind == "json":
        return _Column(name, "json", None, lambda sample: _json(sample.values[name]))
    dtype = np.dtype(field.dtype)
    if field.kind == "column" and not field.shape:
        if name == "label" and dtype == np.int64:
            return _Column(name, "int", 8, lambda s: struct.pack("<q", int(s.values[name])))
        stored = np.dtype("uint8") if dtype.kind == "b" else dtype.newbyteorder("<")
        return _Column(
            name,
            stored.name,
            stored.itemsize,
            lambda sample: np.asarray(sample.values[name]).astype(stored).tobytes(),
        )
    if dtype.kind == "b" or (field.kind == "ragged" and _has_empty(source, name)):
        # Its arrays cannot be empty; lists can.
        return _Column(name, "json", None, lambda s: _json(np.asarray(s.values[name]).tolist()))
    return _Column(name, f"ndarray:{dtype.name}", None, lambda s: _array(s.values[name]))


def _has_empty(source: Outgoing, name: str) -> bool:
    return any(not source.store.value(name, index).size for index in range(len(source)))


def _array(value: Any) -> bytes:
    array = np.ascontiguousarray(value)
    power = next(n for n in range(4) if max(array.shape) < 1 << (8 << n))
    shape = np.asarray(array.shape, f"<u{1 << power}").tobytes()
    return bytes([array.ndim << 2 | power]) + shape + array.tobytes()


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
