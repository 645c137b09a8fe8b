"""Where voxels are: affines from voxel numbers (i, j, k) to millimetres in RAS+.

The three directions are called by the letters of where they point: R (right) or L, A (anterior) or
P, S (superior) or I. In ``"RAS"`` the first axis of the array runs to the patient's right.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, OptionError
from sharedds.volumes.source import Affine

__all__ = [
    "checked_affine",
    "corner_distance",
    "is_mirrored",
    "orientation_of",
    "reorientation",
    "reoriented_affine",
    "shifted",
    "spacing_of",
]

_LETTERS = (("R", "L"), ("A", "P"), ("S", "I"))
_FLAT = 1e-6  # determinant of unit columns below which a grid is taken to have no volume


def checked_affine(matrix: npt.ArrayLike, *, name: str = "the affine") -> Affine:
    """Return a matrix as a new (4, 4) float64 array that is known to place voxels.

    Args:
        matrix: (4, 4), or (3, 4) without the last row.
        name: What it is called in an error, such as ``"x.nii: the sform"``.

    Raises:
        DecodeError: Another shape, not finite, another last row than 0 0 0 1, or singular.
    """
    found = np.array(matrix, np.float64)
    if found.shape == (3, 4):
        found = np.vstack([found, (0.0, 0.0, 0.0, 1.0)])
    if found.shape != (4, 4):
        raise DecodeError(f"{name} has shape {found.shape}; (4, 4) is needed")
    if not np.isfinite(found).all():
        raise DecodeError(f"{name} has a value that is not finite: {found.tolist()}")
    if not np.array_equal(found[3], (0.0, 0.0, 0.0, 1.0)):
        raise DecodeError(f"{name} ends in {found[3].tolist()}; the last row has to be 0 0 0 1")
    with np.errstate(over="ignore"):  # columns of infinite length are refused below
        norms = np.linalg.norm(found[:3, :3], axis=0)
    if not (norms > 0).all() or abs(np.linalg.det(found[:3, :3] / norms)) < _FLAT:
        raise DecodeError(f"{name} is singular, it places a volume on a plane: {found.tolist()}")
    return found


def spacing_of(affine: Affine) -> tuple[float, float, float]:
    """Return the distance in mm of neighbours along i, j and k: the norms of the columns."""
    norms = np.linalg.norm(affine[:3, :3], axis=0)
    return float(norms[0]), float(norms[1]), float(norms[2])


def orientation_of(affine: Affine) -> str:
    """Return where the axes i, j, k point, such as ``"LPS"``; obliques by the closest direction.

    The letters are always of three different directions.
    """
    return "".join(_LETTERS[world][sign < 0] for world, sign in _closest(affine))


def corner_distance(a: Affine, b: Affine, shape: Sequence[int]) -> float:
    """Return the largest distance in mm between the corners of a grid under two affines.

    Args:
        a: The one affine.
        b: The other.
        shape: Voxels along (i, j, k); the corners are the centres of the outermost voxels.
    """
    corners = np.array(list(itertools.product(*((0, size - 1) for size in shape))), np.float64)
    difference = a[:3] - b[:3]
    return float(np.linalg.norm(corners @ difference[:, :3].T + difference[:, 3], axis=1).max())


def is_mirrored(a: Affine, b: Affine) -> bool:
    """Return whether one of two affines mirrors the other: their determinants differ in sign."""
    return bool((np.linalg.det(a[:3, :3]) < 0) != (np.linalg.det(b[:3, :3]) < 0))


def shifted(affine: Affine, start: Sequence[float] | npt.NDArray[Any]) -> Affine:
    """Return the affine of a region whose first voxel is ``start`` (i, j, k); it may be negative.

    Steps of the region have to be 1.
    """
    result = affine.copy()
    result[:3, 3] += affine[:3, :3] @ np.asarray(start, np.float64)
    return result


def reorientation(
    affine: Affine, target: str
) -> tuple[tuple[int, int, int], tuple[bool, bool, bool]]:
    """Return how a volume is turned so that its axes point to ``target``, without interpolation.

    Args:
        affine: Of the volume.
        target: Three letters, such as ``"RAS"``.

    Returns:
        ``perm`` and ``flips``: ``np.flip(data.transpose(perm), axes where flips is true)``; of a
        volume with leading channels or moments the last three axes are meant.

    Raises:
        OptionError: ``target`` does not name three different directions.
    """
    wanted = _directions(target)
    found = {world: (axis, sign) for axis, (world, sign) in enumerate(_closest(affine))}
    first, second, third = (found[world] for world, _ in wanted)
    flips = [
        sign != wish for (_, sign), (_, wish) in zip((first, second, third), wanted, strict=True)
    ]
    return (first[0], second[0], third[0]), (flips[0], flips[1], flips[2])


def reoriented_affine(
    affine: Affine, shape: Sequence[int], perm: Sequence[int], flips: Sequence[bool]
) -> Affine:
    """Return the affine after :func:`reorientation`; every voxel stays where it was in mm.

    Args:
        affine: Before.
        shape: Voxels along (i, j, k) before.
        perm: For each axis after, the axis before.
        flips: For each axis after, whether it is reversed.
    """
    result = affine.copy()
    for new, (old, flip) in enumerate(zip(perm, flips, strict=True)):
        step = affine[:3, old]
        result[:3, new] = -step if flip else step
        if flip:
            result[:3, 3] += step * (shape[old] - 1)
    return result


def _closest(affine: Affine) -> list[tuple[int, int]]:
    """Return for each axis the direction (0 right, 1 anterior, 2 superior) and the sign.

    The axis that is closest to a direction takes it first, after the closest rotation: sheared
    axes may share their closest direction.
    """
    unit = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    left, _, right = np.linalg.svd(unit)
    rotation = left @ right
    # Rounded, so that of axes that are equally close the first one is taken on every machine.
    cosines = np.round(np.abs(rotation), 9)
    worlds = [0, 0, 0]
    for axis in np.argsort(-cosines.max(axis=0), kind="stable"):
        worlds[axis] = int(cosines[:, axis].argmax())
        cosines[worlds[axis]] = -1.0  # taken
    return [(world, -1 if rotation[world, axis] < 0 else 1) for axis, world in enumerate(worlds)]


def _directions(target: str) -> list[tuple[int, int]]:
    found = [
        (world, 1 if letter == pair[0] else -1)
        for letter in target.upper()
        for world, pair in enumerate(_LETTERS)
        if letter in pair
    ]
    if len(target) != 3 or sorted(world for world, _ in found) != [0, 1, 2]:
        raise OptionError(
            f"orientation is {target!r}; three letters are needed, one each of R or L, A or P, "
            "S or I, such as 'RAS'"
        )
    return found
