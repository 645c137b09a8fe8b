"""Ways into a store: images, volumes or slides are packed, and exported again; without torch."""

from sharedds.ingest.exports import ExportReport, export
from sharedds.ingest.images import ImageRecipe, PackPlan, pack_images, plan_packing
from sharedds.ingest.pack import pack
from sharedds.ingest.report import PackReport
from sharedds.ingest.slides import pack_slides
from sharedds.ingest.volumes import VolumeRecipe, pack_volumes

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
