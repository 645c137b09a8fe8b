"""An unfinished store: a folder beside the output, locked by its writer, published by one rename.

``OUT.partial/`` holds ``data.lmdb`` (chunks, wide columns and a progress record), ``spool`` (the rows of
the other columns) and ``state.json`` (what is being written, so that only the same work resumes).
Everything is committed in large batches. At any instant the folder is either at its last commit or
does not count; the output itself appears by a rename, whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import IO, Any

import lmdb
import msgspec

from sharedds.errors import StorageFullError, StoreBusyError, StoreError, StoreExistsError
from sharedds.handles import absolute_path, open_environment, storage_errors
from sharedds.store.layout import CHUNK_KEY, CHUNKS, COLUMNS, HEADER
from sharedds.store.spool import SpoolLog

__all__ = ["Partial", "partial_path"]

_STEP = 48 << 20  # how much the map grows at once
_SLACK = 4 << 20  # tree pages, free pages and the rounding of values to pages
_PROGRESS = b"progress"


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the last commit knew."""

    samples: int
    entries: int
    log: int


def partial_path(path: str) -> str:
    """Return the working folder that belongs to an output."""
    return f"{path}.partial"


class Partial:
    """The working folder of a store, opened for writing.

    Args:
        path: The output, absolute.
        state: Describes the work as text. A folder left behind by the same work is continued, any
            other is discarded. None never continues.
        columns: Names of the columns that are spooled.
        force: Replace an existing output when published.

    Raises:
        StoreExistsError: The output exists and ``force`` is not set.
        StoreBusyError: Another writer is at work on it.
        StorageFullError: No room.
    """

    def __init__(self, path: str, *, state: str | None, columns: Sequence[str], force: bool) -> None:
        self.path = absolute_path(path)
        self.folder = partial_path(self.path)
        self._force = force
        self._files = contextlib.ExitStack()
        self._transaction: Any = None
        self._room = 0  # bytes the running transaction may still write
        self._needed = 0  # bytes the last value asked for, told when the disk is full
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            raise StoreExistsError(f"{self.path} is a folder; name a file to write", path=self.path)
        if not force and os.path.lexists(self.path):
            raise StoreExistsError(
                f"{self.path} exists already; choose another name, or replace it with force (--force)",
                path=self.path,
            )
        self._take_folder()
        try:
            self._choose_work(state)
            with self._errors():
                self._open(columns)
        except BaseException:
            self.close()
            raise

    def _take_folder(self) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._lock = open(os.path.join(self.folder, "lock"), "a+b")  # noqa: SIM115
        except OSError as error:
            raise StoreError(
                f"{self.folder}: cannot write here ({error.strerror}); choose another output",
                path=self.folder,
            ) from error
        if not _lock(self._lock):
            self._lock.close()
            raise StoreBusyError(
                f"{self.path} is being written by another process; wait for it or end it first",
                path=self.path,
            )

    def _choose_work(self, state: str | None) -> None:
        wanted = state.encode("utf-8", "surrogateescape") if state is not None else None
        record = os.path.join(self.folder, "state.json")
        found = None
        with contextlib.suppress(OSError), open(record, "rb") as file:
            found = file.read()
        if found is None or found != wanted:
            self._discard_files()
            with storage_errors(record), open(record, "wb") as file:
                file.write(wanted or b"")

    def _open(self, columns: Sequence[str]) -> None:
        data = os.path.join(self.folder, "data.lmdb")
        size = os.path.getsize(data) if os.path.exists(data) else 0
        self._env = self._files.enter_context(
            open_environment(
                data, map_size=size + _STEP, max_dbs=3, lock=False, readahead=False, metasync=True
            )
        )
        self._databases = {name: self._env.open_db(name.encode()) for name in (HEADER, COLUMNS, CHUNKS)}
        with self._env.begin(self._databases[HEADER]) as reader:
            record = reader.get(_PROGRESS)
        self.progress = msgspec.json.decode(record, type=Progress) if record else Progress(0, 0, 0)
        self.log = SpoolLog(os.path.join(self.folder, "spool"), columns, self.progress.log)
        self._files.callback(self.log.close)
        self._trim()

    def _trim(self) -> None:
        """Drop chunks beyond the last commit: a large sample may span several transactions."""
        with self._env.begin(self._databases[CHUNKS], write=True) as transaction:
            cursor = transaction.cursor()
            found = cursor.set_range(CHUNK_KEY.pack(self.progress.samples, 0, 0, 0))
            while found:
                found = cursor.delete()

    @property
    def data_path(self) -> str:
        """The LMDB file being written."""
        return os.path.join(self.folder, "data.lmdb")

    @contextlib.contextmanager
    def _errors(self) -> Any:
        """Map LMDB's errors; a failed write leaves the folder at its last commit."""
        try:
            with storage_errors(self.path):
                yield
        except lmdb.Error as error:
            text = str(error)
            if isinstance(error, lmdb.DiskError) or any(
                t in text for t in ("No space", "too large", "quota", "Input/output")
            ):
                free = shutil.disk_usage(self.folder).free
                written = os.path.getsize(self.data_path)
                raise StorageFullError(
                    f"{self.path}: no room to write more ({text}); {written:,} bytes are written, at least "
                    f"{self._needed:,} more are needed and {free:,} are free on this disk. What is "
                    f"done is kept in {self.folder}: make room and run the same command again",
                    path=self.path,
                ) from error
            raise StoreError(f"{self.path}: LMDB cannot write ({text})", path=self.path) from error

    def _reserve(self, size: int) -> None:
        """Make sure the map holds ``size`` more bytes; a map can only grow between transactions."""
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

    def put(self, database: str, key: bytes, value: Any, *, append: bool = False) -> None:
        """Put one value in the running transaction, growing the map first where needed."""
        with self._errors():
            self._reserve(len(value))
            self._transaction.put(key, value, db=self._databases[database], append=append)

    def get(self, database: str, key: bytes) -> bytes:
        """Return what the last commit holds under a key."""
        with self._errors(), self._env.begin(self._databases[database]) as reader:
            return reader.get(key) or b""

    def _end(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()

    def commit(self, *, samples: int, entries: int) -> None:
        """Make everything so far durable, and say how far it goes."""
        with self._errors():
            progress = Progress(samples, entries, self.log.write_frame())
            self._reserve(256)
            self._transaction.put(
                _PROGRESS, msgspec.json.encode(progress), db=self._databases[HEADER]
            )
            self._end()
            self.progress = progress

    def publish(self) -> None:
        """Close the file and give it its name; an existing one is replaced in one step."""
        with self._errors():
            self._reserve(0)
            self._transaction.delete(_PROGRESS, db=self._databases[HEADER])
            self._end()
            self._env.sync(True)
            self._files.close()
            self._rename()
        self._discard_files()
        os.unlink(os.path.join(self.folder, "lock"))
        self._lock.close()
        with contextlib.suppress(OSError):  # somebody put a file of their own there
            os.rmdir(self.folder)
        _sync_folder(os.path.dirname(self.path))

    def _rename(self) -> None:
        if self._force:
            os.replace(self.data_path, self.path)
            return
        try:
            os.link(self.data_path, self.path)
        except FileExistsError as error:
            raise StoreExistsError(
                f"{self.path} appeared while it was being written; what is done is kept in {self.folder}",
                path=self.path,
            ) from error
        except OSError:  # a file system without hard links
            os.rename(self.data_path, self.path)

    def _discard_files(self) -> None:
        for name in os.listdir(self.folder):
            if name != "lock":
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))

    def close(self) -> None:
        """Leave the folder as the last commit made it, to be continued."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        self._files.close()
        self._lock.close()

    def discard(self) -> None:
        """Remove the folder and everything in it."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _lock(file: IO[bytes]) -> bool:
    """Take an exclusive lock that ends with the process, however it ends."""
    try:
        import fcntl  # noqa: PLC0415 - POSIX only
    except ImportError:
        import msvcrt  # noqa: PLC0415 - Windows only

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: str) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
