"""Worker processes: how they start, what they are sent, how batches come back, how they end."""

from __future__ import annotations

from sharedds.workers.starting import available_start_methods, start_context

__all__ = ["available_start_methods", "start_context"]
