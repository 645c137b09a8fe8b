"""Volumes with labels, made from a CT: bones, and the air inside of the body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt

__all__ = ["AIR", "BONE", "BONE_FROM", "read_body", "resized", "write_cases", "write_nifti"]

BONE, AIR = 1, 2
BONE_FROM, _AIR_TO = 180, -600  # HU
_NOISE, _OFFSET = 10.0, 20.0  # HU
_LEVEL = 1  # of gzip
_ORIGIN = (-180.0, 10.0, 90.0)

Floats = npt.NDArray[np.float32]
Body = npt.NDArray[np.bool_]


def read_body(data: Path) -> tuple[Floats, Body]:
    """Return a CT in HU, and which voxels are inside of the body.

    Args:
        data: A folder with a ``ct*.nii.gz`` and a ``ct*_seg.nii.gz`` of the same voxels; without
            them a body of ellipses is drawn.
    """
    labels = sorted(data.glob("ct*_seg.nii.gz"))
    if not labels:
        return _drawn()
    image: Any = nibabel.load(labels[0].with_name(labels[0].name.replace("_seg", "")))
    label: Any = nibabel.load(labels[0])
    return np.asarray(image.dataobj).astype(np.float32), np.asarray(label.dataobj) > 0


def resized(values: Floats, shape: tuple[int, int, int]) -> Floats:
    """Interpolate linearly to another shape."""
    for axis, size in enumerate(shape):
        position = np.linspace(0, values.shape[axis] - 1, size)
        low = np.minimum(position.astype(np.int64), values.shape[axis] - 2)
        share = (position - low).astype(np.float32)
        share = share.reshape([-1 if each == axis else 1 for each in range(3)])
        first, second = np.take(values, low, axis), np.take(values, low + 1, axis)
        values = first + (second - first) * share
    return values


def write_cases(
    data: Path,
    folder: Path,
    *,
    shape: tuple[int, int, int],
    count: int,
    endings: tuple[str, ...] = ("nii", "nii.gz"),
) -> None:
    """Write cases as pairs of NIfTI files, int16 and uint8, below a folder for each ending.

    They differ in noise, brightness and in which side is left.
    """
    small, is_body = read_body(data)
    ct = resized(small, shape)
    is_inside = resized(is_body.astype(np.float32), shape) > 0.5
    label = np.zeros(shape, np.uint8)
    label[is_inside & (ct > BONE_FROM)] = BONE
    label[is_inside & (ct < _AIR_TO)] = AIR
    spacing = [3.0 * before / after for before, after in zip(small.shape, shape, strict=True)]
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = _ORIGIN
    nibabel.openers.Opener.default_compresslevel = _LEVEL
    rng = np.random.default_rng(0)
    for number in range(count):
        noise = rng.standard_normal(shape, np.float32) * np.float32(_NOISE)
        noise += ct + np.float32(rng.uniform(-_OFFSET, _OFFSET))
        image, classes = np.rint(noise).astype(np.int16), label
        if number % 2:
            image, classes = image[::-1], classes[::-1]
        for ending in endings:
            for what, values in (("images", image), ("labels", classes)):
                place = folder / ending / what
                place.mkdir(parents=True, exist_ok=True)
                write_nifti(place / f"case{number:02}.{ending}", values, affine)


def write_nifti(path: Path, values: npt.NDArray[Any], affine: npt.NDArray[np.float64]) -> None:
    """Write a volume in millimetres."""
    make: Any = nibabel.Nifti1Image
    image = make(values, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def _drawn() -> tuple[Floats, Body]:
    """Return a body: tissue in air, with bones and lungs."""
    shape = (60, 50, 32)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij"), -1)
    is_body = np.square(grid / (0.9, 0.8, 2.0)).sum(-1) < 1
    values = np.where(is_body, 20, -1000).astype(np.float32)
    for middle, half, value in (
        ((0.0, -0.5, 0.0), (0.12, 0.15, 2.0), 400),
        ((0.4, 0.1, 0.4), (0.3, 0.4, 0.6), -850),
        ((-0.4, 0.1, 0.4), (0.3, 0.4, 0.6), -850),
        ((0.7, 0.0, -0.5), (0.08, 0.1, 0.5), 500),
        ((0.2, 0.3, -0.5), (0.3, 0.3, 0.4), 90),
    ):
        values[np.square((grid - middle) / half).sum(-1) < 1] = value
    return values, is_body
