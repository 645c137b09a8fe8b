"""Which parts of a volume are read, and how what was made of them becomes a volume again."""

from sharedds.patches.aggregate import Aggregator
from sharedds.patches.foreground import ForegroundPatches, WeightedPatches
from sharedds.patches.grid import Grid, GridPatches
from sharedds.patches.location import Location
from sharedds.patches.sampler import Case, Patches
from sharedds.patches.slices import SlicePatches
from sharedds.patches.uniform import UniformPatches

__all__ = [
    "Aggregator",
    "Case",
    "ForegroundPatches",
    "Grid",
    "GridPatches",
    "Location",
    "Patches",
    "SlicePatches",
    "UniformPatches",
    "WeightedPatches",
]
