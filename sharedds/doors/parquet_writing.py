"""A store as Parquet, with what ``datasets`` needs to know of pictures and class names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from sharedds.doors.arrow_columns import pyarrow
from sharedds.doors.outgoing import Leaving, Outgoing
from sharedds.errors import OptionError
from sharedds.ingest.exports.folder import NewFolder
from sharedds.progress import Progress
from sharedds.store.layout import FieldSpec

__all__ = ["write_parquet"]

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1_000


def write_parquet(
    source: Outgoing, out: NewFolder | None, *, shard_size: int, bar: Progress
) -> tuple[int, int]:
    """Write ``part-00000.parquet`` and so on, each of about ``shard_size`` bytes at most.

    Args:
        source: What to write.
        out: The folder; None to read only.
        shard_size: Bytes.
        bar: Told of each sample.

    Returns:
        How many files there are, and their bytes of samples.
    """
    schema = _schema(source)
    files = total = 0
    groups = _groups(source, bar, min(_GROUP_BYTES, shard_size))
    group = next(groups, None)
    while group is not None:
        name = f"part-{files:05d}.parquet".encode()
        if out is None:
            total += group[1]
            group = next(groups, None)
        else:
            with out.create(name) as file:
                written = 0
                with pyarrow().parquet.ParquetWriter(file, schema) as writer:
                    while group is not None and (not written or written + group[1] <= shard_size):
                        writer.write_table(_table(source, schema, group[0]))
                        written += group[1]
                        group = next(groups, None)
                total += written
        files += 1
    return files, total


def _groups(source: Outgoing, bar: Progress, most: int) -> Iterator[tuple[list[Leaving], int]]:
    """Yield samples that are written together, and their bytes."""
    some: list[Leaving] = []
    size = 0
    for sample in source.samples():
        nbytes = sum(len(data or b"") for data in sample.pictures.values())
        if some and (size + nbytes > most or len(some) == _GROUP_ROWS):
            yield some, size
            some, size = [], 0
        some.append(sample)
        size += nbytes
        bar.advance(1, nbytes=nbytes)
    if some:
        yield some, size


def _table(source: Outgoing, schema: Any, samples: list[Leaving]) -> Any:
    library = pyarrow()
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for sample in samples:
        for name, data in sample.pictures.items():
            path = sample.name if name == "image" and source.store.header.keyed else None
            columns[name].append(None if data is None else {"bytes": data, "path": path})
        for field in source.values:
            columns[field.name].append(_plain(field, sample.values[field.name]))
    try:
        return library.table(columns, schema=schema)
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{source.store.path}: from sample {samples[0].index} on, a key or text that is not "
            "UTF-8, and Parquet has no other; export it as webdataset",
            path=source.store.path,
        ) from error


def _plain(field: FieldSpec, value: Any) -> Any:
    if field.kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _schema(source: Outgoing) -> Any:
    library = pyarrow()
    picture = library.struct([("bytes", library.binary()), ("path", library.string())])
    fields: list[tuple[str, Any]] = [(name, picture) for name in source.pictures]
    features: dict[str, Any] = {name: {"_type": "Image"} for name in source.pictures}
    for field in source.values:
        kind, feature = _type(source, field)
        fields.append((field.name, kind))
        features[field.name] = feature
    said = json.dumps({"info": {"features": features}})
    return library.schema(fields, metadata={"huggingface": said})


def _type(source: Outgoing, field: FieldSpec) -> tuple[Any, Any]:
    """Return the type of a field in Arrow, and as a feature of ``datasets``."""
    library = pyarrow()
    if field.kind in ("text", "json"):
        return library.string(), {"dtype": "string", "_type": "Value"}
    if field.kind == "bytes":
        return library.binary(), {"dtype": "binary", "_type": "Value"}
    dtype = np.dtype(field.dtype)
    kind = library.from_numpy_dtype(dtype.newbyteorder("="))
    feature: Any = {"dtype": dtype.name, "_type": "Value"}
    if field.name == "label" and source.classes is not None and dtype.kind in "iu":
        feature = {"names": list(source.classes), "_type": "ClassLabel"}
    for _ in range(_axes(source, field)):
        kind = library.list_(kind)
        feature = {"feature": feature, "_type": "List"}
    return kind, feature


def _axes(source: Outgoing, field: FieldSpec) -> int:
    if field.kind == "column":
        return len(field.shape)
    return int(np.ndim(source.store.value(field.name, 0))) if len(source) else 1
