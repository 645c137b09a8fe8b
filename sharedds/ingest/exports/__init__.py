"""Ways out of a store: a folder of ordinary files, a part of a slide, a picture of it all."""

from sharedds.ingest.exports.export import ExportReport, export
from sharedds.ingest.exports.preview import PreviewReport, preview
from sharedds.ingest.exports.slides import export_region

__all__ = ["ExportReport", "PreviewReport", "export", "export_region", "preview"]
