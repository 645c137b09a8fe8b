"""Whole pictures kept once they were decoded: how much room they get, and whose they are."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from sharedds.cache import DecodedCache
from sharedds.datasets.stored import StoredPictures
from sharedds.errors import OptionError
from sharedds.text import parse_size

__all__ = ["parse_cache_size", "picture_cache"]

#: Another version of these may decode to other pixels.
_DECODERS = ("sharedds", "simplejpeg", "pillow")


def parse_cache_size(value: int | str) -> int:
    """Return the bytes that a cache may take.

    Args:
        value: A whole number, or text such as ``"32GiB"``; see :func:`sharedds.text.parse_size`.

    Raises:
        OptionError: It is neither.
    """
    size: Any = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not hasattr(size, "__index__") or size.__index__() < 1:
        raise OptionError(f"cache={value!r}: bytes as a whole number, or text such as '32GiB'")
    return int(size.__index__())


def picture_cache(
    stored: StoredPictures, nbytes: int, folder: str | os.PathLike[str] | None
) -> DecodedCache:
    """Return a cache for the decoded pictures of a source.

    Args:
        stored: The pictures.
        nbytes: Bytes that may be taken.
        folder: Where other ranks and runs find it; None for none.

    Raises:
        OptionError, SourceError, StorageFullError, StoreBusyError: As of
            :class:`~sharedds.cache.DecodedCache`.
    """
    source, key = stored.source, ""
    if folder is not None:  # what is found there was made elsewhere
        versions = [_version(name) for name in _DECODERS]
        how = f"{stored.options} {stored.depth} {versions}"
        key = f"{source.digest()} {how} {source.variant()}"
    return DecodedCache(len(source), nbytes, key=key, folder=folder)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a source tree that nobody installed
        return ""
