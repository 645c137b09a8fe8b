"""Pictures that are stored whole: decoded, with errors that name sample and field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.codecs import DEFAULT_MAX_PIXELS, decode
from sharedds.errors import DecodeError, ImageTooLargeError
from sharedds.store.array_meta import ArrayMeta, LevelMeta
from sharedds.store.arrays import ChunkedArray
from sharedds.store.joined import OpenedShards
from sharedds.store.opened import OpenedStore
from sharedds.store.regions import Owner

__all__ = ["as_array", "picture"]


def picture(
    opened: OpenedStore | OpenedShards, attrs: Mapping[str, Any], name: str, position: int
) -> npt.NDArray[Any] | None:
    """Return a picture, (H, W, C); None where the sample has none.

    Args:
        opened: The open store.
        attrs: Of the store, which has the limit it was packed with.
        name: Of the field.
        position: Of the sample.

    Raises:
        CorruptDataError: It fails its checksum or does not decode.
        ImageTooLargeError: More pixels than the store was packed for.
    """
    start, stop = opened.entry_range(position, name)
    if start == stop:
        return None
    data = opened.entry(start, position, name)
    try:
        return decode(data, mode="keep", max_pixels=_max_pixels(attrs))
    except ImageTooLargeError as error:
        raise ImageTooLargeError(
            f"{opened.path}: sample {position}, field {name!r}: {error}",
            path=opened.path,
            sample=position,
            key=opened.key_of(position),
            field=name,
        ) from error
    except DecodeError as error:
        raise opened.corrupt(position, name, f"does not decode ({error})") from error


def as_array(image: npt.NDArray[Any], owner: Owner) -> ChunkedArray:
    """Return a decoded picture as an array of one block."""
    meta = ArrayMeta(image.dtype.newbyteorder("<").str, (LevelMeta(image.shape, image.shape),))
    data = np.ascontiguousarray(image).reshape(-1).view(np.uint8).data
    return ChunkedArray(meta, "raw", lambda _level, _numbers: [data], owner)


def _max_pixels(attrs: Mapping[str, Any]) -> int | None:
    """Return the limit the store was packed with."""
    recipe = attrs.get("recipe")
    if not isinstance(recipe, dict) or "max_pixels" not in recipe:
        return DEFAULT_MAX_PIXELS
    limit: Any = recipe["max_pixels"]
    return limit if limit is None or type(limit) is int else DEFAULT_MAX_PIXELS
