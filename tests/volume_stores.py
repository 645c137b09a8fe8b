"""Small stores of volumes, as packing makes them, and the voxels in them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sharedds.order import SampleKey, using_key
from sharedds.patches import (
    ForegroundPatches,
    GridPatches,
    Location,
    Patches,
    SlicePatches,
    UniformPatches,
    WeightedPatches,
)
from sharedds.store import ArrayValue, Field, StoreWriter

__all__ = [
    "AFFINE",
    "PATCHES",
    "SHAPES",
    "Volume",
    "block_table",
    "case",
    "empty",
    "is_padded",
    "keys",
    "numbered",
    "one_by_one",
    "same",
    "volumes",
    "write_volumes",
]

Values = npt.NDArray[Any]

#: Spacing 0.8, 0.7 and 2.5 mm, turned a little, off the origin.
AFFINE = np.array(
    [[-0.8, 0.02, 0.1, 90.0], [0.03, -0.7, 0.0, 80.0], [0.0, 0.05, 2.5, -20.0], [0, 0, 0, 1.0]]
)


#: Of the cases of :func:`volumes`; the last one has a single slice.
SHAPES = [(20, 18, 12), (9, 30, 12), (16, 16, 16), (25, 11, 7), (12, 12, 1)]

#: Each kind of patch, some of them larger than some of the volumes.
PATCHES: dict[str, Patches] = {
    "uniform": UniformPatches((8, 9, 5), per_case=2),
    "foreground": ForegroundPatches((8, 8, 8), fraction=0.5),
    "several": ForegroundPatches(6, fraction=0.5, per_case=3),
    "weighted": WeightedPatches((5, 6, 7), weights={0: 1, 2: 5}),
    "slices": SlicePatches(axis=2, size=(8, 10), thickness=3),
    "grid": GridPatches((8, 8, 4), overlap=0.25),
}


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A case to be written.

    Attributes:
        image: (i, j, k), or (channels, i, j, k).
        label: (i, j, k) whole numbers, or None.
        attrs: Of the image: slope, intercept, affine, ...
        group: What it belongs to.
    """

    image: Values
    label: Values | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""


def numbered(shape: Sequence[int], dtype: npt.DTypeLike = np.int32) -> Values:
    """Return an array of which each voxel has a value of its own."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def case(
    shape: tuple[int, int, int], *, label: Values | None = None, channels: int = 0, seed: int = 0
) -> Volume:
    """Return a case of noise, its label in three classes unless it is given."""
    generator = np.random.default_rng(seed)
    full = (channels, *shape) if channels else shape
    image = generator.integers(-1000, 1000, full, np.int16)
    if label is None:
        label = generator.integers(0, 3, shape, np.uint8)
    return Volume(image=image, label=label, attrs={"affine": AFFINE.tolist()})


def volumes() -> dict[str, Volume]:
    """Return cases of different shapes."""
    return {f"case{n}": case(shape, seed=n) for n, shape in enumerate(SHAPES)}


def block_table(label: Values, chunk: Sequence[int]) -> tuple[dict[str, Any], Values]:
    """Return what is stored about where classes are: attributes, and blocks with counts."""
    grid = [-(-n // c) for n, c in zip(label.shape, chunk, strict=True)]
    classes, voxels = np.unique(label, return_counts=True)
    rows: list[tuple[int, int]] = []
    each = []
    for class_id in classes.tolist():
        before = len(rows)
        for number, place in enumerate(itertools.product(*map(range, grid))):
            block = label[
                tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, chunk, strict=True))
            ]
            if count := int(np.count_nonzero(block == class_id)):
                rows.append((number, count))
        each.append(len(rows) - before)
    attrs = {"classes": classes.tolist(), "voxels": voxels.tolist(), "rows": each}
    return attrs, np.array(rows, np.int64).reshape(-1, 2)


def write_volumes(
    path: Path,
    cases: Mapping[str, Volume],
    *,
    codec: str = "lz4",
    chunk: tuple[int, int, int] = (8, 8, 8),
    grouped: bool = False,
) -> Path:
    """Write a store of volumes.

    Args:
        path: The file.
        cases: By name.
        codec: Of images and labels.
        chunk: Of their blocks.
        grouped: Whether cases belong to something.

    Returns:
        The path.
    """
    labelled = any(volume.label is not None for volume in cases.values())
    schema: dict[str, str | Field] = {"image": Field(codec)}
    if labelled:
        schema |= {"label": Field(codec), "label_blocks": "array:int64"}
    schema["shape"] = "int64[4]"
    if grouped:
        schema["group"] = "str"
    attrs: dict[str, Any] = {"kind": "volume", "patch": None, "options": {}, "format_of_labels": 1}
    with StoreWriter(path, schema=schema, attrs=attrs) as writer:
        for name, volume in cases.items():
            image = volume.image
            lead = (1,) if image.ndim == 4 else ()
            kept = dict(volume.attrs)
            if image.ndim == 4:
                kept["axis"] = "channel"
            sample: dict[str, Any] = {
                "image": ArrayValue(image, attrs=kept, chunk=(*lead, *chunk)),
                "shape": [image.shape[0] if lead else 1, *image.shape[-3:]],
            }
            if labelled:
                sample["label"], sample["label_blocks"] = _label(volume, chunk)
            if grouped:
                sample["group"] = volume.group
            writer.add(sample, key=name)
    return path


def _label(volume: Volume, chunk: tuple[int, int, int]) -> tuple[ArrayValue | None, Values]:
    if volume.label is None:
        return None, np.zeros((0, 2), np.int64)
    # Blocks are never larger than the array.
    fitting = [min(c, n) for c, n in zip(chunk, volume.label.shape, strict=True)]
    attrs, table = block_table(volume.label, fitting)
    if "affine" in volume.attrs:
        attrs["affine"] = volume.attrs["affine"]
    return ArrayValue(volume.label, attrs=attrs, chunk=chunk), table


def is_padded(location: Location, shape: Sequence[int]) -> bool:
    """Whether a part of the patch lies outside of the volume."""
    return any(
        start < 0 or start + p > n
        for start, p, n in zip(location.start, location.size, shape, strict=True)
    )


# --- items ---------------------------------------------------------------------------------------


def keys(indices: Sequence[int]) -> list[SampleKey]:
    """Return keys of which no two are equal, though indices may be."""
    return [SampleKey(4, 2, index, draw) for draw, index in enumerate(indices)]


def one_by_one(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return items."""
    items = []
    for key in keys(indices):
        with using_key(key):
            items.append(dataset[key.index])
    return items


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    """Return a tensor of nonsense."""
    return torch.full(shape, 99, dtype=dtype)


def same(one: Any, other: Any) -> bool:
    """Whether two items or batches are of one type and equal to the bit."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return bool(one == other)
