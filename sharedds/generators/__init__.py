"""The random generators that samples draw from: global ones, those of a thread, those held."""

from __future__ import annotations

from sharedds.generators.held import HeldGenerators
from sharedds.generators.seeding import GlobalSeeding

__all__ = ["GlobalSeeding", "HeldGenerators"]
