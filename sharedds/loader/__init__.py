"""A real ``torch.utils.data.DataLoader``, planned for this machine.

Each name is loaded when first used: a worker needs the reader of samples, not the planning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedds.lazily import loaded_on_first_use

if TYPE_CHECKING:
    from sharedds.loader.build import build_loader
    from sharedds.loader.optimized import OptimizedDataLoader
    from sharedds.loader.plan import LoaderPlan
    from sharedds.loader.planned import PlannedLoader
    from sharedds.loader.splits import build_loaders

__all__ = [
    "LoaderPlan",
    "OptimizedDataLoader",
    "PlannedLoader",
    "build_loader",
    "build_loaders",
]

_HOMES = {
    "LoaderPlan": "plan",
    "OptimizedDataLoader": "optimized",
    "PlannedLoader": "planned",
    "build_loader": "build",
    "build_loaders": "splits",
}

__getattr__ = loaded_on_first_use(__name__, _HOMES)
