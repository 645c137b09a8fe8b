"""Writes a store in another format: a folder of files, tars, Parquet or MDS."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, get_args

from sharedds.doors.mds_writing import write_mds
from sharedds.doors.outgoing import Outgoing
from sharedds.doors.parquet_writing import write_parquet
from sharedds.doors.tar_writing import write_tars
from sharedds.errors import OptionError, StoreExistsError
from sharedds.handles import absolute_path
from sharedds.ingest import export as export_folder
from sharedds.ingest.exports.folder import ExportReport, NewFolder
from sharedds.ingest.exports.volumes import Suffix
from sharedds.ingest.options import shown, whole
from sharedds.progress import Progress
from sharedds.store import Store
from sharedds.text import printable

__all__ = ["SHARD_SIZE", "ExportFormat", "export"]

ExportFormat: TypeAlias = Literal["folder", "webdataset", "parquet", "mds"]
_WRITERS = {"webdataset": write_tars, "parquet": write_parquet, "mds": write_mds}
SHARD_SIZE = 256 << 20


def export(
    store: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    to: ExportFormat = "folder",
    shard_size: int = SHARD_SIZE,
    field: str | None = None,
    labels: bool = False,
    suffix: Suffix | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write a store as files of a folder, or as another format; pictures keep their bytes.

    Args:
        store: The store.
        folder: The folder to make; it must not exist, or be empty. It appears when it is whole.
        to: ``"folder"``: what :func:`sharedds.ingest.export` writes. ``"webdataset"``,
            ``"parquet"`` or ``"mds"``: shards with all fields of pictures, labels and columns.
        shard_size: Of shards: about how many bytes each has at most.
        field: Of a folder: the field to write.
        labels: Of a folder: also write ``labels.csv``. Shards have them anyway.
        suffix: Of volumes in a folder: ``".nii.gz"`` or ``".nii"``.
        dry_run: Read and check everything; nothing is written.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        StoreExistsError: The folder exists and is not empty.
        CorruptDataError: A value fails its checksum; nothing appears under the final name.
        StorageFullError: No room.
        StoreFormatError: A key would lead out of the folder, or two cannot both be files.
        OptionError: An option of another format, or volumes or slides that are not for a folder.
        SampleKeyError: The store holds no pictures.
        MissingExtraError: Parquet is written with pyarrow, which is not installed.
    """
    if to not in get_args(ExportFormat):
        raise OptionError(f"to {shown(to)}: one of {', '.join(get_args(ExportFormat))}")
    if to == "folder":
        return export_folder(
            store,
            folder,
            field=field,
            labels=labels,
            suffix=suffix,
            dry_run=dry_run,
            progress=progress,
        )
    if field is not None or suffix is not None:
        raise OptionError(f"field and suffix are of folders; {to} holds all fields")
    size = whole("shard_size", shard_size, 1)
    source, path = Outgoing(Store(store)), absolute_path(folder)
    usable = os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)
    if os.path.lexists(path) and not usable:
        raise StoreExistsError(
            f"{printable(path)} exists and is not an empty folder; name another one", path=path
        )
    write = _WRITERS[to]
    with Progress("exporting", total=len(source), unit="samples", enabled=progress) as bar:
        if dry_run:
            files, total = write(source, None, shard_size=size, bar=bar)
        else:
            with NewFolder(path) as out:
                files, total = write(source, out, shard_size=size, bar=bar)
    return ExportReport(path=path, files=files, empty=0, bytes=total, dry_run=dry_run)
