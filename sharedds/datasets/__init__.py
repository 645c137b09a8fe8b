"""Map-style datasets that hold a place to look instead of the data.

Each is loaded when first used: a worker that unpickles a ``LazyDataset`` needs no codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedds.lazily import loaded_on_first_use

if TYPE_CHECKING:
    from sharedds.datasets.images import ImageDataset
    from sharedds.datasets.indexed import ConcatDataset, IndexedDataset, concat
    from sharedds.datasets.lazy import LazyDataset
    from sharedds.datasets.memmap import MemmapDataset
    from sharedds.datasets.randomness import same_view
    from sharedds.datasets.slides import SlideDataset
    from sharedds.datasets.volumes import VolumeDataset

__all__ = [
    "ConcatDataset",
    "ImageDataset",
    "IndexedDataset",
    "LazyDataset",
    "MemmapDataset",
    "SlideDataset",
    "VolumeDataset",
    "concat",
    "same_view",
]

_HOMES = {
    "ConcatDataset": "indexed",
    "ImageDataset": "images",
    "IndexedDataset": "indexed",
    "LazyDataset": "lazy",
    "MemmapDataset": "memmap",
    "SlideDataset": "slides",
    "VolumeDataset": "volumes",
    "concat": "indexed",
    "same_view": "randomness",
}

__getattr__ = loaded_on_first_use(__name__, _HOMES)
