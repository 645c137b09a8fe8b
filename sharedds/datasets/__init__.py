"""Map-style datasets that hold a place to look instead of the data."""

from sharedds.datasets.images import ImageDataset
from sharedds.datasets.indexed import ConcatDataset, IndexedDataset, concat
from sharedds.datasets.lazy import LazyDataset
from sharedds.datasets.memmap import MemmapDataset

__all__ = [
    "ConcatDataset",
    "ImageDataset",
    "IndexedDataset",
    "LazyDataset",
    "MemmapDataset",
    "concat",
]
