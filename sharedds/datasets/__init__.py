"""Map-style datasets that hold a place to look instead of the data.

Each is loaded when first used: a worker that unpickles a ``LazyDataset`` needs no codec.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "ConcatDataset": "indexed",
    "ImageDataset": "images",
    "IndexedDataset": "indexed",
    "LazyDataset": "lazy",
    "MemmapDataset": "memmap",
    "concat": "indexed",
}


def __getattr__(name: str) -> Any:
    """Load a dataset on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sharedds.datasets' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sharedds.datasets.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
