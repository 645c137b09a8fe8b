"""Samples as they are stored, for another store: bytes are compared with checksums, not decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from sharedds.errors import StoreFormatError
from sharedds.store.array_meta import parse_meta
from sharedds.store.header import Header
from sharedds.store.layout import FieldSpec
from sharedds.store.prepare import Sample, checksum
from sharedds.store.reader import Store
from sharedds.store.regions import Owner
from sharedds.store.schema import Field
from sharedds.store.values import RaggedKind

__all__ = ["schema_of", "stored_sample"]


def schema_of(header: Header) -> dict[str, str | Field]:
    """Return the schema that makes the fields of a header."""
    return {field.name: _kind(field) for field in header.fields}


def _kind(field: FieldSpec) -> str | Field:
    if field.kind == "image":
        return Field(field.codec, quality=field.quality)
    if field.kind == "blocks":
        quality = field.quality or 90
        return Field(field.codec, quality=quality, chunk=field.chunk, shuffle=field.shuffle)
    if field.kind == "column":
        shape = f"[{','.join(map(str, field.shape))}]" if field.shape else ""
        return f"{_name(field.dtype)}{shape}"
    if field.kind == "ragged":
        return f"array:{_name(field.dtype)}"
    return {"text": "str"}.get(field.kind, field.kind)


def _name(dtype: str) -> str:
    return np.dtype(dtype).name


def stored_sample(store: Store, number: int) -> Sample:
    """Return a sample as it is stored, for a writer of the same schema.

    Chunks are read when they are written, one by one.

    Args:
        store: Where it is.
        number: Its number there.

    Raises:
        SampleIndexError: No such sample.
        CorruptDataError: Something of it fails its checksum.
    """
    opened = store.opened
    key = store.key(number).encode("utf-8", "surrogateescape") if store.header.keyed else None
    sample = Sample(number, key)
    for field in store.header.fields:
        name = field.name
        if field.wide:
            row = opened.column(name)[number]
            data = memoryview(row.tobytes())
            sample.wide.append((name, data))
            sample.rows.append((f"{name}@xxh3", checksum(data)))
        elif field.kind == "column":
            sample.rows.append((name, opened.column(name)[number : number + 1].tobytes()))
        elif field.kind == "ragged":
            array = opened.ragged(name, shaped=True)[number]
            sample.learned[name] = RaggedKind(array.dtype, array.ndim)
            sample.append(name, array.tobytes(), array.size)
            sample.rows.append((f"{name}@shape", struct.pack(f"<{array.ndim}q", *array.shape)))
        elif field.chunked:
            sample.chunks.append(_chunks(store, number, field))
            if field.kind == "blocks":
                meta = opened.text(f"{name}@meta").bytes(number)
                sample.append(f"{name}@meta", meta, len(meta))
        else:
            text = opened.text(name).bytes(number)
            sample.append(name, text, len(text))
    if key is not None:
        sample.append("@key", key, len(key))
        sample.rows.append(("@key@hash", checksum(key)))
    return sample


def _chunks(store: Store, number: int, field: FieldSpec) -> Iterator[tuple[int, int, bytes]]:
    """Yield (level, block, bytes) of a field."""
    opened, name = store.opened, field.name
    start, stop = opened.entry_range(number, name)
    if field.kind == "image":
        places = iter([(0, 0)])
    elif start < stop:
        record = opened.text(f"{name}@meta").bytes(number)
        levels = parse_meta(record, Owner(store.path, number, name)).levels
        if sum(level.blocks for level in levels) != stop - start:
            text = f"{stop - start} blocks do not fit its shape; it is damaged"
            raise Owner(store.path, number, name).error(StoreFormatError, text)
        places = ((at, n) for at, level in enumerate(levels) for n in range(level.blocks))
    else:
        return
    for entry in range(start, stop):
        yield (*next(places), bytes(opened.entry(entry, number, name)))
