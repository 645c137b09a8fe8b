"""The rows of an index while it is being made: they go straight into mapped files."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
from collections.abc import Iterator
from typing import Self

import numpy as np
import xxhash

from sharedds.errors import StorageFullError
from sharedds.folder.names import has_extension
from sharedds.packed import MappedArray, MappedArrayBuilder, PackedStrings, PackedStringsBuilder

__all__ = ["Rows", "RowsBuilder", "merge_rows"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Finished rows.

    Attributes:
        paths: Relative paths, in the order of their components.
        sizes: int64 (N,), bytes.
        mtimes: int64 (N,), nanoseconds.
        labels: int64 (N,), class numbers; -1 where none was given.
        named: How many have an extension.
        total_bytes: Sum of the sizes.
        digest: xxh3-128 of paths, sizes and times.
    """

    paths: PackedStrings
    sizes: MappedArray
    mtimes: MappedArray
    labels: MappedArray
    named: int
    total_bytes: int
    digest: bytes

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield (path, size, mtime) of each row."""
        sizes, mtimes = self.sizes.array, self.mtimes.array
        return (
            (self.paths.bytes(i), int(sizes[i]), int(mtimes[i])) for i in range(len(self.paths))
        )

    def fingerprint(self, labels: MappedArray | None, classes: bytes) -> str:
        """Return the xxh3-128 of all rows with these final labels and class names, in hex."""
        digest = xxhash.xxh3_128(self.digest)
        if labels is not None:
            digest.update(labels.array.data)
            digest.update(classes)
        return digest.hexdigest()


class RowsBuilder:
    """Takes rows one by one, in constant memory.

    A context manager, so that its temporary files are closed at once when a scan fails.
    """

    def __init__(self) -> None:
        self._paths = PackedStringsBuilder()
        self._sizes = MappedArrayBuilder(np.int64)
        self._mtimes = MappedArrayBuilder(np.int64)
        self._labels = MappedArrayBuilder(np.int64)
        self._named = 0
        self._total = 0
        self._digest = xxhash.xxh3_128()
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            with contextlib.suppress(StorageFullError):
                self.finish()

    def append(self, path: bytes, size: int, mtime: int, label: int = -1) -> None:
        """Append one file."""
        self._paths.append(path)
        self._sizes.append(size)
        self._mtimes.append(mtime)
        self._labels.append(label)
        self._named += has_extension(path)
        self._total += size
        self._digest.update(b"%s\0%d %d\n" % (path, size, mtime))

    def finish(self) -> Rows:
        """Return the finished rows; the builder cannot be used any more."""
        self._finished = True
        return Rows(
            paths=self._paths.finish(),
            sizes=self._sizes.finish(),
            mtimes=self._mtimes.finish(),
            labels=self._labels.finish(),
            named=self._named,
            total_bytes=self._total,
            digest=self._digest.digest(),
        )


def merge_rows(first: Rows, second: Rows) -> Rows:
    """Return the rows of both in one order, without labels."""
    if not len(first) or not len(second):
        return first if len(first) else second
    with RowsBuilder() as builder:
        for path, size, mtime in heapq.merge(first, second, key=lambda row: row[0].split(b"/")):
            builder.append(path, size, mtime)
        return builder.finish()
