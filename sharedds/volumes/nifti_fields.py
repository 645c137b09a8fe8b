"""What the fields of a NIfTI header mean: type of the voxels, axes, scaling, placement."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sharedds.errors import DecodeError
from sharedds.volumes.geometry import (
    checked_affine,
    corner_distance,
    is_mirrored,
    orientation_of,
    spacing_of,
)
from sharedds.volumes.source import Affine

__all__ = ["Axes", "Placement", "axes_of", "dtype_of", "placed", "scaling_of"]

_DTYPES = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
    1024: "i8",
    1280: "u8",
}
_COLOURS = {128: 3, 2304: 4}
_REFUSED = {
    0: "unknown",
    1: "binary (one bit per voxel)",
    32: "complex64",
    1536: "float128",
    1792: "complex128",
    2048: "complex256",
}
_VECTORS = {
    1004: "matrix",
    1005: "symmetric matrix",
    1006: "displacement",
    1007: "vector",
    1009: "quaternion",
    2003: "RGB",
    2004: "RGBA",
}
_SECONDS = {8: 1.0, 16: 1e-3, 24: 1e-6}
_NO_TIME = {32: "Hz", 40: "ppm", 48: "rad/s"}
_MILLIMETRES = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}
_CIFTI = range(3000, 3100)
_LONG_STEP = 600.0  # seconds; longer steps are rather milliseconds with the wrong unit
_WIDE_VOXEL = 100.0  # mm; wider ones are rather millimetres called metres
_APART = 0.1  # of the smallest spacing: placements closer than this are the same
_PIXDIM_OFF = 0.01  # relative difference of pixdim and affine that is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes of a volume, as the attributes of the same names of a volume header."""

    shape: tuple[int, int, int]
    steps: int
    axis: Literal["none", "channel", "time"]
    step_seconds: float | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a volume is, and what is odd about that."""

    affine: Affine | None
    attrs: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def dtype_of(fields: Any) -> tuple[np.dtype[Any], int]:
    """Return the dtype in the file and how many samples a voxel has (3 or 4 for colours).

    Raises:
        DecodeError: A type that is not read; the text names it.
    """
    code = int(fields["datatype"])
    if code in _COLOURS:
        return np.dtype("u1"), _COLOURS[code]
    if code not in _DTYPES:
        name = _REFUSED.get(code, "not in the standard")
        raise DecodeError(
            f"its voxels are of datatype {code}, {name}, which is not read; convert them to an "
            "integer type or float32"
        )
    return np.dtype(_DTYPES[code]).newbyteorder(fields.endianness), 1


def axes_of(fields: Any, samples: int) -> Axes:
    """Return the spatial axes and what the one further axis is.

    Raises:
        DecodeError: Lengths that are impossible, or more than one further axis.
    """
    dim = [int(length) for length in fields["dim"]]
    count = dim[0]
    if not 1 <= count <= 7 or any(length < 1 for length in dim[1 : count + 1]):
        raise DecodeError(f"its header is damaged: dim is {dim}")
    intent = int(fields["intent_code"])
    if intent in _CIFTI:
        raise DecodeError(
            f"is a CIFTI matrix (intent {intent}) of grayordinates; it holds no volume"
        )
    lengths = dim[1 : count + 1] + [1] * (7 - count)
    shape = (lengths[0], lengths[1], lengths[2])
    further = [(number, lengths[number]) for number in range(3, 7) if lengths[number] > 1]
    if len(further) > 1 or (further and (samples > 1 or further[0][0] > 4)):
        colours = f" of {samples} colours" if samples > 1 else ""
        raise DecodeError(
            f"has the axes {lengths}{colours}; one axis beyond the spatial ones is read, the "
            "fourth or fifth: split the file"
        )
    attrs: dict[str, Any] = {"intent": intent} if intent else {}
    if samples > 1:
        attrs["channels"] = list("RGBA"[:samples])
        return Axes(shape=shape, steps=samples, axis="channel", attrs=attrs)
    if not further:
        return Axes(shape=shape, steps=1, axis="none", attrs=attrs)
    number, steps = further[0]
    if number == 4 or intent in _VECTORS:
        return Axes(shape=shape, steps=steps, axis="channel", attrs=attrs)
    return _moments_or_channels(fields, shape, steps, attrs)


def _moments_or_channels(
    fields: Any, shape: tuple[int, int, int], steps: int, attrs: dict[str, Any]
) -> Axes:
    step = float(fields["pixdim"][4])
    given = math.isfinite(step) and step > 0
    unit = int(fields["xyzt_units"]) & 0x38
    if unit in _SECONDS and given:
        seconds = step * _SECONDS[unit]
        remarks: tuple[str, ...] = ()
        if seconds > _LONG_STEP:
            remarks = (
                f"a time step of {seconds:g} s is implausible; the unit may be wrong, it is kept",
            )
        return Axes(
            shape=shape,
            steps=steps,
            axis="time",
            step_seconds=seconds,
            attrs=attrs,
            remarks=remarks,
        )
    if not unit and given and step != 1:
        told = f"the time step of {step:g} has no unit; seconds are taken"
        return Axes(
            shape=shape, steps=steps, axis="time", step_seconds=step, attrs=attrs, remarks=(told,)
        )
    if unit in _NO_TIME:
        attrs = {**attrs, "axis_unit": _NO_TIME[unit]}
        return Axes(shape=shape, steps=steps, axis="channel", attrs=attrs)
    told = f"the fourth axis of {steps} is taken for channels: no time step is given"
    return Axes(shape=shape, steps=steps, axis="channel", attrs=attrs, remarks=(told,))


def scaling_of(fields: Any) -> tuple[float, float, tuple[str, ...]]:
    """Return slope, intercept and remarks; a slope of 0, NaN or infinity means that there is none.

    NIfTI says so, and writers leave 0 or NaN there for volumes that are not scaled.
    """
    slope, intercept = float(fields["scl_slope"]), float(fields["scl_inter"])
    if not math.isfinite(slope) or slope == 0:
        return 1.0, 0.0, ()
    if not math.isfinite(intercept):
        return slope, 0.0, (f"scl_inter is {intercept}; 0 is taken, beside a slope of {slope:g}",)
    return slope, intercept, ()


def placed(
    fields: Any, shape: tuple[int, int, int], *, prefer: Literal["sform", "qform"] = "sform"
) -> Placement:
    """Return the affine in mm, from the sform or the qform, and what contradicts it.

    Args:
        fields: The header.
        shape: Voxels along (i, j, k).
        prefer: Which of the two counts where both are given and differ.

    Raises:
        DecodeError: A placement is given, but none that is a placement.
    """
    codes = {name: int(fields[f"{name}_code"]) for name in ("sform", "qform")}
    given = [name for name in (prefer, *codes) if codes[name] > 0]
    factor, unit_remarks = _millimetres(fields, given)
    pixdim = [abs(float(size)) * factor for size in fields["pixdim"][1:4]]
    found: dict[str, Affine] = {}
    problems: dict[str, str] = {}
    for name in dict.fromkeys(given):
        try:
            affine = _read_affine(fields, name)
            with np.errstate(over="ignore"):  # what is not finite is refused
                affine[:3] *= factor
            found[name] = checked_affine(affine, name=f"the {name}")
        except DecodeError as error:
            problems[name] = str(error)
    if problems and not found:
        raise DecodeError("; ".join(problems.values()))
    if not found:
        attrs: dict[str, Any] = {"placed_by": "none"}
        if all(math.isfinite(size) and size > 0 for size in pixdim):
            attrs["spacing"] = pixdim
        told = "has neither sform nor qform: where it lies and how it is turned is unknown"
        return Placement(affine=None, attrs=attrs, remarks=(told, *unit_remarks))
    name, affine = next(iter(found.items()))
    remarks = [f"{problem}; the {name} is used" for problem in problems.values()]
    if len(found) == 2:
        remarks += _contradiction(found, name, shape)
    if name == "sform":
        remarks += _pixdim_off(pixdim, affine)
    attrs = {"placed_by": name, f"{name}_code": codes[name]}
    return Placement(affine=affine, attrs=attrs, remarks=(*remarks, *unit_remarks))


def _read_affine(fields: Any, name: str) -> Affine:
    if name == "sform":
        return np.array(fields.get_sform(), np.float64)
    upright = fields.copy()
    upright["pixdim"][1:4] = np.abs(upright["pixdim"][1:4])  # the standard: signs do not count
    try:
        return np.array(upright.get_qform(), np.float64)
    except Exception as error:  # its own class of errors, and ValueError for impossible rotations
        raise DecodeError(f"the qform is not valid ({error})") from error


def _millimetres(fields: Any, given: list[str]) -> tuple[float, tuple[str, ...]]:
    """Return what lengths of the header are multiplied with, and what to tell of that."""
    unit = int(fields["xyzt_units"]) & 0x07
    factor = _MILLIMETRES.get(unit)
    if factor is None:
        return 1.0, (f"its unit of length, code {unit}, is not in the standard; mm are taken",)
    if factor == 1.0:
        return factor, ()
    name = "metres" if unit == 1 else "micrometres"
    sizes = np.abs(fields["pixdim"][1:4].astype(np.float64))
    if given and given[0] == "sform":
        sizes = np.abs(fields.get_sform()[:3, :3])
    if unit == 1 and np.max(sizes, initial=0) * factor > _WIDE_VOXEL:
        return 1.0, (f"lengths are said to be in {name}, which is implausible; mm are taken",)
    return factor, (f"lengths are in {name} and were converted to mm",)


def _contradiction(found: dict[str, Affine], used: str, shape: tuple[int, int, int]) -> list[str]:
    sform, qform = found["sform"], found["qform"]
    distance = corner_distance(sform, qform, shape)
    if distance <= _APART * min(spacing_of(found[used])):
        return []
    mirrored = ""
    if is_mirrored(sform, qform):
        mirrored = ", and one of them mirrors the other (left-right)"
    told = (
        f"sform ({orientation_of(sform)}) and qform ({orientation_of(qform)}) disagree by up to "
        f"{distance:.2f} mm at the corners{mirrored}; the {used} is used"
    )
    return [told]


def _pixdim_off(pixdim: list[float], affine: Affine) -> list[str]:
    spacing = spacing_of(affine)
    known = [
        (size, real)
        for size, real in zip(pixdim, spacing, strict=True)
        if math.isfinite(size) and size > 0  # 0 is left there by writers that do not use it
    ]
    if all(abs(size - real) <= _PIXDIM_OFF * real for size, real in known):
        return []
    says = " x ".join(f"{size:g}" for size in pixdim)
    real = " x ".join(f"{size:.4g}" for size in spacing)
    return [f"pixdim says {says} mm, the sform {real} mm; the sform is used"]
