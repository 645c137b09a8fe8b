"""Map-style datasets that hold a place to look instead of the data."""

from sharedds.datasets.images import ImageDataset
from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.lazy import LazyDataset

__all__ = ["ImageDataset", "IndexedDataset", "LazyDataset"]
