"""Values of 64 bits in fewer, where not one of them changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.volumes.derived import Derived, Spans, pieces, slices
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["narrowed"]

_PIECE = 1 << 22  # voxels that are looked at at once
_KINDS = (np.int16, np.uint16, np.int32, np.uint32)


def narrowed(header: VolumeHeader, data: VolumeData) -> tuple[VolumeHeader, VolumeData]:
    """Return 64-bit values in fewer bits where every one of them stays what it is."""
    dtype = np.dtype(header.dtype)
    if dtype.kind == "b":
        return replace(header, dtype=np.dtype(np.uint8)), _Cast(data, np.dtype(np.uint8))
    if dtype.itemsize < 8:
        return header, data
    wanted: np.dtype[Any] = np.dtype("<f4")
    if dtype.kind == "f":
        if not all(_fits(data[slices(part)]) for part in pieces(data.shape, _PIECE)):
            return header, data
    else:
        low, high = 0, 0
        for part in pieces(data.shape, _PIECE):
            values = data[slices(part)]
            low, high = min(low, int(values.min())), max(high, int(values.max()))
        kinds = [k for k in _KINDS if np.iinfo(k).min <= low and high <= np.iinfo(k).max]
        if not kinds:
            return header, data
        wanted = np.dtype(kinds[0]).newbyteorder("<")
    return replace(header, dtype=wanted), _Cast(data, wanted)


def _fits(values: npt.NDArray[Any]) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array_equal(values, values.astype(np.float32).astype(values.dtype), True)


class _Cast(Derived):
    """A volume in another dtype, which is known to hold its values."""

    def __init__(self, source: VolumeData, dtype: np.dtype[Any]) -> None:
        super().__init__(source, tuple(source.shape), dtype)

    def read(self, spans: Spans) -> npt.NDArray[Any]:
        out = np.empty([stop - start for start, stop in spans], self.dtype)
        for part in pieces(out.shape, _PIECE):
            moved = [(a + s, b + s) for (a, b), (s, _) in zip(part, spans, strict=True)]
            out[slices(part)] = self._source[slices(tuple(moved))]
        return out
