"""Ways into a store: images, volumes or slides are packed, and exported again; without torch."""

from sharedds.ingest.export import ExportReport, export
from sharedds.ingest.images import ImageRecipe
from sharedds.ingest.pack import pack, pack_images
from sharedds.ingest.planning import plan_packing
from sharedds.ingest.report import PackReport
from sharedds.ingest.slide_pack import pack_slides
from sharedds.ingest.volume_pack import pack_volumes
from sharedds.ingest.volume_recipe import VolumeRecipe
from sharedds.ingest.ways import PackPlan

__all__ = [
    "ExportReport",
    "ImageRecipe",
    "PackPlan",
    "PackReport",
    "VolumeRecipe",
    "export",
    "pack",
    "pack_images",
    "pack_slides",
    "pack_volumes",
    "plan_packing",
]
