"""MosaicML streaming: a folder with ``index.json`` and shards of samples, raw or compressed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sharedds.doors.chunk_values import Packed, mds_column
from sharedds.doors.chunks import Chunk, Chunked
from sharedds.doors.labels import beside
from sharedds.doors.reading import read_json, within
from sharedds.errors import DecodeError
from sharedds.text import printable

__all__ = ["Mds"]

_COMPRESSIONS = {"zstd": "zstd", "gz": "gz", "bz2": "bz2"}


class Mds(Chunked):
    """Samples from MDS shards.

    Args:
        root: The folder with ``index.json``.
        allow_pickle: Whether columns of the encoding ``pkl`` are read.
        classes: Names that fix the numbering, for labels that are text.
    """

    format = "mds"

    def __init__(
        self, root: str, *, allow_pickle: bool = False, classes: Sequence[str] | None = None
    ) -> None:
        path = os.path.join(root, "index.json")
        try:
            index = read_json(path)
            shards = index["shards"]
            columns = _columns(path, shards[0])
            said = [shards[0][name] for name in ("column_names", "column_encodings")]
            for shard in shards:
                if [shard[name] for name in ("column_names", "column_encodings")] != said:
                    raise DecodeError(f"{printable(path)}: shards of different columns", path=path)
            chunks = [_chunk(root, path, shard) for shard in shards]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DecodeError):
                raise
            raise DecodeError(
                f"{printable(path)}: not an index as MDS has it ({type(error).__name__}: {error})",
                path=path,
            ) from error
        if classes is None:
            classes = beside(root)
        super().__init__(
            root, chunks, columns, all_sizes=False, allow_pickle=allow_pickle, classes=classes
        )


def _columns(path: str, shard: dict[str, Any]) -> list[Packed]:
    if shard["version"] != 2 or shard["format"] != "mds":
        raise DecodeError(
            f"{printable(path)}: shards of the format {shard['format']!r}, version "
            f"{shard['version']!r}; mds, version 2, is read here",
            path=path,
        )
    columns = []
    given = (shard["column_names"], shard["column_encodings"], shard["column_sizes"])
    for name, encoding, size in zip(*given, strict=True):
        if not isinstance(size, int | None) or (size is not None and size < 0):
            raise ValueError(f"a column of {size!r} bytes")
        column = mds_column(str(name), str(encoding), size or None)
        if column is None:
            raise DecodeError(
                f"{printable(path)}, column {name!r}: the encoding {encoding!r} is not read here",
                path=path,
            )
        columns.append(column)
    return columns


def _chunk(root: str, path: str, shard: dict[str, Any]) -> Chunk:
    raw, compression = shard["raw_data"], shard["compression"]
    word = "" if compression is None else str(compression).partition(":")[0]
    if word and word not in _COMPRESSIONS:
        raise DecodeError(
            f"{printable(path)}: shards compressed with {word} are not read here; "
            f"{', '.join(_COMPRESSIONS)} are",
            path=path,
        )
    plain = within(root, str(raw["basename"]))
    file = plain
    if word and (plain is None or not os.path.isfile(plain)):
        file = within(root, str(shard["zip_data"]["basename"]))
    else:
        word = ""
    if file is None:
        raise DecodeError(f"{printable(path)}: a shard outside of its folder", path=path)
    return Chunk(
        path=file,
        samples=_whole(shard["samples"]),
        size=_whole(raw["bytes"], most=(1 << 32) - 1),
        compression=word,
    )


def _whole(value: Any, *, most: int = 1 << 40) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{value!r} where a whole number is expected")
    return value
