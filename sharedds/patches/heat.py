"""A number for each patch of a slide, put together to a small map of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SchemaError
from sharedds.patches.frame import checked_factors
from sharedds.patches.outputs import as_array
from sharedds.patches.planar import Pair, checked_pair

__all__ = ["HeatMap"]

Values = npt.NDArray[Any]

_MOST = 1 << 28  # elements, some 2 GiB


class HeatMap:
    """Puts what a model says of whole patches together to a map of a slide.

    Each element of the map is the mean of the patches over it, weighted by how much of the element
    each covers; NaN where there is none. Patches may lie anywhere, overlap, come in any order, and
    need not be all: those of tissue only make a map that is NaN elsewhere. All have to be of one
    slide.

    Args:
        shape: Of the slide, (y, x), in pixels as fine as its patches.
        patches: What the patches are: :class:`~sharedds.GridPatches`,
            :class:`~sharedds.TissuePatches` or :class:`~sharedds.UniformPatches`.
        downsample: Pixels of level 0 for each pixel of ``shape``, one number or one for (y, x).
        step: How large an element is, in pixels of ``shape``, one number or one for (y, x). None:
            as far as patches of the grid are apart, so that without overlap an element is a patch.

    Attributes:
        shape: (rows, columns) of the map.
        downsample: Pixels of level 0 along (y, x) for each element.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> from sharedds.patches import GridPatches
        >>> heat = HeatMap((100, 150), GridPatches((50, 50)))
        >>> heat.add([0.5, 0.25], [(0, 0), (0, 50)])
        >>> heat.result()[0].tolist()
        [0.5, 0.25, nan]
    """

    def __init__(
        self,
        shape: Sequence[int],
        patches: Any,
        *,
        downsample: float | tuple[float, float] = 1.0,
        step: int | Pair | None = None,
    ) -> None:
        sides = checked_pair(tuple(shape), "shape")
        flat = patches.flat() if hasattr(patches, "flat") else patches
        factors = checked_factors(downsample)
        size = checked_pair(getattr(flat, "size", None))
        apart = checked_pair(_steps(flat, size) if step is None else step, "step")
        self._reach = size[0] * factors[0], size[1] * factors[1]
        self.downsample = apart[0] * factors[0], apart[1] * factors[1]
        self._slide = sides[0] * factors[0], sides[1] * factors[1]
        self.shape: Pair = -(-sides[0] // apart[0]), -(-sides[1] // apart[1])
        if math.prod(self.shape) > _MOST:
            raise OptionError(f"step={apart}: a map of {self.shape} elements; a coarser one fits")
        self._weights = np.zeros(self.shape)
        self._sums: Values | None = None
        self._is_scalar = False

    def add(self, values: Any, start: Any) -> None:
        """Take what a model says of one patch, or of a batch of them.

        Args:
            values: One number or (channels,) of a patch; (n,) or (n, channels) of a batch. Arrays
                or tensors, on any device.
            start: Where the patch begins, (y, x) in pixels of level 0: (2,), or (n, 2).

        Raises:
            SchemaError: A shape does not fit; the text has it.
        """
        found, starts = as_array(values), as_array(start)
        if starts.ndim not in (1, 2) or starts.shape[-1] != 2 or starts.dtype.kind not in "iuf":
            raise SchemaError(f"start: (2,) or (n, 2) numbers, not {starts.dtype} {starts.shape}")
        if starts.ndim == 1:
            found, starts = found[None], starts[None]
        if found.ndim not in (1, 2) or len(found) != len(starts) or found.dtype.kind not in "biuf":
            raise SchemaError(
                f"values of {found.dtype} {found.shape} for {len(starts)} patches; one number or "
                "(channels,) for each is expected. For a value of each pixel there is Aggregator"
            )
        numbers = found.reshape(len(found), -1).astype(np.float64)
        if self._sums is None:
            self._is_scalar = found.ndim == 1
            self._sums = np.zeros((*self.shape, numbers.shape[1]))
        if self._is_scalar != (found.ndim == 1) or numbers.shape[1] != self._sums.shape[2]:
            raise SchemaError(
                f"values of shape {found.shape[1:]}, the patches before had "
                f"{() if self._is_scalar else self._sums.shape[2:]}"
            )
        for value, (y, x) in zip(numbers, starts.tolist(), strict=True):
            self._add(value, self._covered(0, y), self._covered(1, x))

    def _add(self, value: Values, rows: _Part, columns: _Part) -> None:
        weights = rows[1][:, None] * columns[1]
        self._weights[rows[0], columns[0]] += weights
        if self._sums is not None:
            self._sums[rows[0], columns[0]] += weights[..., None] * value

    def _covered(self, axis: int, begin: float) -> _Part:
        """Return which elements of an axis a patch covers, and how much of each."""
        size = self.downsample[axis]
        low, high = max(begin, 0.0), min(begin + self._reach[axis], self._slide[axis])
        if low >= high:
            return slice(0, 0), np.zeros(0)
        first = min(int(low / size), self.shape[axis] - 1)
        last = min(max(first + 1, math.ceil(high / size - 1e-9)), self.shape[axis])
        edges = np.arange(first, last + 1) * size
        return slice(first, last), np.diff(edges.clip(low, high)) / size

    def result(self) -> Values:
        """Return the map: (rows, columns), or (rows, columns, channels); float32.

        Raises:
            SchemaError: Nothing has been added.
        """
        if self._sums is None:
            raise SchemaError("no patch has been added")
        with np.errstate(invalid="ignore", divide="ignore"):
            found = (self._sums / self._weights[..., None]).astype(np.float32)
        found[self._weights < 1e-9] = np.nan
        return found[..., 0] if self._is_scalar else found


_Part = tuple[slice, Values]


def _steps(patches: Any, size: Pair) -> Any:
    """Return how far patches of a grid are apart; the size of others."""
    shared = getattr(patches, "overlap", (0, 0))
    return size[0] - shared[0], size[1] - shared[1]
