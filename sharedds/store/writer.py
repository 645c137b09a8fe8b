"""Writes a store, sample by sample, in bounded memory; nothing exists under the final name before the end."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.codecs import encode_block, encode_image, sniff
from sharedds.errors import DecodeError, OptionError, SchemaError, StoreError
from sharedds.handles import absolute_path
from sharedds.packed import encode_text
from sharedds.store.arrays import (
    MAX_DIMENSIONS,
    ArrayMeta,
    LevelMeta,
    block_slices,
    default_chunk,
)
from sharedds.store.layout import (
    CHUNK_KEY,
    CHUNKS,
    COLUMNS,
    MAX_VALUE,
    WIDE_ROW,
    ColumnSpec,
    Field,
    FieldSpec,
    column_key,
    parse_schema,
    rows_per_segment,
)
from sharedds.store.partial import Partial
from sharedds.store.seal import seal, spooled_columns

__all__ = ["ArrayValue", "StoreWriter"]

_COMMIT = 32 << 20
_INTEGERS = {"u1": "B", "i1": "b", "u2": "<H", "i2": "<h", "u4": "<I", "i4": "<i", "u8": "<Q", "i8": "<q"}


class ArrayValue(NamedTuple):
    """A value for a ``raw``, ``lz4`` or ``zstd`` field with more than its numbers.

    Args:
        data: An array, or anything with ``shape``, ``dtype`` and region reads: it is read block by
            block, so it may be larger than memory.
        attrs: Kept with it as JSON: ``slope``, ``intercept``, ``affine``, ...
        levels: Coarser versions of the same, finest first.
        chunk: Shape of its blocks, instead of the field's.
    """

    data: Any
    attrs: Mapping[str, Any] = {}
    levels: tuple[Any, ...] = ()
    chunk: tuple[int, ...] | None = None


class StoreWriter:
    """Writes a store; use it as a context manager.

    Args:
        path: The file to make.
        schema: Field name to kind: images ``"jpeg" "png" "webp" "keep"`` (bytes are stored as they
            are, arrays (H, W) or (H, W, C) are encoded), arrays cut into blocks ``"raw" "lz4"
            "zstd"``, small arrays of any length ``"array"`` or ``"array:float32"``, fixed shapes
            ``"int64" "float32[4]" "uint8[64, 64, 3]"``, ``"str" "bytes" "json"``; or a
            :class:`Field`.
        attrs: Anything JSON can hold, kept in the header.
        classes: Class names, so that labels mean the same elsewhere.
        force: Replace an existing file, in one step at the end.
        resume: A text that describes this work. If it ends early, a writer with the same text and
            schema goes on where the last commit was (``len(writer)`` samples are done).

    Raises:
        SchemaError: The schema is not allowed.
        StoreExistsError: The file exists, and ``force`` is not set.
        StoreBusyError: Another writer is at work on it.
        StorageFullError: No room; also from :meth:`add` and :meth:`close`.

    Example:
        >>> with StoreWriter(path, schema={"image": "jpeg", "label": "int64"}) as writer:  # doctest: +SKIP
        ...     writer.add({"image": jpeg_bytes, "label": 3}, key="cats/1.jpg")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, str | Field],
        attrs: Mapping[str, Any] | None = None,
        classes: Iterable[str] | None = None,
        force: bool = False,
        resume: str | None = None,
    ) -> None:
        self.path = absolute_path(path)
        self._fields = parse_schema(schema)
        self.attrs: dict[str, Any] = _json_object(attrs or {}, "attrs")
        self._classes = None if classes is None else [encode_text(name) for name in classes]
        self._chunked = [f for f in self._fields if f.kind in ("image", "blocks")]
        self._wide = {f.name: f for f in self._fields if f.kind == "column" and _row_bytes(f) >= WIDE_ROW}
        state = None
        if resume is not None:
            state = msgspec.json.encode([resume, self._fields]).decode()
        self._partial = Partial(self.path, state=state, columns=spooled_columns(self._fields), force=force)
        self._log = self._partial.log
        self._samples = self._partial.progress.samples
        self._entries = self._partial.progress.entries
        self._wide_rows: dict[str, bytearray] = {name: bytearray() for name in self._wide}
        self._align = max((rows_per_segment(_row_bytes(f)) for f in self._wide.values()), default=1)
        self._keyed: bool | None = None
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._dimensions: dict[str, int] = {}
        self._uncommitted = 0
        self._closed = False
        self._keep = resume is not None
        self._restore()

    def _restore(self) -> None:
        """Set up the running ends of variable columns, or take them from where the last commit was."""
        log = self._log
        self._ends: dict[str, int] = {}
        for name in log.buffers:
            if name.endswith("@ends"):
                size = log.size(name)
                self._ends[name] = int.from_bytes(log.last(name, 8), "little") if size else 0
                if not size:
                    log.buffers[name] += bytes(8)
        if self._samples:
            self._keyed = log.size("@key@ends") > 8
        for field in self._fields:
            if field.kind == "ragged":
                if self._samples:
                    self._dimensions[field.name] = log.size(f"{field.name}@shape") // (8 * self._samples)
                if field.dtype:
                    self._dtypes[field.name] = np.dtype(field.dtype)
                elif self._samples:
                    raise OptionError(
                        f"field {field.name!r}: to resume, name its dtype in the schema ('array:float32')",
                        field=field.name,
                    )

        for name, field in self._wide.items():
            rows_each = rows_per_segment(_row_bytes(field))
            if self._samples % rows_each:  # ended while it was being sealed: take the last segment up again
                key = column_key(name, self._samples // rows_each)
                self._wide_rows[name] += self._partial.get(COLUMNS, key)

    def __len__(self) -> int:
        """Number of samples written, also by an earlier run that is being resumed."""
        return self._samples

    def keys(self) -> Iterator[bytes]:
        """Yield the keys of the samples of the last commit, in order: what a resumed run has done."""
        text, start = bytearray(), 0
        pieces = self._log.read("@key")
        rest = b""
        for piece in self._log.read("@key@ends"):
            ends = rest + piece
            for at in range(0, len(ends) - 7, 8):
                end = int.from_bytes(ends[at : at + 8], "little")
                while len(text) < end - start:
                    text += next(pieces)
                if end > start:
                    yield bytes(text[: end - start])
                    del text[: end - start]
                    start = end
            rest = ends[len(ends) - len(ends) % 8 :]

    def add(self, sample: Mapping[str, Any], key: str | bytes | os.PathLike[Any] | None = None) -> None:
        """Append one sample. If it is refused, the store is as if it had never been offered.

        Args:
            sample: A value for every field of the schema. Image and block fields may be None.
            key: A name for the sample, unique in the store; give one to all samples or to none.

        Raises:
            SchemaError: A field is missing, unknown or does not fit.
            DecodeError: Bytes given for an image field are not of its format.
        """
        if self._closed:
            raise StoreError(f"{self.path}: the writer is closed", path=self.path)
        name = self._check_key(key)
        missing = [f.name for f in self._fields if f.name not in sample]
        unknown = [n for n in sample if n not in {f.name for f in self._fields}]
        if missing or unknown:
            raise self._bad("", f"missing {missing}, not in the schema {unknown}", name)
        chunks: list[tuple[int, int, int, Any]] = []
        rows: list[tuple[str, bytes]] = []
        lengths: list[int] = []
        wide: list[tuple[str, bytes]] = []
        try:
            for field in self._fields:
                value = sample[field.name]
                if field.kind == "image":
                    lengths.append(0 if value is None else 1)
                    if value is not None:
                        data = self._image(field, value)
                        chunks.append((len(lengths) - 1, 0, 0, data))
                elif field.kind == "blocks":
                    blocks, meta = self._blocks(field, value)
                    rows.append((f"{field.name}@meta", meta))
                    lengths.append(len(blocks))
                    chunks += [(len(lengths) - 1, level, number, b) for level, number, b in blocks]
                elif field.name in self._wide:
                    data = self._fixed(field, value)
                    wide.append((field.name, data))
                    rows.append((f"{field.name}@xxh3", _checksum(data).to_bytes(8, "little")))
                else:
                    rows += self._row(field, value)
        except (SchemaError, DecodeError) as error:
            if error.sample is not None:
                raise
            raise self._bad(field.name, str(error), name, type(error)) from error
        if name is not None:
            rows.append(("@key", name))
            rows.append(("@key@hash", _checksum(name).to_bytes(8, "little")))
        self._write(chunks, rows, wide, lengths)

    def _check_key(self, key: str | bytes | os.PathLike[Any] | None) -> bytes | None:
        name = None if key is None else encode_text(key)
        if self._keyed is None:
            self._keyed = name is not None
        if self._keyed != (name is not None):
            raise self._bad("", "give a key to every sample or to none", name)
        return name

    def _bad(
        self, field: str, what: str, key: bytes | None, kind: type[SchemaError] | type[DecodeError] = SchemaError
    ) -> SchemaError | DecodeError:
        text = None if key is None else key.decode("utf-8", "backslashreplace")
        where = f"sample {self._samples}" + (f" ({text})" if text else "")
        where += f", field {field!r}" if field else ""
        return kind(f"{where}: {what}", sample=self._samples, key=text, field=field or None)

    def _image(self, field: FieldSpec, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            found = sniff(value)
            if field.codec != "keep" and found != field.codec:
                raise DecodeError(f"bytes of format {found} in a field for {field.codec}")
            data = bytes(value)
        elif field.codec == "keep":
            raise SchemaError(f"a 'keep' field takes the bytes of a file, not {type(value).__name__}")
        else:
            data = encode_image(np.asarray(value), field.codec, quality=field.quality)
        if len(data) > MAX_VALUE:
            raise SchemaError(f"a file of {len(data):,} bytes; 4 GiB is the limit, store an array instead")
        return data

    def _blocks(self, field: FieldSpec, value: Any) -> tuple[list[tuple[int, int, bytes]], bytes]:
        if value is None:
            return [], b""
        whole = value if isinstance(value, ArrayValue) else ArrayValue(value)
        sources = [s if hasattr(s, "shape") else np.asarray(s) for s in (whole.data, *whole.levels)]
        dtype = np.dtype(sources[0].dtype)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise SchemaError(f"dtype {dtype} cannot be stored; use integers, floats or bool")
        if len(sources) > 255:
            raise SchemaError(f"{len(sources)} levels, 255 is the limit")
        shuffle = dtype.itemsize > 1 and field.codec != "raw" if field.shuffle is None else field.shuffle
        levels: list[LevelMeta] = []
        blocks: list[tuple[int, int, bytes]] = []
        for number, source in enumerate(sources):
            shape = tuple(int(n) for n in source.shape)
            chunk = whole.chunk or field.chunk or default_chunk(shape, dtype.itemsize)
            if len(shape) > MAX_DIMENSIONS or len(chunk) != len(shape) or source.dtype != dtype:
                raise SchemaError(f"level {number}: shape {shape}, dtype {source.dtype}, blocks of {chunk}")
            level = LevelMeta(shape, tuple(min(c, max(1, n)) for c, n in zip(chunk, shape, strict=True)))
            levels.append(level)
            for index, region in enumerate(block_slices(level)):
                block = np.asarray(source[region], dtype.newbyteorder("<"))
                data = encode_block(np.ascontiguousarray(block), field.codec, shuffle=shuffle)
                if len(data) > MAX_VALUE or index >= 1 << 32:
                    raise SchemaError(f"a block of {len(data):,} bytes; 4 GiB is the limit, use smaller blocks")
                blocks.append((number, index, data))
        attrs = _json_object(whole.attrs, "attrs")
        meta = ArrayMeta(dtype.newbyteorder("<").str, tuple(levels), shuffle, attrs)
        return blocks, msgspec.json.encode(meta)

    def _fixed(self, field: FieldSpec, value: Any) -> bytes:
        code = _INTEGERS.get(field.dtype[1:])
        if code and not field.shape and type(value) is int:
            try:
                return struct.pack(code, value)
            except struct.error as error:
                raise SchemaError(f"{value} does not fit {np.dtype(field.dtype)}") from error
        array = _exact(value, np.dtype(field.dtype))
        if array.shape != field.shape:
            raise SchemaError(f"shape {array.shape}, the schema says {field.shape}")
        return array.tobytes()

    def _row(self, field: FieldSpec, value: Any) -> list[tuple[str, bytes]]:
        name = field.name
        if field.kind == "column":
            return [(name, self._fixed(field, value))]
        if field.kind == "ragged":
            array = np.asarray(value)
            dtype = self._dtypes.get(name)
            if dtype is None:
                if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                    raise SchemaError(f"dtype {array.dtype} cannot be stored; use integers, floats or bool")
                dtype = self._dtypes[name] = array.dtype.newbyteorder("<")
            dimensions = self._dimensions.setdefault(name, array.ndim)
            if not 1 <= array.ndim == dimensions <= MAX_DIMENSIONS:
                raise SchemaError(
                    f"an array of shape {array.shape}; all arrays of this field have {dimensions} dimensions, "
                    "also empty ones, such as np.zeros((0, 4))"
                )
            shape = struct.pack(f"<{array.ndim}q", *array.shape)
            exact = array.astype(dtype) if array.size == 0 else _exact(array, dtype)
            return [(name, exact.tobytes()), (f"{name}@shape", shape)]
        if field.kind == "json":
            return [(name, _json(value, f"field {name!r}"))]
        if field.kind == "text" and not isinstance(value, str):
            raise SchemaError(f"a str is expected, not {type(value).__name__}")
        if field.kind == "bytes" and not isinstance(value, (bytes, bytearray, memoryview)):
            raise SchemaError(f"bytes are expected, not {type(value).__name__}")
        return [(name, encode_text(value) if isinstance(value, str) else bytes(value))]

    def _write(
        self,
        chunks: list[tuple[int, int, int, Any]],
        rows: list[tuple[str, bytes]],
        wide: list[tuple[str, bytes]],
        lengths: list[int],
    ) -> None:
        for number, level, block, data in chunks:
            key = CHUNK_KEY.pack(self._samples, number, level, block)
            self._partial.put(CHUNKS, key, data, append=True)
            self._uncommitted += len(data)
            self._log.buffers["@entries"] += struct.pack("<QQ", len(data), _checksum(data))
        self._entries += len(chunks)
        if self._chunked:
            self._log.buffers["@counts"] += struct.pack(f"<{len(lengths)}I", *lengths)
        for name, data in rows:
            self._log.buffers[name] += data
            ends = f"{name}@ends"
            if ends in self._ends:
                itemsize = self._dtypes[name].itemsize if name in self._dtypes else 1
                self._ends[ends] += len(data) // itemsize
                self._log.buffers[ends] += self._ends[ends].to_bytes(8, "little")
            self._uncommitted += len(data) + 16
        for name, data in wide:
            rows_each = rows_per_segment(len(data))
            buffer = self._wide_rows[name]
            buffer += data
            if (self._samples + 1) % rows_each == 0:
                self._put_wide(name, self._samples // rows_each)
            self._uncommitted += len(data)
        self._samples += 1
        if self._uncommitted >= _COMMIT and self._samples % self._align == 0:
            self._commit()

    def _put_wide(self, name: str, segment: int) -> None:
        if self._wide_rows[name]:
            self._partial.put(COLUMNS, column_key(name, segment), bytes(self._wide_rows[name]))
            self._wide_rows[name].clear()

    def _commit(self) -> None:
        self._partial.commit(samples=self._samples, entries=self._entries)
        self._uncommitted = 0

    def close(self) -> None:
        """Finish: write columns and header, sync, and give the file its name.

        Raises:
            SchemaError: Two samples have the same key; nothing is published.
            StorageFullError: No room; what is done is kept and can be resumed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            for name, field in self._wide.items():
                self._put_wide(name, self._samples // rows_per_segment(_row_bytes(field)))
            self._partial.commit(samples=self._samples, entries=self._entries)
            fields = tuple(
                msgspec.structs.replace(f, dtype=self._dtypes.get(f.name, np.dtype("<f4")).str)
                if f.kind == "ragged"
                else f
                for f in self._fields
            )
            wide = tuple(
                ColumnSpec(f.name, f.dtype, self._samples, rows_per_segment(_row_bytes(f)), f.shape)
                for f in self._wide.values()
            )
            seal(self._partial, fields, wide, classes=self._classes, attrs=self.attrs)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Stop without publishing. With ``resume`` the work stays to be continued, else it is removed."""
        self._closed = True
        if self._keep:
            self._partial.close()
        else:
            self._partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self.abort()


def _row_bytes(field: FieldSpec) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize


def _checksum(data: Any) -> int:
    return xxhash.xxh3_64_intdigest(data)


def _exact(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert without losing anything but the precision of floats."""
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"{type(value).__name__} cannot become {dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype)
    floats = array.dtype.kind == "f" and dtype.kind == "f"
    if not floats and not (dtype.kind == "b" and array.dtype.kind != "b") and np.array_equal(converted, array):
        return converted
    if floats and np.array_equal(np.isfinite(converted), np.isfinite(array)):
        return converted
    raise SchemaError(f"values of {array.dtype} do not fit {dtype} without loss")


def _json(value: Any, what: str) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.EncodeError, RecursionError) as error:
        raise SchemaError(f"{what} cannot be written as JSON ({error})") from error


def _json_object(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    decoded = msgspec.json.decode(_json(dict(value), what))
    return decoded  # type: ignore[no-any-return]
