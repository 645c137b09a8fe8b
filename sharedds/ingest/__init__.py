"""Ways into a store: a folder of images is packed, and exported again. Never imports torch."""

from sharedds.ingest.export import ExportReport, export
from sharedds.ingest.images import ImageRecipe
from sharedds.ingest.pack import pack
from sharedds.ingest.planning import plan_packing
from sharedds.ingest.report import PackReport
from sharedds.ingest.ways import PackPlan

__all__ = [
    "ExportReport",
    "ImageRecipe",
    "PackPlan",
    "PackReport",
    "export",
    "pack",
    "plan_packing",
]
