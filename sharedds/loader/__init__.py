"""A real ``torch.utils.data.DataLoader``, planned for this machine."""

from __future__ import annotations

from sharedds.loader.build import build_loader
from sharedds.loader.plan import LoaderPlan

__all__ = ["LoaderPlan", "build_loader"]
