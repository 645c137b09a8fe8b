"""Files of medical volumes: recognised by content, described, and read by regions.

Only NumPy is needed for what is imported here; what reads a format is loaded when a file of that
format is met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedds.lazily import loaded_on_first_use

if TYPE_CHECKING:
    from sharedds.volumes.geometry import (
        checked_affine,
        corner_distance,
        is_mirrored,
        orientation_of,
        reorientation,
        reoriented_affine,
        shifted,
        spacing_of,
    )
    from sharedds.volumes.opening import companions, is_dicom, recognise
    from sharedds.volumes.source import Affine, VolumeData, VolumeFile, VolumeHeader

__all__ = [
    "Affine",
    "VolumeData",
    "VolumeFile",
    "VolumeHeader",
    "checked_affine",
    "companions",
    "corner_distance",
    "is_dicom",
    "is_mirrored",
    "orientation_of",
    "recognise",
    "reorientation",
    "reoriented_affine",
    "shifted",
    "spacing_of",
]

_HOMES = {
    **dict.fromkeys(("Affine", "VolumeData", "VolumeFile", "VolumeHeader"), "source"),
    **dict.fromkeys(("companions", "is_dicom", "recognise"), "opening"),
    **dict.fromkeys(
        (
            "checked_affine",
            "corner_distance",
            "is_mirrored",
            "orientation_of",
            "reorientation",
            "reoriented_affine",
            "shifted",
            "spacing_of",
        ),
        "geometry",
    ),
}

__getattr__ = loaded_on_first_use(__name__, _HOMES)
