"""A real ``torch.utils.data.DataLoader``, planned for this machine.

Each name is loaded when first used: a worker needs the reader of samples, not the planning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharedds.loader.build import build_loader
    from sharedds.loader.optimized import OptimizedDataLoader
    from sharedds.loader.plan import LoaderPlan
    from sharedds.loader.planned import PlannedLoader

__all__ = ["LoaderPlan", "OptimizedDataLoader", "PlannedLoader", "build_loader"]

_HOMES = {
    "LoaderPlan": "plan",
    "OptimizedDataLoader": "optimized",
    "PlannedLoader": "planned",
    "build_loader": "build",
}


def __getattr__(name: str) -> Any:
    """Load a part on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sharedds.loader' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sharedds.loader.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
