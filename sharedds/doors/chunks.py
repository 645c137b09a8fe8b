"""Datasets in chunks with a table of offsets each: what MDS and LitData have in common."""

from __future__ import annotations

import bz2
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from typing import IO, Any

import msgspec
import numpy as np

from sharedds.codecs import IMAGE_FORMATS, sniff
from sharedds.doors.chunk_values import Packed
from sharedds.doors.labels import LabelReader
from sharedds.doors.outgoing import PICTURE_ENDINGS
from sharedds.doors.pickles import REFUSED
from sharedds.doors.reading import file_facts, offsets_of, reading
from sharedds.doors.stream import Contents, FieldNames, Item, Keys
from sharedds.errors import DecodeError, OptionError, SharedDSError, SourceError
from sharedds.text import printable

__all__ = ["Chunk", "Chunked"]

_KEYS = ("__key__", "key")
_LABELS = ("label", "labels", "class", "cls", "target")
_BAD = (ValueError, OverflowError, RecursionError, MemoryError, msgspec.MsgspecError)
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A file of samples.

    Attributes:
        path: Of the file.
        samples: How many the index says it holds.
        size: Bytes, after decompression.
        compression: ``""``, ``"gz"``, ``"bz2"`` or ``"zstd"``.
    """

    path: str
    samples: int
    size: int
    compression: str = ""


class Chunked:
    """Samples from chunks, whose columns are known.

    Args:
        root: The folder.
        chunks: In order.
        columns: In the order in which they lie in a sample.
        all_sizes: Whether the sizes of all columns stand before a sample, or only of those without
            a fixed one.
        allow_pickle: Whether pickles are read.
        classes: Names that fix the numbering.
    """

    format = "chunks"

    def __init__(
        self,
        root: str,
        chunks: Sequence[Chunk],
        columns: Sequence[Packed],
        *,
        all_sizes: bool,
        allow_pickle: bool,
        classes: Sequence[str] | None,
    ) -> None:
        self.root = root
        self._chunks, self._columns = list(chunks), list(columns)
        self._all_sizes = all_sizes
        self._labels = LabelReader(classes)
        self._names: dict[str, str] = {}
        self._key: str | None = None
        self._dtypes: dict[str, set[tuple[str, int]]] = {}
        if not allow_pickle and any(column.pickled for column in columns):
            name = next(column.name for column in columns if column.pickled)
            raise OptionError(f"{printable(root)}, column {name!r}: {REFUSED}", path=root)

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Find out which columns are pictures, label and key, and read those that decide more."""
        self._tell_pictures()
        pictures = [column for column in self._columns if column.kind == "keep"]
        if not pictures:
            names = ", ".join(column.name for column in self._columns[:12])
            raise SourceError(
                f"{printable(self.root)}: no column holds pictures; columns: {names}",
                path=self.root,
            )
        pictures.sort(key=lambda column: column.name not in ("image", "img", "jpg", "picture"))
        plain = [column for column in self._columns if column.kind in ("str", "int64")]
        label = next((c.name for name in _LABELS for c in plain if c.name == name), None)
        self._key = next((c.name for c in plain if c.name in _KEYS and c.kind == "str"), None)
        keys = self._see(label, advance)
        if self._key is not None and (keys.twice() or len(keys) != self._count()):
            self._key = None
        self._settle_arrays()
        self._labels.settle(self.root)
        self._name(pictures, label)
        fields = {
            self._names[c.name]: self._labels.kind if c.name == label else c.kind
            for c in self._columns
            if c.kind != "keep" and c.name != self._key
        }
        facts = [file_facts(chunk.path) for chunk in self._chunks]
        return Contents(
            pictures=tuple(self._names[column.name] for column in pictures),
            fields=fields,
            classes=self._labels.classes,
            samples=self._count(),
            nbytes=sum(chunk.size for chunk in self._chunks),
            files=tuple(facts),
            attrs={"columns": {field: name for name, field in self._names.items()}},
        )

    def items(self) -> Iterator[Item]:
        """Yield the samples, chunk by chunk."""
        number = 0
        for chunk in self._chunks:
            try:
                for data in self._samples(chunk, None):
                    yield self._item(number, data)
                    number += 1
            except SharedDSError as error:
                yield Item(key=chunk.path, reason=str(error))

    def _count(self) -> int:
        return sum(chunk.samples for chunk in self._chunks)

    def _item(self, number: int, data: dict[str, bytes]) -> Item:
        pictures: dict[str, bytes | str | None] = {}
        values: dict[str, Any] = {}
        reason = ""
        key = ""
        for column in self._columns:
            try:
                value = column.decode(data[column.name])
                if column.name == self._key:
                    key = value
                    continue
                field = self._names[column.name]
                if column.kind == "keep":
                    pictures[field] = value or None
                else:
                    values[field] = self._labels.value(value) if field == "label" else value
            except (*_BAD, DecodeError, KeyError) as error:
                reason = reason or f"{column.name}: {error}"
        main = pictures.get("image")
        if not key:
            found = PICTURE_ENDINGS.get(sniff(main)) if isinstance(main, bytes) else None
            key = f"{number:08d}.{found[0]}" if found else f"{number:08d}"
        size = sum(map(len, data.values()))
        return Item(key=key, pictures=pictures, values=values, nbytes=size, reason=reason)

    def _tell_pictures(self) -> None:
        """Say of bytes whether they are pictures, as those of the first sample are."""
        first: dict[str, bytes] = {}
        for chunk in self._chunks:
            if chunk.samples:
                first = next(self._samples(chunk, None), {})
                break
        for at, column in enumerate(self._columns):
            if column.kind == "bytes?":
                shown = sniff(first.get(column.name, b"")) in IMAGE_FORMATS
                self._columns[at] = replace(column, kind="keep" if shown else "bytes")

    def _see(self, label: str | None, advance: Callable[[int], object]) -> Keys:
        """Go through the columns that decide about fields: keys, labels, and dtypes of arrays."""
        keys = Keys()
        arrays = [c for c in self._columns if c.kind == "array" or c.kind.startswith("array:")]
        wanted = {*(column.name for column in arrays), label, self._key} - {None}
        by_name = {column.name: column for column in self._columns}
        for chunk in self._chunks if wanted else ():
            try:
                for data in self._samples(chunk, wanted):
                    advance(1)
                    self._see_one(data, label, keys, by_name)
            except SharedDSError:  # told when it is read again
                continue
        return keys

    def _see_one(
        self, data: dict[str, bytes], label: str | None, keys: Keys, by_name: dict[str, Packed]
    ) -> None:
        for name, part in data.items():
            try:
                value = by_name[name].decode(part)
            except (*_BAD, DecodeError):
                continue
            if name == label:
                self._labels.see(value)
            elif name == self._key:
                keys.see(value)
            else:
                array = np.asarray(value)
                self._dtypes.setdefault(name, set()).add((str(array.dtype), array.ndim))

    def _settle_arrays(self) -> None:
        """Arrays of one dtype and number of axes are such fields; others stay bytes."""
        for at, column in enumerate(self._columns):
            if column.kind != "array" and not column.kind.startswith("array:"):
                continue
            found = self._dtypes.get(column.name, set())
            if len(found) == 1:
                dtype = next(iter(found))[0]
                self._columns[at] = replace(column, kind=f"array:{dtype}")
            else:
                self._columns[at] = replace(column, kind="bytes", decode=bytes)

    def _name(self, pictures: Sequence[Packed], label: str | None) -> None:
        names = FieldNames()
        for at, column in enumerate(pictures):
            self._names[column.name] = names.give(column.name) if at else "image"
        for column in self._columns:
            if column.name == label and self._labels.kind:
                self._names[column.name] = "label"
            elif column.name not in self._names and column.name != self._key:
                self._names[column.name] = names.give(column.name)

    def _samples(self, chunk: Chunk, wanted: set[str | None] | None) -> Iterator[dict[str, bytes]]:
        """Yield the bytes of the columns of each sample; all of them, or only those wanted.

        Raises:
            DecodeError: The chunk is damaged.
            SourceError: It cannot be read.
        """
        with reading(chunk.path), _whole(chunk) as file:
            offsets = offsets_of(file, chunk.path, expected=chunk.samples, size=chunk.size)
            heads = sum(self._all_sizes or column.size is None for column in self._columns)
            for begin, end in pairwise(offsets):
                file.seek(begin)
                head = file.read(min(4 * heads, end - begin))
                if len(head) != 4 * heads:
                    raise _damaged(chunk, "a sample without the sizes of its columns")
                given = iter(struct.unpack(f"<{heads}I", head))
                sizes = [
                    next(given) if self._all_sizes or column.size is None else column.size
                    for column in self._columns
                ]
                if begin + 4 * heads + sum(sizes) != end:
                    raise _damaged(chunk, "a sample whose columns are not as long as it is")
                data, at = {}, begin + 4 * heads
                for column, size in zip(self._columns, sizes, strict=True):
                    if wanted is None or column.name in wanted:
                        file.seek(at)
                        data[column.name] = file.read(size)
                    at += size
                yield data


def _damaged(chunk: Chunk, what: str) -> DecodeError:
    return DecodeError(f"{printable(chunk.path)}: damaged: {what}", path=chunk.path)


def _whole(chunk: Chunk) -> IO[bytes]:
    """Open a chunk, decompressed in memory where it is compressed.

    Raises:
        DecodeError: It has not the size that the index says.
    """
    if not chunk.compression:
        size = os.path.getsize(chunk.path)
        if size != chunk.size:
            raise _damaged(chunk, f"{size:,} bytes, and its index says {chunk.size:,}")
        return open(chunk.path, "rb")
    with open(chunk.path, "rb") as file:
        packed = file.read()
    try:
        data = _decompressed(packed, chunk.compression, chunk.size)
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error) as error:
        raise _damaged(chunk, f"it does not decompress ({error})") from error
    if len(data) != chunk.size:
        raise _damaged(chunk, f"not the {chunk.size:,} bytes that its index says")
    return BytesIO(data)


def _decompressed(packed: bytes, how: str, size: int) -> bytes:
    """Return the content of a compressed chunk, never more than one byte over ``size``."""
    if how == "gz":
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, size + 1)
    if how == "bz2":
        return bz2.BZ2Decompressor().decompress(packed, size + 1)
    said = _zstd_size(packed)
    if said is None or said > size:
        raise ValueError("its frame does not say the size that the index says")
    from numcodecs.zstd import decompress  # noqa: PLC0415 - only for such chunks

    return bytes(decompress(packed))


def _zstd_size(packed: bytes) -> int | None:
    """Return the size that the first frame says it has, None where it says none."""
    if len(packed) < 18 or not packed.startswith(_ZSTD):
        return None
    flags = packed[4]
    single = flags >> 5 & 1
    width = (single, 2, 4, 8)[flags >> 6]
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    if not width:
        return None
    return int.from_bytes(packed[at : at + width], "little") + (256 if width == 2 else 0)
