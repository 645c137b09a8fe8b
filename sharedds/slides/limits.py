"""What is refused before anything is allocated for it."""

from __future__ import annotations

__all__ = [
    "CACHED_BYTES",
    "CACHED_STRIP_BYTES",
    "MAX_DIRECTORIES",
    "MAX_PICTURE_BYTES",
    "MAX_STRIP_BYTES",
    "MAX_TEXT",
    "MAX_TILE_BYTES",
]

MAX_TILE_BYTES = 256 << 20
"""Of one tile or strip, decoded; tiles of real slides take less than 16 MiB."""

MAX_PICTURE_BYTES = 256 << 20
"""Of a label, macro or thumbnail picture, decoded: these are read as a whole."""

MAX_DIRECTORIES = 65_536
"""Of one TIFF, those below others included."""

MAX_TEXT = 64 << 20
"""Of one description, in bytes; OME-XML of large screens takes some MiB."""

MAX_STRIP_BYTES = 64 << 20
"""Of a compressed strip, decoded, so that pictures in such strips are still read by regions."""

CACHED_BYTES = 64 << 20
"""Decoded tiles that an open slide keeps: a row of them where another tile size is read."""

CACHED_STRIP_BYTES = 256 << 20
"""The same of slides in strips, of which a few reach over the whole width."""
