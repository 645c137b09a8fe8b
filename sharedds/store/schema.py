"""What a user says about the fields of a store, turned into field specifications."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedds.codecs import BLOCK_CODECS, TILE_CODECS, tile_problem
from sharedds.errors import SchemaError
from sharedds.store.layout import FIELD_NAME, IMAGE_CODECS, MAX_DIMENSIONS, MAX_VALUE, FieldSpec

__all__ = ["Field", "parse_schema"]

_FIXED = re.compile(r"([a-z]+[0-9]*)(?:\[([0-9]+(?:, ?[0-9]+)*)\])?\Z")
_DTYPES = {
    name: np.dtype(name).newbyteorder("<").str
    for name in (
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *(f"float{bits}" for bits in (16, 32, 64)),
        *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)),
        *(f"f{size}" for size in (2, 4, 8)),
    )
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, where a plain string does not say enough.

    Args:
        kind: What a string would say: ``"jpeg"``, ``"lz4"``, ``"float32[4]"``, ...
        quality: Of ``jpeg`` and lossy ``webp`` when an array is given, 1 to 100.
        chunk: Shape of the blocks of ``raw``, ``lz4``, ``zstd`` fields; by default about cubic. Of
            ``jpeg``, ``png``, ``webp``: the picture is an array (y, x, channel) that is cut into
            tiles of this shape, such as (256, 256, 3); any axes before these have tiles of 1.
        shuffle: Group the bytes of each item before compressing; by default for items over 1 byte.
    """

    kind: str
    quality: int = 90
    chunk: tuple[int, ...] | None = None
    shuffle: bool | None = None


def parse_schema(schema: Mapping[str, str | Field]) -> tuple[FieldSpec, ...]:
    """Turn a user's schema into field specifications.

    Raises:
        SchemaError: A name or kind that is not allowed; the text lists the kinds.
    """
    given: object = schema
    if not isinstance(given, Mapping) or not given:
        raise SchemaError(
            f"schema={schema!r}: name at least one field and its kind, such as {{'image': 'jpeg'}}"
        )
    if len(schema) > 255:
        raise SchemaError(f"the schema has {len(schema)} fields, 255 is the limit")
    return tuple(_parse_field(name, field) for name, field in schema.items())


def _parse_field(name: object, given: object) -> FieldSpec:
    if not isinstance(name, str) or not FIELD_NAME.match(name):
        raise SchemaError(
            f"field name {name!r}: use 1 to 64 letters, digits, '_' or '-', a letter first",
            field=str(name),
        )
    field = given if isinstance(given, Field) else Field(given)  # type: ignore[arg-type] # checked next
    kind: object = field.kind
    if not isinstance(kind, str):
        raise SchemaError(f"field {name!r}: its kind must be a string, not {kind!r}", field=name)
    if kind in IMAGE_CODECS:
        quality: object = field.quality
        if not isinstance(quality, int) or not 1 <= quality <= 100:
            raise SchemaError(f"field {name!r}: quality {field.quality!r}; 1 to 100", field=name)
        if field.chunk is not None:
            return _tiled(name, field)
        return FieldSpec(name, "image", codec=kind, quality=field.quality)
    if kind in BLOCK_CODECS:
        return FieldSpec(
            name, "blocks", codec=kind, chunk=_chunk(name, field), shuffle=field.shuffle
        )
    if kind in ("str", "json", "bytes"):
        return FieldSpec(name, "text" if kind == "str" else kind)
    word, _, dtype = kind.partition(":")
    if word == "array" and (kind == "array" or dtype in _DTYPES):
        return FieldSpec(name, "ragged", dtype=_DTYPES.get(dtype, ""))
    match = _FIXED.match(kind)
    if match is None or match[1] not in _DTYPES:
        raise SchemaError(
            f"field {name!r}: unknown kind {kind!r}; use one of {', '.join(IMAGE_CODECS)} "
            f"(images), {', '.join(BLOCK_CODECS)} (arrays cut into blocks), array or array:float32 "
            "(small arrays of any length), int64, float32[4], ... (fixed shape), str, bytes, json",
            field=name,
        )
    shape = tuple(int(n) for n in match[2].split(",")) if match[2] else ()
    spec = FieldSpec(name, "column", dtype=_DTYPES[match[1]], shape=shape)
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) < 1 or spec.row_bytes > MAX_VALUE:
        raise SchemaError(
            f"field {name!r}: shape of {kind!r}: up to {MAX_DIMENSIONS} dimensions, none of them "
            "0, under 4 GiB together",
            field=name,
        )
    return spec


def _tiled(name: str, field: Field) -> FieldSpec:
    """Return the specification of an array cut into tiles that are pictures."""
    chunk = _chunk(name, field)
    if field.kind not in TILE_CODECS or chunk is None:
        raise SchemaError(
            f"field {name!r}: {field.kind} pictures are not cut; tiles are coded as "
            f"{', '.join(TILE_CODECS)}",
            field=name,
        )
    problem = tile_problem(field.kind, "uint8", chunk)
    if problem is not None:
        raise SchemaError(f"field {name!r}: chunk {field.chunk!r}: {problem}", field=name)
    return FieldSpec(name, "blocks", codec=field.kind, quality=field.quality, chunk=chunk)


def _chunk(name: str, field: Field) -> tuple[int, ...] | None:
    if field.chunk is None:
        return None
    chunk: tuple[Any, ...] = tuple(field.chunk)
    if not 1 <= len(chunk) <= MAX_DIMENSIONS or not all(
        isinstance(n, int) and n > 0 for n in chunk
    ):
        raise SchemaError(
            f"field {name!r}: chunk {field.chunk!r}: 1 to {MAX_DIMENSIONS} positive whole numbers",
            field=name,
        )
    return chunk
