"""Volumes straight from a folder of files that are not compressed: mapped, nothing is packed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sharedds.datasets.volume_sources import Integers, Values, VolumeCase, no_label
from sharedds.errors import (
    DecodeError,
    OptionError,
    SampleKeyError,
    SchemaError,
    SourceError,
    StoreChangedError,
)
from sharedds.handles import absolute_path, per_process
from sharedds.packed import MappedArray, PackedStrings
from sharedds.patches import Location
from sharedds.patches.cutting import Padding, cut
from sharedds.patches.location import Triple
from sharedds.store import holds_store, is_partial
from sharedds.volumes.opening import recognise
from sharedds.volumes.source import Affine, VolumeData, VolumeFile, VolumeHeader

__all__ = ["VolumeFiles", "is_volume_folder"]

_MAPPED_FORMATS = ("NIfTI-1", "NIfTI-2", "NumPy")
_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip"}
_MOST_OPEN = 32  # volumes that a process keeps open for a dataset
_SUFFIXES = (".nii", ".npy", ".img", ".hdr")


def is_volume_folder(source: str | os.PathLike[str]) -> bool:
    """Whether this is a folder of files, and not a store in a folder or an unfinished pack."""
    path = absolute_path(source)
    return os.path.isdir(path) and not holds_store(path) and not is_partial(path)


class VolumeFiles:
    """Volumes of a folder, found once; each process maps those it reads.

    Args:
        path: The folder; with two folders ``images`` and ``labels``, these are paired by name.

    Raises:
        SourceError: It cannot be listed, holds no volume, one that cannot be mapped, two of one
            name, or a label without an image.
        DecodeError: A file is damaged.
        SchemaError: A label has not the shape of its image.
    """

    counted = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = absolute_path(path)
        root = Path(self.path)
        images, labels = root / "images", root / "labels"
        is_paired = images.is_dir()
        self.labelled = is_paired and labels.is_dir()
        found = _volumes(images if is_paired else root)
        if not found:
            raise SourceError(
                f"{self.path}: no volume found; NIfTI (.nii) and .npy files can be read as they "
                "are, others are packed: sharedds pack DIR OUT --kind volume",
                path=self.path,
            )
        masks = _volumes(labels) if self.labelled else {}
        if strangers := sorted(masks.keys() - found.keys()):
            raise SourceError(
                f"{labels / strangers[0]}: a label without an image of that name", path=str(labels)
            )
        names = sorted(found)
        shapes = []
        for name in names:
            header = found[name].header
            if name in masks and masks[name].header.full_shape != header.shape:
                raise SchemaError(
                    f"{self.path}: case {name!r} has an image of {header.shape}, and a label of "
                    f"{masks[name].header.full_shape}",
                    path=masks[name].header.path,
                )
            shapes.append((header.steps, *header.shape))
        self._names = PackedStrings.build(names)
        self._images = PackedStrings.build(_inside(root, found[name]) for name in names)
        # An empty name stands for no label.
        self._labels = PackedStrings.build(
            _inside(root, masks[name]) if name in masks else "" for name in names
        )
        self._shapes = MappedArray.build(np.array(shapes, np.int64).reshape(-1))

    @property
    def advice(self) -> str:
        """What to do where classes have to be counted."""
        return "pack the folder, which counts them once: sharedds pack DIR OUT --kind volume"

    def __len__(self) -> int:
        return len(self._names)

    def digest(self) -> str:
        """Return a hash of names and shapes; what the files hold makes no difference."""
        shapes = xxhash.xxh3_64_hexdigest(self._shapes.array.data)
        return f"{self._images.digest} {self._labels.digest} {shapes}"

    def name(self, position: int) -> str:
        """Return the path of a case below the folder, without endings."""
        return self._names[position]

    def find(self, name: str) -> int:
        """Return the number of a case.

        Raises:
            SampleKeyError: There is none of that name.
        """
        for position, known in enumerate(self._names):
            if known == name:
                return position
        raise SampleKeyError(f"{self.path}: no case {name!r}", path=self.path, key=name)

    def group(self, position: int) -> None:
        """Return None: nobody said."""

    def shapes(self) -> Integers:
        """Return channels and voxels along (i, j, k) of each case."""
        found: Integers = self._shapes.array.reshape(-1, 4)
        return found

    def has_label(self, position: int) -> bool:
        """Whether a case has a label."""
        return bool(self._labels[position])

    @per_process
    def _opened(self) -> _Opened:
        return _Opened()

    def open(self, position: int) -> VolumeCase:
        """Return a case.

        Raises:
            SourceError: A file is not there any more.
            StoreChangedError: It has another shape than before.
        """
        return _MappedCase(self, position)

    def volume(self, position: int, *, label: bool) -> _Mapped:
        """Return an image or a label, mapped."""
        inner = (self._labels if label else self._images)[position]
        path = Path(self.path, inner)
        found = self._opened.get((position, label), path)
        header = found.header
        expected = tuple(self.shapes()[position, 1:].tolist())
        if header.shape != expected:
            raise StoreChangedError(
                f"{path}: has the shape {header.shape}, and had {expected} when the dataset was "
                "made; make the dataset anew",
                path=str(path),
            )
        return found

    def advise(self, numbers: Iterable[int]) -> None:
        """Do nothing: the system reads ahead of what is touched."""

    def release(self) -> None:
        """Do nothing: volumes that are not among the latest are let go of as a whole."""


def _inside(root: Path, volume: VolumeFile) -> str:
    return str(Path(volume.header.path).relative_to(root))


def _volumes(folder: Path) -> dict[str, VolumeFile]:
    """Return the volumes below a folder by name.

    Raises:
        SourceError: One cannot be mapped, or two have one name.
    """
    found: dict[str, VolumeFile] = {}
    for path in _files(folder):
        volume = recognise(path)
        if volume is None:
            continue
        _require_mappable(path, volume)
        name = _name(path.relative_to(folder))
        if name in found:
            if found[name].header.path == volume.header.path:
                continue  # the other file of a pair
            raise SourceError(
                f"{path}: the case {name!r} is in {found[name].header.path}, too", path=str(path)
            )
        found[name] = volume
    return found


def _files(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise SourceError(
            f"{error.filename}: cannot be listed ({error.strerror})", path=str(folder)
        ) from error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(place, name)


def _name(path: Path) -> str:
    text = path.as_posix()
    return text[:-4] if text.lower().endswith(_SUFFIXES) else text


def _require_mappable(path: Path, volume: VolumeFile) -> None:
    try:
        with open(getattr(volume, "data_path", path), "rb") as file:
            begin = file.read(2)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    packed = _PACKED.get(begin)
    if packed is not None or volume.header.format not in _MAPPED_FORMATS:
        how = f"is compressed ({packed})" if packed else f"is a {volume.header.format} file"
        raise SourceError(
            f"{path}: {how}; only NIfTI and .npy files that are not compressed can be read as they "
            "are. Pack the folder: sharedds pack DIR OUT --kind volume",
            path=str(path),
        )


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A volume that is open for as long as anybody has this."""

    header: VolumeHeader
    data: VolumeData
    stack: contextlib.ExitStack


class _Opened:
    """The volumes that a process used last."""

    def __init__(self) -> None:
        self._open: OrderedDict[Any, _Mapped] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Any, path: Path) -> _Mapped:
        """Return a volume; it is opened where it is not."""
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = _open(path)
                while len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return found


def _open(path: Path) -> _Mapped:
    volume = recognise(path) if path.exists() else None
    if volume is None:
        raise SourceError(f"{path}: is not there any more, or no volume", path=str(path))
    _require_mappable(path, volume)
    stack = contextlib.ExitStack()
    # Nothing has to be unpacked, so that no place for it is needed.
    data = stack.enter_context(volume.open(path.parent))
    return _Mapped(volume.header, data, stack)


class _MappedCase:
    """A case of a folder."""

    def __init__(self, files: VolumeFiles, position: int) -> None:
        self._files = files
        self._position = position
        self._image = files.volume(position, label=False)
        self._header = self._image.header
        self.shape: Triple = self._header.shape
        self.channels = self._header.steps
        self.dtype = self._header.dtype

    @property
    def name(self) -> str:
        """What the case is called."""
        return self._files.name(self._position)

    @property
    def affine(self) -> Affine | None:
        """From voxels to millimetres."""
        return self._header.affine

    @property
    def classes(self) -> tuple[int, ...]:
        """Nothing: nobody has counted them."""
        raise self._uncounted()

    def voxels(self, class_id: int) -> int:
        """Return nothing: nobody has counted them."""
        raise self._uncounted()

    def locate(self, class_id: int, number: int) -> Triple:
        """Return nothing: nobody has counted them."""
        raise self._uncounted()

    def _uncounted(self) -> OptionError:
        return OptionError(f"{self._files.path}: {self._files.advice}", path=self._files.path)

    def blocks(self, location: Location, label: Location | None) -> list[int]:
        """Return nothing to advise."""
        return []

    def read_image(
        self, location: Location, out: Values, *, scaled: bool, padding: Padding, fill: float
    ) -> None:
        """Write a part of the image into (channels, i, j, k)."""
        header = self._header
        scale = (header.slope, header.intercept) if scaled else None
        data = self._image.data
        target = out if len(data.shape) == 4 else out[0]
        cut(data, location.start, target, padding=padding, fill=fill, scale=scale)

    def read_label(self, location: Location, out: Values, *, padding: Padding, fill: int) -> None:
        """Write a part of the label into (i, j, k).

        Raises:
            SchemaError: There is no label.
            DecodeError: It holds values that are no whole numbers, or too large.
        """
        if not self._files.has_label(self._position):
            raise no_label(self._files.path, self._position, self.name)
        label = self._files.volume(self._position, label=True)
        header, data = label.header, label.data
        fits = header.dtype.kind in "iub" and np.can_cast(header.dtype, out.dtype)
        if fits and (header.slope, header.intercept) == (1.0, 0.0):
            cut(data, location.start, out, padding=padding, fill=fill)
            return
        values = np.empty(out.shape, np.float64)
        scale = (header.slope, header.intercept)
        cut(data, location.start, values, padding=padding, fill=fill, scale=scale)
        with np.errstate(invalid="ignore"):
            out[...] = np.rint(values)
        if not np.array_equal(out, values):
            raise DecodeError(
                f"{header.path}: the label holds values that are no whole numbers of {out.dtype}, "
                f"such as {values[out != values][0]:g}",
                path=header.path,
                sample=self._position,
                key=self.name,
                field="label",
            )
