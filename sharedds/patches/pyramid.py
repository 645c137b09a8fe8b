"""A mask of a slide as a store: the same in coarser and coarser levels, for looking and reading."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SchemaError
from sharedds.patches.frame import checked_factors
from sharedds.patches.location import checked_count
from sharedds.store import ArrayValue, Field, StoreWriter

__all__ = ["mask_pyramid"]

Values = npt.NDArray[Any]

_MOST = 32  # levels


class _Every:
    """Every so many pixels of a mask, read by regions: memory for a region, whatever the mask."""

    def __init__(self, mask: Values, step: int) -> None:
        self._mask = mask
        self._step = step
        self.shape = tuple(-(-side // step) for side in mask.shape)
        self.dtype = mask.dtype

    def __getitem__(self, region: tuple[slice, ...]) -> Values:
        step = self._step
        taken: Values = self._mask[
            tuple(slice(each.start * step, each.stop * step, step) for each in region)
        ]
        return taken


def mask_pyramid(
    mask: npt.ArrayLike | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    key: str = "mask",
    downsample: float | tuple[float, float] = 1.0,
    mpp: float | None = None,
    tile: int = 256,
    class_names: Sequence[str] = (),
    attrs: Mapping[str, Any] | None = None,
    force: bool = False,
) -> str:
    """Write a mask of a slide as a store of one sample, halved until it is at most one tile.

    A pixel of a coarser level is one of the four below it, the upper left one: classes have no
    mean. The mask is read by tiles, so it may be larger than memory: that of an
    :class:`~sharedds.Aggregator` with ``out="mask.npy"``.

    Args:
        mask: (y, x) whole numbers: an array, or a ``.npy`` file, which is mapped.
        out: The store to make. ``store.array(0, "mask").level(k)`` reads it by regions.
        key: Of the sample, such as the name of the slide.
        downsample: Pixels of level 0 of the slide for each pixel of the mask; kept as
            ``attrs["downsamples"]``, one number (that along y) for each level.
        mpp: Micrometres for each pixel of the mask, kept as ``attrs["mpp"]``.
        tile: Pixels along a side of a tile.
        class_names: What the numbers stand for, kept in the header.
        attrs: What else is kept with the mask.
        force: Whether a store that is there is replaced.

    Returns:
        The path of the store.

    Raises:
        SchemaError: It is no (y, x) array of whole numbers.
        OptionError: A value is out of range.
        StoreExistsError: ``out`` is there, and ``force`` is not set.

    Example:
        >>> mask_pyramid("slide7.npy", "slide7.lmdb", downsample=4)  # doctest: +SKIP
    """
    side = checked_count(tile, "tile")
    factor = checked_factors(downsample)[0]
    if mpp is not None and (isinstance(mpp, bool) or not mpp > 0):
        raise OptionError(f"mpp={mpp!r}: micrometres for each pixel, above 0")
    values = _opened(mask)
    steps = [1]
    while max(values.shape) > side * steps[-1] and len(steps) < _MOST:
        steps.append(2 * steps[-1])
    kept: dict[str, Any] = {"downsamples": [factor * step for step in steps], **(attrs or {})}
    if mpp is not None:
        kept["mpp"] = [float(mpp), float(mpp)]
    header = {"kind": "mask", "tile": side, "class_names": list(class_names)}
    schema: dict[str, str | Field] = {"mask": Field("lz4", chunk=(side, side))}
    levels = [_Every(values, step) for step in steps]
    with StoreWriter(out, schema=schema, attrs=header, force=force) as writer:
        writer.add({"mask": ArrayValue(levels[0], attrs=kept, levels=tuple(levels[1:]))}, key=key)
    return os.fspath(out)


def _opened(mask: Any) -> Values:
    if isinstance(mask, str | os.PathLike):
        values: Values = np.load(mask, mmap_mode="r", allow_pickle=False)
    else:
        values = np.asanyarray(mask)
    if values.ndim != 2 or values.dtype.kind not in "biu" or 0 in values.shape:
        raise SchemaError(
            f"a mask of {values.dtype} {values.shape}; (y, x) whole numbers are expected, such as "
            "an Aggregator gives with argmax=True"
        )
    return values
