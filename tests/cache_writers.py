"""Processes that fill and read a cache at once, and what each sample must be."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.cache import DecodedCache
from sharedds.cache.layout import Record

__all__ = ["PublishedFirst", "fill", "fill_all", "hammer", "made", "wrong_in"]


def made(number: int) -> npt.NDArray[np.uint8]:
    """The picture with this number: sizes and pixels differ, and cost nothing to check."""
    height, width = 40 + number * 7 % 90, 40 + number * 13 % 110
    return np.full((height, width, 3), number % 251 + 1, np.uint8)


def wrong_in(cache: DecodedCache, count: int) -> list[int]:
    """Return the samples that are kept and are not what they should be."""
    wrong = []
    for number in range(count):
        found = cache.get(number)
        if found is not None and not np.array_equal(found, made(number)):
            wrong.append(number)
    return wrong


def fill(cache: DecodedCache, count: int, seed: int) -> int:
    """Put all samples in an order of one's own, and return how many are kept."""
    order = random.Random(seed).sample(range(count), count)
    return sum(cache.put(number, made(number)) for number in order)


def fill_all(cache: DecodedCache, count: int, seed: int) -> None:
    """In a process of its own: put all samples, and end with an error if one is not kept."""
    kept = fill(cache, count, seed)
    if kept != count:
        raise SystemExit(f"{kept} of {count} samples are kept")


def hammer(cache: DecodedCache, count: int, seed: int, *, ready: int) -> None:
    """Get and put samples at random until killed; end with an error if one is wrong.

    A byte is written to ``ready`` after the first.
    """
    draw = random.Random(seed)
    for step in itertools.count():
        number = draw.randrange(count)
        found = cache.get(number)
        if found is None:
            cache.put(number, made(number))
        elif not np.array_equal(found, made(number)):
            raise SystemExit(f"sample {number} is wrong")
        if not step:
            os.write(ready, b"x")


class PublishedFirst(DecodedCache):
    """The naive way: the index is written first, the sample after it, at leisure."""

    def put(self, index: Any, array: Any, *, stamp: int = 0) -> bool:
        """Publish, then write."""
        data = np.asarray(array, order="C")
        record = Record.of(data, index, stamp)
        size = self._layout.room_for(record.nbytes)
        offset = self._take(size)
        if offset is None:
            return False
        write: Callable[[int, Any], bool] = self._file.write
        write(self._layout.entry(index), self._layout.pack_place(offset, size))
        write(offset, record.pack())
        time.sleep(0.002)
        return write(offset + 64, data.reshape(-1).view(np.uint8).data)
