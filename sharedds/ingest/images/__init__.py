"""Pictures on their way into a store: what happens to a file, and to a folder of them."""

from sharedds.ingest.images.pack import pack_images
from sharedds.ingest.images.planning import plan_packing
from sharedds.ingest.images.prepare import ImageRecipe
from sharedds.ingest.images.ways import PackPlan

__all__ = ["ImageRecipe", "PackPlan", "pack_images", "plan_packing"]
