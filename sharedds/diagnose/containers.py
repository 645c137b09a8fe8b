"""Reads Python's containers as they are, whatever a subclass of the user's makes of them."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = [
    "CONTAINERS",
    "first_items",
    "is_a",
    "is_exactly",
    "is_object_array",
    "item_blocks",
    "item_count",
]

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


def is_a(obj: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether an object is of a class, by its type alone; isinstance may ask the object itself."""
    return issubclass(type(obj), kinds)


def is_exactly(obj: object, *kinds: type) -> bool:
    """Whether an object is of one of some classes itself; classes may redefine how they compare."""
    return any(type(obj) is kind for kind in kinds)


def is_object_array(obj: Any) -> bool:
    """Whether it is a NumPy array whose items are Python objects."""
    return is_a(obj, np.ndarray) and np.ndarray.dtype.__get__(obj).kind == "O"


def item_count(obj: Any) -> int:
    """Return the number of items of a container or object array."""
    if is_a(obj, np.ndarray):
        return int(np.ndarray.size.__get__(obj))
    return int(_base(obj).__len__(obj))


def first_items(obj: Any, count: int) -> list[Any]:
    """Return the first items of a container or object array; of a dict, the values."""
    if is_a(obj, np.ndarray):
        return list(np.ndarray.flat.__get__(obj)[:count])
    kind = _base(obj)
    items = dict.values(obj) if kind is dict else kind.__iter__(obj)
    return list(itertools.islice(items, count))


def item_blocks(obj: Any, size: int, blocks: int) -> Iterator[list[Any]]:
    """Yield blocks of neighbours, spread evenly over a container; of a dict, keys and values.

    Args:
        obj: The container or object array.
        size: Items in a block.
        blocks: How many blocks at most, about; all of the container if it has no more.
    """
    count = item_count(obj)
    every = max(1, count // (size * blocks))
    starts = range(0, count, size * every)
    # Where items can be reached by number, in an order that is spread evenly wherever it ends.
    spread = sorted(starts, key=lambda start: int(f"{start // (size * every):08b}"[::-1], 2))
    if is_a(obj, np.ndarray):
        flat = np.ndarray.flat.__get__(obj)
        yield from (list(flat[start : start + size]) for start in spread)
        return
    kind = _base(obj)
    if kind in (list, tuple):
        get = kind.__getitem__
        yield from (list(get(obj, slice(start, start + size))) for start in spread)
        return
    items: Iterator[Any] = iter(dict.items(obj)) if kind is dict else kind.__iter__(obj)
    at = 0
    for start in starts:
        block = list(itertools.islice(items, start - at, start - at + size))
        at = start + size
        yield list(itertools.chain(*block)) if kind is dict else block


def _base(obj: Any) -> Any:
    return next(kind for kind in CONTAINERS if issubclass(type(obj), kind))
