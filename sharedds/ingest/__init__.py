"""Ways into a store: a folder of images is packed, and exported again. Never imports torch."""

from sharedds.ingest.export import ExportReport, export
from sharedds.ingest.images import ImageRecipe
from sharedds.ingest.pack import pack
from sharedds.ingest.report import PackReport

__all__ = ["ExportReport", "ImageRecipe", "PackReport", "export", "pack"]
