"""Slides on their way into a store: tile by tile, with what is on each."""

from sharedds.ingest.slides.pack import pack_slides

__all__ = ["pack_slides"]
