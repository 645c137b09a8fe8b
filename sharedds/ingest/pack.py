"""Packs a folder into a store, whatever it holds: pictures, volumes or slides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from sharedds.ingest.images.pack import pack_images
from sharedds.ingest.kinds import (
    HoldsSlidesError,
    HoldsVolumesError,
    Kind,
    PackOptions,
    check_pictures,
    is_for_slides,
    is_for_volumes,
)
from sharedds.ingest.options import PathLike, path_of
from sharedds.ingest.report import PackReport
from sharedds.ingest.slides.pack import pack_slides
from sharedds.ingest.volumes.pack import pack_volumes

__all__ = ["pack"]


def pack(
    source: PathLike,
    out: PathLike,
    *,
    kind: Kind = "auto",
    **options: Unpack[PackOptions],
) -> PackReport:
    """Pack a folder into one file. Interrupted, even by kill -9, the same call goes on.

    Args:
        source: The folder.
        out: The file to make; it appears when it is whole.
        kind: ``"image"``, ``"volume"``, ``"slide"``, or ``"auto"``: found out from what the folder
            holds. A folder of ordinary pictures, however large, is one of pictures.
        options: Of :func:`sharedds.ingest.pack_images` (``codec``, ``quality``, ``max_side``,
            ``size``, ``class_level``, ``classes``, ``labels``, ``shuffle_seed``, ...) or of
            :func:`sharedds.ingest.pack_volumes` (``patch``, ``labels``, ``spacing``,
            ``orientation``, ``codec``, ``allow_gaps``, ``anonymous``, ...) or of
            :func:`sharedds.ingest.pack_slides` (``tile``, ``codec``, ``quality``, ``levels``,
            ``annotations``, ...); of all: ``on_error``, ``workers``, ``force``, ``dry_run``,
            ``report``, ``progress``, ``include_hidden``.

    Returns:
        What was packed and what was not; also written as JSON lines.

    Raises:
        OptionError: An option of the other kind, or the folder holds both pictures and volumes.
        SourceError: The folder cannot be read, or holds nothing to pack.
        StoreExistsError: ``out`` exists and ``force`` is not set.
        StorageFullError: Not enough room; what is done is kept and goes on with the same call.
        DecodeError: A bad file, with ``on_error="raise"``.
    """
    verb: Callable[..., PackReport] = pack_volumes
    if is_for_slides(path_of("source", source), kind, options):
        verb = pack_slides
    else:
        volumes = is_for_volumes(path_of("source", source), kind, options)
        if not volumes:
            given: dict[str, Any] = dict(options)
            if volumes is None:
                given["on_scan"] = lambda index: check_pictures(index, options)
            try:
                return pack_images(source, out, **given)
            except HoldsSlidesError:
                verb = pack_slides
            except HoldsVolumesError:
                pass
    options.pop("on_estimate", None)
    return verb(source, out, **options)
