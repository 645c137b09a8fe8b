"""A real ``torch.utils.data.DataLoader``, planned for this machine."""

from __future__ import annotations

from sharedds.loader.build import build_loader
from sharedds.loader.optimized import OptimizedDataLoader
from sharedds.loader.plan import LoaderPlan
from sharedds.loader.planned import PlannedLoader

__all__ = ["LoaderPlan", "OptimizedDataLoader", "PlannedLoader", "build_loader"]
