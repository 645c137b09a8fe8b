"""Which frames make a volume: pictures of one series, sorted into stacks of parallel slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sharedds.volumes.dicom_frames import Picture
from sharedds.volumes.dicom_placement import Mark, normal_of
from sharedds.volumes.dicom_places import SAME_MM, Shot, parts_of, places_of
from sharedds.volumes.dicom_spacing import (
    affine_of,
    line_of,
    orientation_problem,
    place,
    shear_of,
)
from sharedds.volumes.source import Affine

__all__ = ["Copy", "Stack", "stacks_of"]

_SAME_DIRECTION = 1e-3  # largest difference of direction cosines within a stack
_SAME_SPACING = 1e-3  # relative
_SHEARED = 0.1  # degrees
_NAMED = 5


class Copy(NamedTuple):
    """A file that is left out because another one holds the same instance."""

    picture: Picture
    of: Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Slices that make one volume, or would if there were no problems.

    Attributes:
        shots: For each step, for each place along the normal, the frame there; None where a slice
            is missing. With problems: one step of all frames in no special order.
        affine: (4, 4) in RAS+; None when unknown.
        timed: The steps are moments.
        part: What tells this stack from others at the same places, such as ``{"echo": 2.0}``.
        problems: Why it is no volume.
        remarks: What is worth telling, though it is one.
    """

    shots: tuple[tuple[Shot | None, ...], ...]
    affine: Affine | None = None
    timed: bool = False
    part: tuple[tuple[str, Mark], ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def present(self) -> list[Shot]:
        """The frames that are there."""
        return [shot for step in self.shots for shot in step if shot is not None]

    @property
    def empty(self) -> list[int]:
        """Places along the normal without a slice."""
        return [k for k, shot in enumerate(self.shots[0]) if shot is None]


def stacks_of(
    pictures: Iterable[Picture], *, allow_gaps: bool, allow_single: bool
) -> tuple[list[Stack], list[Copy]]:
    """Sort the pictures of one series into stacks.

    Args:
        pictures: All of the series; their names and their order do not matter.
        allow_gaps: Missing slices are filled with empty ones.
        allow_single: One slice is a volume as well.

    Returns:
        The stacks, those with problems too, and the files that are copies of others.
    """
    kept, copies = _without_copies(pictures)
    planes = _planes(kept)
    directions = _directions(planes)
    lost = [p for p in kept if p.problems and p.frames[0].position is None]
    stacks: list[Stack] = []
    for plane in planes:
        if plane[0].frame.position is None or plane[0].frame.orientation is None:
            stacks += _unplaced(plane, allow_single=allow_single)
            continue
        size = _size(plane[0].picture)
        # A file of which nobody knows where it lies may be the slice that this stack lacks.
        beside = [p for p in lost if _size(p) == size]
        broken = {p.name: p for p in [*(shot.picture for shot in plane), *beside] if p.problems}
        if broken:
            told = [f"{name}: {text}" for name, p in sorted(broken.items()) for text in p.problems]
            stacks.append(_refused(plane, *told))
        else:
            stacks += _placed(
                plane, directions=directions, allow_gaps=allow_gaps, allow_single=allow_single
            )
    return stacks, copies


def _size(p: Picture) -> tuple[int, int, int, str]:
    return p.rows, p.columns, p.samples, p.photometric


def _without_copies(pictures: Iterable[Picture]) -> tuple[list[Picture], list[Copy]]:
    first: dict[object, Picture] = {}
    copies: list[Copy] = []
    kept: list[Picture] = []
    for picture in sorted(pictures, key=lambda p: (p.instance, len(p.problems), p.name)):
        places = tuple((frame.position, frame.marks) for frame in picture.frames)
        same = first.setdefault((picture.instance, places), picture)
        if same is picture or not picture.instance:
            kept.append(picture)
        else:
            copies.append(Copy(picture, same))
    return kept, copies


class _Rows:
    """Rows of numbers that differ; thousands of planes may lie in as many directions.

    Args:
        width: Numbers of a row.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self._rows = self._slack = np.empty((0, width))

    def place(self, row: Sequence[float], slack: Sequence[float]) -> int:
        """Return the number of the first row that this one is near to; its own if there is none.

        Args:
            row: The numbers.
            slack: How far from each of them later rows may be.
        """
        near = (np.abs(self._rows[: self.count] - row) <= self._slack[: self.count]).all(axis=1)
        if near.any():
            return int(near.argmax())
        if self.count == len(self._rows):
            more = np.empty((max(8, self.count), len(row)))
            self._rows = np.vstack([self._rows, more])
            self._slack = np.vstack([self._slack, more])
        self._rows[self.count], self._slack[self.count] = row, slack
        self.count += 1
        return self.count - 1


def _planes(pictures: list[Picture]) -> list[list[Shot]]:
    """Sort frames by size, kind of values, direction and spacing; unplaced ones stay together."""
    planes: dict[object, tuple[_Rows, list[list[Shot]]]] = {}
    for picture in pictures:
        for frame in picture.frames:
            orientation, spacing = frame.orientation or (), frame.spacing or ()
            known = (frame.position is not None, len(orientation), len(spacing))
            key = (*_size(picture), picture.keyword, known)
            slack = [_SAME_DIRECTION] * len(orientation)
            slack += [_SAME_SPACING * abs(distance) for distance in spacing]
            rows, found = planes.setdefault(key, (_Rows(len(slack)), []))
            number = rows.place((*orientation, *spacing), slack)
            if number == len(found):
                found.append([])
            found[number].append(Shot(picture, frame))
    return [plane for _, found in planes.values() for plane in found]


def _directions(planes: list[list[Shot]]) -> int:
    rows = _Rows(6)
    for plane in planes:
        orientation = plane[0].frame.orientation
        if orientation is not None:
            rows.place(orientation, [_SAME_DIRECTION] * 6)
    return rows.count


def _refused(shots: Sequence[Shot], *problems: str) -> Stack:
    return Stack(shots=(tuple(shots),), problems=problems)


def _unplaced(plane: list[Shot], *, allow_single: bool) -> list[Stack]:
    """Return frames that lie nowhere, each file by itself."""
    stacks = []
    files: dict[str, list[Shot]] = {}
    for shot in plane:
        files.setdefault(shot.picture.name, []).append(shot)
    for shots in files.values():
        picture = shots[0].picture
        if picture.problems:
            told = [f"{picture.name}: {text}" for text in picture.problems]
            stacks.append(_refused(shots, *told))
        elif not allow_single:
            text = (
                "single slice: it does not say where it lies (no ImagePositionPatient and "
                "ImageOrientationPatient), so that it cannot be put in order with others; "
                "allow_single makes it a volume of its own"
            )
            stacks.append(_refused(shots, text))
        else:
            remark = "where the slice lies is not known: it has no affine"
            stacks += [Stack(shots=((shot,),), remarks=(remark,)) for shot in shots]
    return stacks


def _placed(
    plane: list[Shot], *, directions: int, allow_gaps: bool, allow_single: bool
) -> list[Stack]:
    orientation = plane[0].frame.orientation or ()
    problem, remark = orientation_problem(orientation)
    spacing = plane[0].frame.spacing
    if problem is None and spacing is not None and not all(value > 0 for value in spacing):
        problem = f"PixelSpacing is {spacing[0]:g}, {spacing[1]:g}"
    if problem is not None:
        return [_refused(plane, problem)]
    normal = normal_of(orientation)
    places = places_of(plane, normal)
    if len(places) == 1 and not allow_single:
        text = "single slice: no other picture of this series has its plane and size"
        if directions > 1:
            text = f"planes not parallel: those of this series lie in {directions} ways; {text}"
        return [_refused(plane, f"{text}; allow_single makes it a volume of its own")]
    if len(places) > 1 and spacing is None:
        return [_refused(plane, "its slices do not say how far apart pixels are (PixelSpacing)")]
    parts = parts_of(places)
    if parts is None:
        repeated = [slot[0].frame.position or () for slot in places if len(slot) > 1]
        named = ", ".join(place(position, normal) for position in repeated[:_NAMED])
        more = f" and {len(repeated) - _NAMED} more" if len(repeated) > _NAMED else ""
        return [
            _refused(
                plane,
                f"{len(repeated)} of {len(places)} positions occur more than once ({named}{more}), "
                "and neither time, acquisition, echo nor another element tells the slices apart",
            )
        ]
    remarks = () if remark is None else (remark,)
    stacks = [
        _stacked(shots, normal, part, remarks, allow_gaps=allow_gaps, allow_single=allow_single)
        for part, shots in parts
    ]
    return _one_of_moments(stacks) or stacks


def _stacked(
    shots: list[Shot],
    normal: tuple[float, float, float],
    part: tuple[tuple[str, Mark], ...],
    remarks: tuple[str, ...],
    *,
    allow_gaps: bool,
    allow_single: bool,
) -> Stack:
    """Return the stack of frames that are sorted and lie at different places."""
    first = shots[0].frame
    if len(shots) == 1:
        if not allow_single:
            return _refused(shots, "single slice; allow_single makes it a volume of its own")
        thick = first.thickness
        if not thick or thick < 0:
            remarks = (*remarks, "the thickness of the slice is not known; 1 mm is assumed")
            thick = 1.0
        if first.spacing is None:
            remarks = (*remarks, "the distance of pixels is not known: it has no affine")
        step = tuple(thick * axis for axis in normal)
        return Stack(
            shots=((shots[0],),), affine=affine_of(first, step), part=part, remarks=remarks
        )
    positions = np.array([shot.frame.position for shot in shots], np.float64)
    line = line_of(positions, normal, allow_gaps=allow_gaps)
    if line.problems:
        return Stack(shots=(tuple(shots),), part=part, problems=line.problems)
    slots: list[Shot | None] = [None] * (line.numbers[-1] + 1)
    for number, shot in zip(line.numbers, shots, strict=True):
        slots[number] = shot
    empty = [k for k, shot in enumerate(slots) if shot is None]
    if empty:
        remarks = (*remarks, f"{len(empty)} of {len(slots)} slices are missing and left empty")
    shear = shear_of(line.step, first.orientation or ())
    if shear > _SHEARED:
        remarks = (
            *remarks,
            f"its slices are sheared by {shear:.3g} degrees, as with a tilted gantry",
        )
    return Stack(
        shots=(tuple(slots),), affine=affine_of(first, line.step), part=part, remarks=remarks
    )


def _one_of_moments(stacks: list[Stack]) -> list[Stack] | None:
    """Return one stack with steps, if all of these are whole and differ in time only."""
    first = stacks[0]
    times = {name for stack in stacks for name, _ in stack.part}
    if len(stacks) < 2 or not times <= {"time", "trigger time"}:
        return None
    for stack in stacks:
        if stack.problems or stack.empty != first.empty or stack.affine is None:
            return None
        if len(stack.shots[0]) != len(first.shots[0]) or first.affine is None:
            return None
        if not np.allclose(stack.affine, first.affine, rtol=0, atol=SAME_MM):
            return None
    return [
        Stack(
            shots=tuple(stack.shots[0] for stack in stacks),
            affine=first.affine,
            timed=True,
            remarks=first.remarks,
        )
    ]
