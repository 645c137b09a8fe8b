"""Predictions of patches put together to a volume or a slide, without seams and without gaps."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SchemaError, StateError
from sharedds.patches.grid import Grid
from sharedds.patches.location import Triple, triple
from sharedds.patches.outputs import as_array
from sharedds.patches.slabs import FileTarget, MemoryTarget, Slabs, Target
from sharedds.patches.windows import Mode, Part, checked_mode, most_overlap, parts_of_axis

__all__ = ["Aggregator"]

Values = npt.NDArray[Any]

_SINGLE = 64  # patches over one voxel whose sum is right to 1e-6 in single precision


class _Gridded(Protocol):
    def grid(self, shape: Sequence[int]) -> Grid:
        """Return where the patches of a volume are."""


class Aggregator:
    """Puts what a model gives for patches of a grid together to a volume.

    Every voxel gets a value, those at faces, edges and corners too, as they would be without
    patches. Patches may come in any order; one that comes again changes nothing. All have to be of
    one case: starts do not tell cases apart, so make one of these for each. Values may be NumPy
    arrays or tensors, on any device. One that is NaN stays NaN where it lies, and counts as the
    largest channel.

    The result is (channels, i, j, k), or (i, j, k) class numbers with ``argmax``; of a slide
    (channels, y, x), or (y, x). With ``"crop"`` its dtype is that of the values; the other modes
    give float32, or float64 where the values are.

    Memory: with ``argmax`` or ``out``, slabs along the first axis are finished as soon as all
    patches over them have come, and only unfinished ones are kept; in the order of the grid that is
    about the height of one patch.

    Args:
        shape: Of the volume, (i, j, k); of a slide (y, x), in pixels as fine as its patches.
        patches: The :class:`~sharedds.GridPatches` (or whole :class:`~sharedds.SlicePatches`, or
            :class:`~sharedds.TissuePatches` without jitter) that the patches are from. A model that
            gives less than it is shown is declared there, as ``output_size``.
        mode: ``"crop"``: each voxel from one patch, the one whose middle is closest along each
            axis. ``"mean"``: all patches over a voxel count the same. ``"hann"``, ``"gaussian"``:
            less towards the border of a patch (a Gaussian of an eighth of the size).
        argmax: Keep the number of the largest channel only, the first of equal ones, in the
            smallest unsigned dtype; reduced slab by slab.
        out: A ``.npy`` file to make, written slab by slab; the result is this file, mapped
            read-only. None keeps the result in memory.
        force: Whether ``out`` may replace a file.
        downsample: For slides: pixels of level 0 for each pixel of ``shape``, one number or one for
            (y, x). Starts are pixels of level 0 then, as items of a :class:`~sharedds.SlideDataset`
            have them.

    Raises:
        OptionError: A value is out of range.
        StoreExistsError: ``out`` exists, and ``force`` is not set.

    Example:
        >>> from sharedds.patches import GridPatches
        >>> grid = GridPatches((4, 4, 4), overlap=2)
        >>> volume = np.arange(480.0).reshape(1, 8, 6, 10)
        >>> joined = Aggregator((8, 6, 10), grid, mode="hann")
        >>> for i, j, k in itertools.product(*grid.grid((8, 6, 10)).starts):
        ...     joined.add(volume[:, i : i + 4, j : j + 4, k : k + 4], (i, j, k))
        >>> bool(np.allclose(joined.result(), volume))
        True
    """

    def __init__(
        self,
        shape: Sequence[int],
        patches: _Gridded,
        *,
        mode: Mode = "crop",
        argmax: bool = False,
        out: str | os.PathLike[str] | None = None,
        force: bool = False,
        downsample: float | tuple[float, float] = 1.0,
    ) -> None:
        if not hasattr(patches, "grid"):
            raise OptionError(f"{patches!r}: GridPatches, or SlicePatches without a size, go here")
        self.mode: Mode = checked_mode(mode)
        self._axes = 2 if len(shape) == 2 else 3
        self._grid = patches.grid(shape)
        self._on_grid = self._grid.on_level_0(downsample) if self._axes == 2 else None
        self._parts: list[list[Part]] = [
            parts_of_axis(starts, size, length, self.mode)
            for starts, size, length in zip(
                self._grid.starts, self._grid.size, self._grid.shape, strict=True
            )
        ]
        self._argmax = argmax
        self._seen = np.zeros(self._grid.counts, bool)
        self._target: Target = MemoryTarget() if out is None else FileTarget(out, force=force)
        self._slabs: Slabs | None = None
        self._is_broken = False
        self._channels = 0
        self._dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the volume or slide."""
        return self._grid.shape[: self._axes]

    @property
    def missing(self) -> int:
        """How many patches have not come yet."""
        return int(self._seen.size - np.count_nonzero(self._seen))

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of slabs that wait for patches, beside the result."""
        return self._slabs.nbytes if self._slabs is not None else 0

    def add(self, outputs: Any, start: Any) -> None:
        """Take what a model gave for one patch, or for a batch of them.

        Args:
            outputs: (channels, i, j, k), or (n, channels, i, j, k) of a batch. An axis along which
                patches have one voxel may be left out. Of slides (channels, y, x), or of a batch.
            start: Where the patch was cut, as its item says: (3,), or (n, 3). Of slides (y, x).

        Raises:
            SchemaError: A shape or dtype does not fit; the text has both.
            OptionError: No patch of the grid begins there.
            StorageFullError: ``out`` has no room for a slab; nothing can be added after that.
            StateError: An error before has left a patch half added.
        """
        values, starts = as_array(outputs), np.asarray(as_array(start))
        axes = self._axes
        if starts.ndim not in (1, 2) or starts.shape[-1] != axes or starts.dtype.kind not in "iu":
            raise SchemaError(
                f"start: whole numbers ({axes},) or (n, {axes}), not {starts.dtype} {starts.shape}"
            )
        if not values.ndim:
            kind = type(outputs).__name__
            raise SchemaError(f"outputs: an array or a tensor is expected, not {kind}")
        if starts.ndim == 1:
            values, starts = values[None], starts[None]
        if len(values) != len(starts):
            raise SchemaError(f"outputs of {len(values)} patches, and {len(starts)} starts")
        for patch, at in zip(values, starts.tolist(), strict=True):
            self._add(patch, at)

    def fill(self, value: float = 0) -> None:
        """Give one value, in all channels, to the patches that have not come.

        Such are those without tissue, which no model was shown. With ``argmax`` they are of class
        0. Where patches overlap they mix with their neighbours, as any other does.

        Raises:
            SchemaError: No patch has come yet, so that nobody knows channels and dtype.
            StorageFullError: ``out`` has no room for a slab.
            StateError: An error before has left a patch half added.
        """
        if self._slabs is None:
            raise SchemaError("no patch has been added: channels and dtype of the others follow it")
        values = np.full((self._channels, *self._grid.size), value, self._dtype)
        for place in np.argwhere(~self._seen).tolist():
            self._put(values, triple(place))

    def _require_sound(self) -> None:
        if self._is_broken:
            raise StateError(
                "a patch was added in part only, by the error before: what a voxel has got nobody "
                "knows any more. Make a new Aggregator, and add all patches"
            )

    def _add(self, values: Values, start: list[int]) -> None:
        self._require_sound()
        place = self._place(start)
        if place is None:
            raise OptionError(
                f"no patch of the grid begins at {tuple(start)}; its starts are those of "
                f"{self._grid.counts[: self._axes]} places along each axis of "
                f"{'a slide' if self._axes == 2 else 'a volume'} of {self.shape}"
            )
        self._put(self._fitted(values), place)

    def _place(self, start: list[int]) -> Triple | None:
        """Return the place of a patch on the grid; None where it has none."""
        if self._on_grid is None:
            return self._grid.place(start)
        y, x = (axis.get(at) for axis, at in zip(self._on_grid, start, strict=True))
        return None if y is None or x is None else self._grid.place((y, x, 0))

    def _put(self, values: Values, place: Triple) -> None:
        if self._slabs is None:
            self._slabs = self._begun(values)
        if len(values) != self._channels or values.dtype != self._dtype:
            raise SchemaError(
                f"{len(values)} channels of {values.dtype}, the patches before had "
                f"{self._channels} of {self._dtype}"
            )
        if self._seen[place]:
            return
        rows, *sides = (parts[at] for parts, at in zip(self._parts, place, strict=True))
        inside = tuple(
            slice(part.offset, part.offset + part.end - part.begin) for part in (rows, *sides)
        )
        cut = values[(slice(None), *inside)]
        if self.mode == "crop":
            if self._argmax:
                cut = _largest(cut)
        else:
            cut = cut * self._weights(rows, *sides)
        across: Any = (..., *(slice(part.begin, part.end) for part in sides))
        is_sum = self.mode != "crop"

        def give(slab: Values, own: slice) -> None:
            if is_sum:
                slab[across] += cut[..., own, :, :]
            else:
                slab[across] = cut[..., own, :, :]

        self._is_broken = True  # until all of it is there
        self._slabs.add(rows.begin, rows.end, give)
        self._is_broken = False
        self._seen[place] = True

    def _weights(self, i: Part, j: Part, k: Part) -> Values:
        plane = j.weights[:, None] * k.weights
        return (i.weights[:, None, None] * plane).astype(self._kept)

    def _fitted(self, values: Values) -> Values:
        size = self._grid.size
        if values.ndim == 3:
            for axis, side in enumerate(size):
                if side == 1 and values.shape[1:] == size[:axis] + size[axis + 1 :]:
                    values = np.expand_dims(values, 1 + axis)
                    break
        if values.ndim != 4 or values.shape[1:] != size:
            wanted = size[: self._axes]
            raise SchemaError(
                f"an output of shape {values.shape} for patches that cover {wanted}; (channels, "
                f"{', '.join(map(str, wanted))}) is expected. A model that gives less than it is "
                "shown is declared: GridPatches(size, output_size=...)"
            )
        if values.dtype.kind not in "biuf":
            raise SchemaError(f"outputs of {values.dtype}; numbers are expected")
        return values

    def _begun(self, values: Values) -> Slabs:
        """Find out what the result is, from the first patch."""
        self._channels, self._dtype = len(values), values.dtype
        if self._argmax and self._channels < 2:
            raise SchemaError("argmax=True with one channel would be 0 everywhere")
        mixed = self.mode != "crop"
        double = values.dtype.itemsize == 8 and values.dtype.kind == "f"
        final = values.dtype
        if mixed:
            final = np.dtype(np.float64 if double else np.float32)
        kept = final
        overlaps = (most_overlap(*axis) for axis in zip(self._parts, self._grid.shape, strict=True))
        if mixed and np.prod(list(overlaps)) > _SINGLE:
            kept = np.dtype(np.float64)
        finish: Callable[[Values], Values] | None = None
        lead: tuple[int, ...] = (self._channels,)
        if self._argmax:
            final, lead = np.min_scalar_type(self._channels - 1), ()
            if mixed:
                finish = _largest
            else:
                kept = final
        elif kept != final:
            finish = final.type
        self._kept = kept
        self._target.begin((*lead, *self._grid.shape), final, is_flat=self._axes == 2)
        unfinished = (self._channels,) if mixed or not self._argmax else ()
        _, j, k = self._grid.shape
        return Slabs(
            self._parts[0],
            self._seen.shape[1] * self._seen.shape[2],
            self._target,
            shape=(*unfinished, -1, j, k),
            dtype=kept,
            finish=finish,
        )

    def result(self) -> Values:
        """Return the volume.

        Raises:
            SchemaError: Patches are missing; the text says how many voxels no patch has covered.
            StorageFullError: ``out`` cannot be finished.
            StateError: An error before has left a patch half added.
        """
        self._require_sound()
        if self.missing:
            bare, partly = self._uncovered()
            more = f", {partly:,} more lack some of theirs" if partly else ""
            what = "pixels" if self._axes == 2 else "voxels"
            raise SchemaError(
                f"{self.missing:,} of {self._seen.size:,} patches are missing: {bare:,} {what} are "
                f"not covered{more}. Add those patches first, or call fill()"
            )
        return self._target.end()

    def _uncovered(self) -> tuple[int, int]:
        """Return how many voxels have nothing, and how many lack something."""
        axes = zip(self._grid.starts, self._grid.size, self._grid.shape, strict=True)
        shown = [parts_of_axis(*axis, "mean") for axis in axes]  # with what cropping leaves out
        bounds = [
            sorted({bound for part in (*own, *whole) for bound in (part.begin, part.end)})
            for own, whole in zip(self._parts, shown, strict=True)
        ]
        is_bare = np.ones([len(each) - 1 for each in bounds], bool)
        is_lacking = np.zeros(is_bare.shape, bool)
        given, wanted = _spans(bounds, shown), _spans(bounds, self._parts)
        for place in itertools.product(*map(range, self._seen.shape)):
            if self._seen[place]:
                is_bare[tuple(axis[at] for axis, at in zip(given, place, strict=True))] = False
            else:
                is_lacking[tuple(axis[at] for axis, at in zip(wanted, place, strict=True))] = True
        i, j, k = (np.diff(each) for each in bounds)
        sizes = i[:, None, None] * j[:, None] * k
        return int(sizes[is_bare].sum()), int(sizes[is_lacking & ~is_bare].sum())


def _spans(bounds: list[list[int]], parts: list[list[Part]]) -> list[list[slice]]:
    """Return, for the parts of each axis, which of the pieces between bounds they are."""
    return [
        [slice(each.index(part.begin), each.index(part.end)) for part in own]
        for each, own in zip(bounds, parts, strict=True)
    ]


def _largest(values: Values) -> Values:
    """Return the number of the largest channel."""
    found: Values = values.argmax(axis=0).astype(np.min_scalar_type(len(values) - 1))
    return found
