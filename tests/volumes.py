"""Volumes to pack: small files of known content, written by nibabel or byte by byte."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
import numpy.typing as npt
from packing import events

from sharedds.ingest import PackReport, pack_volumes
from sharedds.store import Store

__all__ = [
    "Array",
    "failed",
    "grids",
    "idx",
    "labels_of",
    "nib",
    "nifti",
    "packed",
    "raw_nifti",
    "sform",
    "sparse_nifti",
    "stored",
]

Array = npt.NDArray[Any]

nib: Any = nibabel  # without types


def idx(shape: tuple[int, ...], dtype: npt.DTypeLike = "<i2") -> Array:
    """Return an array whose values name the voxel: i + 40 j + 1600 k."""
    i, j, k = np.indices(shape)
    named: Array = i + 40 * j + 1600 * k
    return named.astype(dtype)


def nifti(path: Path, array: Array, affine: Array | None = None, **header: Any) -> Path:
    """Write a file with nibabel; fields of the header by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(array, np.eye(4) if affine is None else affine)
    for name, value in header.items():
        image.header[name] = value
    nib.save(image, path)
    return path


def sform(affine: Array) -> dict[str, Any]:
    """Return the header fields of a placement."""
    return {"srow_x": affine[0], "srow_y": affine[1], "srow_z": affine[2], "sform_code": 1}


def raw_nifti(
    path: Path,
    array: Array,
    *,
    order: Literal["<", ">"] = "<",
    qform: Array | None = None,
    **fields: Any,
) -> Path:
    """Write a file with the header exactly as given; nothing is repaired."""
    header = nib.Nifti1Header(endianness=order)
    header.set_data_dtype(array.dtype.newbyteorder(order))
    header.set_data_shape(array.shape)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    header["scl_slope"], header["scl_inter"] = 1, 0
    header["pixdim"][1:4], header["xyzt_units"] = 1, 2
    if qform is not None:
        header.set_qform(qform, 1)
    for name, value in fields.items():
        header[name] = value
    voxels = array.astype(array.dtype.newbyteorder(order)).tobytes("F")
    data = header.binaryblock + bytes(4) + voxels
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def sparse_nifti(path: Path, shape: tuple[int, int, int], value: int = 7) -> Path:
    """Write a file of zeros that takes no room on the disk; its last voxel has a value."""
    raw_nifti(path, np.zeros((1, 1, 1), "<i2"), dim=[3, *shape, 1, 1, 1, 1])
    size = 352 + int(np.prod(shape, dtype=np.int64)) * 2
    os.truncate(path, size)
    with open(path, "r+b") as file:
        file.seek(size - 2)
        file.write(value.to_bytes(2, "little"))
    return path


def stored(report: PackReport, key: str, field: str = "image") -> Any:
    """Return the array of a case."""
    store = Store(report.path)
    return store.array(store.index_of(key), field)


def labels_of(report: PackReport, key: str) -> dict[int, int]:
    """Return how many voxels of each class a store says that a case has."""
    attrs = stored(report, key, "label").attrs
    return dict(zip(attrs["classes"], attrs["voxels"], strict=True))


def packed(place: Path, **options: Any) -> PackReport:
    """Pack ``place/src``; nothing gets lost without a word."""
    options.setdefault("codec", "lz4")
    report = pack_volumes(place / "src", place / "out.lmdb", force=True, **options)
    assert report.stored_files + report.failed_files + report.left_out_count == report.files
    assert report.failed_count == sum(line["event"] == "failed" for line in events(report.report))
    assert not (place / "out.lmdb.scratch").exists()
    return report


def failed(report: PackReport) -> dict[str, str]:
    """Return why each file was refused."""
    return dict(report.failed)


def grids(place: Path) -> Array:
    """Write images and labels whose grids differ in all the ways that are met; return the label."""
    a = idx((30, 38, 12))
    lab: Array = (a % 7 == 0).astype("u1")
    same = np.array([[0.7, 0, 0, -12], [0, 0.7, 0, -15], [0, 0, 3, 40], [0, 0, 0, 1.0]])
    tiny, shift, flip = same.copy(), same.copy(), same.copy()
    tiny[0, 0], tiny[1, 3] = 0.70001, -15.00002
    shift[2, 3] = 46
    flip[0] = [-0.7, 0, 0, -12 + 0.7 * 29]
    sides = [1, 0.7, 0.7, 3, 0, 0, 0, 0]
    longer = np.pad(lab, ((0, 0), (0, 0), (0, 1)))
    cases: dict[str, tuple[Array, Array]] = {
        "same": (lab, same), "tiny": (lab, tiny), "shift": (lab, shift), "flip": (lab[::-1], flip),
        "long": (longer, same), "swap": (lab.transpose(1, 0, 2), same),
    }  # fmt: skip
    for name, (values, affine) in cases.items():
        raw_nifti(place / f"src/images/{name}.nii", a, **sform(same), pixdim=sides)
        raw_nifti(place / f"src/labels/{name}.nii", values, **sform(affine), pixdim=sides)
    raw_nifti(place / "src/images/bare.nii", a, **sform(same), pixdim=sides)
    raw_nifti(place / "src/labels/bare.nii", lab, sform_code=0, pixdim=sides)
    return lab
