"""Decoded blocks of arrays, kept in one process up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from sharedds.errors import OptionError

__all__ = ["BlockCache", "BlockCacheStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCacheStats:
    """What a cache holds and has done.

    Attributes:
        limit: Most bytes of blocks.
        bytes: Bytes of the blocks that are held.
        blocks: Number of these blocks.
        hits: Blocks that were there when asked for.
        misses: Blocks that were not.
        evicted: Blocks that were let go for others.
    """

    limit: int
    bytes: int
    blocks: int
    hits: int
    misses: int
    evicted: int


class BlockCache:
    """Decoded blocks, the least recently used ones let go first; threads may share it.

    It helps where neighbouring patches are read one after another: windows of a grid that overlap,
    several patches of one case. Patches far apart never meet a block again and only pay for it.

    Args:
        limit: Most bytes of blocks, 0 to keep none. The bytes of the numbers are counted, exactly;
            Python's own part is some 200 bytes for each block.

    Raises:
        OptionError: A negative limit.
    """

    def __init__(self, limit: int) -> None:
        given: object = limit
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise OptionError(f"a cache of {given!r} bytes: a whole number, 0 or more")
        self._limit = limit
        self._blocks: OrderedDict[Hashable, npt.NDArray[Any]] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = self._evicted = 0
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Most bytes of blocks."""
        return self._limit

    def get(self, key: Hashable) -> npt.NDArray[Any] | None:
        """Return a block, read-only, or None where it is not held."""
        with self._lock:
            block = self._blocks.get(key)
            if block is None:
                self._misses += 1
            else:
                self._hits += 1
                self._blocks.move_to_end(key)
            return block

    def put(self, key: Hashable, block: npt.NDArray[Any]) -> None:
        """Keep a block, which nobody may change from now on; one over the limit is not kept.

        Args:
            key: What it is asked for by.
            block: An array that owns its memory: a view would keep more alive than is counted.
        """
        size = block.nbytes
        block.flags.writeable = False
        with self._lock:
            old = self._blocks.pop(key, None)
            if old is not None:
                self._bytes -= old.nbytes
            if size > self._limit:
                return
            self._blocks[key] = block
            self._bytes += size
            self._shrink()

    def resize(self, limit: int) -> None:
        """Set another limit; what is over it is let go now.

        Raises:
            OptionError: A negative limit.
        """
        BlockCache(limit)
        with self._lock:
            self._limit = limit
            self._shrink()

    def clear(self) -> None:
        """Let go of all blocks."""
        with self._lock:
            self._blocks.clear()
            self._bytes = 0

    @property
    def stats(self) -> BlockCacheStats:
        """What it holds and has done, at one moment."""
        with self._lock:
            return BlockCacheStats(
                limit=self._limit,
                bytes=self._bytes,
                blocks=len(self._blocks),
                hits=self._hits,
                misses=self._misses,
                evicted=self._evicted,
            )

    def _shrink(self) -> None:
        while self._bytes > self._limit:
            _, block = self._blocks.popitem(last=False)
            self._bytes -= block.nbytes
            self._evicted += 1

    def __repr__(self) -> str:
        stats = self.stats
        return f"BlockCache({stats.blocks} blocks, {stats.bytes:,} of {stats.limit:,} bytes)"
