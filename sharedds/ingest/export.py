"""Writes a store back to a folder: the stored bytes of each image under its key."""

from __future__ import annotations

import csv
import os
import shutil
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharedds.codecs import encode_image, sniff
from sharedds.errors import SampleKeyError, SourceError, StoreExistsError, StoreFormatError
from sharedds.handles import absolute_path, storage_errors
from sharedds.ingest.report import printable
from sharedds.progress import Progress
from sharedds.store import Store

__all__ = ["ExportReport", "export"]

_SUFFIXES = {
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "png": (".png",),
    "webp": (".webp",),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export wrote (or would write, with ``dry_run``)."""

    path: str
    files: int
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

    A store packed with ``codec="keep"`` gives back identical files under identical names. Raw pixels
    become PNG. Where the content is of another format than the name says (after encoding anew), the
    right extension is added to the name. The folder appears when it is whole.

    Args:
        store: The store.
        folder: The folder to make; it must not exist, or be empty.
        field: The field to write.
        labels: Also write ``labels.csv`` with the columns path and label.
        dry_run: Count only; nothing is written.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        StoreExistsError: The folder exists and is not empty.
        CorruptDataError: A value fails its checksum; nothing appears under the final name.
        StorageFullError: No room.
        StoreFormatError: A key would lead out of the folder.
    """
    source = Store(store)
    path = absolute_path(folder)
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise StoreExistsError(f"{path} exists and is not empty; name another folder", path=path)
    if field not in source.fields:
        raise SampleKeyError(
            f"{source.path}: no field {field!r}; fields: {', '.join(source.fields)}", path=source.path, field=field
        )
    work = f"{path}.partial"
    total = 0
    with Progress("exporting", total=len(source), unit="files", enabled=progress) as bar:
        try:
            names = _open_labels(work, enabled=labels and not dry_run)
            for index in range(len(source)):
                data = _bytes_of(source, field, index)
                name = _name(source, index, data)
                total += len(data)
                if not dry_run:
                    _write(os.path.join(os.fsencode(work), name), data)
                    if names is not None:
                        _write_label(names, source, index, name)
                bar.advance(1, nbytes=len(data))
            if names is not None:
                names.close()
            if not dry_run:
                os.makedirs(work, exist_ok=True)
                if os.path.isdir(path):
                    os.rmdir(path)
                os.rename(work, path)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return ExportReport(path=path, files=len(source), bytes=total, dry_run=dry_run)


def _open_labels(work: str, *, enabled: bool) -> Any:
    """Open ``labels.csv`` in the folder that is being written, or return None."""
    if os.path.isdir(work):
        shutil.rmtree(work)  # left by an export that was killed
    if not enabled:
        return None
    os.makedirs(work)
    file = open(  # noqa: SIM115 - closed by the caller at the end
        os.path.join(work, "labels.csv"), "w", encoding="utf-8", errors="surrogateescape", newline=""
    )
    csv.writer(file).writerow(["path", "label"])
    return file


def _write_label(file: Any, source: Store, index: int, name: bytes) -> None:
    number = int(source.column("label")[index])
    classes = source.classes
    label = classes[number] if classes is not None else str(number)
    csv.writer(file).writerow([name.decode("utf-8", "surrogateescape"), label])


def _bytes_of(source: Store, field: str, index: int) -> bytes | memoryview:
    kinds = {f.name: f.kind for f in source.header.fields}
    if kinds[field] == "image":
        return source.read(field, index)
    value = source.value(field, index)
    if isinstance(value, np.ndarray) and value.ndim in (2, 3):
        return encode_image(value, "png")
    if isinstance(value, bytes):
        return value
    raise SampleKeyError(
        f"{source.path}: field {field!r} holds {kinds[field]}, not pictures or bytes; read it in Python",
        path=source.path,
        field=field,
    )


def _name(source: Store, index: int, data: bytes | memoryview) -> bytes:
    name = os.fsencode(source.key(index))
    parts = name.split(b"/")
    if name.startswith(b"/") or b".." in parts or b"\0" in name or not all(parts) or b":" in name[:3]:
        raise StoreFormatError(
            f"{source.path}: the key {printable(source.key(index))!r} of sample {index} is not a path inside a "
            "folder",
            path=source.path,
            sample=index,
        )
    suffixes = _SUFFIXES.get(sniff(data), ())
    extension = os.path.splitext(source.key(index))[1].lower()
    original = source.attrs.get("recipe", {}).get("codec", "keep") == "keep" and source.header.keyed
    if not suffixes or extension in suffixes or original:
        return name
    return name + suffixes[0].encode()


def _write(path: bytes, data: bytes | memoryview) -> None:
    with storage_errors(os.fsdecode(path)):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
        except OSError as error:
            if error.filename is None:
                raise
            raise SourceError(f"{printable(os.fsdecode(path))}: cannot be written ({error.strerror})") from error
