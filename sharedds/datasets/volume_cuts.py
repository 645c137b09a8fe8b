"""Parts of volumes written into the memory of items and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from sharedds.datasets.rows import Empty
from sharedds.datasets.volume_sources import VolumeCase
from sharedds.errors import SchemaError
from sharedds.patches import Case, Location, Patches
from sharedds.patches.cutting import Padding
from sharedds.patches.sampler import Floats
from sharedds.volumes.geometry import shifted

__all__ = ["Cutter", "Visit", "WholeVolumes", "each_patch", "joined", "named"]

Arrays = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class WholeVolumes(Patches):
    """Volumes as they are."""

    @property
    def fixed_size(self) -> None:
        """None: each has its own."""
        return None

    def locations(self, case: Case, number: int, uniforms: Floats) -> list[Location]:
        """Return all of a case."""
        return [Location(start=(0, 0, 0), size=case.shape)]


@dataclass(frozen=True, slots=True)
class Visit:
    """A case that is open, and where its patches lie."""

    volume: VolumeCase
    locations: Sequence[Location]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """How parts are written.

    Attributes:
        patches: What kind they are.
        scaled: Whether images are float32 after slope and intercept.
        labelled: Whether labels are read.
        padding: What stands outside of a volume.
        fill: The constant for images.
        label_fill: The constant for labels.
        label_dtype: Of labels as they are handed out.
    """

    patches: Patches
    scaled: bool
    labelled: bool
    padding: Padding
    fill: float
    label_fill: int
    label_dtype: np.dtype[Any]

    def label_location(self, location: Location) -> Location | None:
        """Return the part of the label that is read with a part of the image, if one is."""
        return self.patches.label_location(location) if self.labelled else None

    def memory(self, lead: tuple[int, ...], visit: Visit, empty: Empty) -> Arrays:
        """Return memory for all arrays of items like one visit.

        Args:
            lead: Axes in front of those of one patch.
            visit: Says how large patches are.
            empty: Gives memory.
        """
        volume, location = visit.volume, visit.locations[0]
        dtype = torch.float32 if self.scaled else _of_torch(volume.dtype)
        shape = self.patches.image_shape(volume.channels, location.size)
        arrays = {"image": empty((*lead, *shape), dtype)}
        part = self.label_location(location)
        if part is not None:
            shape = self.patches.image_shape(1, part.size)
            arrays["label"] = empty((*lead, *shape), _of_torch(self.label_dtype))
        arrays["start"] = empty((*lead, 3), torch.int64)
        arrays["affine"] = empty((*lead, 4, 4), torch.float64)
        arrays["drawn"] = empty((*lead, 3), torch.int64)
        return arrays

    def fill_in(self, arrays: Arrays, visit: Visit) -> None:
        """Write the patches of a visit.

        Args:
            arrays: Of :meth:`memory`, of one item: with an axis of patches in front where there
                are several.
            visit: Whose patches they are.
        """
        views = {name: value.numpy() for name, value in arrays.items()}
        if self.patches.per_case == 1:
            views = {name: value[None] for name, value in views.items()}
        volume = visit.volume
        affine = volume.affine
        if affine is None:
            affine = np.eye(4)
        for at, location in enumerate(visit.locations):
            volume.read_image(
                location,
                self.patches.as_cut(views["image"][at], volume.channels, location.size),
                scaled=self.scaled,
                padding=self.padding,
                fill=self.fill,
            )
            part = self.label_location(location)
            if part is not None:
                target = self.patches.as_cut(views["label"][at], 1, part.size)[0]
                volume.read_label(part, target, padding=self.padding, fill=self.label_fill)
            views["start"][at] = location.start
            views["affine"][at] = shifted(affine, location.start)
            views["drawn"][at] = -1 if location.drawn is None else location.drawn


def _of_torch(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype


def named(arrays: Arrays, case: str | list[str]) -> dict[str, Any]:
    """Return an item, or a batch, with the names of its cases."""
    item: dict[str, Any] = {name: arrays[name] for name in ("image", "label") if name in arrays}
    item["case"] = case
    return item | {name: arrays[name] for name in ("start", "affine", "drawn")}


def each_patch(item: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the item of each patch of an item that has several."""
    return [
        {name: part if isinstance(part, str) else part[at] for name, part in item.items()}
        for at in range(count)
    ]


def joined(items: list[Any]) -> Any:
    """Return patches of one case as one item; those that are no plain dicts stay a list.

    Raises:
        SchemaError: They differ in shape, dtype or names, or hold what makes no batch.
    """
    if not all(type(item) is dict for item in items):  # a subject of another package may be one
        return items
    try:
        together = default_collate(items)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise SchemaError(
            "the patches of a case are joined to one item (per_case), and a transform made them so "
            f"that they do not fit together ({error}); give all of them one shape, or take "
            "per_case=1"
        ) from error
    for name, first in items[0].items():
        if isinstance(first, str) and all(item[name] == first for item in items):
            together[name] = first
    return together
