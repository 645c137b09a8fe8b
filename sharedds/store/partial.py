"""An unfinished store: a folder beside the output, locked by its writer, published by one rename.

``OUT.partial/`` holds ``data.lmdb`` (chunks, wide columns and a progress record), ``spool`` (the
rows of the other columns), ``state.json`` (what is being written, so that only the same work
resumes) and ``lock``. Everything is committed in large batches. At any instant the folder is either
at its last commit or does not count; the output itself appears by a rename, whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import lmdb
import msgspec

from sharedds.errors import (
    SharedDSError,
    StoreBusyError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.handles import (
    ForkGate,
    absolute_path,
    open_environment,
    require_lmdb_path,
    storage_errors,
)
from sharedds.store.layout import (
    CHUNK_KEY,
    CHUNKS,
    COLUMNS,
    FORMAT_VERSION,
    HEADER,
    HEADER_KEY,
    PROGRESS_KEY,
    SEAL_KEY,
)
from sharedds.store.lock import (
    LOCK,
    MARK,
    STATE,
    FolderLock,
    is_locked_here,
    is_partial,
    partial_path,
    read_state,
    sync_folder,
)
from sharedds.store.spool import SpoolLog

__all__ = ["SHARDS", "Partial", "is_partial", "partial_path"]

SHARDS = "shards"  # a folder in the working folder of a store of several files

_STEP = 48 << 20  # how much the map grows at once
_DIRTY = 4 << 20  # what single puts write stays in memory until their transaction ends
_SLACK = 4 << 20  # tree pages, free pages and the rounding of values to pages
_DATA, _SPOOL, _NEW_STATE = "data.lmdb", "spool", "state.json.new"


class _Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the last commit knew."""

    samples: int
    entries: int
    log: int


class _Sealed(msgspec.Struct, frozen=True):
    """The part of a header that says how far it goes."""

    samples: int
    entries: int


class Partial:
    """The working folder of a store, opened for writing.

    Args:
        path: The output, absolute.
        state: Describes the work as text. A folder left behind by the same work is continued, any
            other is discarded. None never continues.
        columns: Names of the columns that are spooled.
        force: Replace an existing output when published.

    Attributes:
        progress: What the last commit knew.
        log: The spool.

    Raises:
        StoreExistsError: The output exists and ``force`` is not set, or the working folder is
            something else's.
        OptionError: The path is not UTF-8.
        StoreBusyError: Another writer is at work on it.
        StorageFullError: No room.
    """

    progress: _Progress
    log: SpoolLog

    def __init__(
        self, path: str, *, state: str | None, columns: Sequence[str], force: bool
    ) -> None:
        self.path = absolute_path(path)
        require_lmdb_path(self.path)
        self.folder = partial_path(self.path)
        self.gate = ForkGate()  # around all that LMDB does here
        self._keep = state is not None
        self._force = force
        self._files = contextlib.ExitStack()
        self._transaction: lmdb.Transaction | None = None
        self._room = 0  # bytes the running transaction may still write
        self._needed = 0  # bytes asked for last, told when the disk is full
        self._require_free_name()
        self._require_own_folder()
        self._lock = self._take_folder()
        try:
            self._require_free_name()  # a writer that held the lock may just have published
            with self._errors():
                self._choose_work(state)
                self._open_or_start_anew(columns)
        except BaseException:
            self.leave()
            raise

    def _require_free_name(self) -> None:
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            raise StoreExistsError(f"{self.path} is a folder; name a file to write", path=self.path)
        if not self._force and os.path.lexists(self.path):
            raise StoreExistsError(
                f"{self.path} exists already; choose another name, or replace it with force "
                "(--force)",
                path=self.path,
            )

    def _require_own_folder(self) -> None:
        """Refuse a folder of somebody else that happens to have the name of the working folder."""
        names: list[str] = []
        if not is_partial(self.folder):
            with contextlib.suppress(OSError):  # nothing is there, or no folder: told when made
                names = sorted({*os.listdir(self.folder)} - {LOCK, _NEW_STATE})
        # Asked again: another writer may have begun between the two looks.
        if names and not is_partial(self.folder):
            raise StoreExistsError(
                f"{self.folder} is in the way: it holds {', '.join(names[:3])} and is no "
                "unfinished store; move it, or choose another output",
                path=self.folder,
            )

    def _take_folder(self) -> FolderLock:
        with self._errors():
            lock = FolderLock.take(self.folder)
        if lock is None:
            here = is_locked_here(self.folder)
            who = "another writer in this process; close it" if here else "another process; end it"
            raise StoreBusyError(
                f"{self.path} is being written by {who} or wait for it", path=self.path
            )
        return lock

    def _choose_work(self, state: str | None) -> None:
        work = b"null" if state is None else state.encode("utf-8", "surrogateescape")
        wanted = b'%s%d,"work":%s}\n' % (MARK, FORMAT_VERSION, work)
        found = read_state(self.folder)
        published = False  # killed between its link and the end: data.lmdb is the output by now
        with contextlib.suppress(OSError):
            published = os.stat(self.data_path).st_nlink > 1
        if state is None or found != wanted or published:
            self._remove_files()
            sync_folder(self.folder)
            new = os.path.join(self.folder, _NEW_STATE)
            with open(new, "wb") as file:
                file.write(wanted)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, os.path.join(self.folder, STATE))  # whole or not at all

    def _open_or_start_anew(self, columns: Sequence[str]) -> None:
        try:
            self._open(columns)
        except (StoreFormatError, msgspec.MsgspecError):  # it survived a crash of the machine badly
            self._files.close()
            self._remove_files(keep=STATE)
            self._open(columns)

    def _open(self, columns: Sequence[str]) -> None:
        size = os.path.getsize(self.data_path) if os.path.exists(self.data_path) else 0
        self._env = self._files.enter_context(
            open_environment(
                self.data_path,
                gated=True,
                map_size=size + _STEP,
                max_dbs=3,
                lock=False,
                readahead=False,
            )
        )
        self._databases = {
            name: self._env.open_db(name.encode()) for name in (HEADER, COLUMNS, CHUNKS)
        }
        spool = os.path.join(self.folder, _SPOOL)
        self.progress = self._read_progress(spool)
        self.log = SpoolLog(spool, columns, self.progress.log)
        self._files.callback(self.log.close)
        self.drop_from(self.progress.samples)
        self._end()

    def _read_progress(self, spool: str) -> _Progress:
        database = self._databases[HEADER]
        with self._env.begin(database, write=True) as transaction:
            record, header = transaction.get(PROGRESS_KEY), transaction.get(HEADER_KEY)
            if record:
                progress = msgspec.json.decode(record, type=_Progress)
            elif header:  # killed after it was sealed and before it was renamed
                sealed = msgspec.json.decode(header, type=_Sealed)
                length = os.path.getsize(spool) if os.path.exists(spool) else -1
                progress = _Progress(sealed.samples, sealed.entries, length)
            else:
                progress = _Progress(0, 0, 0)
            if header:
                transaction.delete(HEADER_KEY)
                transaction.delete(SEAL_KEY)
                transaction.put(PROGRESS_KEY, msgspec.json.encode(progress))
        if progress.log < 0:
            raise StoreFormatError(f"{spool}: the log is missing", path=spool)
        return progress

    @property
    def data_path(self) -> str:
        """The LMDB file being written."""
        return os.path.join(self.folder, _DATA)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Map the errors of a failed write; it leaves the folder at its last commit."""
        kept = f"What is done is kept in {self.folder}. " if self._keep else ""
        try:
            with self.gate, storage_errors(self.path, needed=lambda: self._needed, advice=kept):
                yield
        except SharedDSError:
            raise
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}: {error.filename}); choose "
                "another output, or mend what is named here",
                path=self.path,
            ) from error

    def _begin(self, size: int) -> lmdb.Transaction:
        """Return a transaction with room for ``size`` bytes; a map only grows between two."""
        need = size + (size // 64) + 3 * 4096
        self._needed = need
        if self._transaction is not None and need > self._room:
            self._end()
        if self._transaction is None:
            info = self._env.info()
            used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
            self._room = max(need, _STEP - _SLACK)
            if used + self._room + _SLACK > info["map_size"]:
                self._env.set_mapsize(used + self._room + _SLACK)
            self._transaction = self._env.begin(write=True)
        self._room -= need
        return self._transaction

    def put(self, database: str, key: bytes, value: Any, *, append: bool = False) -> None:
        """Put one value in the running transaction, growing the map first where needed."""
        with self._errors():
            if self._room - len(value) < _STEP - _SLACK - _DIRTY:
                self._end()
            self._begin(len(value)).put(key, value, db=self._databases[database], append=append)

    def put_all(
        self, database: str, items: deque[tuple[bytes, Any]], *, append: bool = False
    ) -> None:
        """Put several values in the running transaction.

        They are taken from ``items`` one by one: LMDB has a copy of each, and a second one of all
        would double the memory.
        """
        with self._errors():
            while items:
                # One value that needs a larger map ends a transaction; the others share it.
                count, need = 0, 0
                for _, value in items:
                    if count and need >= _STEP - 2 * _SLACK:
                        break
                    need += len(value) + (2 * 4096 if count else 0)
                    count += 1
                cursor = self._begin(need).cursor(self._databases[database])
                cursor.putmulti((items.popleft() for _ in range(count)), append=append)
                cursor.close()

    def get(self, database: str, key: bytes) -> bytes:
        """Return what the last commit holds under a key."""
        with self._errors(), self._env.begin(self._databases[database]) as reader:
            return bytes(reader.get(key) or b"")

    def drop_from(self, sample: int) -> None:
        """Remove the chunks from this sample on, also those of transactions that are done."""
        with self._errors(), self._begin(0).cursor(self._databases[CHUNKS]) as cursor:
            found = cursor.set_range(CHUNK_KEY.pack(sample, 0, 0, 0))
            while found:
                found = cursor.delete()

    def _end(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()

    def end(self) -> None:
        """End the running transaction; what it put counts only with the next commit."""
        with self._errors():
            self._end()

    def commit(
        self, *, samples: int, entries: int, frame: dict[str, bytearray] | None = None
    ) -> None:
        """Make everything so far durable, and say how far it goes.

        Args:
            samples: How many there are.
            entries: How many chunks they have.
            frame: Rows of the log that go with it; None for all that wait there.
        """
        frame = self.log.take() if frame is None else frame
        with self._errors():
            self._needed = sum(len(rows) for rows in frame.values())
            progress = _Progress(samples, entries, self.log.write_frame(frame))
            record = msgspec.json.encode(progress)
            self._begin(len(record)).put(PROGRESS_KEY, record, db=self._databases[HEADER])
            self._end()
            self.progress = progress

    def publish(self, header: bytes, seal: bytes) -> None:
        """Put the header in place of the progress record, and give the file its name.

        Raises:
            StoreExistsError: Another file took the name meanwhile; the finished one stays in the
                folder.
        """
        with self._errors():
            self._end()
            transaction = self._begin(len(header) + len(seal))
            database = self._databases[HEADER]
            transaction.put(HEADER_KEY, header, db=database)
            transaction.put(SEAL_KEY, seal, db=database)
            transaction.delete(PROGRESS_KEY, db=database)
            self._end()
            self._env.sync(True)
            self._files.close()
            self._rename()
            sync_folder(os.path.dirname(self.path))
        self._remove_files()
        self._lock.remove()

    def _rename(self) -> None:
        if not self._force:
            try:
                os.link(self.data_path, self.path)  # unlike a rename, it never replaces anything
                return
            except FileExistsError:
                raise StoreExistsError(
                    f"{self.path} appeared while it was being written; the finished store is "
                    f"{self.data_path}, move it to another name",
                    path=self.path,
                ) from None
            except OSError:  # a file system without hard links
                self._require_free_name()
        os.replace(self.data_path, self.path)

    def _remove_files(self, *, keep: str = "") -> None:
        shutil.rmtree(os.path.join(self.folder, SHARDS), ignore_errors=True)
        for name in (_DATA, _SPOOL, _NEW_STATE, STATE):  # the mark goes last
            if name != keep:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, name))

    def leave(self) -> None:
        """End without publishing: close what can be continued, discard anything else."""
        (self.close if self._keep else self.discard)()

    def close(self) -> None:
        """Leave the folder as the last commit made it, to be continued."""
        self._close_files()
        self._lock.release()

    def discard(self) -> None:
        """Remove the folder and everything of ours in it."""
        self._close_files()
        self._remove_files()
        self._lock.remove()

    def _close_files(self) -> None:
        with self.gate:
            if self._transaction is not None:
                self._transaction.abort()
                self._transaction = None
            self._files.close()
