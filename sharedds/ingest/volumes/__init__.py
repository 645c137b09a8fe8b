"""Medical volumes on their way into a store: which files make a case, and what is kept of it."""

from sharedds.ingest.volumes.pack import pack_volumes
from sharedds.ingest.volumes.recipe import VolumeRecipe

__all__ = ["VolumeRecipe", "pack_volumes"]
