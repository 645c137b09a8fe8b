"""Volumes of a packed store: where their classes are, and parts of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from sharedds.datasets.stored_arrays import has_array, holds_arrays, store_of_arrays
from sharedds.datasets.volume_sources import Integers, Values, VolumeCase, no_label
from sharedds.errors import (
    CorruptDataError,
    SampleKeyError,
    SchemaError,
    StoreFormatError,
)
from sharedds.patches import Location
from sharedds.patches.cutting import Padding, cut
from sharedds.patches.location import Triple, triple
from sharedds.store import Store
from sharedds.store.arrays import ChunkedArray
from sharedds.volumes.geometry import checked_affine
from sharedds.volumes.source import Affine

__all__ = ["StoredVolumes"]


class StoredVolumes:
    """Volumes of a store.

    Args:
        path: The store.
        cache_bytes: What decoded blocks may take in each process; 0 for none.

    Raises:
        StoreNotFoundError, StoreFormatError: The store cannot be opened.
        OptionError: It holds no volumes.
    """

    def __init__(self, path: Any, cache_bytes: int) -> None:
        self._store = store_of_arrays(path, kind="volume", made_of="arrays (raw, lz4 or zstd)")
        self.path = self._store.path
        fields = {field.name: field for field in self._store.header.fields}
        self.labelled = holds_arrays(self._store, "label")
        self.counted = self.labelled and "label_blocks" in fields
        shape = fields.get("shape")
        self._has_shapes = shape is not None and shape.kind == "column" and shape.shape == (4,)
        self._has_groups = "group" in fields and fields["group"].kind == "text"
        self._store.block_cache(cache_bytes)

    @property
    def advice(self) -> str:
        """What to do where classes have to be counted."""
        if self.labelled:
            return "pack it with `sharedds pack DIR OUT --kind volume`, which counts them"
        return "it has no labels; pack images with their labels"

    def __len__(self) -> int:
        return len(self._store)

    def digest(self) -> str:
        """Return the digest of the content."""
        return self._store.digest

    def name(self, position: int) -> str:
        """Return the key of a case."""
        return self._store.key(position)

    def find(self, name: str) -> int:
        """Return the number of a case.

        Raises:
            SampleKeyError: There is none of that name.
        """
        return self._store.index_of(name)

    def group(self, position: int) -> str | None:
        """Return what a case belongs to."""
        return self._store.texts("group")[position] if self._has_groups else None

    def shapes(self) -> Integers:
        """Return channels and voxels along (i, j, k) of each case."""
        if self._has_shapes:
            return np.asarray(self._store.column("shape")).astype(np.int64)
        arrays = (self._store.array(position, "image") for position in range(len(self)))
        found = [_four(array) for array in arrays]
        return np.array(found, np.int64).reshape(-1, 4)

    def has_label(self, position: int) -> bool:
        """Whether a case has a label."""
        return self.labelled and has_array(self._store, "label", position)

    def open(self, position: int) -> VolumeCase:
        """Return a case.

        Raises:
            StoreFormatError: What is stored about it is damaged.
        """
        case = _StoredCase(self._store, position)
        if self._has_shapes:
            said = tuple(self._store.column("shape")[position].tolist())
            if said != (case.channels, *case.shape):
                raise StoreFormatError(
                    f"{self.path}: case {case.name!r} is said to be {said}, and is "
                    f"{(case.channels, *case.shape)}; it is damaged",
                    path=self.path,
                    sample=position,
                )
        return case

    def advise(self, numbers: Iterable[int]) -> None:
        """Ask the system to fetch blocks."""
        self._store.opened.advise(numbers)

    def release(self) -> None:
        """Let go of the pages of the file; the system keeps them."""
        self._store.release()


def _four(array: ChunkedArray) -> tuple[int, int, int, int]:
    """Return channels and voxels of a stored volume.

    Raises:
        StoreFormatError: It has not three or four axes.
    """
    if array.ndim not in (3, 4):
        raise StoreFormatError(
            f"an array of shape {array.shape} is no volume: (i, j, k) or (channels, i, j, k)"
        )
    i, j, k = array.shape[-3:]
    return (array.shape[0] if array.ndim == 4 else 1), i, j, k


class _StoredCase:
    """A case of a store."""

    def __init__(self, store: Store, position: int) -> None:
        self._store = store
        self._position = position
        self._image = store.array(position, "image")
        channels, *sides = _four(self._image)
        self.channels = channels
        self.shape: Triple = triple(sides)
        self.dtype = self._image.dtype
        self._label_array: ChunkedArray | None = None
        self._table: tuple[dict[int, int], dict[int, slice]] | None = None

    @property
    def name(self) -> str:
        """What the case is called."""
        return self._store.key(self._position)

    @property
    def affine(self) -> Affine | None:
        """From voxels to millimetres."""
        matrix = self._image.affine
        return None if matrix is None else checked_affine(matrix)

    @property
    def _label(self) -> ChunkedArray:
        if self._label_array is None:
            try:
                label = self._store.array(self._position, "label")
            except SampleKeyError:
                raise no_label(self._store.path, self._position, self.name) from None
            if label.shape != self.shape:
                raise self._damaged(f"label of {label.shape}, image of {self.shape}")
            self._label_array = label
        return self._label_array

    def _damaged(self, what: str) -> CorruptDataError:
        path = self._store.path
        return CorruptDataError(
            f"{path}: case {self.name!r}: {what}; pack it again",
            path=path,
            sample=self._position,
            key=self.name,
            field="label",
        )

    # --- where its classes are

    @property
    def _counts(self) -> tuple[dict[int, int], dict[int, slice]]:
        """Voxels of each class, and its rows in the table of blocks."""
        if self._table is None:
            attrs = self._label.attrs
            try:
                classes, voxels, rows = (
                    [int(number) for number in attrs[name]]
                    for name in ("classes", "voxels", "rows")
                )
                bounds = np.concatenate(([0], np.cumsum(rows))).astype(int).tolist()
                spans = map(slice, bounds[:-1], bounds[1:])
                self._table = (
                    dict(zip(classes, voxels, strict=True)),
                    dict(zip(classes, spans, strict=True)),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise self._damaged(f"its classes are not described ({error!r})") from error
        return self._table

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes of foreground that occur."""
        return tuple(number for number in sorted(self._counts[0]) if number > 0)

    def voxels(self, class_id: int) -> int:
        """Return how many voxels a class has."""
        return self._counts[0].get(class_id, 0)

    def locate(self, class_id: int, number: int) -> Triple:
        """Return voxel ``number`` of a class: one block of the label is read, and no more.

        Raises:
            CorruptDataError: The count of a block is not what is in it.
        """
        table = self._store.value("label_blocks", self._position)[self._counts[1][class_id]]
        ends = np.cumsum(table[:, 1])
        at = int(ends.searchsorted(number, "right"))
        if at == len(ends):
            raise self._damaged(f"class {class_id} has {int(ends[-1]) if at else 0} voxels counted")
        within = number - int(ends[at] - table[at, 1])
        label = self._label
        grid = [-(-n // c) for n, c in zip(label.shape, label.chunk, strict=True)]
        block = int(table[at, 0])
        if not 0 <= block < math.prod(grid):
            raise self._damaged(f"class {class_id} in block {block} of {math.prod(grid)}")
        origin = [
            int(place) * c
            for place, c in zip(np.unravel_index(block, grid), label.chunk, strict=True)
        ]
        values = label[
            tuple(
                slice(o, min(o + c, n))
                for o, c, n in zip(origin, label.chunk, label.shape, strict=True)
            )
        ]
        found = np.flatnonzero(values == class_id)
        if len(found) != int(table[at, 1]):
            raise self._damaged(
                f"class {class_id} has {len(found)} voxels in block {block}, counted were "
                f"{int(table[at, 1])}"
            )
        inside = np.unravel_index(int(found[within]), values.shape)
        return triple(o + int(place) for o, place in zip(origin, inside, strict=True))

    # --- its values

    def blocks(self, location: Location, label: Location | None) -> list[int]:
        """Return the entries of the store that a part is read from."""
        found = self._entries("image", self._image, location)
        if label is not None:
            found += self._entries("label", self._label, label)
        return found

    def _entries(self, field: str, array: ChunkedArray, location: Location) -> list[int]:
        first, _ = self._store.opened.entry_range(self._position, field)
        lead = array.ndim - 3
        starts, stops = [0] * lead, list(array.shape[:lead])
        for start, size, n in zip(location.start, location.size, array.shape[lead:], strict=True):
            starts.append(min(max(start, 0), n - 1))
            stops.append(max(min(start + size, n), starts[-1] + 1))
        spans = [
            np.arange(start // c, (stop - 1) // c + 1)
            for start, stop, c in zip(starts, stops, array.chunk, strict=True)
        ]
        grid = [-(-n // c) for n, c in zip(array.shape, array.chunk, strict=True)]
        numbers = np.ravel_multi_index(np.ix_(*spans), grid).ravel()
        return [first + number for number in numbers.tolist()]

    def read_image(
        self, location: Location, out: Values, *, scaled: bool, padding: Padding, fill: float
    ) -> None:
        """Write a part of the image into (channels, i, j, k)."""
        self._image.patch(
            location.start,
            location.size,
            scaled=scaled,
            padding=padding,
            fill=fill,
            out=out if self._image.ndim == 4 else out[0],
        )

    def read_label(self, location: Location, out: Values, *, padding: Padding, fill: int) -> None:
        """Write a part of the label into (i, j, k).

        Raises:
            SchemaError: Its dtype may not fit.
        """
        label = self._label
        if label.dtype == out.dtype:
            label.patch(
                location.start, location.size, scaled=False, padding=padding, fill=fill, out=out
            )
            return
        if not np.can_cast(label.dtype, out.dtype):
            raise SchemaError(
                f"{self._store.path}: the label of case {self.name!r} is stored as {label.dtype}, "
                f"which label_dtype={out.dtype.name!r} may not hold",
                path=self._store.path,
                sample=self._position,
                key=self.name,
                field="label",
            )
        cut(label, location.start, out, padding=padding, fill=fill)
