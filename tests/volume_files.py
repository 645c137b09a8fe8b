"""Volume files for tests, byte by byte: headers are exactly as given, nothing is repaired."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sharedds.volumes import VolumeFile, recognise

Array = npt.NDArray[Any]

SFORM = np.array([[2, 0, 0, -28], [0, 2, 0, -38], [0, 0, 2, -16], [0, 0, 0, 1.0]])
MIRRORED = np.array([[-2, 0, 0, 30], [0, 2, 0, -40], [0, 0, 2, -16], [0, 0, 0, 1.0]])


def numbered(shape: tuple[int, int, int], dtype: str = "<i2") -> Array:
    """Return an array whose values name their voxels: i + 40 j + 1600 k."""
    i, j, k = np.indices(shape)
    return np.asarray(i + 40 * j + 1600 * k).astype(dtype)


def nifti_bytes(
    array: Array,
    *,
    order: Literal["<", ">"] = "<",
    version: int = 1,
    qform: Array | None = None,
    sform: Array | None = None,
    **fields: Any,
) -> bytes:
    """Return a single NIfTI file with spacing 1 mm, no placement unless given."""
    import nibabel

    kind: Any = nibabel.Nifti1Header if version == 1 else nibabel.Nifti2Header
    header = kind(endianness=order)
    stored = array.astype(array.dtype.newbyteorder(order))
    header.set_data_dtype(stored.dtype)
    header.set_data_shape(array.shape)
    offset = 352 if version == 1 else 544
    header["vox_offset"] = offset
    header["magic"] = b"n+1" if version == 1 else b"n+2\0\r\n\x1a\n"
    header["scl_slope"], header["scl_inter"] = 1, 0
    header["pixdim"][1:4], header["xyzt_units"] = 1, 2
    if qform is not None:
        header.set_qform(qform, 1)
    if sform is not None:
        header["srow_x"], header["srow_y"], header["srow_z"] = sform[:3]
        header["sform_code"] = 1
    for name, value in fields.items():
        header[name] = value
    return bytes(header.binaryblock) + bytes(4) + stored.tobytes("F")


def write_nifti(path: Path, array: Array, **fields: Any) -> Path:
    """Write what :func:`nifti_bytes` gives, compressed if the name says so."""
    data = nifti_bytes(array, **fields)
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
    return path


def volume(path: Path, **options: Any) -> VolumeFile:
    """Return a file that has to be recognised."""
    found = recognise(path, **options)
    assert found is not None
    return found


def voxels(file: VolumeFile, scratch: Path) -> Array:
    """Return all voxels, and check that nothing is left in the scratch folder."""
    before = set(scratch.iterdir())
    with file.open(scratch) as data:
        assert data.shape == file.header.full_shape
        found = data[tuple(slice(None) for _ in data.shape)]
        assert found.dtype == data.dtype == file.header.dtype
    assert set(scratch.iterdir()) == before
    return found
