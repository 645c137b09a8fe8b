"""Writes a store back to a folder: the stored bytes of each image under its key."""

from __future__ import annotations

import contextlib
import csv
import os
import secrets
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash

from sharedds.codecs import encode_image, sniff
from sharedds.errors import (
    OptionError,
    SampleKeyError,
    SharedDSError,
    SourceError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.handles import absolute_path, storage_errors
from sharedds.progress import Progress
from sharedds.store import Store
from sharedds.text import printable

__all__ = ["ExportReport", "export"]

_SUFFIXES = {
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "png": (".png",),
    "webp": (".webp",),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
}
_LONGEST_NAME = 255
_LABELS = b"labels.csv"
_TAKEN = (FileExistsError, NotADirectoryError, IsADirectoryError)


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


def export(
    store: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    field: str = "image",
    labels: bool = False,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write one field of every sample to a folder, byte for byte as it is stored.

    A store packed with ``codec="keep"`` gives back identical files under identical names. Raw
    pixels become PNG. Where the content is of another format than the name says (after encoding
    anew), the right extension is added to the name. The folder appears when it is whole.

    Args:
        store: The store.
        folder: The folder to make; it must not exist, or be empty.
        field: The field to write.
        labels: Also write ``labels.csv`` with the columns path and label.
        dry_run: Read and check everything; nothing is written.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        StoreExistsError: The folder exists and is not empty.
        CorruptDataError: A value fails its checksum; nothing appears under the final name.
        StorageFullError: No room.
        StoreFormatError: A key would lead out of the folder, or two cannot both be files.
        OptionError: There are no labels to write.
        SampleKeyError: There is no such field, or it does not hold pictures or bytes.
    """
    source = Store(store)
    path = absolute_path(folder)
    usable = os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)
    if os.path.lexists(path) and not usable:
        raise StoreExistsError(
            f"{printable(path)} exists and is not an empty folder; name another one", path=path
        )
    kinds = {f.name: f.kind for f in source.header.fields}
    if field not in kinds:
        raise SampleKeyError(
            f"{source.path}: no field {field!r}; fields: {', '.join(kinds)}",
            path=source.path,
            field=field,
        )
    if labels and kinds.get("label") != "column":
        raise OptionError(
            f"{source.path}: no labels in it to write", path=source.path, field="label"
        )
    files = empty = total = 0
    names = _Names()
    with contextlib.ExitStack() as stack:
        out = None if dry_run else stack.enter_context(_NewFolder(path))
        table = stack.enter_context(out.table()) if out is not None and labels else None
        bar = stack.enter_context(
            Progress("exporting", total=len(source), unit="files", enabled=progress)
        )
        for index in range(len(source)):
            data = _bytes_of(source, field, index)
            if data is None:
                empty += 1
            else:
                name = _name(source, index, data)
                names.add(name, index)
                if out is not None:
                    try:
                        out.write(name, data)
                    except SourceError as error:
                        if isinstance(error.__cause__, _TAKEN):
                            names.require_room_for_all(source)
                        raise
                if table is not None:
                    table.writerow([os.fsdecode(name), _label(source, index)])
                files, total = files + 1, total + len(data)
            bar.advance(1, nbytes=0 if data is None else len(data))
        if out is None:
            names.require_room_for_all(source)
    return ExportReport(path=path, files=files, empty=empty, bytes=total, dry_run=dry_run)


class _NewFolder:
    """A folder that gets its name when it is whole; it is removed if that fails.

    Until then its name is one that nobody else has, so that nothing of anybody's is overwritten.
    A folder that is there already, and empty, stays: it may be where a shell or a mount is.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._work = os.fsencode(f"{path}.exporting-{secrets.token_hex(4)}")
        self._made = b""

    def __enter__(self) -> _NewFolder:
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
        path = os.path.join(self._work, name)
        parent = os.path.dirname(path)
        try:
            with storage_errors(self._path):
                if parent != self._made:
                    os.makedirs(parent, exist_ok=True)
                    self._made = parent
                with open(path, "xb") as file:
                    file.write(data)
        except OSError as error:
            if error.errno is None:  # StorageFullError says it all
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


class _Names:
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


def _label(source: Store, index: int) -> str:
    number, classes = int(source.column("label")[index]), source.classes
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def _bytes_of(source: Store, field: str, index: int) -> bytes | memoryview | None:
    kinds = {f.name: f.kind for f in source.header.fields}
    if kinds[field] == "image":
        try:
            return source.read(field, index)
        except SampleKeyError:
            return None
    value = source.value(field, index)
    if isinstance(value, np.ndarray) and value.ndim in (2, 3) and value.size:
        try:
            return encode_image(value, "png")
        except SharedDSError as error:
            key = source.key(index)
            raise type(error)(
                f"{source.path}: sample {index} ({printable(key)}), field {field!r}: {error}",
                path=source.path,
                sample=index,
                key=key,
                field=field,
            ) from error
    if value is None or isinstance(value, bytes):
        return value
    raise SampleKeyError(
        f"{source.path}: field {field!r} holds {kinds[field]}, not pictures or bytes; "
        "read it in Python",
        path=source.path,
        field=field,
    )


def _name(source: Store, index: int, data: bytes | memoryview) -> bytes:
    """Return the path of a sample in the folder, with the extension of what is stored."""
    key = source.key(index)
    name = os.fsencode(key)
    parts = name.split(b"/")
    outside = b"\0" in name or any(part in (b"", b".", b"..") for part in parts)
    if outside or (os.name == "nt" and any(c in name for c in b"\\:")):
        raise StoreFormatError(
            f"{source.path}: the key '{printable(key)}' of sample {index} is not a path inside a "
            "folder",
            path=source.path,
            sample=index,
            key=key,
        )
    suffixes = _SUFFIXES.get(sniff(data), ())
    recipe = source.attrs.get("recipe")
    kept = source.header.keyed and (not isinstance(recipe, dict) or recipe.get("codec") == "keep")
    if kept or not suffixes or os.path.splitext(key)[1].lower() in suffixes:
        return name
    suffix = suffixes[0].encode()
    room = len(name) - len(parts[-1]) + _LONGEST_NAME - len(suffix)
    return name[:room] + suffix
