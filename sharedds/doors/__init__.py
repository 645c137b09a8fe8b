"""Doors in and out: datasets of other formats become stores, and stores become such datasets."""

from sharedds.doors.export import export
from sharedds.doors.pack import pack

__all__ = ["export", "pack"]
