"""Decoded samples kept once for all workers and ranks of a machine, in a mapped file."""

from sharedds.cache.decoded import CacheStats, DecodedCache

__all__ = ["CacheStats", "DecodedCache"]
