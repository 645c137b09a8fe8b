"""Turns Python values into the bytes of a field, refusing what would change on the way."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from sharedds.codecs import (
    MAX_EFFORT,
    TILE_CODECS,
    encode_block,
    encode_image,
    encode_tile,
    probe,
    sniff,
    tile_problem,
)
from sharedds.errors import DecodeError, SchemaError, SourceError, StoreFormatError
from sharedds.packed import encode_text
from sharedds.store.array_meta import (
    MAX_BLOCK,
    ArrayMeta,
    LevelMeta,
    block_slices,
    default_chunk,
    parse_meta,
)
from sharedds.store.encoded import EncodedArray
from sharedds.store.layout import MAX_DIMENSIONS, MAX_VALUE, FieldSpec
from sharedds.store.regions import Owner

__all__ = [
    "ArrayValue",
    "BlockPlan",
    "RaggedKind",
    "encode_picture",
    "fixed_bytes",
    "fixed_view",
    "json_bytes",
    "json_object",
    "ragged_array",
    "variable_bytes",
]

_INTEGERS = {
    "u1": "B", "i1": "b", "u2": "<H", "i2": "<h", "u4": "<I", "i4": "<i", "u8": "<Q", "i8": "<q",
}  # fmt: skip


class ArrayValue(NamedTuple):
    """A value for a ``raw``, ``lz4`` or ``zstd`` field with more than its numbers.

    Args:
        data: An array, or anything with ``shape``, ``dtype`` and region reads: it is read block by
            block, so it may be larger than memory.
        attrs: Kept with it as JSON: ``slope``, ``intercept``, ``affine``, ...
        levels: Coarser versions of the same, finest first.
        chunk: Shape of its blocks, instead of the field's.
        effort: How hard the encoder searches: 0 is fast; more makes blocks smaller, and those of
            LZ4 faster to read: 1 to 9 for ``lz4``, 1 to 19 for ``zstd``.
    """

    data: Any
    attrs: Mapping[str, Any] = {}
    levels: tuple[Any, ...] = ()
    chunk: tuple[int, ...] | None = None
    effort: int = 0


class RaggedKind(NamedTuple):
    """What all arrays of a ``ragged`` field have in common; the first one decides."""

    dtype: np.dtype[Any]
    dimensions: int


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """An array that will be written: its description, and where its blocks come from."""

    meta: ArrayMeta
    codec: str
    sources: tuple[Any, ...]
    effort: int = 0
    quality: int = 90
    encoded: Iterable[tuple[int, int, bytes]] | None = None

    @classmethod
    def of(cls, field: FieldSpec, value: Any) -> BlockPlan:
        """Check an array, :class:`ArrayValue` or :class:`EncodedArray`; nothing is read yet.

        Raises:
            SchemaError: Its dtype, shape, blocks or attributes cannot be stored.
        """
        if isinstance(value, EncodedArray):
            return cls._coded(field, value)
        whole = value if isinstance(value, ArrayValue) else ArrayValue(value)
        sources = tuple(_source(source) for source in (whole.data, *whole.levels))
        dtype = _storable(np.dtype(sources[0].dtype))
        if len(sources) > 255:
            raise SchemaError(f"{len(sources)} levels, 255 is the limit")
        levels = []
        for number, source in enumerate(sources):
            shape = tuple(int(n) for n in source.shape)
            chunk = whole.chunk or field.chunk or default_chunk(shape, dtype.itemsize)
            if len(shape) > MAX_DIMENSIONS or len(chunk) != len(shape) or min(chunk, default=1) < 1:
                raise SchemaError(f"level {number}: shape {shape} cannot have blocks of {chunk}")
            if np.dtype(source.dtype).newbyteorder("<") != dtype:
                raise SchemaError(f"level {number}: dtype {source.dtype}, level 0 has {dtype}")
            fitting = (min(int(c), max(1, n)) for c, n in zip(chunk, shape, strict=True))
            level = LevelMeta(shape, tuple(fitting))
            if int(np.prod(level.chunk, dtype=object)) * dtype.itemsize > MAX_BLOCK:
                raise SchemaError(f"level {number}: blocks of {chunk} are over {MAX_BLOCK:,} bytes")
            if level.blocks >= 1 << 32:
                raise SchemaError(f"level {number}: {level.blocks:,} blocks; use larger ones")
            levels.append(level)
        _require_tiles(field.codec, dtype, levels)
        shuffle = field.shuffle
        if shuffle is None:
            plain = field.codec == "raw" or field.codec in TILE_CODECS
            shuffle = dtype.itemsize > 1 and not plain
        attrs = json_object(whole.attrs, "attrs")
        most = MAX_EFFORT.get(field.codec, 0)
        if not 0 <= whole.effort <= most:
            raise SchemaError(f"effort {whole.effort}: 0 to {most} for {field.codec}")
        meta = ArrayMeta(dtype.str, tuple(levels), shuffle, attrs)
        return cls(meta, field.codec, sources, whole.effort, field.quality)

    @classmethod
    def _coded(cls, field: FieldSpec, value: EncodedArray) -> BlockPlan:
        """Check what is said of blocks that are coded already."""
        meta = value.meta
        dtype = _storable(np.dtype(meta.dtype))
        _require_tiles(field.codec, dtype, meta.levels)
        record = msgspec.json.encode(meta)
        try:
            parse_meta(record, Owner("", 0, field.name))
        except StoreFormatError as error:
            raise SchemaError(f"an EncodedArray: {error}") from error
        json_object(meta.attrs, "attrs")
        return cls(meta, field.codec, (), encoded=value.blocks)

    def blocks(self) -> Iterator[tuple[int, int, bytes]]:
        """Read and encode block by block: yield (level, number, bytes).

        Raises:
            SourceError: A part of the array cannot be read.
            SchemaError: A part has not the shape it should have, or is too large.
        """
        if self.encoded is not None:
            yield from self._as_they_are(self.encoded)
            return
        dtype = np.dtype(self.meta.dtype)
        for number, (level, source) in enumerate(zip(self.meta.levels, self.sources, strict=True)):
            for index, region in enumerate(block_slices(level)):
                try:
                    block = np.asarray(source[region], dtype, order="C")
                except Exception as error:  # whatever the reader of a file format raises
                    raise SourceError(
                        f"level {number}, {region} cannot be read: {error}"
                    ) from error
                if block.shape != tuple(part.stop - part.start for part in region):
                    raise SchemaError(f"level {number}, {region} has the shape {block.shape}")
                data = self._encode(block)
                if len(data) > MAX_VALUE:
                    raise SchemaError(f"a block of {len(data):,} bytes; 4 GiB is the limit")
                yield number, index, data

    def _encode(self, block: npt.NDArray[Any]) -> bytes:
        if self.codec in TILE_CODECS:
            return encode_tile(block, self.codec, quality=self.quality)
        return encode_block(block, self.codec, shuffle=self.meta.shuffle, effort=self.effort)

    def _as_they_are(
        self, blocks: Iterable[tuple[int, int, bytes]]
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield blocks that are coded already, counting them.

        Raises:
            SchemaError: They are not those of the levels, in order.
        """
        expected = (
            (number, index)
            for number, level in enumerate(self.meta.levels)
            for index in range(level.blocks)
        )
        given = iter(blocks)
        for number, index in expected:
            found = next(given, None)
            if found is None or found[:2] != (number, index):
                what = "nothing" if found is None else f"level {found[0]}, block {found[1]}"
                raise SchemaError(f"an EncodedArray gave {what}, not level {number}, block {index}")
            if len(found[2]) > MAX_VALUE:
                raise SchemaError(f"a block of {len(found[2]):,} bytes; 4 GiB is the limit")
            yield found
        if next(given, None) is not None:
            raise SchemaError("an EncodedArray gave more blocks than its levels have")


def _require_tiles(codec: str, dtype: np.dtype[Any], levels: Iterable[LevelMeta]) -> None:
    """Refuse tiles that their codec does not hold."""
    if codec not in TILE_CODECS:
        return
    for number, level in enumerate(levels):
        problem = tile_problem(codec, dtype, level.chunk)
        if problem is not None:
            raise SchemaError(f"level {number}: {problem}")


def _source(value: Any) -> Any:
    """Return the value itself where it can be read by regions, else as an array."""
    try:
        np.dtype(value.dtype)
        tuple(value.shape)
    except (AttributeError, TypeError):
        return _array(value)
    return value


def _array(value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # a tensor that needs a gradient, rows of different lengths, ...
        name = type(value).__name__
        raise SchemaError(f"{name} cannot become an array ({error})") from error


def _storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise SchemaError(f"dtype {dtype} cannot be stored; use integers, floats or bool")
    return dtype.newbyteorder("<")


def encode_picture(field: FieldSpec, value: Any) -> bytes:
    """Return the bytes to store for an image field.

    Raises:
        SchemaError: An array that the codec cannot hold, or a value that is no image at all.
        DecodeError: Bytes of another format, of none at all, or with damaged headers.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        found = sniff(value)
        if field.codec != "keep" and found != field.codec:
            raise DecodeError(f"bytes of format {found} in a field for {field.codec}")
        probe(value, max_pixels=None)  # what only looks like a picture would fail when it is read
        data = bytes(value)
    elif field.codec == "keep":
        raise SchemaError(f"a 'keep' field takes the bytes of a file, not {type(value).__name__}")
    else:
        data = encode_image(_array(value), field.codec, quality=field.quality)
    if not 0 < len(data) <= MAX_VALUE:
        raise SchemaError(f"a file of {len(data):,} bytes; 1 byte to 4 GiB can be stored")
    return data


def fixed_bytes(field: FieldSpec, value: Any) -> bytes:
    """Return the bytes of a value of fixed shape and dtype.

    Raises:
        SchemaError: Another shape, or numbers that the dtype cannot hold.
    """
    code = _INTEGERS.get(field.dtype[1:])
    if code and not field.shape and type(value) is int:
        try:
            return struct.pack(code, value)
        except struct.error as error:
            raise SchemaError(f"{value} does not fit {np.dtype(field.dtype)}") from error
    return _fixed(field, value).tobytes()


def fixed_view(field: FieldSpec, value: Any) -> memoryview:
    """Return the bytes of a long value of fixed shape, where they lie as they are without a copy.

    Raises:
        SchemaError: Another shape, or numbers that the dtype cannot hold.
    """
    return np.ascontiguousarray(_fixed(field, value)).reshape(-1).view(np.uint8).data


def _fixed(field: FieldSpec, value: Any) -> npt.NDArray[Any]:
    array = _exact(_array(value), np.dtype(field.dtype))
    if array.shape != field.shape:
        raise SchemaError(f"shape {array.shape}, the schema says {field.shape}")
    return array


def ragged_array(field: FieldSpec, value: Any, kind: RaggedKind | None) -> npt.NDArray[Any]:
    """Return an array of any length as it will be stored.

    Args:
        field: Its field.
        value: An array.
        kind: What earlier arrays had in common, None for the first one.

    Raises:
        SchemaError: It does not go together with them.
    """
    array = _array(value)
    if kind is not None:
        dtype = kind.dtype
    else:
        dtype = np.dtype(field.dtype) if field.dtype else _storable(array.dtype)
    dimensions = array.ndim if kind is None else kind.dimensions
    if not 1 <= array.ndim == dimensions <= MAX_DIMENSIONS:
        raise SchemaError(
            f"an array of shape {array.shape}; all arrays of this field have "
            f"{max(1, dimensions)} dimensions, also empty ones, such as np.zeros((0, 4))"
        )
    return array.astype(dtype) if array.size == 0 else _exact(array, dtype)


def variable_bytes(field: FieldSpec, value: Any) -> bytes:
    """Return the bytes of a ``text``, ``bytes`` or ``json`` value.

    Raises:
        SchemaError: It is not one.
    """
    if field.kind == "json":
        return json_bytes(value, "the value")
    if field.kind == "text":
        if not isinstance(value, str):
            raise SchemaError(f"a str is expected, not {type(value).__name__}")
        return encode_text(value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise SchemaError(f"bytes are expected, not {type(value).__name__}")
    return bytes(value)


def _exact(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert without losing anything but the precision of floats."""
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf" or (dtype.kind == "b" and array.dtype.kind != "b"):
        raise SchemaError(f"values of {array.dtype} cannot become {dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype)
        if array.dtype.kind == "f" and dtype.kind == "f":
            exact = np.array_equal(np.isfinite(converted), np.isfinite(array))
        else:
            back = converted.astype(array.dtype)
            exact = np.array_equal(converted, array) and np.array_equal(back, array)
    if not exact:
        raise SchemaError(f"values of {array.dtype} do not fit {dtype} without loss")
    return converted


def json_bytes(value: Any, what: str) -> bytes:
    """Return a value as JSON that reads back as what it was (tuples become lists).

    Raises:
        SchemaError: JSON has no such value.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        data = text.encode()
        msgspec.json.decode(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise SchemaError(f"{what} cannot be written as JSON ({error})") from error
    _require_text_keys(value, what)
    return data


def _require_text_keys(value: Any, what: str) -> None:
    """Refuse keys that JSON would turn into text; the value is known to have no circles."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    raise SchemaError(
                        f"{what} has the key {key!r} ({type(key).__name__}), which JSON would turn "
                        "into text; use str keys"
                    )
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part


def json_object(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a mapping as it will be read back from JSON.

    Raises:
        SchemaError: It is no mapping, or JSON has no such value.
    """
    if not isinstance(value, Mapping):
        raise SchemaError(f"{what} must be a mapping of names to values, not {value!r}")
    decoded: dict[str, Any] = msgspec.json.decode(json_bytes(dict(value), what))
    return decoded
