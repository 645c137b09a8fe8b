"""Memory-safe datasets for PyTorch: the data lives once, in a file that every process maps.

The public names are loaded when first used, so that ``import sharedds`` costs next to nothing and
loads neither torch nor LMDB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharedds import errors, testing
    from sharedds.datasets import (
        ConcatDataset,
        ImageDataset,
        LazyDataset,
        MemmapDataset,
        SlideDataset,
        VolumeDataset,
        concat,
    )
    from sharedds.diagnose.bench import bench
    from sharedds.diagnose.doctor import doctor
    from sharedds.diagnose.stalls import StallMeter
    from sharedds.diagnose.tune import tune
    from sharedds.doors import export, pack
    from sharedds.handles import per_process
    from sharedds.host.machine import Machine, machine
    from sharedds.ingest import pack_slides, pack_volumes
    from sharedds.loader import OptimizedDataLoader, build_loader, build_loaders
    from sharedds.order import BalancedSampling, WeightedSampling
    from sharedds.packed import PackedStrings, RaggedArray
    from sharedds.patches import (
        Aggregator,
        ForegroundPatches,
        GridPatches,
        HeatMap,
        SlicePatches,
        TissuePatches,
        UniformPatches,
        WeightedPatches,
    )
    from sharedds.patches.pyramid import mask_pyramid
    from sharedds.store import (
        Field,
        Store,
        StoreWriter,
        append,
        edit,
        info,
        merge,
        split,
        verify,
    )
    from sharedds.views import CenterCrop, Full, RandomCrop, RandomResizedCrop, Resize

    __version__: str

__all__ = [
    "Aggregator",
    "BalancedSampling",
    "CenterCrop",
    "ConcatDataset",
    "Field",
    "ForegroundPatches",
    "Full",
    "GridPatches",
    "HeatMap",
    "ImageDataset",
    "LazyDataset",
    "Machine",
    "MemmapDataset",
    "OptimizedDataLoader",
    "PackedStrings",
    "RaggedArray",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "SlicePatches",
    "SlideDataset",
    "StallMeter",
    "Store",
    "StoreWriter",
    "TissuePatches",
    "UniformPatches",
    "VolumeDataset",
    "WeightedPatches",
    "WeightedSampling",
    "__version__",
    "append",
    "bench",
    "build_loader",
    "build_loaders",
    "concat",
    "doctor",
    "edit",
    "errors",
    "export",
    "info",
    "machine",
    "mask_pyramid",
    "merge",
    "pack",
    "pack_slides",
    "pack_volumes",
    "per_process",
    "split",
    "testing",
    "tune",
    "verify",
]

# Where each public name is defined; a test compares this with the imports above.
_HOMES = {
    "Aggregator": "sharedds.patches",
    "BalancedSampling": "sharedds.order",
    "CenterCrop": "sharedds.views",
    "ConcatDataset": "sharedds.datasets",
    "Field": "sharedds.store",
    "ForegroundPatches": "sharedds.patches",
    "Full": "sharedds.views",
    "GridPatches": "sharedds.patches",
    "HeatMap": "sharedds.patches",
    "ImageDataset": "sharedds.datasets",
    "LazyDataset": "sharedds.datasets",
    "Machine": "sharedds.host.machine",
    "MemmapDataset": "sharedds.datasets",
    "OptimizedDataLoader": "sharedds.loader",
    "PackedStrings": "sharedds.packed",
    "RaggedArray": "sharedds.packed",
    "RandomCrop": "sharedds.views",
    "RandomResizedCrop": "sharedds.views",
    "Resize": "sharedds.views",
    "SlicePatches": "sharedds.patches",
    "SlideDataset": "sharedds.datasets",
    "StallMeter": "sharedds.diagnose.stalls",
    "Store": "sharedds.store",
    "StoreWriter": "sharedds.store",
    "TissuePatches": "sharedds.patches",
    "UniformPatches": "sharedds.patches",
    "VolumeDataset": "sharedds.datasets",
    "WeightedPatches": "sharedds.patches",
    "WeightedSampling": "sharedds.order",
    "append": "sharedds.store",
    "bench": "sharedds.diagnose.bench",
    "build_loader": "sharedds.loader",
    "build_loaders": "sharedds.loader",
    "concat": "sharedds.datasets",
    "doctor": "sharedds.diagnose.doctor",
    "edit": "sharedds.store",
    "export": "sharedds.doors",
    "info": "sharedds.store",
    "machine": "sharedds.host.machine",
    "mask_pyramid": "sharedds.patches.pyramid",
    "merge": "sharedds.store",
    "pack": "sharedds.doors",
    "pack_slides": "sharedds.ingest",
    "pack_volumes": "sharedds.ingest",
    "per_process": "sharedds.handles",
    "split": "sharedds.store",
    "tune": "sharedds.diagnose.tune",
    "verify": "sharedds.store",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    value: Any
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in ("errors", "testing"):
        value = importlib.import_module(f"sharedds.{name}")
    elif name == "__version__":
        value = _installed_version()
    else:
        raise AttributeError(f"module 'sharedds' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _installed_version() -> str:
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version("sharedds"))
    except metadata.PackageNotFoundError:  # a source tree on sys.path that nobody installed
        return "0+unknown"
