"""Whether planes lie one behind the other at even distances, and the grid they then make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharedds.volumes.dicom_placement import Frame, normal_of
from sharedds.volumes.source import Affine

__all__ = ["Line", "affine_of", "line_of", "orientation_problem", "place", "shear_of"]

_Vectors = npt.NDArray[np.float64]

TOLERANCE = 1e-2
"""By which part of the distance of slices one of them may lie beside its place."""

ROUNDING = 1e-2
"""The same in mm, for thin slices: positions are often written with two decimals."""

_MOST_SLICES = 1 << 15
_SKEW = 1e-4
_TOO_SKEW = 5e-2
_NAMED = 5  # so many gaps, or missing positions, are named one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Places of slices along a line, from the lowest to the highest.

    Attributes:
        numbers: For each slice its place, from 0; a number left out is a missing slice.
        step: From one place to the next, in mm (LPS).
        problems: Why they make no grid.
    """

    numbers: tuple[int, ...]
    step: tuple[float, float, float]
    problems: tuple[str, ...] = ()


def place(position: Sequence[float], normal: Sequence[float]) -> str:
    """Return in words where a plane lies: ``"z = -99.48"`` if it is axial."""
    axis = int(np.argmax(np.abs(normal)))
    if abs(normal[axis]) > 0.999:
        return f"{'xyz'[axis]} = {position[axis] + 0.0:.6g}"
    return f"{float(np.dot(position, normal)):.6g} mm along the normal"


def line_of(positions: _Vectors, normal: Sequence[float], *, allow_gaps: bool) -> Line:
    """Return which place each of at least two slices has on an even line.

    Args:
        positions: (slices, 3), sorted along the normal, no two at the same height.
        normal: Unit vector across the planes.
        allow_gaps: Missing slices are no problem, as long as the others fit one grid.
    """
    heights = positions @ np.asarray(normal)
    distances = np.diff(heights)
    usual = float(np.sort(distances)[(len(distances) - 1) // 2])
    steps = np.maximum(1, np.rint(distances / usual))
    if steps.sum() >= _MOST_SLICES:
        steps = np.ones(len(distances))  # told as uneven: nobody wants that many empty slices
    numbers = np.concatenate([[0], np.cumsum(steps)])
    step = (positions[-1] - positions[0]) / numbers[-1]
    beside = positions - positions[0] - numbers[:, None] * step
    along = np.abs(beside @ np.asarray(normal))
    across = np.linalg.norm(beside - np.outer(beside @ np.asarray(normal), normal), axis=1)
    tolerance = max(TOLERANCE * usual, ROUNDING)
    problems = []
    if not allow_gaps:
        problems += _gaps(positions, normal, steps, usual)
    if not problems and along.max() > tolerance:
        worst = int(along.argmax())
        problems.append(
            f"the slices are not evenly spaced: distances from {distances.min():.6g} to "
            f"{distances.max():.6g} mm, and the slice at {place(positions[worst], normal)} lies "
            f"{along[worst]:.3g} mm beside its place"
        )
    if not problems and across.max() > tolerance:
        worst = int(across.argmax())
        problems.append(
            "the slices do not lie one behind the other: the one at "
            f"{place(positions[worst], normal)} is shifted by {across[worst]:.3g} mm in its plane"
        )
    return Line(
        numbers=tuple(int(number) for number in numbers),
        step=(float(step[0]), float(step[1]), float(step[2])),
        problems=tuple(problems),
    )


def _gaps(
    positions: _Vectors, normal: Sequence[float], steps: npt.NDArray[np.float64], usual: float
) -> list[str]:
    found = [int(n) for n in np.flatnonzero(steps > 1)]
    problems = []
    for n in found[:_NAMED]:
        a, b, missing = positions[n], positions[n + 1], int(steps[n]) - 1
        distance = float((b - a) @ np.asarray(normal))
        lost = [place(a + (b - a) * (k + 1) / (missing + 1), normal) for k in range(missing)]
        named = f" ({', '.join(lost)})" if missing <= _NAMED else ""
        problems.append(
            f"a gap between {place(a, normal)} and {place(b, normal)}: {distance:.6g} mm where "
            f"{usual:.6g} mm is usual, {missing} slice{'s' * (missing > 1)} missing{named}; "
            "allow_gaps fills it with empty slices"
        )
    if len(found) > _NAMED:
        problems.append(f"and {len(found) - _NAMED} more gaps")
    return problems


def orientation_problem(orientation: Sequence[float]) -> tuple[str | None, str | None]:
    """Return what is wrong with two directions of a plane, and what is only worth a remark."""
    row, column = np.asarray(orientation[:3]), np.asarray(orientation[3:])
    lengths = np.linalg.norm([row, column], axis=1)
    skew = float(max(*np.abs(lengths - 1), abs(row @ column)))
    if skew > _TOO_SKEW:
        return "ImageOrientationPatient is not two unit vectors at a right angle", None
    if skew > _SKEW:
        return None, (
            f"its directions are not quite orthonormal (by {skew:.2g}); they are kept as they are"
        )
    return None, None


def affine_of(frame: Frame, step: Sequence[float]) -> Affine | None:
    """Return the affine of a stack in RAS+, from its first frame and the step between slices.

    The index i runs along the columns, j along the rows, k along the slices. None where the frame
    says too little.
    """
    if frame.position is None or frame.orientation is None or frame.spacing is None:
        return None
    affine = np.eye(4)
    affine[:3, 0] = np.asarray(frame.orientation[:3]) * frame.spacing[1]
    affine[:3, 1] = np.asarray(frame.orientation[3:]) * frame.spacing[0]
    affine[:3, 2] = step
    affine[:3, 3] = frame.position
    affine[:2] *= -1  # DICOM's x and y grow to the left and to the back
    return affine + 0.0


def shear_of(step: Sequence[float], orientation: tuple[float, ...]) -> float:
    """Return the angle between the step from slice to slice and the normal, in degrees."""
    cosine = float(np.dot(step, normal_of(orientation)) / np.linalg.norm(step))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
