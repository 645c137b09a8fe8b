"""Diagnosis: what a dataset costs in workers, what bounds its loader, which plan suits it."""

from __future__ import annotations

__all__: list[str] = []
