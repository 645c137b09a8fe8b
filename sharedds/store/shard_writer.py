"""Writes a sharded store: as a single one, but rolling over into a next file where one is full.

All is made in the working folder beside the output, ``OUT.partial/shards/``: sealed files, and the
working folder of the file that is being written. One rename gives the folder its name, at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from sharedds.errors import (
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreExistsError,
)
from sharedds.handles import MadeHere, absolute_path, storage_errors
from sharedds.packed import encode_text
from sharedds.store.cut import Cut
from sharedds.store.layout import FORMAT_VERSION
from sharedds.store.lock import (
    MARK,
    STATE,
    FolderLock,
    is_partial,
    partial_path,
    read_state,
    sync_folder,
)
from sharedds.store.partial import SHARDS
from sharedds.store.prepare import Sample
from sharedds.store.reader import Store
from sharedds.store.schema import Field, parse_schema
from sharedds.store.shard_index import write_index
from sharedds.store.sharding import index_of_files, shard_name
from sharedds.store.writer import StoreWriter

__all__ = ["ShardWriter", "Writer", "store_writer"]


class ShardWriter:
    """Writes a sharded store; use it as a context manager.

    Args:
        path: The folder to make.
        cut: Where a shard ends.
        schema: As of :class:`StoreWriter`.
        attrs: As of :class:`StoreWriter`; the index has them for the whole.
        classes: As of :class:`StoreWriter`.
        resume: As of :class:`StoreWriter`: the same work goes on, also after kill -9.

    Raises:
        StoreExistsError: Something is there already, or ``PATH.partial`` is somebody else's.
        StoreBusyError: Another writer is at work on it.
        StorageFullError: No room; also from :meth:`add` and :meth:`close`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cut: Cut,
        schema: Mapping[str, str | Field],
        attrs: Mapping[str, Any] | None = None,
        classes: Iterable[str] | None = None,
        resume: str | None = None,
    ) -> None:
        self._home = MadeHere()
        self._mutex = threading.RLock()
        self.path = absolute_path(path)
        self.cut = cut
        self._options: dict[str, Any] = {
            "schema": schema,
            "attrs": attrs,
            "classes": None if classes is None else list(classes),
            "resume": resume,
        }
        self._keep = resume is not None
        self._current: StoreWriter | None = None
        self._closed = False
        self._folder = partial_path(self.path)
        self._shards = os.path.join(self._folder, SHARDS)
        self._require_free_name()
        self._lock = self._take_folder()
        try:
            self._require_free_name()
            with self._errors():
                self._choose_work(resume)
            self._files = self._sealed()
            self._done = [len(Store(os.path.join(self._shards, name))) for name in self._files]
            following = os.path.join(self._shards, shard_name(len(self._files)))
            if os.path.isdir(partial_path(following)):
                self._current = self._next()
        except BaseException:
            self._lock.release()
            raise

    def _require_free_name(self) -> None:
        if os.path.lexists(self.path):
            raise StoreExistsError(
                f"{self.path} exists already; choose another name, or remove it first (a folder of "
                "shards is never replaced)",
                path=self.path,
            )

    def _take_folder(self) -> FolderLock:
        if os.path.isdir(self._folder) and not is_partial(self._folder):
            names = sorted({*os.listdir(self._folder)} - {"lock", f"{STATE}.new"})
            if names:
                raise StoreExistsError(
                    f"{self._folder} is in the way: it holds {', '.join(names[:3])} and is no "
                    "unfinished store; move it, or choose another output",
                    path=self._folder,
                )
        with self._errors():
            lock = FolderLock.take(self._folder)
        if lock is None:
            raise StoreBusyError(
                f"{self.path} is being written by another writer; wait for it", path=self.path
            )
        return lock

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        kept = f"What is done is kept in {self._folder}. " if self._keep else ""
        try:
            with storage_errors(self.path, advice=kept):
                yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}: {error.filename}); choose "
                "another output, or mend what is named here",
                path=self.path,
            ) from error

    def _choose_work(self, resume: str | None) -> None:
        cut = ["shards", FORMAT_VERSION, self.cut.samples, self.cut.nbytes]
        fields = parse_schema(self._options["schema"])
        work = b"null" if resume is None else msgspec.json.encode([cut, resume, fields])
        wanted = b'%s%d,"work":%s}\n' % (MARK, FORMAT_VERSION, work)
        if resume is None or read_state(self._folder) != wanted:
            self._remove_files()
            new = os.path.join(self._folder, f"{STATE}.new")
            with open(new, "wb") as file:
                file.write(wanted)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, os.path.join(self._folder, STATE))
        os.makedirs(self._shards, exist_ok=True)

    def _sealed(self) -> list[str]:
        """Return the names of the shards that are finished, those in a row from the first."""
        names: list[str] = []
        while os.path.isfile(os.path.join(self._shards, shard_name(len(names)))):
            names.append(shard_name(len(names)))
        return names

    def _next(self) -> StoreWriter:
        return StoreWriter(
            os.path.join(self._shards, shard_name(len(self._files))), **self._options
        )

    def __len__(self) -> int:
        """Number of samples written, also by an earlier run that is being resumed."""
        return sum(self._done) + (len(self._current) if self._current is not None else 0)

    def keys(self) -> Iterator[bytes]:
        """Yield the keys of the samples that are done."""
        for name in self._files:
            store = Store(os.path.join(self._shards, name))
            for number in range(len(store)):
                yield encode_text(store.key(number))
        if self._current is not None:
            yield from self._current.keys()

    def add(
        self, sample: Mapping[str, Any], key: str | bytes | os.PathLike[Any] | None = None
    ) -> None:
        """Append one sample; see :meth:`StoreWriter.add`."""
        with self._mutex:
            self._writer().add(sample, key)
            self._roll_where_full()

    def add_stored(self, sample: Sample) -> None:
        """Append a sample of another store as it is stored there."""
        with self._mutex:
            self._writer().add_stored(sample)
            self._roll_where_full()

    def _writer(self) -> StoreWriter:
        if not self._home:
            raise StoreError(
                f"{self.path}: this writer belongs to the process that made it, not to a fork of "
                "it; add samples there",
                path=self.path,
            )
        if self._closed:
            raise StoreError(f"{self.path}: the writer is closed", path=self.path)
        if self._current is None:
            self._current = self._next()
        return self._current

    def _roll_where_full(self) -> None:
        current = self._current
        if current is not None:
            full = self.cut.samples is not None and len(current) >= self.cut.samples
            if full or (self.cut.nbytes is not None and current.nbytes >= self.cut.nbytes):
                self._finish_shard(current)

    def _finish_shard(self, writer: StoreWriter) -> None:
        count = len(writer)
        writer.close()
        self._current = None
        self._files.append(shard_name(len(self._files)))
        self._done.append(count)

    def close(self) -> None:
        """Finish the last shard, write the index, and give the folder its name.

        Raises:
            SchemaError: A key is there twice; nothing is published.
            StoreExistsError: Something took the name meanwhile.
        """
        if not self._home:
            return
        with self._mutex:
            if self._closed:
                return
            if self._current is not None and self._files and not len(self._current):
                self._current.abort(keep=False)  # all that was to follow was refused
                self._current = None
            if self._current is not None or not self._files:
                self._finish_shard(self._writer())
            self._closed = True
            try:
                with self._errors():
                    index = index_of_files(
                        self._shards, self._files, attrs=self._options["attrs"] or {}
                    )
                    write_index(self._shards, index)
                    self._require_free_name()
                    os.rename(self._shards, self.path)
                    sync_folder(os.path.dirname(self.path))
            except SchemaError:  # two equal keys: to go on from there could only fail again
                self._discard()
                raise
            except BaseException:
                self._lock.release()
                raise
            self._discard()

    def abort(self, *, keep: bool = True) -> None:
        """Stop without publishing. With ``resume`` and ``keep`` the work stays, else it goes."""
        if not self._home:
            return
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            if self._current is not None:
                self._current.abort(keep=keep)
            if keep and self._keep:
                self._lock.release()
            else:
                self._discard()

    def _discard(self) -> None:
        self._remove_files()
        self._lock.remove()

    def _remove_files(self) -> None:
        shutil.rmtree(self._shards, ignore_errors=True)
        for name in ("data.lmdb", "spool", f"{STATE}.new", STATE):  # the mark goes last
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._folder, name))

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


class Writer(Protocol):
    """What writes a store, of whatever files."""

    path: str

    def __len__(self) -> int:
        """Number of samples written."""

    def keys(self) -> Iterator[bytes]:
        """Return the keys of the samples that are done."""

    def add(
        self, sample: Mapping[str, Any], key: str | bytes | os.PathLike[Any] | None = None
    ) -> None:
        """Append one sample."""

    def add_stored(self, sample: Sample) -> None:
        """Append a sample as it is stored elsewhere."""

    def close(self) -> None:
        """Finish and publish."""

    def abort(self, *, keep: bool = True) -> None:
        """Stop without publishing."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, or abort after an error."""


def store_writer(
    path: str | os.PathLike[str], *, cut: Cut | None, force: bool = False, **options: Any
) -> Writer:
    """Return what writes a single file, or shards where they are to be cut."""
    if cut is None:
        return StoreWriter(path, force=force, **options)
    return ShardWriter(path, cut=cut, **options)
