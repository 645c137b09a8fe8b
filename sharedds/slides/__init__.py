"""Files of slides and other large pictures, read by regions or from top to bottom."""

from sharedds.slides.opening import is_slide, recognise
from sharedds.slides.source import Colour, SlideFile, SlideHeader, SlideLevel, SlideReader

__all__ = [
    "Colour",
    "SlideFile",
    "SlideHeader",
    "SlideLevel",
    "SlideReader",
    "is_slide",
    "recognise",
]
