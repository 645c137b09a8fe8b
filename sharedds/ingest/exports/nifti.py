"""What a NIfTI file of a stored volume is made of: its header, and slabs of voxels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import MissingExtraError
from sharedds.store import ChunkedArray
from sharedds.volumes.geometry import checked_affine, corner_distance, spacing_of

__all__ = ["NiftiVolume", "header_bytes", "header_classes", "separate_channels", "slabs"]

_SLAB = 16 << 20  # bytes of voxels that are worked on at once, where a layer of blocks is smaller
_LARGEST_SLAB = 128 << 20  # where it is larger, it is decoded several times instead
_MOST_NIFTI1 = 0x7FFF  # voxels along an axis
_TILE = 64
_LAST_SPACE = 5  # the largest code of a space in the standard
_BETTER = {"float16": "float32", "bool": "uint8"}  # which NIfTI does not know
_SLANT = 1e-4  # cosine between axes from which they are no longer taken to be orthogonal
_OFF = 1e-3  # of a voxel: how far a quaternion may place a corner away from the affine


def separate_channels(array: ChunkedArray) -> tuple[str, ...]:
    """Return the names of channels that were files of their own."""
    names = array.attrs.get("channels")
    listed = tuple(map(str, names)) if isinstance(names, list) else ()
    return listed if array.ndim == 4 and len(listed) == array.shape[0] else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiVolume:
    """What one file holds: some steps of an array.

    Attributes:
        steps: Which.
        shape: (i, j, k), or (i, j, k, steps).
        dtype: Of the voxels, little-endian.
        affine: (4, 4), or None.
        code: What the affine leads to: 1 a scanner, 2 another image, 4 a standard brain, ...
        slope, intercept: A measured value is ``stored * slope + intercept``.
        seconds: Between two moments, 0.0 where nobody knows; None where there are none.
    """

    steps: range
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: npt.NDArray[np.float64] | None
    code: int
    slope: float
    intercept: float
    seconds: float | None

    @classmethod
    def of(cls, array: ChunkedArray, steps: range) -> NiftiVolume:
        """Describe some steps of an array of a store.

        Raises:
            TypeError, ValueError: What is kept with the array is damaged, or is a slope of 0, which
                NIfTI takes for none.
        """
        attrs = array.attrs
        slope = float(attrs.get("slope", 1.0))
        if slope == 0:
            raise ValueError("its slope is 0")
        shape = array.shape[-3:]
        alone = array.ndim == 3 or (len(steps) == 1 and bool(separate_channels(array)))
        seconds = None
        if attrs.get("axis") == "time":
            seconds = float(attrs.get("step_seconds") or 0.0)
        return cls(
            steps=steps,
            shape=shape if alone else (*shape, len(steps)),
            dtype=np.dtype(_BETTER.get(array.dtype.name, array.dtype)).newbyteorder("<"),
            affine=None if array.affine is None else checked_affine(array.affine),
            code=_code(attrs),
            slope=slope,
            intercept=float(attrs.get("intercept", 0.0)),
            seconds=seconds,
        )

    @property
    def exact_in_32_bits(self) -> bool:
        """Whether NIfTI-1 can hold it."""
        numbers = [self.slope, self.intercept, self.seconds or 0.0]
        if self.affine is not None:
            numbers += self.affine.ravel().tolist()
        with np.errstate(over="ignore"):
            short = np.asarray(numbers, np.float64).astype(np.float32)
        return max(self.shape) <= _MOST_NIFTI1 and np.array_equal(short, numbers)


def header_classes() -> tuple[Any, Any]:
    """Return the classes of the headers of NIfTI-1 and NIfTI-2."""
    try:
        import nibabel  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(
            "volumes are written as NIfTI with nibabel, which is not installed; run "
            "pip install 'sharedds[medical]'"
        ) from error
    return nibabel.Nifti1Header, nibabel.Nifti2Header


def header_bytes(volume: NiftiVolume) -> bytes:
    """Return all that comes before the voxels in a file."""
    short, long = header_classes()
    kind, offset = (short, 352) if volume.exact_in_32_bits else (long, 544)
    header = kind(endianness="<")
    header.set_data_dtype(volume.dtype)
    header.set_data_shape(volume.shape)
    header["scl_slope"], header["scl_inter"] = volume.slope, volume.intercept
    header["vox_offset"] = offset
    if volume.affine is not None:
        affine = volume.affine
        if _orthogonal(affine):
            header.set_qform(affine, code=volume.code)
            off = corner_distance(header.get_qform(), affine, volume.shape[:3])
            if off > _OFF * min(spacing_of(affine)):
                header["qform_code"] = 0
        header["pixdim"][1:4] = spacing_of(affine)
        header.set_sform(affine, code=volume.code)
    if len(volume.shape) == 4:
        header["pixdim"][4] = volume.seconds or 0.0
    units = ("mm" if volume.affine is not None else None, "sec" if volume.seconds else None)
    header.set_xyzt_units(*units)
    data: bytes = header.binaryblock
    return data + bytes(offset - len(data))


def _code(attrs: Mapping[str, Any]) -> int:
    """Return the code of the space that a file said its affine leads to, else that of a scanner."""
    for name in ("sform_code", "qform_code"):
        code = attrs.get(name)
        if isinstance(code, int) and 1 <= code <= _LAST_SPACE:
            return code
    return 1


def _orthogonal(affine: npt.NDArray[np.float64]) -> bool:
    unit = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return bool(np.abs(unit.T @ unit - np.eye(3)).max() < _SLANT)


def slabs(array: ChunkedArray, volume: NiftiVolume) -> Iterator[memoryview]:
    """Yield the voxels in the order of the file: i fastest, then j, k and the steps.

    Slices along k are read as many at a time as blocks have, so that no block is decoded twice
    unless a layer of them is very large.
    """
    size, layer = array.shape[-1], array.chunk[-1]
    slice_bytes = max(1, array.shape[-3] * array.shape[-2] * array.dtype.itemsize)
    layers = max(1, _SLAB // (slice_bytes * layer))
    count = max(1, min(layers * layer, _LARGEST_SLAB // slice_bytes))
    for step in volume.steps:
        lead: Sequence[int] = (step,) if array.ndim == 4 else ()
        for start in range(0, size, count):
            values = array[(*lead, slice(None), slice(None), slice(start, start + count))]
            yield _first_axis_fastest(values, volume.dtype)


def _first_axis_fastest(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> memoryview:
    """Return the bytes of an array in Fortran order; tiles of it fit a processor's cache."""
    out = np.empty(values.shape, dtype, order="F")
    for i in range(0, values.shape[0], _TILE):
        for j in range(0, values.shape[1], _TILE):
            tile = (slice(i, i + _TILE), slice(j, j + _TILE))
            out[tile] = values[tile]
    return out.T.reshape(-1).view(np.uint8).data
