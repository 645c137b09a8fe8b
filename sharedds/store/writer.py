"""Writes a store, sample by sample, in bounded memory; the final name comes at the very end."""

from __future__ import annotations

import os
import struct
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from sharedds.errors import (
    OptionError,
    SchemaError,
    SharedDSError,
    StorageFullError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.handles import MadeHere, absolute_path
from sharedds.packed import encode_text
from sharedds.store.behind import WriteBehind
from sharedds.store.layout import (
    CHUNK_KEY,
    COLUMNS,
    FORMAT_VERSION,
    MAX_HEADER,
    FieldSpec,
    column_key,
    rows_per_segment,
    spooled_columns,
)
from sharedds.store.partial import Partial
from sharedds.store.prepare import Preparer, Sample, checksum
from sharedds.store.schema import Field, parse_schema
from sharedds.store.seal import seal
from sharedds.store.values import ArrayValue, RaggedKind, json_bytes, json_object

__all__ = ["ArrayValue", "StoreWriter"]

_COMMIT = 8 << 20


class StoreWriter:
    """Writes a store; use it as a context manager. Several threads may add to it; a fork may not.

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
        OptionError: ``path`` is no path or not UTF-8, or ``classes`` is no list.
        StoreExistsError: The file exists, and ``force`` is not set; or ``PATH.partial`` is a folder
            of something else.
        StoreBusyError: Another writer is at work on it.
        StorageFullError: No room; also from :meth:`add` and :meth:`close`.

    Example:
        >>> schema = {"image": "jpeg", "label": "int64"}
        >>> with StoreWriter("own.lmdb", schema=schema) as writer:  # doctest: +SKIP
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
        self._closed = True
        self._failure: BaseException | None = None  # which closed it, and may have been swallowed
        self._home = MadeHere()
        self._lock = threading.RLock()
        self.path = absolute_path(path)
        self.attrs = json_object(attrs or {}, "attrs")
        if len(json_bytes(self.attrs, "attrs")) > MAX_HEADER // 2:
            raise SchemaError(f"attrs take over {MAX_HEADER // 2:,} bytes; keep them in fields")
        if isinstance(classes, (str, bytes)):
            raise OptionError(f"classes={classes!r} is one string; pass a list of names")
        self._classes = None if classes is None else [encode_text(name) for name in classes]
        self._fields = parse_schema(schema)
        self._preparer = Preparer(self._fields)
        self._wide = [spec for spec in self._fields if spec.wide]
        self._chunked = [spec.name for spec in self._fields if spec.chunked]
        state = None
        if resume is not None:
            state = msgspec.json.encode([FORMAT_VERSION, resume, self._fields]).decode()
            if any(spec.kind == "ragged" and not spec.dtype for spec in self._fields):
                raise OptionError(
                    "to resume, name the dtype of each array field in the schema ('array:float32')"
                )
        columns = spooled_columns(self._fields)
        self._partial = Partial(self.path, state=state, columns=columns, force=force)
        self._log = self._partial.log
        self._samples = self._partial.progress.samples
        self._entries = self._partial.progress.entries
        self._uncommitted = 0
        self._align = max((rows_per_segment(spec.row_bytes) for spec in self._wide), default=1)
        self._wide_rows = {spec.name: bytearray() for spec in self._wide}
        self._ends: dict[str, int] = {}
        try:
            self._restore()
        except BaseException:
            self._partial.close()
            raise
        self._behind = WriteBehind(self._partial)
        self._closed = False
        self._forgotten = weakref.finalize(self, _forget, self._behind, self._partial, self._home)

    def _restore(self) -> None:
        """Set up what runs along with the samples, or take it from where the last commit was."""
        log, samples = self._log, self._samples
        for name in log.buffers:
            if name.endswith("@ends"):
                size = log.size(name)
                self._ends[name] = int.from_bytes(log.last(name, 8), "little") if size else 0
                if not size:
                    log.buffers[name] += bytes(8)
        self._chunk_bytes = 0
        if not samples:
            return
        if "@entries" in log.buffers:
            records = np.frombuffer(b"".join(log.read("@entries")), "<u8")
            self._chunk_bytes = int(records[::2].sum())
        self._preparer.keyed = log.size("@key@ends") > 8
        for spec in self._fields:
            if spec.kind == "ragged":
                dimensions = log.size(f"{spec.name}@shape") // (8 * samples)
                self._preparer.ragged[spec.name] = RaggedKind(np.dtype(spec.dtype), dimensions)
        for spec in self._wide:
            rows_each = rows_per_segment(spec.row_bytes)
            rows = samples % rows_each
            if rows:  # ended while it was being sealed: take the last segment up again
                data = self._partial.get(COLUMNS, column_key(spec.name, samples // rows_each))
                if len(data) != rows * spec.row_bytes:
                    raise StoreFormatError(
                        f"{self._partial.folder}: rows of {spec.name!r} are missing; remove this "
                        "folder and start again",
                        path=self._partial.folder,
                    )
                self._wide_rows[spec.name] += data

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks and long rows that were written."""
        return self._chunk_bytes + self._samples * sum(spec.row_bytes for spec in self._wide)

    def __len__(self) -> int:
        """Number of samples written, also by an earlier run that is being resumed."""
        return self._samples

    def keys(self) -> Iterator[bytes]:
        """Return the keys of the samples of the last commit, in order: what a resumed run did.

        Raises:
            StorageFullError: No room for samples that are written behind. The writer is closed.
            StoreError: The writer is closed, or was made by another process.
        """
        self._require_home()
        with self._lock:
            self._require_open()
            try:
                self._behind.drain()
            except BaseException as error:
                self._fail(error)
                raise
            return self._log.strings("@key")

    # --- one sample ---

    def add(
        self, sample: Mapping[str, Any], key: str | bytes | os.PathLike[Any] | None = None
    ) -> None:
        """Append one sample. If it is refused, the store is as if it had never been offered.

        Args:
            sample: A value for every field of the schema. Image and block fields may be None.
            key: A name for the sample, unique in the store; give one to all samples or to none.

        Raises:
            SchemaError: A field is missing, unknown or does not fit.
            DecodeError: Bytes given for an image field are not of its format.
            SourceError: An array that is read block by block cannot be read.
            StorageFullError: No room for this sample or for earlier ones, which are written behind.
                The writer is closed; with ``resume`` the work can go on.
            StoreError: The writer is closed, or was made by another process.
        """
        self._require_home()
        with self._lock:
            self._require_open()
            self._add(sample, key)

    def add_stored(self, sample: Sample) -> None:
        """Append a sample of another store as it is stored there; nothing is decoded.

        Args:
            sample: What :func:`sharedds.store.copying.stored_sample` returned.

        Raises:
            SchemaError: It does not fit to what is here.
        """
        self._require_home()
        with self._lock:
            self._require_open()
            self._preparer.require_fitting(sample)
            self._add_prepared(replace(sample, number=self._samples))

    def _require_home(self) -> None:
        if not self._home:
            raise StoreError(
                f"{self.path}: this writer belongs to the process that made it, not to a fork of "
                "it; add samples there, or write a store for each process",
                path=self.path,
            )

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the writer is closed", path=self.path)

    def _add(self, sample: Mapping[str, Any], key: Any) -> None:
        self._add_prepared(self._preparer.prepare(self._samples, sample, key))

    def _add_prepared(self, prepared: Sample) -> None:
        try:
            refusal = self._write(prepared)
        except BaseException as error:
            self._fail(error)
            raise
        if refusal is not None:
            raise refusal

    def _fail(self, error: BaseException) -> None:
        """Take nothing more; the end tells of it, should nobody have listened."""
        self._failure = error
        self._stop(keep=True)

    def _write(self, prepared: Sample) -> SharedDSError | None:
        """Write a sample; return why it was refused, after all of it has been taken back."""
        try:
            records, counts = self._write_chunks(prepared)
        except _RefusedError as refused:
            self._behind.drop_from(self._samples, CHUNK_KEY.pack(self._samples, 0, 0, 0))
            return refused.error
        self._accept(prepared, records, counts)
        return None

    def _write_chunks(self, prepared: Sample) -> tuple[bytearray, list[int]]:
        """Put the chunks of a sample; return their records and how many each field has."""
        records, counts = bytearray(), []
        for number, (name, chunks) in enumerate(zip(self._chunked, prepared.chunks, strict=True)):
            count = 0
            source = iter(chunks)
            while True:
                try:
                    level, block, data = next(source)
                except StopIteration:
                    break
                except SharedDSError as error:  # of the source, not of the store
                    raise _RefusedError(prepared.refusal(error, name)) from error
                chunk_key = CHUNK_KEY.pack(self._samples, number, level, block)
                self._behind.put_chunk(chunk_key, data)
                records += struct.pack("<Q", len(data)) + checksum(data)
                self._uncommitted += len(data)
                count += 1
            counts.append(count)
        return records, counts

    def _accept(self, prepared: Sample, records: bytearray, counts: list[int]) -> None:
        buffers = self._log.buffers
        if counts:
            buffers["@entries"] += records
            buffers["@counts"] += struct.pack(f"<{len(counts)}I", *counts)
            self._entries += sum(counts)
            self._chunk_bytes += sum(length for length, _ in struct.iter_unpack("<QQ", records))
        for name, data in prepared.rows:
            buffers[name] += data
            self._uncommitted += len(data)
        for name, values in prepared.ends:
            self._ends[name] += values
            buffers[name] += self._ends[name].to_bytes(8, "little")
            self._uncommitted += 8
        self._preparer.accept(prepared)
        self._samples += 1
        for name, row in prepared.wide:
            self._wide_rows[name] += row
            self._uncommitted += len(row)
            rows_each = rows_per_segment(len(row))
            if self._samples % rows_each == 0:
                self._put_wide(name, self._samples // rows_each - 1)
        if self._uncommitted >= _COMMIT and self._samples % self._align == 0:
            self._behind.commit(samples=self._samples, entries=self._entries)
            self._uncommitted = 0

    def _put_wide(self, name: str, segment: int) -> None:
        if self._wide_rows[name]:
            rows, self._wide_rows[name] = self._wide_rows[name], bytearray()
            self._behind.put_rows(column_key(name, segment), rows)

    # --- the end ---

    def close(self) -> None:
        """Finish: write columns and header, sync, and give the file its name.

        In a forked child it does nothing, nor does :meth:`abort`: the store is the parent's.

        Raises:
            SchemaError: Two samples have the same key; nothing is published.
            StorageFullError: No room, now or before; with ``resume`` what is done is kept.
            StoreError: Not all that was added is written, or an error has closed the writer before,
                unless :meth:`abort` was called since; nothing is published.
            StoreExistsError: Another file took the name meanwhile.
        """
        if self._home:  # asked first: in a child the lock may be held for ever
            with self._lock:
                self._require_sound()
                if self._begin_end():
                    self._publish()

    def _require_sound(self) -> None:
        """Say once more what has closed the writer: who swallowed it would miss a store."""
        error, self._failure = self._failure, None
        if error is None:
            return
        kind = StorageFullError if isinstance(error, StorageFullError) else StoreError
        raise kind(
            f"{self.path}: nothing was published, since the writer failed before it was closed "
            f"({type(error).__name__}: {error})",
            path=self.path,
        ) from error

    def _begin_end(self) -> bool:
        """Take nothing more; return whether there is anything to end."""
        if self._closed:
            return False
        self._closed = True
        return self._forgotten.detach() is not None

    def _publish(self) -> None:
        try:
            for spec in self._wide:
                self._put_wide(spec.name, self._samples // rows_per_segment(spec.row_bytes))
            self._behind.commit(samples=self._samples, entries=self._entries)
            self._behind.finish()
            self._require_whole()
            with self._partial.gate:  # a transaction stays open from one step to the next
                seal(
                    self._partial,
                    tuple(self._described(spec) for spec in self._fields),
                    classes=self._classes,
                    attrs=self.attrs,
                )
        except SchemaError:  # two equal keys: to go on from there could only fail again
            self._partial.discard()
            raise
        except StoreExistsError:  # the finished store stays where the error says
            self._partial.close()
            raise
        except BaseException:
            self._behind.stop()
            self._partial.leave()
            raise

    def _require_whole(self) -> None:
        """Refuse to publish a store that lacks samples, whatever became of them."""
        done = self._partial.progress
        if (done.samples, done.entries) != (self._samples, self._entries):
            raise StoreError(
                f"{self.path}: {self._samples:,} samples with {self._entries:,} chunks were added, "
                f"but {done.samples:,} with {done.entries:,} are written; nothing was published, "
                "write it again",
                path=self.path,
            )

    def _described(self, spec: FieldSpec) -> FieldSpec:
        if spec.kind != "ragged" or spec.dtype:
            return spec
        kind = self._preparer.ragged.get(spec.name)
        return msgspec.structs.replace(spec, dtype=kind.dtype.str if kind else "<f4")

    def abort(self, *, keep: bool = True) -> None:
        """Stop without publishing. With ``resume`` and ``keep`` the work stays, else it goes."""
        if self._home:
            with self._lock:
                self._failure = None
                self._stop(keep=keep)

    def _stop(self, *, keep: bool) -> None:
        if self._begin_end():
            self._behind.stop()
            (self._partial.leave if keep else self._partial.discard)()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _forget(behind: WriteBehind, partial: Partial, home: MadeHere) -> None:
    """End a writer that was given up without a word, unless it is another process's."""
    if home:
        behind.stop()
        partial.leave()
        text = f"{partial.path}: a StoreWriter was never closed; nothing was published"
        warnings.warn(text, ResourceWarning, stacklevel=2)


class _RefusedError(Exception):
    """A sample that turned out not to fit while its blocks were being written."""

    def __init__(self, error: SharedDSError) -> None:
        super().__init__(str(error))
        self.error = error
