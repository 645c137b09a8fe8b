"""Writes a store of volumes back to NIfTI files: the stored voxels, factors and geometry."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from typing import IO, Any, Literal

from sharedds.errors import (
    OptionError,
    SampleKeyError,
    SourceError,
    StoreFormatError,
)
from sharedds.ingest.exports.folder import (
    TAKEN,
    ExportReport,
    Names,
    NewFolder,
    inside,
    with_suffix,
)
from sharedds.ingest.exports.nifti import (
    NiftiVolume,
    header_bytes,
    header_classes,
    separate_channels,
    slabs,
)
from sharedds.progress import Progress
from sharedds.store import ChunkedArray, Store

__all__ = ["Suffix", "export_volumes", "holds_volumes"]

Suffix = Literal[".nii", ".nii.gz"]

_FOLDERS = {"image": b"images/", "label": b"labels/"}
_LEVEL = 3  # of gzip: most of what 9 gains, in a quarter of the time


def holds_volumes(source: Store) -> bool:
    """Return whether a store was packed from volumes."""
    blocks = {field.name for field in source.header.fields if field.kind == "blocks"}
    return source.attrs.get("kind") == "volume" and "image" in blocks


def export_volumes(
    source: Store,
    path: str,
    *,
    field: str | None = None,
    labels: bool = False,
    suffix: Suffix = ".nii.gz",
    dry_run: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write images to ``images/`` and labels to ``labels/`` of a new folder, as NIfTI.

    Voxels, dtype, slope and intercept are those of the store (float16 becomes float32 and bool
    uint8, which NIfTI has). The affine is the sform, bit for bit; also the qform where its axes are
    orthogonal; lengths are in mm. A file is NIfTI-1 if that can hold all of this exactly, else
    NIfTI-2, whose numbers have 64 bits: most affines that come from DICOM need it.

    Channels that were files of their own become files again, ``CASE_0000``, ``CASE_0001``, ...; any
    other fourth axis comes last in one file, with the seconds of a step where it is time. Names of
    channels and classes go to ``dataset.json``. The folder appears when it is whole.

    Memory: a slab of slices at a time, of 16 MB or of one layer of blocks.

    Args:
        source: A store of volumes.
        path: The folder to make, which does not exist or is empty.
        field: ``"image"`` or ``"label"``, to write only these.
        labels: Raise an error if there are no labels.
        suffix: ``".nii.gz"``, or ``".nii"`` for files that others may map.
        dry_run: Read and compress everything; nothing is written.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        MissingExtraError: nibabel is not installed.
        OptionError: No labels to write, or no such suffix.
        SampleKeyError: There is no such field of volumes.
        StoreFormatError: A key would lead out of the folder, or two would have the same name.
        CorruptDataError: A block fails its checksum; nothing appears under the final name.
        StorageFullError: No room.
    """
    if suffix not in (".nii", ".nii.gz"):
        raise OptionError(f"suffix={suffix!r}: use '.nii' or '.nii.gz'")
    present = [f.name for f in source.header.fields if f.kind == "blocks" and f.name in _FOLDERS]
    if field is not None and field not in present:
        raise SampleKeyError(
            f"{source.path}: no volumes in a field {field!r}; fields of volumes: "
            f"{', '.join(present)}",
            path=source.path,
            field=field,
        )
    if labels and "label" not in present:
        raise OptionError(
            f"{source.path}: no labels in it to write", path=source.path, field="label"
        )
    with contextlib.ExitStack() as stack:
        # Before the folder is made: nothing is left behind where nibabel is missing.
        header_classes()
        out = None if dry_run else stack.enter_context(NewFolder(path))
        bar = stack.enter_context(
            Progress("exporting", total=len(source), unit="cases", enabled=progress)
        )
        work = _Export(source, out, suffix.encode(), bar)
        for index in range(len(source)):
            for name in present if field is None else [field]:
                work.case(index, name)
            bar.advance(1)
        if out is None:
            work.names.require_room_for_all(source)
        work.describe()
    return ExportReport(
        path=path, files=work.files, empty=work.empty, bytes=work.bytes, dry_run=dry_run
    )


class _Export:
    """An export under way."""

    def __init__(self, source: Store, out: NewFolder | None, suffix: bytes, bar: Progress) -> None:
        self.names = Names()
        self.files = self.empty = self.bytes = 0
        self._source, self._out, self._suffix, self._bar = source, out, suffix, bar
        self._channels: set[tuple[str, ...]] = set()

    def case(self, index: int, field: str) -> None:
        """Write one field of one case."""
        try:
            array = self._source.array(index, field)
        except SampleKeyError:  # no label in this case
            self.empty += 1
            return
        if not 3 <= array.ndim <= 4:
            raise StoreFormatError(
                f"{self._source.path}: sample {index}, field {field!r} has the shape "
                f"{array.shape}; a volume has 3 axes, or 4",
                path=self._source.path,
                sample=index,
                field=field,
            )
        name = _FOLDERS[field] + inside(self._source, index)
        channels = separate_channels(array)
        if field == "image":
            self._channels.add(channels)
        if not channels:
            self._write(name, index, array, range(array.shape[0] if array.ndim == 4 else 1))
            return
        for number in range(len(channels)):
            self._write(name, index, array, range(number, number + 1), b"_%04d" % number)

    def _write(
        self, name: bytes, index: int, array: ChunkedArray, steps: range, ending: bytes = b""
    ) -> None:
        name = with_suffix(name, ending + self._suffix)
        self.names.add(name, index)
        try:
            volume = NiftiVolume.of(array, steps)
        except (TypeError, ValueError) as error:
            raise StoreFormatError(
                f"{self._source.path}: sample {index}: what is kept with the volume is damaged "
                f"({error})",
                path=self._source.path,
                sample=index,
            ) from error
        try:
            with self._sink(name) as sink:
                with (
                    _zipped(sink)
                    if self._suffix == b".nii.gz"
                    else contextlib.nullcontext(sink) as file
                ):
                    file.write(header_bytes(volume))
                    for data in slabs(array, volume):
                        file.write(data)
                        self._bar.advance(0, nbytes=len(data))
                        # Pages of the store that were read would count as memory of this process.
                        self._source.release()
                self.files, self.bytes = self.files + 1, self.bytes + sink.written
        except SourceError as error:
            if isinstance(error.__cause__, TAKEN):
                self.names.require_room_for_all(self._source)
            raise

    @contextlib.contextmanager
    def _sink(self, name: bytes) -> Iterator[_Sink]:
        if self._out is None:
            yield _Sink(None)
            return
        with self._out.create(name) as file:
            yield _Sink(file)

    def describe(self) -> None:
        """Write the names of channels and classes, where there are any."""
        names = self._source.attrs.get("class_names")
        classes = names if isinstance(names, dict) else {}
        channels = self._channels.pop() if len(self._channels) == 1 else ()
        if self._out is None or not (classes or channels):
            return
        numbers = {str(name): int(number) for number, name in classes.items() if _whole(number)}
        facts: dict[str, Any] = {
            "channel_names": {str(number): name for number, name in enumerate(channels)},
            "labels": numbers if len(numbers) == len(classes) else classes,
            "numTraining": len(self._source),
            "file_ending": self._suffix.decode(),
        }
        text = json.dumps({name: value for name, value in facts.items() if value}, indent=1)
        self._out.write(b"dataset.json", text.encode())


class _Sink:
    """What a file is written to; it counts, and goes nowhere in a dry run."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self.written = 0
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        if self._file is not None:
            self._file.write(data)
        self.written += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""


def _zipped(sink: _Sink) -> gzip.GzipFile:
    # No name and no time in it: the same volumes are the same files.
    return gzip.GzipFile("", "wb", _LEVEL, fileobj=sink, mtime=0)


def _whole(number: object) -> bool:
    return str(number).removeprefix("-").isdecimal()
