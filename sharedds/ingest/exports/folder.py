"""The folder an export makes: whole or not at all, and with no name that leads out of it."""

from __future__ import annotations

import contextlib
import csv
import os
import secrets
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import xxhash

from sharedds.errors import SharedDSError, SourceError, StoreExistsError, StoreFormatError
from sharedds.handles import storage_errors
from sharedds.store import Store
from sharedds.text import printable

__all__ = ["TAKEN", "ExportReport", "Names", "NewFolder", "inside", "with_suffix"]

TAKEN = (FileExistsError, NotADirectoryError, IsADirectoryError)
_LABELS = b"labels.csv"
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export wrote (or would write, with ``dry_run``).

    Attributes:
        path: The folder.
        files: Files of samples in it.
        empty: Samples that have no value in the field, so no file.
        bytes: Bytes of all files of samples.
        dry_run: Nothing was written.
    """

    path: str
    files: int
    empty: int
    bytes: int
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class NewFolder:
    """A folder that gets its name when it is whole; it is removed if that fails.

    Until then its name is one that nobody else has, so that nothing of anybody's is overwritten.
    A folder that is there already, and empty, stays: it may be where a shell or a mount is.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._work = os.fsencode(f"{path}.exporting-{secrets.token_hex(4)}")
        self._made = b""

    def __enter__(self) -> NewFolder:
        try:
            os.makedirs(self._work)
        except OSError as error:
            raise self._error(self._path, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if os.path.isdir(self._path):
                    self._fill()
                else:
                    os.rename(self._work, self._path)
        except OSError as error:
            if isinstance(error, SharedDSError):
                raise
            raise self._error(self._path, error) from error
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _fill(self) -> None:
        """Move everything into the folder that is there; all of it, or nothing."""
        if os.listdir(self._path):
            raise StoreExistsError(
                f"{printable(self._path)} was filled by another program meanwhile; name another "
                "folder",
                path=self._path,
            )
        target = os.fsencode(self._path)
        moved: list[bytes] = []
        try:
            for name in os.listdir(self._work):
                os.rename(os.path.join(self._work, name), os.path.join(target, name))
                moved.append(name)
        except BaseException:
            for name in moved:
                os.rename(os.path.join(target, name), os.path.join(self._work, name))
            raise

    def _error(self, name: str, error: OSError) -> SourceError:
        return SourceError(
            f"{printable(name)}: cannot be written ({error.strerror or error})", path=name
        )

    def write(self, name: bytes, data: bytes | memoryview) -> None:
        """Write one new file, with the folders it lies in."""
        with self.create(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, name: bytes) -> Iterator[IO[bytes]]:
        """Open one new file for writing, with the folders it lies in."""
        path = os.path.join(self._work, name)
        parent = os.path.dirname(path)
        try:
            with storage_errors(self._path):
                if parent != self._made:
                    os.makedirs(parent, exist_ok=True)
                    self._made = parent
                with open(path, "xb") as file:
                    yield file
        except OSError as error:
            if isinstance(error, SharedDSError):  # StorageFullError says it all
                raise
            raise self._error(os.path.join(self._path, os.fsdecode(name)), error) from error

    @contextlib.contextmanager
    def table(self) -> Iterator[Any]:
        """Give a writer for the rows of ``labels.csv``."""
        with (
            storage_errors(self._path),
            open(
                os.path.join(self._work, _LABELS),
                "x",
                encoding="utf-8",
                errors="surrogateescape",
                newline="",
            ) as file,
        ):
            rows = csv.writer(file)
            rows.writerow(["path", "label"])
            yield rows


class Names:
    """The names that were given so far, 16 bytes each, to say which two cannot both be."""

    def __init__(self) -> None:
        self._hashes, self._samples = array("Q"), array("Q")
        self._folders: dict[int, int] = {}  # hash of its name, and the first sample in it
        self._last = b""

    def add(self, name: bytes, sample: int) -> None:
        """Note a name and the folders in it."""
        self._hashes.append(xxhash.xxh3_64_intdigest(name))
        self._samples.append(sample)
        parent = os.path.dirname(name)
        if parent == self._last:
            return
        self._last = parent
        while parent:
            self._folders.setdefault(xxhash.xxh3_64_intdigest(parent), sample)
            parent = os.path.dirname(parent)

    def require_room_for_all(self, source: Store) -> None:
        """Raise an error if a file would have the name of another, or of a folder."""
        hashes = np.frombuffer(self._hashes, np.uint64)
        folders = np.fromiter(self._folders, np.uint64, len(self._folders))
        order = np.argsort(hashes, kind="stable")
        twice = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        if twice.size:
            first, second = (self._samples[order[twice[0] + n]] for n in (0, 1))
            what = "would have the same name"
        else:
            both = np.flatnonzero(np.isin(hashes, folders))
            if not both.size:
                return
            first = self._samples[both[0]]
            second = self._folders[int(hashes[both[0]])]
            what = "cannot both be files: the one is a folder of the other"
        keys = [printable(source.key(sample)) for sample in (first, second)]
        raise StoreFormatError(
            f"{source.path}: sample {first} ('{keys[0]}') and sample {second} ('{keys[1]}') {what}",
            path=source.path,
            sample=second,
            key=source.key(second),
        )


def inside(source: Store, index: int) -> bytes:
    """Return the key of a sample as a path that stays in the folder.

    Raises:
        StoreFormatError: It would lead out of it.
    """
    key = source.key(index)
    name = os.fsencode(key)
    outside = b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/"))
    if outside or (os.name == "nt" and any(c in name for c in b"\\:")):
        raise StoreFormatError(
            f"{source.path}: the key '{printable(key)}' of sample {index} is not a path inside a "
            "folder",
            path=source.path,
            sample=index,
            key=key,
        )
    return name


def with_suffix(name: bytes, suffix: bytes) -> bytes:
    """Return a path with something at its end; a name that would be too long is cut before it."""
    room = len(name) - len(name.rpartition(b"/")[2]) + _LONGEST_NAME - len(suffix)
    while room < len(name) and 0x80 <= name[room] < 0xC0:  # in the middle of a letter of UTF-8
        room -= 1
    return name[:room] + suffix
