"""Values whose blocks are coded already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sharedds.store.array_meta import ArrayMeta

__all__ = ["EncodedArray"]


class EncodedArray(NamedTuple):
    """A value for an array field whose blocks are coded already, such as tiles of a file.

    Args:
        meta: What is stored about it: dtype, levels (shape, chunk, tables, colour), attrs.
        blocks: (level, number, bytes), ascending, one for each block of each level: no bytes for a
            block that is not there. Taken one by one.
    """

    meta: ArrayMeta
    blocks: Iterable[tuple[int, int, bytes]]
