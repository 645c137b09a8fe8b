"""The header of a store, checked whole before anything is read or allocated by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from sharedds.codecs import BLOCK_CODECS, TILE_CODECS
from sharedds.errors import StoreFormatError
from sharedds.store.layout import (
    DTYPE,
    FIELD_NAME,
    FORMAT_VERSION,
    IMAGE_CODECS,
    MAX_DIMENSIONS,
    MAX_HEADER,
    ColumnSpec,
    FieldColumn,
    FieldSpec,
    field_columns,
)

__all__ = ["Header", "fields_problem", "parse_header"]

_KINDS = ("image", "blocks", "column", "ragged", "text", "bytes", "json")
_CODECS = {"image": IMAGE_CODECS, "blocks": (*BLOCK_CODECS, *TILE_CODECS)}


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
        return tuple(field for field in self.fields if field.chunked)


def parse_header(data: memoryview, path: str, file_size: int) -> Header:
    """Parse and check the JSON header of a store.

    Args:
        data: The JSON.
        path: Named in errors.
        file_size: Of the store; what the header claims must fit into it.

    Raises:
        StoreFormatError: It is not one, or from another version, or its numbers make no sense.
    """
    try:
        header = _parse(data)
        if problem := fields_problem(header.fields):
            raise _HeaderError(problem)
        _check_columns(header, file_size)
    except _HeaderError as error:
        raise StoreFormatError(f"{path}: {error}", path=path) from error
    return header


class _HeaderError(Exception):
    """What is wrong with a header."""


def _parse(data: memoryview) -> Header:
    if len(data) > MAX_HEADER:
        raise _HeaderError(f"a header of {len(data):,} bytes; {MAX_HEADER:,} is the limit")
    try:
        loose = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _HeaderError(f"the header is damaged ({error})") from error
    if not isinstance(loose, dict) or loose.get("format") != "sharedds":
        raise _HeaderError("an LMDB file, but not a store of sharedds")
    if loose.get("version") != FORMAT_VERSION:
        raise _HeaderError(
            f"format version {loose.get('version')!r}, this release reads {FORMAT_VERSION}; "
            "install the release that wrote it, or pack it again"
        )
    try:
        return msgspec.convert(loose, Header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _HeaderError(f"the header is damaged ({error})") from error


def fields_problem(fields: Sequence[FieldSpec]) -> str:
    """Return what is wrong with fields that were read from a file; empty where nothing is."""
    names = [field.name for field in fields]
    if not 1 <= len(names) <= 255 or len(set(names)) < len(names):
        return f"the header is damaged ({len(names)} fields: {names[:8]})"
    for field in fields:
        codecs = _CODECS.get(field.kind, ("",))
        if not FIELD_NAME.match(field.name):
            return f"the header is damaged (a field is called {field.name!r})"
        if field.kind not in _KINDS:
            return f"field {field.name!r} has the unknown kind {field.kind!r}"
        if field.codec not in codecs:
            known = ", ".join(codecs)
            return f"field {field.name!r} has the unknown codec {field.codec!r}; known: {known}"
        if field.kind in ("column", "ragged") and not DTYPE.match(field.dtype):
            return f"field {field.name!r} has the unknown dtype {field.dtype!r}"
        if not _is_shape(field.shape):
            return f"field {field.name!r} has the shape {field.shape}"
    return ""


def _is_shape(shape: tuple[int, ...]) -> bool:
    return (
        len(shape) <= MAX_DIMENSIONS and min(shape, default=1) >= 1 and math.prod(shape) < 1 << 48
    )


def _check_columns(header: Header, file_size: int) -> None:
    columns = {column.name: column for column in header.columns}
    claims = header.samples, header.entries, header.classes
    if not all(0 <= n < 1 << 56 for n in claims) or len(columns) < len(header.columns):
        raise _HeaderError(
            "the header is damaged (samples {}, entries {}, classes {})".format(*claims)
        )
    for column in header.columns:
        shape_ok = DTYPE.match(column.dtype) and _is_shape(column.shape)
        if not shape_ok or column.rows < 0:
            raise _HeaderError(f"column {column.name!r}: {column.dtype!r}, shape {column.shape}")
        if column.segment_rows < 1 or column.segment_rows & (column.segment_rows - 1):
            raise _HeaderError(
                f"column {column.name!r} has segments of {column.segment_rows} rows, which is no "
                "power of two"
            )
        if column.rows * column.row_bytes > file_size or column.segments >= 1 << 32:
            raise _HeaderError(
                f"column {column.name!r} claims {column.rows} rows; the file is smaller"
            )
        bare = column.wide or column.name == "@entries"
        if len(column.checksums) != (0 if bare else column.blocks):
            raise _HeaderError(f"column {column.name!r} has {len(column.checksums)} checksums")
    wanted = _expected_columns(header, columns)
    if set(wanted) != set(columns):
        raise _HeaderError(f"the header is damaged (columns {sorted(set(wanted) ^ set(columns))})")
    for name, (dtype, shape, rows) in wanted.items():
        column = columns[name]
        if (column.dtype, column.shape) != (dtype, shape) or rows not in (None, column.rows):
            raise _HeaderError(
                f"column {name!r} has {column.rows} rows of {column.dtype} {column.shape}; "
                f"{rows} of {dtype} {shape} are expected"
            )
    if header.one_entry_each and header.entries != header.samples * len(header.chunked):
        raise _HeaderError(f"the header is damaged ({header.entries} entries)")


def _expected_columns(
    header: Header, columns: dict[str, ColumnSpec]
) -> dict[str, tuple[str, tuple[int, ...], int | None]]:
    """Return dtype, row shape and number of rows of every column this header must have."""
    found: list[FieldColumn] = []
    for field in header.fields:
        shapes = columns.get(f"{field.name}@shape")
        dimensions = shapes.shape[0] if shapes is not None and len(shapes.shape) == 1 else 1
        found += field_columns(field, dimensions)
    if header.keyed:
        found += [FieldColumn("@key", "|u1"), FieldColumn("@key@ends", "<u8", (), 1)]
        found += [FieldColumn(f"@key@{what}", "<u8", (), 0) for what in ("hash", "order")]
    wanted: dict[str, tuple[str, tuple[int, ...], int | None]] = {
        name: (dtype, shape, None if more is None else header.samples + more)
        for name, dtype, shape, more in found
    }
    if header.classes or "@classes" in columns:
        wanted["@classes"] = ("|u1", (), None)
        wanted["@classes@ends"] = ("<u8", (), header.classes + 1)
    if header.chunked:
        wanted["@entries"] = ("<u8", (3,), header.entries)
        if not header.one_entry_each:
            wanted["@first"] = ("<u8", (), header.samples * len(header.chunked) + 1)
    return wanted
