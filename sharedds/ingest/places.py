"""Where a pack writes: what may not be there, what an ended run left, how it is cleared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable

import lmdb

from sharedds.errors import (
    OptionError,
    SharedDSError,
    SourceError,
    StorageFullError,
    StoreExistsError,
)
from sharedds.handles import open_environment, storage_errors
from sharedds.ingest.report import no_report, summary_of, temporary_report
from sharedds.store import Store, is_partial
from sharedds.store.layout import HEADER, HEADER_KEY, PROGRESS_KEY
from sharedds.store.lock import FolderLock
from sharedds.store.partial import partial_path
from sharedds.store.shard_index import holds_shards
from sharedds.text import printable

__all__ = [
    "check_places",
    "check_room",
    "clear_published",
    "other_work",
    "output_exists",
    "unreported_store",
]

_DATA, _STATE = "data.lmdb", "state.json"
_WORK_FILES = frozenset({_DATA, "spool", _STATE, f"{_STATE}.new", "lock"})


def check_places(root: str, path: str, report: str, *, force: bool, dry_run: bool) -> Store | None:
    """Refuse outputs that could not be put in place at the end, before any work is done.

    Args:
        root: The folder that is packed.
        path: The output.
        report: Where the report goes.
        force: Existing files are replaced.
        dry_run: Nothing is to be written, not even to see whether it can be.

    Returns:
        A store that is there under the name of the output and has no report that matches; None
        when nothing is there or it is to be replaced.

    Raises:
        OptionError: A place inside the source, or one that cannot be written by its kind.
        StoreExistsError: Something is there that may not be replaced.
        SourceError: The report cannot be written there.
    """
    for place in (path, report):
        if os.path.realpath(place).startswith(os.path.join(os.path.realpath(root), "")):
            raise OptionError(
                f"{printable(place)} lies inside the folder that is packed; choose another place",
                path=place,
            )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{printable(path)}: LMDB can only write where the path is UTF-8; choose another place",
            path=path,
        ) from None
    if os.path.isdir(path) and (force or not holds_shards(path)):
        raise StoreExistsError(
            f"{printable(path)} is a folder, which is never replaced; choose another name or "
            "remove it first",
            path=path,
        )
    found = None
    if os.path.lexists(path) and not force:
        found = unreported_store(path, report)
        if found is None:
            raise output_exists(path)
    _check_report(path, report, force=force, dry_run=dry_run)
    return found


def output_exists(path: str) -> StoreExistsError:
    """Return the error of an output that is there already."""
    return StoreExistsError(
        f"{printable(path)} exists already; choose another name, or replace it with force "
        "(--force)",
        path=path,
    )


def _check_report(path: str, report: str, *, force: bool, dry_run: bool) -> None:
    folder = os.path.dirname(report)
    if folder != os.path.dirname(path) and not os.path.isdir(folder):
        raise SourceError(f"{printable(folder)}: no such folder for the report", path=folder)
    try:
        kind = os.stat(report).st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    except OSError as error:
        raise no_report(report, error) from error
    if report == path or not stat.S_ISREG(kind):
        raise OptionError(
            f"{printable(report)} cannot be the report; choose another name", path=report
        )
    if os.path.lexists(report) and not force and summary_of(report) is None:
        raise StoreExistsError(
            f"{printable(report)} exists and is not the report of a pack; choose another name for "
            "the report, or replace it with force (--force)",
            path=report,
        )
    if not os.path.isdir(folder):
        return  # it will be made along with the output
    if dry_run:
        if not os.access(folder, os.W_OK):
            raise SourceError(
                f"{printable(report)}: the report cannot be written (no permission)", path=report
            )
        return
    temporary = temporary_report(path, report)
    try:
        with storage_errors(report), open(temporary, "w", encoding="ascii"):
            pass
        os.unlink(temporary)
    except OSError as error:
        if isinstance(error, SharedDSError):
            raise
        raise no_report(report, error) from error


def unreported_store(path: str, report: str) -> Store | None:
    """Return the store at ``path`` if it is one of :func:`sharedds.pack` and lacks its report."""
    try:
        store = Store(path)
    except (SharedDSError, OSError):
        return None
    if not isinstance(store.attrs.get("work"), str):
        return None
    summary = summary_of(report)
    return None if summary is not None and summary.get("digest") == store.digest else store


def other_work(path: str, work: str) -> int:
    """Return how many images an unfinished pack has done that is of other work, so is given up."""
    folder = partial_path(path)
    try:
        with open(os.path.join(folder, _STATE), "rb") as file:
            if work.encode() in file.read():
                return 0
        data = os.path.join(folder, _DATA)
        with (
            open_environment(data, readonly=True, lock=False, max_dbs=3, create=False) as env,
            env.begin(env.open_db(HEADER.encode(), create=False)) as reader,
        ):
            record = json.loads(reader.get(PROGRESS_KEY) or reader.get(HEADER_KEY) or b"{}")
        return int(record.get("samples", 0))
    except (OSError, ValueError, AttributeError, SharedDSError, lmdb.Error):
        return 0  # nothing that could be counted


def clear_published(path: str) -> None:
    """Remove what is left of the working folder of an output that is published.

    It is that if it holds nothing but files of ours, and its data are gone or are the output.
    """
    folder = partial_path(path)
    if not os.path.isdir(folder) or os.path.islink(folder):
        return
    with contextlib.suppress(OSError):
        names = set(os.listdir(folder))
        if not names <= _WORK_FILES or not (names <= {"lock"} or is_partial(folder)):
            return  # somebody else's folder
        lock = FolderLock.take(folder)
        if lock is None:  # another writer's
            return
        data = os.path.join(folder, _DATA)
        if os.path.exists(data) and not os.path.samefile(data, path):
            lock.release()
            return
        for name in _WORK_FILES - {"lock"}:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        lock.remove()


def check_room(path: str, needed: int, *, spools: Iterable[str] = ()) -> None:
    """Refuse to begin what the disk cannot hold; what an earlier run wrote counts as room.

    Args:
        path: The output.
        needed: Bytes.
        spools: Files beside the output in which an earlier run may have left what is done.

    Raises:
        StorageFullError: Not enough room.
    """
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    done = 0
    if os.path.isdir(partial_path(path)):
        for at, _, names in os.walk(partial_path(path)):
            done += sum(os.lstat(os.path.join(at, name)).st_size for name in names)
    done += sum(os.path.getsize(spool) for spool in spools if os.path.isfile(spool))
    free = shutil.disk_usage(folder).free + done
    if needed > free:
        raise StorageFullError(
            f"{path}: about {needed:,} bytes are needed and {free:,} are free on this disk; make "
            "room, or store less (--codec jpeg --max-side 512)",
            path=path,
        )
