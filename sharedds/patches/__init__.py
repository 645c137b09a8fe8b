"""Which parts of a volume or slide are read, and how what was made of them becomes one again."""

from sharedds.patches.aggregate import Aggregator
from sharedds.patches.foreground import ForegroundPatches, WeightedPatches
from sharedds.patches.grid import Grid, GridPatches
from sharedds.patches.heat import HeatMap
from sharedds.patches.location import Location
from sharedds.patches.sampler import Case, Patches
from sharedds.patches.slices import SlicePatches
from sharedds.patches.tissue import TissuePatches
from sharedds.patches.uniform import UniformPatches

__all__ = [
    "Aggregator",
    "Case",
    "ForegroundPatches",
    "Grid",
    "GridPatches",
    "HeatMap",
    "Location",
    "Patches",
    "SlicePatches",
    "TissuePatches",
    "UniformPatches",
    "WeightedPatches",
]
