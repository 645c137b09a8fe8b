"""Where the frames of a DICOM file lie, by each of the ways in which files say so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sharedds.volumes.dicom_tags import Tags

__all__ = ["MARKS", "Frame", "Mark", "frames_of", "normal_of"]

MARKS = (
    "time",
    "trigger time",
    "acquisition",
    "echo",
    "b-value",
    "gradient",
    "kind",
    "stack",
)
"""What may tell apart frames that lie at the same place, in the order in which it is tried."""

Mark = float | str | tuple[float, ...] | None
_DOSE = "1.2.840.10008.5.1.4.1.1.481.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One plane of pixels.

    Attributes:
        number: In its file, from 0.
        position: Of the centre of its first pixel, in mm, in the LPS directions of DICOM.
        orientation: Direction of growing columns (3 numbers), then of growing rows.
        spacing: Distance between rows, then between columns, in mm.
        thickness: Distance to the next slice, or thickness, where said.
        slope, intercept: From stored to measured values.
        marks: Values of :data:`MARKS`.
    """

    number: int
    position: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    spacing: tuple[float, ...] | None
    thickness: float | None = None
    slope: float = 1.0
    intercept: float = 0.0
    marks: tuple[Mark, ...] = (None,) * len(MARKS)


def normal_of(orientation: tuple[float, ...]) -> tuple[float, float, float]:
    """Return the unit vector across the plane: row direction times column direction."""
    a, b, c, d, e, f = orientation
    cross = (b * f - c * e, c * d - a * f, a * e - b * d)
    norm = math.hypot(*cross) or 1.0
    return cross[0] / norm, cross[1] / norm, cross[2] / norm


def frames_of(tags: Tags, count: int, kind: str, problems: list[str]) -> tuple[Frame, ...]:
    """Return where each frame lies.

    Args:
        tags: Of the file.
        count: Number of its frames.
        kind: UID of its SOP class.
        problems: Takes what is wrong.
    """
    whole = _plain(tags)
    if kind == _DOSE and "DoseGridScaling" in tags:
        whole = replace(whole, slope=tags.number("DoseGridScaling") or 0.0, intercept=0.0)
    per_frame = tags.items("PerFrameFunctionalGroupsSequence")
    if per_frame or "PerFrameFunctionalGroupsSequence" in tags:
        if len(per_frame) != count:
            problems.append(f"it has {count} frames but describes {len(per_frame)} of them")
            return (whole,)
        shared = tags.first("SharedFunctionalGroupsSequence")
        frames = tuple(_enhanced(whole, n, item, shared) for n, item in enumerate(per_frame))
        if count > 1 and any(f.position is None or f.orientation is None for f in frames):
            problems.append(f"it has {count} frames and does not say where each of them lies")
        return frames
    if count == 1:
        return (whole,)
    offsets = _offsets(tags, count, whole, problems)
    if offsets is None or whole.position is None or whole.orientation is None:
        return (replace(whole, position=None),)
    normal = normal_of(whole.orientation)
    return tuple(
        replace(
            whole,
            number=n,
            position=tuple(
                p + offset * axis for p, axis in zip(whole.position, normal, strict=True)
            ),
        )
        for n, offset in enumerate(offsets)
    )


def _plain(tags: Tags) -> Frame:
    """Return what the file says of all its frames, as a frame."""
    detector = tags.first("DetectorInformationSequence")
    slope, intercept = tags.number("RescaleSlope"), tags.number("RescaleIntercept")
    between = tags.number("SpacingBetweenSlices")
    return Frame(
        number=0,
        position=tags.numbers("ImagePositionPatient", 3)
        or detector.numbers("ImagePositionPatient", 3),
        orientation=tags.numbers("ImageOrientationPatient", 6)
        or detector.numbers("ImageOrientationPatient", 6),
        spacing=tags.numbers("PixelSpacing", 2),
        thickness=abs(between or 0.0) or tags.number("SliceThickness"),
        slope=1.0 if slope is None else slope,
        intercept=0.0 if intercept is None else intercept,
        marks=(
            _first(tags, "TemporalPositionIdentifier", "TemporalPositionIndex"),
            tags.number("TriggerTime"),
            tags.number("AcquisitionNumber"),
            _first(tags, "EchoNumbers", "EchoTime"),
            tags.number("DiffusionBValue"),
            tags.numbers("DiffusionGradientOrientation", 3),
            tags.text("ImageType"),
            tags.text("StackID"),
        ),
    )


def _first(tags: Tags, *keywords: str) -> float | None:
    return next((number for word in keywords if (number := tags.number(word)) is not None), None)


def _offsets(tags: Tags, count: int, whole: Frame, problems: list[str]) -> tuple[float, ...] | None:
    """Return how far each frame of a plain file lies from the first, along the normal, in mm."""
    if whole.position is None or whole.orientation is None:
        problems.append(f"it has {count} frames and does not say where they lie")
        return None
    grid = tags.numbers("GridFrameOffsetVector")
    if grid is not None:
        if len(grid) != count:
            problems.append(f"it has {count} frames but {len(grid)} offsets of frames")
            return None
        if grid[0] == 0:
            return grid
        # The other way to write them: as heights in the patient, which axial planes alone have.
        height = normal_of(whole.orientation)[2]
        if abs(height) < 1 - 1e-6:
            problems.append("its offsets of frames do not start at 0 and its planes are not axial")
            return None
        return tuple((z - whole.position[2]) * math.copysign(1, height) for z in grid)
    slices = tags.numbers("SliceVector")
    between = tags.number("SpacingBetweenSlices")
    if slices is not None and between:
        # Nuclear medicine: one detector, its slices numbered from 1.
        if len(slices) != count or len(tags.items("DetectorInformationSequence")) > 1:
            problems.append("its frames are not slices of one reconstruction")
            return None
        return tuple((number - 1) * between for number in slices)
    problems.append(f"it has {count} frames and does not say where they lie")
    return None


def _enhanced(whole: Frame, number: int, item: Tags, shared: Tags) -> Frame:
    """Return a frame of an enhanced object; what its own group lacks, the shared one may have."""

    def group(name: str) -> Tags:
        return item.first(name) if name in item else shared.first(name)

    measures, values = group("PixelMeasuresSequence"), group("PixelValueTransformationSequence")
    content, diffusion = group("FrameContentSequence"), group("MRDiffusionSequence")
    slope, intercept = values.number("RescaleSlope"), values.number("RescaleIntercept")
    gradient = diffusion.first("DiffusionGradientDirectionSequence")
    marks = (
        _first(content, "TemporalPositionIndex", "TemporalPositionTimeOffset"),
        group("CardiacSynchronizationSequence").number("NominalCardiacTriggerDelayTime"),
        content.number("FrameAcquisitionNumber"),
        group("MREchoSequence").number("EffectiveEchoTime"),
        diffusion.number("DiffusionBValue"),
        gradient.numbers("DiffusionGradientOrientation", 3),
        _frame_kind(group),
        content.text("StackID"),
    )
    return Frame(
        number=number,
        position=group("PlanePositionSequence").numbers("ImagePositionPatient", 3),
        orientation=group("PlaneOrientationSequence").numbers("ImageOrientationPatient", 6),
        spacing=measures.numbers("PixelSpacing", 2),
        thickness=abs(measures.number("SpacingBetweenSlices") or 0.0)
        or measures.number("SliceThickness"),
        slope=whole.slope if slope is None else slope,
        intercept=whole.intercept if intercept is None else intercept,
        marks=tuple(
            own if own not in (None, "") else of_all
            for own, of_all in zip(marks, whole.marks, strict=True)
        ),
    )


def _frame_kind(group: Callable[[str], Tags]) -> str:
    names = ("MRImageFrameTypeSequence", "CTImageFrameTypeSequence", "PETFrameTypeSequence")
    return next((text for name in names if (text := group(name).text("FrameType"))), "")
