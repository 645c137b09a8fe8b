"""The file format: names, keys, limits, and which columns hold a field.

``docs/format.md`` says the same in prose.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

__all__ = [
    "CHUNKS",
    "CHUNK_KEY",
    "COLUMNS",
    "DTYPE",
    "FIELD_NAME",
    "FORMAT_VERSION",
    "HEADER",
    "HEADER_KEY",
    "IMAGE_CODECS",
    "MAX_DIMENSIONS",
    "MAX_HEADER",
    "MAX_VALUE",
    "PROGRESS_KEY",
    "SEAL_KEY",
    "WIDE_ROW",
    "ColumnSpec",
    "FieldColumn",
    "FieldSpec",
    "column_key",
    "field_columns",
    "rows_per_block",
    "rows_per_segment",
    "spooled_columns",
]

FORMAT_VERSION = 1
HEADER, COLUMNS, CHUNKS = "header", "columns", "chunks"
HEADER_KEY = b"header"  # JSON
SEAL_KEY = b"seal"  # xxh3-64 of the JSON, 8 bytes big-endian
PROGRESS_KEY = b"progress"  # only in an unfinished store
CHUNK_KEY = struct.Struct(">QBBI")  # sample, field, level, chunk number
MAX_HEADER = 64 << 20
MAX_VALUE = (1 << 32) - 1  # LMDB keeps the length of a value in 32 bits
MAX_DIMENSIONS = 8
WIDE_ROW = 4096  # rows this long are written as they come and carry a checksum each
_SEGMENT = 64 << 20
_WIDE_SEGMENT = 4 << 20
_BLOCK = 1 << 20

IMAGE_CODECS = ("jpeg", "png", "webp", "keep")
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
DTYPE = re.compile(r"(?:\|[biu]1|<[iu][248]|<f[248])\Z")


class FieldSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A field as the header holds it.

    ``kind`` is ``image`` (one coded picture in ``chunks``), ``blocks`` (an array cut into blocks in
    ``chunks``), ``column`` (fixed shape), ``ragged`` (any length, one dtype), ``text``, ``bytes``
    or ``json``; the last five live in ``columns``.
    """

    name: str
    kind: str
    codec: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    quality: int = 0
    chunk: tuple[int, ...] | None = None
    shuffle: bool | None = None

    @property
    def chunked(self) -> bool:
        """Whether its values are in ``chunks``."""
        return self.kind in ("image", "blocks")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a ``column`` field."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def wide(self) -> bool:
        """Whether it is a ``column`` field of long rows."""
        return self.kind == "column" and self.row_bytes >= WIDE_ROW


class ColumnSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A column as the header holds it: an array cut along its first axis into segments.

    ``segment_rows`` is a power of two. ``checksums`` has one xxh3-64 in hexadecimal for each block
    of ``block_rows`` rows; it is empty for wide columns, whose rows have their checksums in the
    column ``NAME@xxh3``, and for ``@entries``, which locates data that have their own.
    """

    name: str
    dtype: str
    rows: int
    segment_rows: int
    shape: tuple[int, ...] = ()
    checksums: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def wide(self) -> bool:
        """Whether its rows are long, with a checksum each."""
        return self.row_bytes >= WIDE_ROW

    @property
    def segments(self) -> int:
        """Number of segments."""
        return -(-self.rows // self.segment_rows)

    @property
    def block_rows(self) -> int:
        """Rows that share a checksum; a segment is a whole number of such blocks."""
        return min(self.segment_rows, rows_per_block(self.row_bytes))

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // self.block_rows)


class FieldColumn(NamedTuple):
    """A column that holds a part of a field.

    Attributes:
        name: Of the column.
        dtype: Of its values.
        shape: Of a row.
        more_rows: Rows beyond one for each sample, or None where the values decide.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    more_rows: int | None = None


def field_columns(field: FieldSpec, dimensions: int = 1) -> Iterator[FieldColumn]:
    """Yield the columns that hold a field.

    Args:
        field: The field.
        dimensions: Of its arrays, when it is ragged.
    """
    name = field.name
    if field.kind == "column":
        yield FieldColumn(name, field.dtype, field.shape, 0)
        if field.wide:
            yield FieldColumn(f"{name}@xxh3", "<u8", (), 0)
    elif field.kind == "blocks":
        yield FieldColumn(f"{name}@meta", "|u1")
        yield FieldColumn(f"{name}@meta@ends", "<u8", (), 1)
    elif field.kind != "image":
        yield FieldColumn(name, field.dtype if field.kind == "ragged" else "|u1")
        yield FieldColumn(f"{name}@ends", "<u8", (), 1)
        if field.kind == "ragged":
            yield FieldColumn(f"{name}@shape", "<i8", (dimensions,), 0)


def spooled_columns(fields: Sequence[FieldSpec]) -> tuple[str, ...]:
    """Return the names of the columns that wait in the spool, in the order of its frames."""
    wide = {field.name for field in fields if field.wide}
    names = [c.name for field in fields for c in field_columns(field) if c.name not in wide]
    names += ["@key", "@key@ends", "@key@hash"]
    if any(field.chunked for field in fields):
        names += ["@entries", "@counts"]
    return tuple(names)


def column_key(name: str, segment: int) -> bytes:
    """Return the key of one segment of a column."""
    return name.encode() + b"\0" + struct.pack(">I", segment)


def rows_per_segment(row_bytes: int) -> int:
    """Return how many rows a segment holds: a power of two, 64 MiB at most (wide rows: 4 MiB)."""
    return _rows_within(_WIDE_SEGMENT if row_bytes >= WIDE_ROW else _SEGMENT, row_bytes)


def rows_per_block(row_bytes: int) -> int:
    """Return how many rows share a checksum: a power of two, 1 MiB at most."""
    return _rows_within(_BLOCK, row_bytes)


def _rows_within(limit: int, row_bytes: int) -> int:
    return 1 << max(0, (limit // max(1, row_bytes)).bit_length() - 1)
