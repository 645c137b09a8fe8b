"""A part of a volume into memory that is at hand, padded where it lies outside."""

from __future__ import annotations

from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SchemaError
from sharedds.patches.location import Triple

__all__ = ["Padding", "Readable", "checked_padding", "cut"]

Padding = Literal["constant", "edge", "reflect"]
Values = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


class Readable(Protocol):
    """An array that is read by regions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; the last three axes are (i, j, k)."""

    def __getitem__(self, region: tuple[slice, ...], /) -> Values:
        """Return a region: one slice with step 1 for each axis."""


def checked_padding(padding: Any) -> Padding:
    """Return what stands outside of a volume.

    Raises:
        OptionError: There is no such rule.
    """
    if padding not in get_args(Padding):
        raise OptionError(f"padding {padding!r}: one of {', '.join(get_args(Padding))}")
    return cast("Padding", padding)


def cut(
    source: Readable,
    start: Triple,
    out: Values,
    *,
    padding: Padding = "constant",
    fill: float = 0,
    scale: tuple[float, float] | None = None,
) -> None:
    """Write a part of an array, along its last three axes, into memory.

    Args:
        source: (i, j, k), or with more axes before these, which are read whole.
        start: Voxel of the first element; may be negative.
        out: As many axes as the source; the last three say how large the part is.
        padding: What stands outside: ``fill``; the voxel at the border; or the volume mirrored at
            its outermost voxels, again and again where it is small.
        fill: In values as they are written.
        scale: Slope and intercept of the values, applied in float32 to what was cut.

    Raises:
        SchemaError: The constant is needed, and the dtype of the memory does not hold it.
    """
    lead = len(source.shape) - 3
    axes = [
        _along(at, p, n, padding)
        for at, p, n in zip(start, out.shape[lead:], source.shape[lead:], strict=True)
    ]
    whole = tuple(slice(0, n) for n in source.shape[:lead])
    values = source[(*whole, *(box for box, _, _ in axes))]
    inner: Any = (..., *(place for _, place, _ in axes))
    for axis, (_, _, taken) in enumerate(axes):
        if taken is not None:
            values = values.take(taken, axis=lead + axis)
    target = out[inner]
    if target.shape != out.shape:
        out[...] = _constant(fill, out.dtype)
    target[...] = values
    if scale is not None:
        slope, intercept = scale
        if slope != 1.0:
            target *= np.float32(slope)
        if intercept != 0.0:
            target += np.float32(intercept)


def _constant(fill: float, dtype: np.dtype[Any]) -> Any:
    try:
        value = dtype.type(fill)
    except (OverflowError, ValueError):
        value = None
    if value is None or (dtype.kind != "f" and value != fill):
        raise SchemaError(f"fill={fill!r} does not fit {dtype}, the dtype of what is padded")
    return value


def _along(at: int, p: int, n: int, padding: Padding) -> tuple[slice, slice, Numbers | None]:
    """Return what is read along an axis, where it goes, and how it is repeated, if it is."""
    low, high = max(at, 0), min(at + p, n)
    if padding == "constant" or (at >= 0 and at + p <= n):
        low = min(low, n)
        high = max(low, high)
        return slice(low, high), slice(low - at, high - at), None
    wanted = np.arange(at, at + p)
    if padding == "edge":
        found = wanted.clip(0, n - 1)
    else:
        period = max(1, 2 * (n - 1))
        found = np.abs((wanted + n - 1) % period - (n - 1))
    low, high = int(found.min()), int(found.max()) + 1
    return slice(low, high), slice(0, p), found - low
