"""Labels: whole numbers, of the grid of their image, counted block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError
from sharedds.ingest.volumes.scan import SAME_PLACE
from sharedds.ingest.volumes.slabs import Slabs, along_file
from sharedds.volumes.geometry import (
    corner_distance,
    is_mirrored,
    orientation_of,
    reorientation,
    reoriented_affine,
    spacing_of,
)
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["GridMatch", "LabelFacts", "WholeNumbers", "compare_grids", "count_label"]

TOLERANCE = 0.01
"""A scaled label may be so far from a whole number: it was stored through a scale factor."""

_COUNTED = 1 << 16
_MANY_CLASSES = 1_000_000
_DTYPES = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFacts:
    """What was counted in a label.

    Attributes:
        dtype: The smallest that holds every class, signed where one is negative.
        classes: int64, the ids present, sorted.
        voxels: int64, how many voxels each has.
        rows: int64, how many rows of ``blocks`` are of each.
        blocks: int64 (n, 2): number of a block, voxels of the class in it; class after class, in
            each by number of the block.
    """

    dtype: np.dtype[Any]
    classes: npt.NDArray[np.int64]
    voxels: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]

    def attrs(self) -> dict[str, Any]:
        """Return what is kept with the label, as JSON."""
        return {
            "classes": self.classes.tolist(),
            "voxels": self.voxels.tolist(),
            "rows": self.rows.tolist(),
        }


class WholeNumbers:
    """A label as whole numbers, whatever its file holds.

    Args:
        data: The stored values, (i, j, k).
        header: Their description; its slope and intercept are applied, then values are rounded.
        dtype: Of the result.

    Attributes:
        shape: Of ``data``.
        dtype: As given.
    """

    def __init__(self, data: VolumeData, header: VolumeHeader, dtype: np.dtype[Any]) -> None:
        self._data = data
        self._header = header
        self.shape = tuple(data.shape)
        self.dtype = dtype

    @property
    def error(self) -> BaseException | None:
        """What the last read failed with."""
        error: BaseException | None = getattr(self._data, "error", None)
        return error

    def __getitem__(self, region: tuple[slice, ...]) -> npt.NDArray[Any]:
        return _rounded(self._data[region], self._header)[0].astype(self.dtype)


def count_label(data: VolumeData, header: VolumeHeader, chunk: Sequence[int]) -> LabelFacts:
    """Read a label once: check that it holds whole numbers, and count them in each block.

    Args:
        data: The stored values, (i, j, k).
        header: Their description.
        chunk: Shape of the blocks.

    Raises:
        DecodeError: Values that are no whole numbers, with how many and how far off; or too many
            classes for a label.
        SourceError: It cannot be read.
    """
    offenders, farthest, bad_number = 0, 0.0, 0
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]] = []
    seen: set[int] = set()
    slabs = Slabs(data, chunk, along_file=True)
    for number, region in along_file(slabs.shape, chunk):
        values, off = _rounded(slabs[region], header)
        if off is not None:
            wrong = ~(off <= TOLERANCE)  # NaN is no whole number either
            offenders += int(np.count_nonzero(wrong))
            bad_number += int(np.count_nonzero(np.isnan(off)))
            farthest = max(farthest, float(np.max(off, initial=0.0, where=~np.isnan(off))))
        if not offenders:
            ids, counts = _unique(values)
            found.append((ids, counts, number))
            seen.update(ids.tolist())
            if len(seen) > _MANY_CLASSES:
                raise DecodeError(f"over {_MANY_CLASSES:,} different values; is it a label?")
    if offenders:
        raise DecodeError(_not_whole(offenders, bad_number, farthest))
    return _facts(found)


def _not_whole(offenders: int, bad_number: int, farthest: float) -> str:
    voxels = f"{offenders:,} voxel{'s' if offenders > 1 else ''}"
    if bad_number == offenders:
        text = f"{voxels} of the label {'are' if offenders > 1 else 'is'} NaN or infinite"
    else:
        text = f"{voxels} of the label hold no whole number (up to {farthest:.2g} away from one)"
    return f"{text}; classes are whole numbers: mend the label, or pack it as an image"


def _rounded(
    values: npt.NDArray[Any], header: VolumeHeader
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None]:
    """Return values as whole numbers, and how far they were from them; None for integers."""
    plain = header.slope == 1.0 and header.intercept == 0.0
    if plain and values.dtype.kind in "biu":
        return values.astype(np.int64), None
    exact = values.astype(np.float64) * header.slope + header.intercept
    with np.errstate(invalid="ignore"):
        near = np.rint(exact)
        off = np.abs(exact - near)
        off[~np.isfinite(exact)] = np.nan
        return np.where(np.isfinite(near), near, 0).astype(np.int64), off


def _unique(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the different values and their counts; by counting where they are close together."""
    flat = values.reshape(-1)
    low, high = int(flat.min()), int(flat.max())
    if high - low < _COUNTED:
        counts = np.bincount(flat - low)
        ids = np.flatnonzero(counts)
        return ids + low, counts[ids].astype(np.int64)
    ids, counts = np.unique(flat, return_counts=True)
    return ids, counts.astype(np.int64)


def _facts(found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]]) -> LabelFacts:
    ids = np.concatenate([each for each, _, _ in found])
    counts = np.concatenate([each for _, each, _ in found])
    numbers = np.concatenate([np.full(len(each), number) for each, _, number in found])
    order = np.lexsort((numbers, ids))
    classes, starts, rows = np.unique(ids[order], return_index=True, return_counts=True)
    blocks = np.stack([numbers[order], counts[order]], axis=1).astype(np.int64)
    return LabelFacts(
        dtype=_smallest(int(classes[0]), int(classes[-1])),
        classes=classes,
        voxels=np.add.reduceat(blocks[:, 1], starts),
        rows=rows.astype(np.int64),
        blocks=blocks,
    )


def _smallest(low: int, high: int) -> np.dtype[Any]:
    for kind in _DTYPES:
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return np.dtype(kind).newbyteorder("<")
    return np.dtype("<i8")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMatch:
    """How the grid of a label lies on that of its image.

    Attributes:
        same: Voxel by voxel.
        target: The orientation that makes it so; empty where nothing is to be turned.
        remark: What a person should be told.
        difference: Why the two do not fit; empty where they do.
    """

    same: bool
    target: str = ""
    remark: str = ""
    difference: str = ""


def compare_grids(image: VolumeHeader, label: VolumeHeader) -> GridMatch:
    """Compare shape and place of a label with those of its image."""
    if image.affine is None or label.affine is None:
        if image.shape != label.shape:
            return GridMatch(same=False, difference=_shapes(image, label))
        remark = ""
        if (image.affine is None) != (label.affine is None):
            bare, other = ("image", "label") if image.affine is None else ("label", "image")
            remark = f"the {bare} says nothing of where it is; paired with its {other} by shape"
        return GridMatch(same=True, remark=remark)
    voxel = min(spacing_of(image.affine))
    distance = corner_distance(image.affine, label.affine, image.shape)
    if image.shape == label.shape and distance <= SAME_PLACE * voxel:
        return GridMatch(same=True)
    target = orientation_of(image.affine)
    perm, flips = reorientation(label.affine, target)
    shape = tuple(label.shape[axis] for axis in perm)
    affine = reoriented_affine(label.affine, label.shape, perm, flips)
    if shape == image.shape:
        after = corner_distance(image.affine, affine, shape)
        if after <= SAME_PLACE * voxel:
            return GridMatch(same=True, target=target)
        distance = min(distance, after)
    if image.shape != label.shape:
        return GridMatch(same=False, difference=_shapes(image, label))
    mirrored = ", mirrored" if is_mirrored(image.affine, label.affine) else ""
    voxels = distance / _voxel_along(image, label)
    return GridMatch(
        same=False,
        difference=(
            f"the label lies up to {distance:.3g} mm ({voxels:.3g} voxels) away from its image"
            f"{mirrored}"
        ),
    )


def _voxel_along(image: VolumeHeader, label: VolumeHeader) -> float:
    """Return the size in mm of a voxel along the axis on which two grids differ most."""
    if image.affine is None or label.affine is None:
        return 1.0
    moved = np.linalg.solve(image.affine, label.affine[:, 3])[:3]
    return spacing_of(image.affine)[int(np.argmax(np.abs(moved)))]


def _shapes(image: VolumeHeader, label: VolumeHeader) -> str:
    return f"the label has the shape {label.shape}, its image {image.shape}"
