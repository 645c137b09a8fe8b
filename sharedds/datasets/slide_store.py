"""Slides of a packed store: how large they are, and where their tissue and classes are."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.datasets.stored_arrays import has_array, holds_arrays, store_of_arrays
from sharedds.errors import StoreFormatError
from sharedds.handles import per_process
from sharedds.patches.planar import Pair
from sharedds.store import ChunkedArray, Store

__all__ = ["SlideFacts", "StoredSlides", "Values"]

Values = npt.NDArray[Any]

_OPEN = 64  # maps that are kept open in each process


@dataclass(frozen=True, slots=True, kw_only=True)
class SlideFacts:
    """What is known of a slide before any pixel is read.

    Attributes:
        shapes: Pixels of each level along (y, x).
        downsamples: Pixels of level 0 for each pixel of a level.
        mpp: Micrometres for each pixel of level 0 along (y, x); None where not known.
        channels: Values of a pixel.
        planes: Of a focus stack; 0 where there is no such axis.
        dtype: Of the values.
        background: One number for each channel; None where not known.
    """

    shapes: tuple[Pair, ...]
    downsamples: tuple[float, ...]
    mpp: tuple[float, float] | None
    channels: int
    planes: int
    dtype: np.dtype[Any]
    background: tuple[float, ...] | None


class StoredSlides:
    """Slides of a store.

    Args:
        path: The store.
        cache_bytes: What decoded tiles may take in each process; 0 for none.

    Raises:
        StoreNotFoundError, StoreFormatError: The store cannot be opened.
        OptionError: It holds no slides.
    """

    def __init__(self, path: str | os.PathLike[str], cache_bytes: int) -> None:
        self.store = store_of_arrays(path, kind="slide", made_of="tiles")
        self.path = self.store.path
        self.has_tissue = holds_arrays(self.store, "tissue")
        names = self.store.attrs.get("class_names")
        self.class_names: tuple[str, ...] = ()
        if holds_arrays(self.store, "label") and isinstance(names, list):
            self.class_names = tuple(map(str, names))
        cell = self.store.attrs.get("cell")
        self.cell = cell if isinstance(cell, int) and cell > 0 else 0
        if self.has_tissue and not self.cell:
            raise StoreFormatError(
                f"{self.path}: the size of its cells is damaged: {cell!r}", path=self.path
            )
        self.store.block_cache(cache_bytes)

    def __len__(self) -> int:
        return len(self.store)

    def name(self, slide: int) -> str:
        """Return the key of a slide."""
        return self.store.key(slide)

    def facts(self, slide: int) -> SlideFacts:
        """Return what is known of a slide.

        Raises:
            StoreFormatError: It is no slide, or its description is damaged.
        """
        array = self.store.array(slide, "image")
        attrs = array.attrs
        shapes = array.levels
        if any(len(shape) not in (3, 4) for shape in shapes):
            raise self._damaged(slide, f"an array of shape {array.shape}; (y, x, channel) is")
        planes = shapes[0][0] if array.ndim == 4 else 0
        sides = tuple((shape[-3], shape[-2]) for shape in shapes)
        downs = _numbers(attrs.get("downsamples"), len(shapes))
        if downs is None:
            downs = tuple(sides[0][0] / max(1, height) for height, _ in sides)
        mpp = _numbers(attrs.get("mpp"), 2)
        background = _numbers(attrs.get("background"), shapes[0][-1], least=-math.inf)
        return SlideFacts(
            shapes=sides,
            downsamples=downs,
            mpp=None if mpp is None else (mpp[0], mpp[1]),
            channels=shapes[0][-1],
            planes=planes,
            dtype=array.dtype,
            background=background,
        )

    def _damaged(self, slide: int, what: str) -> StoreFormatError:
        return StoreFormatError(
            f"{self.path}: slide {self.name(slide)!r}: {what} expected; pack it again",
            path=self.path,
            sample=slide,
            key=self.name(slide),
        )

    @per_process
    def _maps(self) -> Callable[[str, int], ChunkedArray | None]:
        """Opens maps; the latest ones are kept open, which costs a few kB each."""
        return functools.lru_cache(maxsize=_OPEN)(functools.partial(_map_of, self.store))

    def has(self, field: str, slide: int) -> bool:
        """Whether a slide has a map of some kind: ``"tissue"`` or ``"label"``."""
        there = self.has_tissue if field == "tissue" else bool(self.class_names)
        return there and self._maps(field, slide) is not None

    def cells(self, field: str, slide: int, shape: Pair) -> ChunkedArray | None:
        """Return a map of cells of a slide, for reading by regions; None where it has none.

        Args:
            field: ``"tissue"``: (rows, columns). ``"label"``: (rows, columns, classes).
            slide: Its number.
            shape: Of level 0 of the slide.

        Raises:
            StoreFormatError: It does not fit the slide.
        """
        if not (self.has_tissue if field == "tissue" else self.class_names):
            return None
        array = self._maps(field, slide)
        if array is None:
            return None
        cell = self.cell
        wanted: tuple[int, ...] = (-(-shape[0] // cell), -(-shape[1] // cell))
        if field == "label":
            wanted = (*wanted, len(self.class_names))
        if array.shape != wanted:
            raise self._damaged(slide, f"its {field} is {array.shape}; {wanted} is")
        return array


def _map_of(store: Store, field: str, slide: int) -> ChunkedArray | None:
    """Open a map of a slide, if it has one."""
    return store.array(slide, field) if has_array(store, field, slide) else None


def _numbers(value: Any, count: int, least: float = 0.0) -> tuple[float, ...] | None:
    """Return so many numbers of a list out of a header; None where it is none."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
        return None
    if not all(isinstance(each, int | float) and least < each < math.inf for each in value):
        return None
    return tuple(float(each) for each in value)
