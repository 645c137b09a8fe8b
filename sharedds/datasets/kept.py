"""Whole pictures kept once they were decoded, each as long as its file stays what it was."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import numpy.typing as npt

from sharedds.cache import DecodedCache
from sharedds.datasets.stored import StoredPictures
from sharedds.errors import OptionError
from sharedds.handles import per_process
from sharedds.text import parse_size

__all__ = ["KeptPictures", "parse_cache_size"]

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


class KeptPictures:
    """The decoded pictures of a source, kept for all processes of this machine.

    Args:
        stored: The pictures.
        nbytes: Bytes that may be taken.
        folder: Where other ranks and runs find them; None for none.

    Attributes:
        cache: Where they are.

    Raises:
        OptionError, SourceError, StorageFullError, StoreBusyError: As of
            :class:`~sharedds.cache.DecodedCache`.
    """

    def __init__(
        self, stored: StoredPictures, nbytes: int, folder: str | os.PathLike[str] | None
    ) -> None:
        self._source = stored.source
        key = ""
        if folder is not None:  # what is found there was made elsewhere
            versions = [_version(name) for name in _DECODERS]
            key = f"{stored.source.digest()} {stored.options} {stored.depth} {versions}"
        self.cache = DecodedCache(len(stored.source), nbytes, key=key, folder=folder)

    @per_process
    def _stamps(self) -> dict[int, int]:
        """Of pictures that were not found and are being decoded."""
        return {}

    def get(self, index: int) -> npt.NDArray[Any] | None:
        """Return a picture, read-only, if it is kept and its file is the one it came from."""
        stamp = self._source.stamp(index)
        pixels = self.cache.get(index, stamp=stamp)
        if pixels is None:
            # What is decoded now may belong to an older file than the one that is there when it
            # is put; of two threads, the earlier stamp counts: at worst it is decoded once more.
            self._stamps.setdefault(index, stamp)
        return pixels

    def put(self, index: int, array: npt.NDArray[Any]) -> bool:
        """Keep a picture that :meth:`get` did not find, if there is room."""
        stamp = self._stamps.pop(index, None)
        return stamp is not None and self.cache.put(index, array, stamp=stamp)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a source tree that nobody installed
        return ""
