"""The file format: names, keys, header and schema. ``docs/format.md`` says the same in prose.

Everything read from a file is checked here before anything is allocated from it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sharedds.errors import SchemaError, StoreFormatError

__all__ = [
    "BLOCK_CODECS",
    "CHUNKS",
    "CHUNK_KEY",
    "COLUMNS",
    "FORMAT_VERSION",
    "HEADER",
    "HEADER_KEY",
    "IMAGE_CODECS",
    "MAX_HEADER",
    "MAX_VALUE",
    "SEAL_KEY",
    "WIDE_ROW",
    "ColumnSpec",
    "Field",
    "FieldSpec",
    "Header",
    "column_key",
    "parse_header",
    "parse_schema",
    "rows_per_segment",
]

FORMAT_VERSION = 1
HEADER, COLUMNS, CHUNKS = "header", "columns", "chunks"
HEADER_KEY = b"header"  # JSON
SEAL_KEY = b"seal"  # xxh3-64 of the JSON, 8 bytes big-endian; written with it, never without
CHUNK_KEY = struct.Struct(">QBBI")  # sample, field, level, chunk number
MAX_HEADER = 64 << 20
MAX_VALUE = (1 << 32) - 1  # LMDB keeps the length of a value in 32 bits
WIDE_ROW = 4096  # rows this long are written as they come and carry a checksum each
_SEGMENT = 64 << 20
_WIDE_SEGMENT = 4 << 20

IMAGE_CODECS = ("jpeg", "png", "webp", "keep")
BLOCK_CODECS = ("raw", "lz4", "zstd")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
_FIXED = re.compile(r"([a-z]+[0-9]*)(?:\[([0-9, ]*)\])?\Z")
_DTYPE = re.compile(r"(?:[<|][biuf](?:1|2|4|8))\Z")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, where a plain string does not say enough.

    Args:
        kind: What a string would say: ``"jpeg"``, ``"lz4"``, ``"float32[4]"``, ...
        quality: Of ``jpeg`` and lossy ``webp`` when an array is given, 1 to 100.
        chunk: Shape of the blocks of ``raw``, ``lz4``, ``zstd`` fields; by default about cubic.
        shuffle: Group the bytes of each item before compressing; by default for items over 1 byte.
    """

    kind: str
    quality: int = 90
    chunk: tuple[int, ...] | None = None
    shuffle: bool | None = None


class FieldSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A field as the header holds it.

    ``kind`` is ``image`` (one coded picture in ``chunks``), ``blocks`` (an array cut into blocks in
    ``chunks``), ``column`` (fixed shape), ``ragged`` (any length, one dtype), ``text``, ``bytes`` or
    ``json``; the last five live in ``columns``.
    """

    name: str
    kind: str
    codec: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    quality: int = 0
    chunk: tuple[int, ...] | None = None
    shuffle: bool | None = None


class ColumnSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A column as the header holds it: an array cut along its first axis into segments.

    ``checksums`` has one xxh3-64 in hexadecimal for each segment; it is empty for wide columns, whose
    rows have their checksums in the column ``NAME@xxh3``, and for ``@entries``, which locates data
    that have their own.
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
    def segments(self) -> int:
        """Number of segments."""
        return -(-self.rows // self.segment_rows)


class Header(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The header of a sealed store."""

    format: str
    version: int
    samples: int
    entries: int
    digest: str
    fields: tuple[FieldSpec, ...]
    columns: tuple[ColumnSpec, ...]
    one_entry_each: bool = True
    keyed: bool = False
    classes: int = 0
    attrs: dict[str, Any] = {}

    @property
    def chunked(self) -> tuple[FieldSpec, ...]:
        """The fields whose values are in ``chunks``, in schema order."""
        return tuple(f for f in self.fields if f.kind in ("image", "blocks"))


def column_key(name: str, segment: int) -> bytes:
    """Return the key of one segment of a column."""
    return name.encode() + b"\0" + struct.pack(">I", segment)


def rows_per_segment(row_bytes: int) -> int:
    """Return how many rows a segment holds: a power of two, 64 MiB at most (wide rows: 4 MiB)."""
    limit = _WIDE_SEGMENT if row_bytes >= WIDE_ROW else _SEGMENT
    return 1 << max(0, (limit // max(1, row_bytes)).bit_length() - 1)


def parse_schema(schema: Mapping[str, str | Field]) -> tuple[FieldSpec, ...]:
    """Turn a user's schema into field specifications.

    Raises:
        SchemaError: A name or kind that is not allowed; the text lists the kinds.
    """
    if not schema:
        raise SchemaError("the schema is empty; name at least one field, such as {'image': 'jpeg'}")
    if len(schema) > 255:
        raise SchemaError(f"the schema has {len(schema)} fields, 255 is the limit")
    return tuple(_parse_field(name, field) for name, field in schema.items())


def _parse_field(name: str, field: str | Field) -> FieldSpec:
    if not isinstance(name, str) or not _NAME.match(name):
        raise SchemaError(
            f"field name {name!r}: use 1 to 64 letters, digits, '_' or '-', beginning with a letter",
            field=str(name),
        )
    options = field if isinstance(field, Field) else Field(field)
    kind = options.kind
    if not isinstance(kind, str):
        raise SchemaError(f"field {name!r}: its kind must be a string, not {kind!r}", field=name)
    if not 1 <= options.quality <= 100:
        raise SchemaError(f"field {name!r}: quality {options.quality} is not in 1..100", field=name)
    if kind in IMAGE_CODECS:
        return FieldSpec(name, "image", codec=kind, quality=options.quality)
    if kind in BLOCK_CODECS:
        if options.chunk is not None and (not options.chunk or min(options.chunk) < 1):
            raise SchemaError(f"field {name!r}: chunk {options.chunk} has no volume", field=name)
        return FieldSpec(name, "blocks", codec=kind, chunk=options.chunk, shuffle=options.shuffle)
    if kind in ("json", "bytes"):
        return FieldSpec(name, kind)
    if kind == "str":
        return FieldSpec(name, "text")
    if kind == "array" or kind.startswith("array:"):
        dtype = _dtype(name, kind[6:]) if kind != "array" else ""
        return FieldSpec(name, "ragged", dtype=dtype)
    match = _FIXED.match(kind)
    if match is None:
        raise _unknown_kind(name, kind)
    shape = tuple(int(n) for n in match[2].split(",")) if match[2] else ()
    if any(n < 1 for n in shape) or (match[2] is not None and not shape):
        raise SchemaError(f"field {name!r}: shape in {kind!r} has no volume", field=name)
    return FieldSpec(name, "column", dtype=_dtype(name, match[1], kind), shape=shape)


def _unknown_kind(name: str, kind: str) -> SchemaError:
    return SchemaError(
        f"field {name!r}: unknown kind {kind!r}; use one of {', '.join(IMAGE_CODECS)} (images), "
        f"{', '.join(BLOCK_CODECS)} (arrays cut into blocks), array or array:float32 (small arrays of "
        "any length), int64, float32[4], ... (fixed shape), str, bytes, json",
        field=name,
    )


def _dtype(name: str, text: str, kind: str | None = None) -> str:
    try:
        dtype = np.dtype(text).newbyteorder("<")
    except TypeError:
        raise _unknown_kind(name, kind or f"array:{text}") from None
    if not _DTYPE.match(dtype.str):
        raise _unknown_kind(name, kind or f"array:{text}")
    return dtype.str


def parse_header(data: memoryview, path: str) -> Header:
    """Parse and check the JSON header of a store.

    Raises:
        StoreFormatError: It is not one, or from another version, or its numbers make no sense.
    """

    def bad(what: str) -> StoreFormatError:
        return StoreFormatError(f"{path}: {what}", path=path)

    if len(data) > MAX_HEADER:
        raise bad(f"a header of {len(data)} bytes; {MAX_HEADER} is the limit")
    try:
        loose = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad(f"the header is damaged ({error})") from error
    if not isinstance(loose, dict) or loose.get("format") != "sharedds":
        raise bad("an LMDB file, but not a store of sharedds")
    if loose.get("version") != FORMAT_VERSION:
        raise bad(
            f"format version {loose.get('version')!r}, this release reads {FORMAT_VERSION}; "
            "install the release that wrote it, or pack it again"
        )
    try:
        header = msgspec.convert(loose, Header)
    except msgspec.ValidationError as error:
        raise bad(f"the header is damaged ({error})") from error
    if not (0 <= header.samples < 1 << 62 and 0 <= header.entries < 1 << 62 and header.classes >= 0):
        raise bad(f"the header is damaged (samples {header.samples}, entries {header.entries})")
    for field in header.fields:
        codecs = {"image": IMAGE_CODECS, "blocks": BLOCK_CODECS}.get(field.kind, ("",))
        if field.kind not in ("image", "blocks", "column", "ragged", "text", "bytes", "json"):
            raise bad(f"field {field.name!r} has the unknown kind {field.kind!r}")
        if field.codec not in codecs:
            known = ", ".join(codecs)
            raise bad(f"field {field.name!r} has the unknown codec {field.codec!r}; known: {known}")
    for column in header.columns:
        size = column.rows * math.prod(column.shape)
        if not _DTYPE.match(column.dtype) or len(column.shape) > 8 or min(column.shape, default=1) < 1:
            raise bad(f"column {column.name!r} has dtype {column.dtype!r}, shape {column.shape}")
        if not (0 <= size < 1 << 60 and column.rows >= 0 and 1 <= column.segment_rows < 1 << 48):
            raise bad(f"column {column.name!r} has {column.rows} rows of shape {column.shape}")
        if column.checksums and len(column.checksums) != column.segments:
            raise bad(f"column {column.name!r} has {len(column.checksums)} checksums")
    return header
