"""What a reader of volume files gives: a description first, then the voxels by region."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Affine", "VolumeData", "VolumeFile", "VolumeHeader"]

Affine = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHeader:
    """What is known of a volume before any voxel is read.

    Attributes:
        path: The file, or the folder of a series: for errors, never stored.
        format: ``"NIfTI-1"``, ``"NIfTI-2"``, ``"DICOM"``, ``"NRRD"``, ``"MetaImage"``, ``"NumPy"``.
        shape: Voxels along (i, j, k), the axes of the affine; for NIfTI the first three of the
            file, for DICOM column, row, and slice along the normal.
        steps: How many volumes of this shape there are: channels or moments; 1 for a plain one.
        axis: What the steps are; ``"none"`` for a plain volume.
        step_seconds: Between two moments, where known.
        dtype: Of the values as they are to be stored, little-endian.
        affine: (4, 4) float64 from (i, j, k, 1) to millimetres in RAS+; None where the file places
            the volume nowhere.
        slope, intercept: A measured value is ``stored * slope + intercept``.
        attrs: What else is worth keeping, as JSON: modality, photometric meaning, units, byte
            order, dtype of the file. Nothing that could identify a patient, and no path.
        remarks: What a person should be told; each is one sentence.
        nbytes: Of the files that hold it, for progress.
    """

    path: str
    format: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    affine: Affine | None
    steps: int = 1
    axis: Literal["none", "channel", "time"] = "none"
    step_seconds: float | None = None
    slope: float = 1.0
    intercept: float = 0.0
    attrs: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    nbytes: int = 0

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the voxels: (i, j, k), or (steps, i, j, k) where ``axis`` is not ``"none"``."""
        return self.shape if self.axis == "none" else (self.steps, *self.shape)


class VolumeData(Protocol):
    """The voxels of an open volume, read by regions; larger than memory if need be.

    Attributes:
        shape: As :attr:`VolumeHeader.full_shape`.
        dtype: As :attr:`VolumeHeader.dtype`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the voxels."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the voxels."""

    def __getitem__(self, region: tuple[slice, ...], /) -> npt.NDArray[Any]:
        """Return a region, one slice with step 1 for each axis, in the dtype of the volume."""


class VolumeFile(Protocol):
    """A volume that was recognised: its header is read and checked, its voxels are not."""

    @property
    def header(self) -> VolumeHeader:
        """What the file says of itself."""

    def open(self, scratch: Path) -> AbstractContextManager[VolumeData]:
        """Open the voxels.

        Args:
            scratch: A folder for what has to be unpacked first; nothing of it stays there after
                the block.

        Raises:
            DecodeError: The file is cut short or damaged; the text has both sizes.
            SourceError: It cannot be read.
        """
