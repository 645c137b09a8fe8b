"""Arrays saved by NumPy: ``.npy`` is mapped, the array of an ``.npz`` is unpacked; never unpickled.

They say nothing of where a volume is, so there is no affine and no spacing. Axes are taken so:

* 2-D is one slice, (i, j, 1);
* 3-D is (i, j, k);
* 4-D is (channels, i, j, k) if the first axis is shorter than every other one; a first axis of
  length 1 is dropped; any other 4-D array is refused, because nothing tells what its axes are.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from sharedds.errors import DecodeError, SourceError
from sharedds.volumes.source import VolumeData, VolumeHeader
from sharedds.volumes.streams import MOST_INFLATED, mapped_voxels, unpacked_voxels
from sharedds.volumes.voxels import Layout

__all__ = ["NumpyFile", "recognise_npy", "recognise_npz"]

_PIECE = 1 << 20
_HEAD = 64 << 10  # more than any header of a plain array
_FIRST = ("image", "data", "arr_0")  # what the volume is called beside other arrays


@dataclass(frozen=True, slots=True)
class NumpyFile:
    """A saved array whose header is read and checked.

    Attributes:
        header: What is known of it.
        layout: Where the values lie in the content.
        member: Of the ``.npz``; None for a ``.npy``.
    """

    header: VolumeHeader
    layout: Layout
    member: str | None = None

    def open(self, scratch: Path) -> AbstractContextManager[VolumeData]:
        """Open the values; those of an ``.npz`` are unpacked once into ``scratch``.

        Raises:
            DecodeError: It is cut short or damaged.
            SourceError: It cannot be read.
            StorageFullError: There is no room in ``scratch``.
        """
        path = Path(self.header.path)
        if self.member is None:
            return mapped_voxels(path, self.layout)
        return unpacked_voxels(path, _member(path, self.member), self.layout, scratch)


def recognise_npy(path: Path, head: bytes) -> NumpyFile | None:
    """Return the array of a ``.npy`` file, or None if it is none.

    Args:
        path: The file.
        head: Its first bytes.

    Raises:
        DecodeError: It is damaged, cut short, or its array is no volume.
        SourceError: It cannot be read.
    """
    if not head.startswith(b"\x93NUMPY"):
        return None
    try:
        with open(path, "rb") as file:
            start = file.read(_HEAD)
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    return _described(path, str(path), start, size, size)


def recognise_npz(path: Path, head: bytes) -> NumpyFile | None:
    """Return the one array of an ``.npz`` file, or None if it is no archive of arrays.

    Of several arrays the one called ``image``, ``data`` or ``arr_0`` is taken if there is one of
    these names only; a remark names the others.

    Raises:
        DecodeError: It is damaged, has several arrays, or its array is no volume.
        SourceError: It cannot be read.
    """
    if not head.startswith(b"PK\x03\x04"):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            if not infos or not all(name.endswith(".npy") for name in infos):
                return None
            chosen, remarks = _chosen(path, [name[: -len(".npy")] for name in infos])
            info = infos[chosen + ".npy"]
            with archive.open(info) as file:
                start = file.read(_HEAD)
        size = path.stat().st_size
    except DecodeError:
        raise
    except Exception as error:  # any: each way to compress raises errors of its own
        if path.suffix.lower() != ".npz" and not getattr(error, "errno", None):
            return None  # some other archive, and damaged; not ours to judge
        raise _unreadable(path, error) from error
    growth = MOST_INFLATED if info.compress_type == zipfile.ZIP_DEFLATED else 1
    most = info.file_size
    if info.compress_type in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        most = min(most, min(info.compress_size, size) * growth)
    name = f"{path}: the array {chosen!r}"
    return _described(path, name, start, most, size, member=info.filename, remarks=remarks)


def _chosen(path: Path, names: list[str]) -> tuple[str, tuple[str, ...]]:
    if len(names) == 1:
        return names[0], ()
    known = [name for name in names if name in _FIRST]
    listed = ", ".join(names)
    if len(known) != 1:
        raise DecodeError(
            f"{path}: holds {len(names)} arrays ({listed}); one is needed, or one that is called "
            f"{' or '.join(_FIRST)}: save each to a file of its own",
            path=str(path),
        )
    left = ", ".join(name for name in names if name != known[0])
    return known[0], (f"of its arrays {known[0]} is read, {left} left out",)


def _described(
    path: Path,
    name: str,
    start: bytes,
    most: int,
    nbytes: int,
    *,
    member: str | None = None,
    remarks: tuple[str, ...] = (),
) -> NumpyFile:
    """Return what an array header says, checked against the bytes there can be at ``most``."""
    shape, fortran, dtype, offset = _parsed(path, name, start)
    values = _values(path, name, dtype)
    spatial, steps, strides, axis = _axes(path, name, shape, values.itemsize, fortran=fortran)
    full = spatial if axis == "none" else (steps, *spatial)
    layout = Layout(offset=offset, dtype=values, shape=full, strides=strides)
    if most < layout.end:
        raise DecodeError(
            f"{name}: is cut short: {layout.end} bytes are expected from its header, {most} found; "
            "save it anew",
            path=str(path),
        )
    header = VolumeHeader(
        path=str(path),
        format="NumPy",
        shape=spatial,
        dtype=layout.native,
        affine=None,
        steps=steps,
        axis=axis,
        attrs={
            "file_dtype": dtype.newbyteorder("=").name,
            "byte_order": "big" if dtype.newbyteorder("=") != dtype else "little",
        },
        remarks=remarks,
        nbytes=nbytes,
    )
    return NumpyFile(header, layout, member)


def _parsed(
    path: Path, name: str, start: bytes
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether the first axis is the fastest, dtype, and where the values begin."""
    # Lengths that Python 2 wrote, such as 3L: NumPy reads them too, with a warning.
    file = io.BytesIO(re.sub(rb"(?<=\d)L(?=[,)])", b" ", start))
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format is for fields with names")
        found: tuple[Any, Any, Any] = read(file)
    except Exception as error:  # whatever a damaged literal gives
        text = str(error).partition("\n")[0]
        raise DecodeError(f"{name}: its header is damaged ({text})", path=str(path)) from error
    shape, fortran, dtype = found
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise DecodeError(f"{name}: its header is damaged: shape {shape}", path=str(path))
    return shape, fortran, dtype, file.tell()


def _values(path: Path, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that values are read as, or refuse it."""
    if dtype.hasobject:
        raise DecodeError(
            f"{name}: is an array of Python objects, which is never unpickled; save numbers",
            path=str(path),
        )
    if dtype.kind == "b":
        return np.dtype("u1")
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise DecodeError(
            f"{name}: its dtype {dtype} is not read; convert it to integers or float32",
            path=str(path),
        )
    return dtype


def _axes(
    path: Path, name: str, shape: tuple[int, ...], itemsize: int, *, fortran: bool
) -> tuple[tuple[int, int, int], int, tuple[int, ...], Literal["none", "channel"]]:
    """Return spatial shape, channels, strides, and what the channels are."""
    if 0 in shape:
        raise DecodeError(f"{name}: holds no values, its shape is {shape}", path=str(path))
    strides = [itemsize] * len(shape)
    order = range(len(shape)) if fortran else range(len(shape) - 1, -1, -1)
    step = itemsize
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    if len(shape) == 4 and shape[0] == 1:
        shape, strides = shape[1:], strides[1:]
    if len(shape) == 2:
        shape, strides = (*shape, 1), [*strides, itemsize]
    if len(shape) == 3:
        return (shape[0], shape[1], shape[2]), 1, tuple(strides), "none"
    if len(shape) == 4 and shape[0] < min(shape[1:]):
        return (shape[1], shape[2], shape[3]), shape[0], tuple(strides), "channel"
    raise DecodeError(
        f"{name}: has shape {shape}; 2-D is read as a slice, 3-D as (i, j, k), and 4-D as "
        "(channels, i, j, k) if the first axis is the shortest: transpose or split it",
        path=str(path),
    )


def _member(path: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            file: IO[bytes]
            with archive.open(member) as file:
                while piece := file.read(_PIECE):
                    yield piece
    except Exception as error:  # any: as above
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DecodeError | SourceError:
    if isinstance(error, OSError) and error.errno:
        return SourceError(f"{path}: cannot be read ({error.strerror})", path=str(path))
    text = str(error) or type(error).__name__
    return DecodeError(f"{path}: the archive is damaged ({text}); save it anew", path=str(path))
