"""Writes a store back to a folder: the stored bytes of each image under its key."""

from __future__ import annotations

import contextlib
import os

import numpy as np

from sharedds.codecs import encode_image, sniff
from sharedds.errors import (
    OptionError,
    SampleKeyError,
    SharedDSError,
    SourceError,
    StoreExistsError,
)
from sharedds.handles import absolute_path
from sharedds.ingest.exports.folder import (
    TAKEN,
    ExportReport,
    Names,
    NewFolder,
    inside,
    with_suffix,
)
from sharedds.ingest.exports.slide_panels import holds_slides
from sharedds.ingest.exports.slides import export_slides
from sharedds.ingest.exports.volumes import Suffix, export_volumes, holds_volumes
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


def export(
    store: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    field: str | None = None,
    labels: bool = False,
    suffix: Suffix | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write a store back to a folder: pictures byte for byte as they are stored, volumes as NIfTI.

    A store packed with ``codec="keep"`` gives back identical files under identical names. Raw
    pixels become PNG. Where the content is of another format than the name says (after encoding
    anew), the right extension is added to the name. The folder appears when it is whole.

    Of a store of volumes the folder holds ``images/CASE.nii.gz`` and ``labels/CASE.nii.gz`` with
    the stored voxels, factors and affine; ``volume_export`` says how. Of a store of slides it holds
    ``SLIDE.tif``, pyramids of tiles; ``slide_export`` says how.

    Args:
        store: The store.
        folder: The folder to make; it must not exist, or be empty.
        field: The field to write; by default ``image``, and of volumes also ``label``.
        labels: Also write ``labels.csv`` with the columns path and label. Labels of volumes are
            files, which are written anyway; there it only makes their absence an error.
        suffix: Of volumes, ``".nii.gz"`` (the default) or ``".nii"``.
        dry_run: Read and check everything; nothing is written.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        StoreExistsError: The folder exists and is not empty.
        CorruptDataError: A value fails its checksum; nothing appears under the final name.
        StorageFullError: No room.
        StoreFormatError: A key would lead out of the folder, or two cannot both be files.
        OptionError: There are no labels to write, or ``suffix`` is given for pictures.
        SampleKeyError: There is no such field, or it does not hold pictures or bytes.
        MissingExtraError: Volumes are written with nibabel, which is not installed.
    """
    source = Store(store)
    path = absolute_path(folder)
    usable = os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)
    if os.path.lexists(path) and not usable:
        raise StoreExistsError(
            f"{printable(path)} exists and is not an empty folder; name another one", path=path
        )
    if holds_volumes(source):
        return export_volumes(
            source,
            path,
            field=field,
            labels=labels,
            suffix=".nii.gz" if suffix is None else suffix,
            dry_run=dry_run,
            progress=progress,
        )
    if holds_slides(source) and suffix is None and field is None and not labels:
        return export_slides(source, path, dry_run=dry_run, progress=progress)
    if suffix is not None:
        raise OptionError(
            f"{source.path}: suffix={suffix!r} is for volumes; pictures keep their names",
            path=source.path,
        )
    field = "image" if field is None else field
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
    names = Names()
    with contextlib.ExitStack() as stack:
        out = None if dry_run else stack.enter_context(NewFolder(path))
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
                        if isinstance(error.__cause__, TAKEN):
                            names.require_room_for_all(source)
                        raise
                if table is not None:
                    table.writerow([os.fsdecode(name), _label(source, index)])
                files, total = files + 1, total + len(data)
            bar.advance(1, nbytes=0 if data is None else len(data))
        if out is None:
            names.require_room_for_all(source)
    return ExportReport(path=path, files=files, empty=empty, bytes=total, dry_run=dry_run)


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
    name = inside(source, index)
    suffixes = _SUFFIXES.get(sniff(data), ())
    recipe = source.attrs.get("recipe")
    kept = source.header.keyed and (not isinstance(recipe, dict) or recipe.get("codec") == "keep")
    if kept or not suffixes or os.path.splitext(source.key(index))[1].lower() in suffixes:
        return name
    return with_suffix(name, suffixes[0].encode())
